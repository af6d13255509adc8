"""Audits of running text: is the held-out text really held out?

Single lines are not compared, since short lines occur twice in any honest corpus. Compared are windows of eight words,
blocks of 32 words by the words they share, and the positions of rare words, always without case, punctuation and white
space. How much overlap is natural differs from corpus to corpus, so it is measured: pieces of the train split are
compared with the rest of it.
"""

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.text_set import BLOCK, PIECES, WINDOW, TextSet

RARE = 5
NEAR = 0.02
FEWEST_MEETINGS = 300


@audit("data")
def repeated_text(data: TextSet) -> Outcome:
    """Held-out text does not occur in the train split in runs of eight words.

    The number is the share of all 8-word windows of a held-out split that occur in train, ignoring case, punctuation
    and white space. Some occur in any language: quotations, headings, set phrases. How many is usual is measured on the
    corpus itself: five pieces of train, each as long as the held-out split or a tenth of train, are compared with the
    rest of train. (An encyclopedia has 0.4 to 0.8 %, plays none, the documentation of a program 0.4 to 5 %.) More than
    the highest of these by 2 % of the windows is a warning, by 10 % a failure. More than 10 % is a warning even where
    train repeats itself as much: then the text, and not the split, is the problem. Remove what is repeated from train.
    """
    held_out = data.held_out
    if not len(data.windows["train"]):
        raise DoesNotApply(f"train has fewer than {WINDOW} words")
    shares = {split: float(data.repeated[split].mean()) for split in held_out if len(data.repeated[split])}
    if not shares:
        raise DoesNotApply(f"the held-out splits have fewer than {WINDOW} words")
    worst = max(shares, key=lambda split: shares[split])
    share = shares[worst]
    usual = max(_repeated_elsewhere(*data.known[1:], piece) for piece in data.pieces)
    sentence = (
        f"{share:.1%} of the {WINDOW}-word windows of {worst} occur in train; "
        f"of pieces of train, up to {usual:.1%} occur in its rest"
    )
    if share > 0:
        sentence += f" (such as {data.excerpt(worst, int(data.repeated[worst].argmax()), WINDOW)})"
    return _compared_with_usual(share, usual, sentence, too_much=0.10)


@audit("data")
def nearly_repeated_text(data: TextSet) -> Outcome:
    """Held-out text is not a reworded copy of train text.

    A slice of train with every sixth word replaced has no eight-word window in common with it. So blocks of 32 words
    are compared with all of train by the words they share, in any order (near_copies.py says how): a block is a near
    copy if some place in train, of up to 64 words, has half of its content. Of copies with every third word replaced 86
    to 99 % are found, of those with every second word 40 to 60 %. Of honest text 0 to 2 % look like copies (plays,
    speeches, an encyclopedia), of documentation 7 %; pieces of train are compared with the rest of train to see what is
    usual. More than that by 2 % of the blocks is a warning, by 10 % a failure, and more than 20 % is always a warning.
    Blocks that are mostly in train word for word are counted by repeated-text instead.
    """
    shares: dict[str, float] = {}
    example = {}
    for split in data.held_out:
        starts, near = data.copied(split, "train")
        if not len(starts):
            continue
        verbatim = np.concatenate([[0], np.cumsum(data.repeated[split])])
        windows = BLOCK - WINDOW + 1
        reworded = near.which(len(starts)) & (verbatim[starts + windows] - verbatim[starts] <= windows / 2)
        shares[split] = float(reworded.mean())
        if reworded.any():
            block, twin = near.clearest(reworded)
            example[split] = f" ({_both(data, split, int(starts[block]), 'train', twin)})"
    if not shares:
        raise DoesNotApply(f"the held-out splits have fewer than {BLOCK} words")
    worst = max(shares, key=lambda split: shares[split])
    sentence = f"{shares[worst]:.1%} of the {BLOCK}-word blocks of {worst} have a near copy in train"
    usual = data.usually_copied if shares[worst] > 0.01 else 0.0
    return _compared_with_usual(
        shares[worst],
        usual,
        f"{sentence}; of pieces of train, up to {usual:.1%} have one in its rest{example.get(worst, '')}",
    )


@audit("data")
def shared_text(data: TextSet) -> Outcome:
    """No held-out text is in another held-out split, exactly or nearly.

    Whatever was chosen by looking at valid (the learning rate, the best checkpoint) was chosen by looking at test as
    well if their text is the same. Blocks of 32 words are compared as in nearly-repeated-text, with its thresholds.
    """
    if len(data.held_out) < 2:
        raise DoesNotApply("there is only one held-out split")
    worst, share, sentence = "", -1.0, ""
    for k, split in enumerate(data.held_out):
        for other in data.held_out[:k]:
            starts, near = data.copied(split, other)
            found = near.which(len(starts))
            if len(starts) and found.mean() > share:
                worst, share = split, float(found.mean())
                sentence = f"{share:.1%} of the {BLOCK}-word blocks of {split} are also in {other}, exactly or nearly"
                if found.any():
                    block, twin = near.clearest(found)
                    sentence += f" ({_both(data, split, int(starts[block]), other, twin)})"
    if not worst:
        raise DoesNotApply(f"the held-out splits have fewer than {BLOCK} words")
    return _compared_with_usual(share, data.usually_copied if share > 0.01 else 0.0, sentence)


def _both(data: TextSet, split: str, start: int, other: str, twin: int) -> str:
    """A block, and the most similar part of the other text, as examples."""
    words, place = set(data.words[split][start : start + BLOCK].tolist()), twin * BLOCK
    known = np.isin(data.words[other][place : place + 2 * BLOCK], list(words))
    best = int(np.convolve(known, np.ones(10), "valid").argmax()) if len(known) > 10 else 0
    middle = data.words[other][place + best : place + best + 10]
    first = int(np.convolve(np.isin(data.words[split][start : start + BLOCK], middle), np.ones(10), "valid").argmax())
    return f"{data.excerpt(split, start + first, 10)}, where {other} has {data.excerpt(other, place + best, 10)}"


def _compared_with_usual(share: float, usual: float, sentence: str, too_much: float = 0.20) -> Outcome:
    if share > usual + 0.10:
        return failed(share, sentence)
    return (warned if share > min(usual + 0.02, too_much) else passed)(share, sentence)


@audit("data")
def repeated_within(data: TextSet) -> Outcome:
    """A held-out split does not repeat the same text.

    A page that is there ten times counts ten times in the perplexity, whose uncertainty is that of one page. The number
    is n' / n for windows of 8 words, where n' = n² / Σ count² is the effective number of different windows. It is
    divided by the lowest such number of pieces of train of the same length, because some texts naturally have refrains,
    tables and licences. Below 0.8 is a warning, below 0.5 a failure: drop the copies. For train itself it is a warning
    if more than half of its windows are repetitions: an epoch is then several, and the text smaller than it looks.
    """
    if not len(data.windows["train"]):
        raise DoesNotApply(f"train has fewer than {WINDOW} words")
    worst, share, said = "", 2.0, []
    for split in data.held_out:
        windows = data.windows[split]
        if not len(windows):
            continue
        size = min(len(windows), len(data.windows["train"]))
        firsts = np.linspace(0, len(data.windows["train"]) - size, PIECES).astype(int)
        usual = min(_different(np.bincount(data.known[1][first : first + size])) for first in firsts)
        found = min(_different(np.unique(windows, return_counts=True)[1]) / usual, 1.0)
        said.append(
            f"the {len(windows):,} windows of {split} are effectively {found * len(windows):,.0f} different ones"
        )
        if found < share:
            worst, share = split, found
    if not worst:
        raise DoesNotApply(f"the held-out splits have fewer than {WINDOW} words")
    sentence = "; ".join(said)
    again = 1 - len(data.known[0]) / len(data.windows["train"])
    if share < 0.8:
        _, first, times = np.unique(data.windows[worst], return_index=True, return_counts=True)
        often = int(times.argmax())
        sentence += f" ({data.excerpt(worst, int(first[often]), WINDOW)} is there {times[often]:,} times)"
    if again > 0.5:
        sentence += f"; {again:.0%} of train repeats earlier text"
    return (failed if share < 0.5 else warned if share < 0.8 or again > 0.5 else passed)(share, sentence)


def _different(times: np.ndarray) -> float:
    """The effective share of different windows, given how often each occurs."""
    return float(times.sum() / (times.astype(float) ** 2).sum())


def _repeated_elsewhere(number: np.ndarray, count: np.ndarray, piece: slice) -> float:
    """The share of a piece's windows that also occur outside it."""
    times = np.bincount(number[piece], minlength=len(count))
    return float(times[count > times].sum() / times.sum())


@audit("data")
def split_by_line(data: TextSet) -> Outcome:
    """The held-out text does not consist of lines taken from within the documents of the train split.

    If every tenth line of a book is held out, its names and phrases are in train although no line is. Rare words show
    this: a word that occurs at most 5 times in train and at most 5 times in the held-out split is, in both, where its
    document is. If lines were picked in order, that is the same relative position in both splits. The number is how
    many times more often than by chance occurrences of the same rare word are within 2 % of each other. Splits by
    document have 0.7 to 2.2 (2.2 where documents are sorted by name, so that related ones are close); picked lines 3.3
    (plays), 6 to 12 (an encyclopedia), 14 to 19 (documentation). Above 3 is a warning, above 5 a failure. Hold out
    whole documents.

    This cannot find lines that were shuffled before or after the split: no order is left, and held-out lines from known
    documents then look like any others. Be suspicious of any corpus of shuffled sentences.
    """
    worst, ratio, meetings = "", -1.0, 0
    for split in data.held_out:
        here, there = _rare_meetings(data.written["train"], data.written[split])
        if len(here) >= FEWEST_MEETINGS:
            # Chance level: words keep their positions in the held-out split and get those of another word in train.
            expected = np.mean([_close(here, np.roll(there, len(there) * k // 8)) for k in range(1, 8)])
            found = _close(here, there) / max(float(expected), 1 / len(here))
            if found > ratio:
                worst, ratio, meetings = split, float(found), len(here)
    if not worst:
        raise DoesNotApply(f"too few rare words are in both splits to tell ({FEWEST_MEETINGS} are needed)")
    sentence = (
        f"rare words of {worst} are at the same relative position in train {ratio:.1f} times as often as by chance "
        f"({meetings:,} pairs of occurrences)"
    )
    if ratio > 3:
        sentence += ": lines of one document seem to be in both"
    return (failed if ratio > 5 else warned if ratio > 3 else passed)(ratio, sentence)


def _rare_meetings(train: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of occurrences of a rare word, as relative positions in the held-out split and in train."""
    size = int(max(train.max(), held.max())) + 1
    in_train, in_held = np.bincount(train, minlength=size), np.bincount(held, minlength=size)
    rare = (in_train > 0) & (in_train <= RARE) & (in_held > 0) & (in_held <= RARE)
    held_places, train_places = np.flatnonzero(rare[held]), np.flatnonzero(rare[train])
    train_places = train_places[np.argsort(train[train_places], kind="stable")]
    times = in_train[held[held_places]]
    first = np.searchsorted(train[train_places], held[held_places])
    pair = np.repeat(np.arange(len(held_places)), times)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(times) - times, times)
    return held_places[pair] / len(held), train_places[first[pair] + nth] / len(train)


def _close(here: np.ndarray, there: np.ndarray) -> float:
    return float((np.abs(here - there) < NEAR).mean())


TEXT_AUDITS: list[Audit] = [
    repeated_text,
    nearly_repeated_text,
    shared_text,
    repeated_within,
    split_by_line,
]
