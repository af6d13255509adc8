"""The tables in audits.md: all audits; and every planted fault, the audit that catches it, and that audit's sentence.

`python docs/audits.py` plants all faults into small models of Python's documentation, and takes some minutes;
`python docs/audits.py leaks scores` plants only faults of these kinds, `python docs/audits.py new` those missing from
the page, `python docs/audits.py -` none. A test fails if the page is out of date."""

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

from headway.audit.data.row_set import RowSet
from headway.audit.plants.library import faults
from headway.audit.plants.needs import CLASSIFIER, JUDGED_BY_BLEU, MASKED, MATCHER, ONE_STACK, TRANSLATOR
from headway.audit.plants.planting import Fault
from headway.audit.runner import ALL_AUDITS
from headway.data.embedded.numbers_en_fr import english, french
from headway.data.running import sources
from headway.experiment.self_test import SelfTest
from headway.recipe.recipe import Recipe, from_tree

PAGE = Path(__file__).parent / "audits.md"
OTHERS, NONE = "**by another**: ", "**missed**: "
MODEL = {"layers": 2, "width": 32, "context": 32, "mixer": {"heads": 4}, "positions": "rotary"}
TRAINING = {"batch": 8, "optimizer": {"learning_rate": 3e-3}, "schedule": {"warmup": "5 steps"}}
TEXT = {"data": {"source": "python-docs", "tokenizer": "char"}, "model": MODEL, "training": TRAINING}
ROWS = {
    "data": {"kind": "labelled", "source": "python-modules"},
    "model": {**MODEL, "kind": "classifier", "context": 48},
    "training": TRAINING,
}
PAIRS = {
    "data": {"kind": "pairs", "source": "files", "exact": True, "tokenizer": "word", "batches": {"buckets": 1}},
    "model": {"kind": "encoder-decoder", "layers": 1, "width": 32, "context": 24, "mixer": {"heads": 2}},
    "training": {"batch": 16, "optimizer": {"learning_rate": 1e-2}},
}
PICTURES = {
    "data": {"kind": "pictures", "source": "scenes", "rows": 600},
    "model": {
        "kind": "clip",
        "layers": 1,
        "width": 32,
        "context": 16,
        "mixer": {"heads": 2},
        "shared": 16,
        "picture": {"patch": 12, "layers": 1, "width": 32, "mixer": {"heads": 2}},
    },
    "training": {"batch": 32, "optimizer": {"learning_rate": 3e-3}, "schedule": {"warmup": "5 steps"}},
}
"""Recipes to plant faults into; each fault adds the changes it needs."""
HELD_OUT = 12_000
"""Characters per scored split, unless the fault is in the data: few enough for audits to recompute all of them."""


@cache
def some_text() -> str:
    """A folder with the first part of Python's documentation."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for split, text in sources.read_splits("python-docs", None, 0.1).items():
        (folder / f"{split}.txt").write_text(text[: 300_000 if split == "train" else HELD_OUT], "utf-8")
    return str(folder)


@cache
def some_pairs(as_sentences: bool) -> str:
    """A table of numbers, digit by digit, in English and French. As sentences, rows are longer and capitalised."""
    known = {n**3 for n in range(22, 400)} if as_sentences else {*range(0, 1000, 3), *(n**3 for n in range(11, 150))}
    numbers = sorted(known, key=lambda n: n * 2654435761 % 2**32)
    table = Path(tempfile.mkdtemp()) / "pairs.tsv"
    atexit.register(shutil.rmtree, table.parent)
    rows = [[" ".join(word(int(digit)) for digit in str(n)) for word in (english, french)] for n in numbers]
    rows = [[side.capitalize() for side in row] for row in rows] if as_sentences else rows
    table.write_text("".join(f"{source}\t{target}\n" for source, target in rows), "utf-8")
    return str(table)


def recipe_for(fault: Fault) -> Recipe:
    """The smallest recipe in which the fault has an effect."""
    if {TRANSLATOR, ONE_STACK} & {*fault.needs}:
        tree = deepcopy(PAIRS)
        tree["data"] |= {"path": some_pairs(JUDGED_BY_BLEU in fault.needs)}
        return from_tree(tree, "small", overrides=[one for one in fault.changes if one not in TRANSLATOR.changes])
    if MATCHER in fault.needs:
        overrides = [one for one in fault.changes if one not in MATCHER.changes]
        return from_tree(deepcopy(PICTURES), "small", overrides=overrides)
    is_of_rows = CLASSIFIER in fault.needs or fault.of is RowSet
    changes = [change for change in fault.changes if change not in (*CLASSIFIER.changes, *MASKED.changes)]
    tree = deepcopy(ROWS if is_of_rows else TEXT)
    if MASKED in fault.needs:
        tree["model"] |= {"kind": "masked-language-model"}
    if fault.of is None and not is_of_rows:
        tree["data"] |= {"source": "files", "path": some_text()}
    return from_tree(tree, "small", overrides=changes)


def said_of(some: Sequence[Fault]) -> dict[str, str]:
    """The last column of the table, by fault. Faults with the same recipe are tried together."""
    by_recipe: dict[str, tuple[Recipe, list[Fault]]] = {}
    for fault in some:
        recipe = recipe_for(fault)
        by_recipe.setdefault(recipe.hash, (recipe, []))[1].append(fault)
    found: dict[str, str] = {}
    for k, (recipe, here) in enumerate(by_recipe.values(), 1):
        print(f"recipe {k} of {len(by_recipe)}: {len(here)} faults", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for trial in SelfTest(recipe, here, Path(folder)).trials():
                said = "" if trial.outcome == "seen" else OTHERS if trial.instead else NONE
                said = f"{said}{trial.sentence}".replace("|", "¦")
                found[trial.fault.words] = said if len(said) <= 200 else said[:199] + "…"
                if trial.outcome != "seen":
                    print(f"  {trial.outcome}: {trial.fault.words}: {trial.sentence}", file=sys.stderr, flush=True)
    return found


def written() -> dict[str, str]:
    """The sentences that are on the page."""
    table = PAGE.read_text("utf-8").partition("<!-- faults, by docs/audits.py -->")[2]
    return dict(re.findall(r"^\| (.+?) \| `[\w-]+` \| (.*) \|$", table, re.MULTILINE))


def audits_table() -> str:
    lines = ["| audit | of | what must hold |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{one.name}` | {one.subject} | {one.about} |" for one in ALL_AUDITS)]) + "\n"


def faults_table(said: dict[str, str]) -> str:
    known = [fault for fault in faults() if fault.words in said]
    kinds = list(dict.fromkeys(fault.kind for fault in known))
    lines = ["| kind | faults | caught by the intended audit | by another only | missed |", "|---|---|---|---|---|"]
    for kind in (*kinds, None):
        of_kind = [said[fault.words] for fault in known if kind in (None, fault.kind)]
        others, none = (sum(one.startswith(mark) for one in of_kind) for mark in (OTHERS, NONE))
        lines.append(f"| {kind or '**all**'} | {len(of_kind)} | {len(of_kind) - others - none} | {others} | {none} |")
    lines += ["", "| fault | intended audit | its sentence |", "|---|---|---|"]
    for kind in kinds:
        lines.append(f"| **{kind}** | | |")
        lines += [f"| {f.words} | `{f.caught_by}` | {said[f.words]} |" for f in known if f.kind == kind]
    return "\n".join(lines) + "\n"


def write(name: str, table: str) -> None:
    """Replace the text between the table's two markers."""
    begin, end = f"<!-- {name}, by docs/audits.py -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = PAGE.read_text("utf-8").partition(begin)
    PAGE.write_text(before + begin + table + end + rest.partition(end)[2], "utf-8")


if __name__ == "__main__":
    kinds, known = sys.argv[1:], written()
    asked = [one for one in faults() if not kinds or one.kind in kinds or ("new" in kinds and one.words not in known)]
    said = said_of(asked)
    write("audits", audits_table())
    write("faults", faults_table(known | said))
