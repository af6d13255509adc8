"""Audits of data in rows, with or without labels: what is in the test split that should not be there.

A test row that is also in the train split is remembered, not predicted. Rows are compared exactly, then ignoring case,
punctuation and white space, then by the words they share; each audit counts only what the ones before it did not, so
the three numbers add up. Held-out splits are also compared with each other and with themselves.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned, worst_of
from headway.audit.data.artefacts import ARTEFACT_AUDITS
from headway.audit.data.classes import CLASS_AUDITS
from headway.audit.data.label_noise import NOISE_AUDITS
from headway.audit.data.row_set import RowSet, listed, shortened

MOST_SEEN = 0.02
FAR_TOO_MANY = 0.05
PIECES = 3
TOO_ALIKE = 0.20
"""A larger share of near copies is a warning even if train has as many in itself."""

_SPECIAL = "unk|pad|eos|bos|sos|sep|cls|mask|num|eot|s"
_DAMAGE = re.compile(
    "\ufffd|[ÃÂ][\u0080-\u00bf]|â€|&(?:amp|quot|lt|gt|nbsp|apos|#\\d{2,5});"
    r"|(?<!\S)[^\W\d_]+\?[^\W\d_]|\w@@(?=\s)|(?:^|\s)▁\w"  # f?r; the@@ re; ▁there
)
_MARKUP = re.compile(rf"""\s*(?: <(?!/?(?:{_SPECIAL})>)(?:!--|[/!?]?[a-z])[^<>]*>  # a tag, but no word such as <unk>
                            | (?:https?://|www\.)\S+\s*$                         # an address and nothing else
                            | [\[{{]\s*\{{?\s*"[^"]*"\s*:                        # JSON
                            )""", re.VERBOSE | re.IGNORECASE)  # fmt: skip


# --- rows of held-out splits in train ----------------------------------------------------------------------------


@audit("data")
def seen_rows(data: RowSet) -> Outcome:
    """No row of a held-out split is in the train split.

    Rows are compared character by character. A row that was seen in training can turn a wrong answer into a right one,
    so the share of such rows bounds how much they can change an accuracy. Up to min(2 %, 1/√n) they pass (1/√n is half
    the width of the 95 % interval of an accuracy on n rows; short rows such as "no" occur twice in any honest data
    set). Above 5 % the score says little about new rows, and it fails. Remove the rows from train, or report the
    accuracy on seen and unseen rows separately, as `score` does.
    """
    return _of_shares(data, data.exact, "in train, character by character")


@audit("data")
def seen_rows_normalised(data: RowSet) -> Outcome:
    """No row of a held-out split differs from a train row in case, punctuation, white space or Unicode form alone.

    Both sides are converted to NFKC, case-folded, and split into words, and only the words are compared. Rows that are
    exactly equal count in seen-rows, not here. The thresholds are those of seen-rows, because a row that was only
    retyped is remembered as well as a copied one: drop such rows, or score them separately.
    """
    only = {split: alike & ~data.exact[split] for split, alike in data.alike.items()}
    return _of_shares(data, only, "in train but for case, punctuation or white space")


@audit("data")
def seen_rows_nearly(data: RowSet) -> Outcome:
    """No row of a held-out split is a near copy of a train row.

    Two rows are near copies if they share half of the content of the shorter one. Words weigh more the rarer they are,
    and the shared words must be worth at least 20 nats, so that short and common rows are not judged (near_copies.py
    says how). Order does not matter. So rows are found that were shuffled, cut, retyped with errors, or had every third
    word replaced. In honest data sets (film reviews, talks, captions, speeches, sums) 0 to 1 % of the rows have a near
    copy. Some kinds of text have more (docstrings: 7 %), and then rows of train have them in train, too; how many is
    measured on 1000 rows of train. A share above that by 5 % of the rows is a failure, by 2 % a warning. More than 20 %
    of the rows is a warning even where train has as many, because then near copies were made before the rows were
    split. Remove the near copies from train, or split by what they have in common. Rows that seen-rows or
    seen-rows-normalised found are not counted again.
    """
    near: dict[str, np.ndarray] = {}
    pairs: dict[str, Pair] = {}
    for split in data.held_out:
        copies = data.near(split, "train")
        near[split] = copies.which(len(data.rows[split])) & ~data.alike[split] & ~data.exact[split]
        if near[split].any():
            row, twin = copies.clearest(near[split])
            pairs[split] = row, "train", twin
    return _of_shares(data, near, "nearly in train", pairs)


@audit("data")
def shared_rows(data: RowSet) -> Outcome:
    """No row of a held-out split is in another held-out split, exactly or nearly.

    Whatever was chosen by looking at valid (the learning rate, the best checkpoint) was chosen by looking at test as
    well if the rows are the same, and the test score is too good by an unknown amount. Rows are compared normalised and
    as near copies, with the thresholds of seen-rows-nearly. Remove them from valid.
    """
    if len(data.held_out) < 2:
        raise DoesNotApply("there is only one held-out split")
    equal: dict[str, np.ndarray] = {}
    near: dict[str, np.ndarray] = {}
    pairs: dict[str, Pair] = {}
    for k, split in enumerate(data.held_out[1:], 1):
        known = {text for other in data.held_out[:k] for text in data.normalised[other]} - {""}
        equal[split] = np.array([text in known for text in data.normalised[split]], np.bool_)
        near[split] = np.zeros_like(equal[split])
        for other in data.held_out[:k]:
            copies = data.near(split, other)
            found = copies.which(len(equal[split])) & ~equal[split]
            near[split] |= found
            if found.any():
                row, twin = copies.clearest(found)
                pairs[split] = row, other, twin
    others = listed(data.held_out[:-1])
    return worst_of(
        [_of_shares(data, equal, f"in {others} too"), _of_shares(data, near, f"nearly in {others} too", pairs)]
    )


@audit("data")
def repeated_rows(data: RowSet) -> Outcome:
    """The rows of a held-out split are different from each other.

    Fifty rows repeated eighteen times are not nine hundred: an accuracy on them is as uncertain as on fifty, and its
    interval is four times too short. Counted are rows that are equal once normalised, and near copies by their overlap.
    Some are natural ("no" is said twice, and a manual describes two functions alike), and then train has as many; so
    what is usual is subtracted: the probability that two rows of train are equal, and the near copies in pieces of
    train of the same length. The number is n' / n, where n' = n / (1 + copies per row) is the effective number of
    different rows. Below 0.8 is a warning (intervals are 12 % too short), below 0.5 a failure. Drop the copies; until
    then, read intervals as if there were n' rows.

    Copies within train do not affect the score's validity, but they count as often as they occur: it is a warning if
    more than 30 % of the rows of train repeat another row.
    """
    train = data.normalised.get("train", ())
    worst, share, said = "", 2.0, []
    for split in [split for split in data.rows if split != "train" and len(data.rows[split]) > 1]:
        n = len(data.rows[split])
        copies = data.equal(split) + data.resembling(split, slice(n))
        if copies > 0.02 and len(train) > 1:
            pieces = [slice(first, first + n) for first in np.linspace(0, max(len(train) - n, 0), PIECES).astype(int)]
            copies -= data.equal("train") * (n - 1) / (len(train) - 1)
            copies -= max(data.resembling("train", piece) for piece in pieces)
        effective = 1 / (1 + max(copies, 0.0))
        if effective < share:
            worst, share = split, effective
        said.append(f"the {n:,} rows of {split} are effectively {effective * n:,.0f} different ones")
    with_words = [text for text in train if text]
    again = (len(with_words) - len(set(with_words))) / len(train) if train else 0.0
    if again > 0.3:
        said.append(f"{again:.0%} of the rows of train repeat another row, and count as often")
    if not said:
        raise DoesNotApply("there are not two rows to compare")
    sentence = "; ".join(said)
    if share < 0.8:
        often = Counter(data.normalised[worst]).most_common(1)[0]
        width = math.sqrt(1 / share)
        sentence += f": intervals of {worst} are {width:.1f} times too short"
        sentence += f" ({shortened(often[0])} is there {often[1]:,} times)" if often[1] > 1 else ""
    return (failed if share < 0.5 else warned if share < 0.8 or again > 0.3 else passed)(min(share, 1.0), sentence)


Pair = tuple[int, str, int]
"""A row, and the split and index of its near copy."""


def _of_shares(
    data: RowSet, found: dict[str, np.ndarray], what: str, pairs: Mapping[str, Pair] | None = None
) -> Outcome:
    """One outcome for all held-out splits, by the one with the largest share. Near copies (`pairs`) are compared with
    how many of them train has in itself."""
    shares = {split: float(which.mean()) for split, which in found.items()}
    worst = max(shares, key=lambda split: shares[split])
    parts = [f"{int(which.sum()):,} of {len(which):,} rows of {split}" for split, which in found.items() if which.any()]
    if not parts:
        return passed(0.0, f"no row of {listed(list(found))} is {what}")
    first, other, twin = (pairs or {}).get(worst, (int(found[worst].argmax()), "", 0))
    sentence = f"{listed(parts)} ({shares[worst]:.1%}) are {what}, such as {shortened(data.rows[worst][first])}"
    if other:
        sentence += f" ({other} has {shortened(data.rows[other][twin])})"
    usual = data.usual if pairs and shares[worst] > 0.01 else 0.0
    if usual > 0.005:
        sentence += f"; of the rows of train, {usual:.1%} have a near copy in train"
    above = {s: share - usual - 2 * math.sqrt(usual / len(found[s])) for s, share in shares.items()}
    if above[worst] > FAR_TOO_MANY:
        return failed(shares[worst], sentence)
    few = any(more > min(MOST_SEEN, 1 / math.sqrt(len(found[split]))) for split, more in above.items())
    return (warned if few or shares[worst] > TOO_ALIKE else passed)(shares[worst], sentence)


# --- what rows look like -----------------------------------------------------------------------------------------


@audit("data")
def metadata_rows(data: RowSet) -> Outcome:
    """No row is markup, an address or JSON among rows that are text.

    Such a row begins with a tag (<title>…, but not a special token such as <unk>), is an address and nothing else, or
    begins like JSON: it is left over from the file the text was taken from. From 1 % of a split on it is a warning,
    because it is learnt like text and never asked for. If half of the rows or more look like this, it is what the data
    is, and passes.
    """
    found = {split: [row for row in rows if _MARKUP.match(row)] for split, rows in data.rows.items()}
    shares = {split: len(found[split]) / max(len(rows), 1) for split, rows in data.rows.items()}
    worst = max(shares, key=lambda split: shares[split])
    parts = [f"{len(odd):,} of {len(data.rows[s]):,} rows of {s} ({shares[s]:.1%})" for s, odd in found.items() if odd]
    if not parts:
        return passed(0.0, "no row looks like markup, an address or JSON")
    sentence = f"{listed(parts)} look like markup, an address or JSON, such as {shortened(found[worst][0])}"
    return (warned if 0.01 <= shares[worst] < 0.5 else passed)(shares[worst], sentence)


@audit("data")
def damaged_rows(data: RowSet) -> Outcome:
    """No row was damaged by a wrong encoding, undecoded HTML, or subwords that were not joined.

    Searched for are traces of characters that were decoded with the wrong encoding (Ã© for é, â€™ for an apostrophe,
    U+FFFD for what could not be decoded at all, f?r for what could not be encoded), of HTML that was never decoded
    (&amp;, &#39;), and of subwords that were never joined (the@@ re, ▁there). From 1 % of a split on it is a warning:
    the same word is then two words; if only one source is damaged, the damage identifies the source; and a score that
    counts words counts subwords. Read the file as UTF-8, decode it (Python's html.unescape), or join its subwords
    before training.
    """
    found = {split: [row for row in rows if _DAMAGE.search(row)] for split, rows in data.rows.items()}
    shares = {split: len(found[split]) / max(len(rows), 1) for split, rows in data.rows.items()}
    worst = max(shares, key=lambda split: shares[split])
    parts = [f"{len(odd):,} of {len(data.rows[s]):,} rows of {s} ({shares[s]:.1%})" for s, odd in found.items() if odd]
    if not parts:
        return passed(0.0, "no row has characters of a wrong encoding, undecoded HTML, or subwords")
    row = found[worst][0]
    sign = _DAMAGE.search(row)
    what = f"“{sign[0]}” in {shortened(row)}" if sign else shortened(row)
    reasons = "characters of a wrong encoding, undecoded HTML, or subwords"
    sentence = f"{listed(parts)} are damaged: {reasons}, such as {what}"
    return (warned if shares[worst] >= 0.01 else passed)(shares[worst], sentence)


ROW_AUDITS: list[Audit] = [
    seen_rows,
    seen_rows_normalised,
    seen_rows_nearly,
    shared_rows,
    repeated_rows,
    metadata_rows,
    damaged_rows,
    *CLASS_AUDITS,
    *NOISE_AUDITS,
    *ARTEFACT_AUDITS,
]
