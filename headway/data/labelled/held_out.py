"""Hold rows out of train where the user has given no split: by text, or stratified by class with a seed.

Either way all rows with the same text go to the same side, and the order of the rows does not matter: the split is a
pure function of the set of rows (and of the seed).
"""

import hashlib
import math
from collections import Counter
from typing import NamedTuple

from headway.core.errors import UserError
from headway.data.labelled.tables import Row

Splits = dict[str, list[Row]]


def normalised(text: str) -> str:
    """The text with uniform white space: texts that differ only in white space count as the same."""
    return " ".join(text.split())


def by_text(splits: Splits, fraction: float, name: str) -> tuple[Splits, str]:
    """Hold out a share of the texts of train as valid, chosen by a hash of the text. Known sets are split this way."""
    texts = sorted({normalised(row.text) for row in splits["train"]}, key=_hash)
    chosen = set(texts[: max(1, round(fraction * len(texts)))])
    sides: dict[bool, list[Row]] = {False: [], True: []}
    for row in splits["train"]:
        sides[normalised(row.text) in chosen].append(row)
    if not sides[False]:
        raise UserError(f"'{name}' has {len(texts):,} different texts, too few to hold out {fraction:.0%} of them")
    rest = {split: rows for split, rows in splits.items() if split != "train"}
    told = f"valid: {len(sides[True]):,} texts, {fraction:.0%} of train held out, since the data has none"
    return {"train": sides[False], "valid": sides[True], **rest}, told


class HeldOut(NamedTuple):
    """How much of train is held out, and by which seed."""

    valid: float
    test: float | None = None
    """None = as much as valid for a single table; nothing for a folder, which has a test split or needs none."""
    seed: int | None = 0
    """None = only valid, chosen by text, as in older versions."""

    def by_class(self, splits: Splits, name: str, single: bool) -> tuple[Splits, str]:
        """Hold out shares of every class as valid and test. A class with a single text stays in train."""
        usual = min(self.valid, (1 - self.valid) / 2) if single else 0.0
        shares = {"valid": self.valid, "test": usual if self.test is None else self.test}
        shares = {split: share for split, share in shares.items() if split not in splits and share > 0}
        if not shares:
            return splits, ""
        groups: dict[str, list[str]] = {}
        for text, label in _label_of(splits["train"]).items():
            groups.setdefault(label, []).append(text)
        side = self._sides(groups, shares)
        found: Splits = {split: [] for split in ("train", *shares)}
        for row in splits["train"]:
            found[side.get(normalised(row.text), "train")].append(row)
        for split in found:
            if not found[split]:
                n = sum(map(len, groups.values()))
                much = " and ".join(f"{share:.0%}" for share in shares.values())
                raise UserError(
                    f"'{name}' has {n:,} different texts in {len(groups):,} classes, too few to hold out {much} of "
                    f"them: nothing would be left for '{split}' (data.valid_fraction, data.test_fraction)"
                )
        told = " and ".join(f"{len(found[split]):,} texts for {split}" for split in shares)
        told += f" held out of {len(splits['train']):,}, stratified by class (data.split_seed={self.seed})"
        if alone := sorted(label for label, texts in groups.items() if len(texts) == 1):
            shown = ", ".join(f"'{label}'" for label in alone[:5]) + (" …" if len(alone) > 5 else "")
            told += (
                f"; {len(alone):,} class{'es have' if len(alone) > 1 else ' has'} a single text ({shown}): "
                f"{'they stay' if len(alone) > 1 else 'it stays'} in train, so no score shows how well "
                f"{'they are' if len(alone) > 1 else 'it is'} predicted"
            )
        order = ("train", "valid", "test")
        together = {**found, **{split: rows for split, rows in splits.items() if split != "train"}}
        return {split: together[split] for split in sorted(together, key=lambda s: (*order, s).index(s))}, told

    def _sides(self, groups: dict[str, list[str]], shares: dict[str, float]) -> dict[str, str]:
        """The split of every held-out text. Shares are rounded over all classes together, so that many small classes
        give as much as one large one; but no class gives its last text."""
        side: dict[str, str] = {}
        due = dict.fromkeys(shares, 0.0)
        for label in sorted(groups, key=lambda label: (_hash(f"{self.seed}\n{label}"), label)):
            texts = sorted(groups[label], key=lambda text: (_hash(f"{self.seed}\n{text}"), text))
            for split, share in shares.items():
                due[split] += share * len(groups[label])
                # Half is rounded up; the fraction that is left over, or missing, is carried to the next class.
                for _ in range(min(math.floor(due[split] + 0.5), len(texts) - 1)):
                    side[texts.pop()] = split
                    due[split] -= 1
        for split in shares:  # with few texts a share may round to none
            if split not in side.values():
                left = {label: [text for text in texts if text not in side] for label, texts in groups.items()}
                largest = min(left, key=lambda label: (-len(left[label]), label))
                if len(left[largest]) > 1:
                    side[min(left[largest], key=lambda text: (_hash(f"{self.seed}\n{text}"), text))] = split
        return side


def _label_of(rows: list[Row]) -> dict[str, str]:
    """The class of every text; the most frequent one if a text has several."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(normalised(row.text), Counter())[row.label] += 1
    return {text: min(counts, key=lambda label: (-counts[label], label)) for text, counts in found.items()}


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
