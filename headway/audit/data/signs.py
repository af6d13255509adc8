"""Artefacts that are single features: a file marker that one class has, the class name in the text, trailing blanks.

Natural features must not raise an alarm: "plus" makes a sum positive, and "logger" is in every fourth docstring of
`logging`. So words have other thresholds than signs that are not words, and all thresholds are above honest data sets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned, worst_of
from headway.audit.data.near_copies import evenly
from headway.audit.data.row_set import RowSet, normalise, shortened
from headway.audit.data.word_model import WordModel

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST_ROWS = 5000  # of train that are used, evenly spaced
FEWEST_ROWS = 20
BY_CHANCE = 1e-3
"""Maximum probability of a finding by chance, over all signs and classes together."""
TIMES = 20
"""Minimum factor by which a sign is more frequent in one class than in the others."""

Labels = np.ndarray
"""Class indices, one for each row."""


def train_of(data: RowSet) -> tuple[list[str], Labels, list[str]]:
    """Rows of train, their class indices, and the class names."""
    data.needs_labels()
    rows, labels = data.rows["train"], data.labels["train"]
    classes = sorted(set(labels))
    if len(rows) < FEWEST_ROWS or len(classes) < 2:
        raise DoesNotApply(f"train has fewer than {FEWEST_ROWS} rows, or only one class")
    some = evenly(len(rows), MOST_ROWS)
    return [rows[k] for k in some], np.array([classes.index(labels[k]) for k in some]), classes


# --- signs -------------------------------------------------------------------------------------------------------


Kind = Literal["written", "first or last", "word"]
"""How a row is written, and tokens that are not words; words that are nearly always first or last; all other words."""
WARNS = {"written": 0.1, "first or last": 0.2, "word": 0.4}
FAILS = {"written": 0.3, "first or last": 0.5}


@dataclass(frozen=True)
class Sign:
    """A feature that a row has or has not."""

    what: str
    kind: Kind


def signs_of(row: str) -> dict[str, bool]:
    """The surface features of a row; the value says whether it is a word, which may be what the text is about. All else
    is how the row is written: white space, first and last characters, capitals."""
    found = {f"“{token}”": _is_word(token) for token in row.split()}
    bare = row.strip()
    marks = {
        "white space at the beginning": row[:1].isspace(),
        "white space at the end": row[-1:].isspace(),
        "two blanks in a row": "  " in bare,
        "a tab": "\t" in bare,
        "a line break": "\n" in bare,
        "no capital letter": bare == bare.lower(),
        "capitals only": bare == bare.upper() and bare != bare.lower(),
        "letters that are not ASCII": not bare.isascii(),
        "a digit": any(letter.isdigit() for letter in bare),
    }
    found |= dict.fromkeys((mark for mark, there in marks.items() if there), False)
    if bare:
        found[f"{_kind(bare[0])} as the first sign"] = found[f"{_kind(bare[-1])} as the last sign"] = False
    return found


def _is_word(token: str) -> bool:
    """Whether it has letters and no digits, so that it is no sign, number or identifier."""
    return any(map(str.isalpha, token)) and not any(map(str.isdigit, token))


def _kind(letter: str) -> str:
    return "a letter" if letter.isalpha() else "a digit" if letter.isdigit() else f"“{letter}”"


@audit("data")
def telltale_sign(data: RowSet) -> Outcome:
    """No surface feature ("sign") occurs in the rows of one class only.

    Signs are all tokens separated by white space, and how rows are written: white space around them, the first and the
    last character, capitals, digits, letters that are not ASCII. A sign tells a class if it is 20 times as frequent
    there as in other classes, and chance would do the same in fewer than 1 of 1000 data sets, all signs and classes
    taken together. The number is the share of the class's rows that have it. For tokens without letters, identifiers,
    and how rows are written, 10 % is a warning and 30 % a failure (a president whose speeches were typed with another
    dash has 6 %); it is also a warning if a way of writing is 60 points more frequent in one class than in the others.
    For words that are nearly always first or last, 20 and 50 % (every tenth docstring of `logging` begins with "Log").
    Other words may be what the class is about: "plus" is in 68 % of the sums that are positive and in none of the
    others. They count from 40 % of the rows on, and only if a model of words gets worse without them: 0.05 of the F1 of
    the class is a warning, 0.15 a failure. Remove the sign from all rows.
    """
    from scipy.sparse import csr_matrix

    rows, labels, classes = train_of(data)
    signs, table = _table(rows)
    sizes = np.bincount(labels, minlength=len(classes))
    by_class = np.asarray((csr_matrix(np.eye(len(classes))[labels]).T @ table).todense())
    everywhere = by_class.sum(0)
    found: list[tuple[float, Outcome]] = []
    for k, name in enumerate(classes):
        others = len(rows) - sizes[k]
        share, elsewhere = by_class[k] / sizes[k], (everywhere - by_class[k]) / others
        times = (share + 0.5 / sizes[k]) / (elsewhere + 0.5 / others)
        one_sided = (times >= TIMES) & (share >= 0.05)
        written = np.array([sign.kind == "written" for sign in signs])
        leaning = written & (share - elsewhere >= 0.6)
        for j in np.flatnonzero(one_sided | leaning):
            chance = _by_chance(int(by_class[k, j]), int(everywhere[j]), int(sizes[k]), len(rows))
            if chance * len(signs) * len(classes) > BY_CHANCE:
                continue
            where = f"in {share[j]:.0%} of the rows of class '{name}' and in {elsewhere[j]:.1%} of others"
            said = f"{signs[j].what} is {where}"
            found.append((float(share[j]), _judged(signs[j], float(share[j]), bool(one_sided[j]), said, data, k)))
    if not found:
        return passed(0.0, f"none of {len(signs):,} signs occurs in the rows of one class only")
    return worst_of(outcome for _, outcome in sorted(found, key=lambda item: -item[0]))


def _judged(sign: Sign, share: float, one_sided: bool, said: str, data: RowSet, of: int) -> Outcome:
    if share < WARNS[sign.kind]:
        return passed(share, said)
    if sign.kind != "word":
        said += _example(data, sign)
        if share >= FAILS[sign.kind] and one_sided:
            return failed(share, f"{said}; this one sign predicts the class without any text")
        return warned(share, said)
    with_it, without = _f1(data, sign.what.strip("“”"), of)
    said += f"; for this class a model of words has an F1 of {with_it:.2f} with it and of {without:.2f} without it"
    loss = with_it - without
    return (failed if loss >= 0.15 else warned if loss >= 0.05 else passed)(share, said)


def _example(data: RowSet, sign: Sign) -> str:
    row = next((k for k, row in enumerate(data.rows["train"]) if sign.what in signs_of(row)), None)
    return "" if row is None else f" (row {row + 1:,} of train: {shortened(data.rows['train'][row])})"


def _f1(data: RowSet, token: str, of: int) -> tuple[float, float]:
    """The leave-one-out F1 of a model of words for one class: on the rows as they are, and without this token."""
    rows, labels, classes = train_of(data)
    some = evenly(len(rows), 1000)
    words, found = set(normalise(token).split()), []
    for hidden in (set(), words):
        texts = [" ".join(word for word in normalise(rows[k]).split() if word not in hidden) for k in some]
        answered, wanted = WordModel.fit(texts, labels[some], len(classes)).left_out.argmax(1) == of, labels[some] == of
        found.append(float(2 * (answered & wanted).sum() / max(answered.sum() + wanted.sum(), 1)))
    return found[0], found[1]


def _table(rows: Sequence[str]) -> tuple[list[Sign], "csr_matrix"]:
    """The signs that at least five rows have, and which rows have them."""
    from scipy.sparse import csr_matrix

    of_rows = [signs_of(row) for row in rows]
    times = Counter(what for signs in of_rows for what in signs)
    edges = Counter(f"“{token}”" for row in rows for token in {*row.split()[:1], *row.split()[-1:]})
    numbers = {what: k for k, what in enumerate(what for what, count in times.items() if count >= 5)}
    words = {what: is_word for signs in of_rows for what, is_word in signs.items()}
    # In rows of two or three words, every word is first or last.
    long = np.median([len(row.split()) for row in rows]) > 4
    at_edge = {what for what in numbers if long and edges[what] >= 0.8 * times[what]}
    pairs = [(row, numbers[what]) for row, signs in enumerate(of_rows) for what in signs if what in numbers]
    place = np.array(pairs, np.int64).reshape(-1, 2).T
    table = csr_matrix((np.ones(place.shape[1]), (place[0], place[1])), shape=(len(rows), len(numbers)))
    kinds: dict[str, Kind] = {what: "word" if words[what] else "written" for what in numbers}
    kinds |= dict.fromkeys((what for what in at_edge if words[what]), "first or last")
    return [Sign(what, kinds[what]) for what in numbers], table


def _by_chance(here: int, everywhere: int, size: int, rows: int) -> float:
    """The probability that so many of the rows with a sign are of one class if sign and class are independent."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(here - 1, rows, everywhere, size))


@audit("data")
def label_in_text(data: RowSet) -> Outcome:
    """The text does not contain its label.

    Rows that contain the name of their own class, as one word or several, are counted, and so are rows with the name of
    another. The number is the share of train rows that name their own class. Texts about e-mail say "email" (26 % of
    the rows of `xml` say "xml", 12 % of all docstrings name their package), and that is no artefact; but from 25 % of
    all rows on, if four in five of the names are right, it is a warning, and from 50 % on a failure: the label was left
    in the text. At the beginning or end of the rows 10 % is a warning and 30 % a failure.
    """
    rows, labels, classes = train_of(data)
    names = [normalise(name) for name in classes]
    texts = [f" {normalise(row)} " for row in rows]
    anywhere = np.array([[name != "" and f" {name} " in text for name in names] for text in texts])
    at_edge = np.array(
        [[text.startswith(f" {name} ") or text.endswith(f" {name} ") for name in names] for text in texts]
    )
    found = []
    for named, what, warns, fails in (
        (anywhere, "name their own class", 0.25, 0.5),
        (at_edge, "begin or end with the name of their class", 0.1, 0.3),
    ):
        own = named[np.arange(len(labels)), labels]
        share, right, row = float(own.mean()), own.sum() / max(named.sum(), 1), int(own.argmax())
        sentence = f"{share:.1%} of the rows of train {what}"
        if share >= warns and right >= 0.8:
            sentence += f", such as {shortened(rows[row], 90)} of class '{classes[labels[row]]}'"
            found.append((failed if share >= fails else warned)(share, sentence))
        else:
            found.append(passed(share, sentence))
    return worst_of(found)


SIGN_AUDITS: list[Audit] = [telltale_sign, label_in_text]
