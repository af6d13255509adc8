"""Audits of pairs: do they belong together, and is what is held out new?"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.pair_set import PairSet
from headway.audit.data.pair_splits import SPLIT_AUDITS
from headway.audit.data.row_set import shortened
from headway.audit.data.two_languages import TwoLanguages
from headway.data.pairs.alignment import STRETCH, stretches_of, where_they_differ, where_they_slip
from headway.data.pairs.filters import NAMES_AND_NUMBERS, Filters
from headway.data.pairs.sources import TextPair

HERE_AND_THERE, A_FIFTH = 0.05, 0.2
"""Of pairs that are turned round among others: honest sets of texts and words have less than a fiftieth of them."""
SAME_IN_BOTH, ENOUGH_SHORT = 0.2, 50
"""Of pairs of one or two words, where there are so many: honest sets have less than a tenth that are the same."""


@audit("data")
def seen_pairs(data: PairSet) -> Outcome:
    """Few sources of a held-out split are in train, and few of its targets.

    Both sides are compared without case, punctuation and white space. A source that train has can be answered by heart;
    a target that train has was learnt to be written. Up to 2 % of either pass (short sentences occur twice in any
    honest set), up to 10 % is a warning, more a failure. Where both sides of a pair are there, it is a copy, and 5 %
    fail. Drop such pairs from train.
    """
    worst = (0.0, "")
    for split in data.held_out:
        known = [set(side) - {""} for side in zip(*data.normalised["train"], strict=True)]
        rows = data.normalised[split]
        shares = [sum(row[k] in known[k] for row in rows) / len(rows) for k in (0, 1)]
        whole = set(data.normalised["train"])
        both = sum(row in whole for row in rows) / len(rows)
        # Of pairs made by a rule, two sources may well have one target.
        share = max(shares[0], 0 if data.one_answer else shares[1], 2 * both)
        says = (
            f"of {split}, {shares[0]:.1%} of sources, {shares[1]:.1%} of targets and {both:.1%} of pairs are in train"
        )
        worst = max(worst, (share, says))
    share, says = worst
    return (failed if share > 0.1 else warned if share > 0.02 else passed)(share, says)


@audit("data")
def rows_of_text(data: PairSet) -> Outcome:
    """The pairs that are learnt from and scored are texts: few are metadata, empty, or longer than anybody says.

    Counted are pairs of each split that begin with a tag on either side, as <title>; that have nothing on a side; and
    that have more than 250 words there. One in a hundred is a warning, one in twenty a failure: what is said about a
    text is no sentence, and its translation is often none, or the same address. data.filters drops such rows from
    train, unless it is told not to; held-out splits are never filtered, and a reference that is empty is right only if
    nothing is written.
    """
    filters = Filters(untranslated=False)
    worst, clean = (-1.0, ""), sum(map(len, data.pairs.values()))
    for split, pairs in data.pairs.items():
        odd = [(pair[0] or pair[1], why) for pair in pairs if (why := filters.reason(TextPair(*pair))) is not None]
        if not odd or (share := len(odd) / len(pairs)) <= worst[0]:
            continue
        counts = Counter(why for _, why in odd)
        example = next(text for text, why in odd if why == counts.most_common(1)[0][0])
        told = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
        worst = (share, f"of {len(pairs):,} pairs of {split} {told}, such as {shortened(example)}")
    share, says = worst
    if share < 0:
        return passed(0, f"none of {clean:,} pairs is metadata, empty or too long")
    return (failed if share > 0.05 else warned if share > 0.01 else passed)(share, says)


@audit("data")
def copied_targets(data: PairSet) -> Outcome:
    """Few targets are their own source, or stand in it.

    Pairs of more than two words whose sides are equal but for case and punctuation were never translated; where one
    side holds all of the other, and more, columns were joined, and the answer stands in the question. One in a hundred
    of a split is a warning, one in ten a failure: such rows teach to copy, and are solved by copying. Of one or two
    words many are the same in two languages, names above all: these count where more than a fifth of such pairs are,
    and only then. data.filters.untranslated drops those of more words that are equal to the letter, from train.
    """
    found = [_copied(split, pairs) for split, pairs in data.normalised.items() if pairs]
    share, says = max(found, key=lambda one: one[0], default=(0.0, "there are no pairs"))
    return (failed if share > 0.1 else warned if share > 0.01 else passed)(share, says)


def _copied(split: str, pairs: Sequence[tuple[str, str]]) -> tuple[float, str]:
    """The share of pairs that were not translated, and what is said of them."""
    short = [pair for pair in pairs if len(pair[0].split()) <= NAMES_AND_NUMBERS]
    short_equal = [source for source, target in short if source == target]
    equal = [source for source, target in pairs if source == target and source.count(" ") >= NAMES_AND_NUMBERS]
    if len(short_equal) > SAME_IN_BOTH * len(short) and len(short) >= ENOUGH_SHORT:
        equal, short_equal = equal + short_equal, []
    held = [pair for pair in pairs if pair[0] != pair[1] and _holds_the_other(*pair)]
    says = f"{len(equal):,} of {len(pairs):,} pairs of {split} are the same on both sides"
    says += f", such as {shortened(equal[0])}" if equal else ""
    says += f"; in {len(held):,} one side holds the other, as {shortened(max(held[0], key=len))}" if held else ""
    says += f"; and {len(short_equal):,} of one or two words, as names are" if short_equal else ""
    return (len(equal) + len(held)) / len(pairs), says


def _holds_the_other(source: str, target: str) -> bool:
    """All words of one side, more than two, stand in the other on end."""
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    return shorter.count(" ") >= NAMES_AND_NUMBERS and f" {shorter} " in f" {longer} "


@audit("data")
def many_targets(data: PairSet) -> Outcome:
    """Few sources of train have several targets; where each has one right translation, none has.

    Several translations of one source are no fault by themselves, but where they are many the rows may be shifted, or
    the source cut: above a fifth of the pairs it is a warning. Where data.exact says that there is one right answer,
    one source with two is a failure.
    """
    pairs = data.normalised["train"]
    by_source: dict[str, set[str]] = {}
    for source, target in pairs:
        by_source.setdefault(source, set()).add(target)
    many = [source for source, targets in by_source.items() if len(targets) > 1]
    counts = Counter(source for source, _ in pairs)
    share = sum(counts[source] for source in many) / max(1, len(pairs))
    says = f"{len(many):,} sources of train have more than one target ({share:.1%} of its pairs)"
    says += f", such as {shortened(many[0])}" if many else ""
    if data.one_answer:
        return (failed if many else passed)(share, says)
    return (warned if share > 0.2 else passed)(share, says)


@audit("data")
def many_sources(data: PairSet) -> Outcome:
    """Few targets of train stand beside several sources.

    Different sources have the same translation now and then: in honest sets of sentences and words one pair in a
    hundred has a target that another source has, too. Above a tenth it is a warning. The same line may have been
    written for all that a page lacks, or each line several times in one of two files. Where sources are asked for one
    of a few answers, or forms of a word for the word, it is as it should be.
    """
    pairs = data.normalised["train"]
    by_target: dict[str, set[str]] = {}
    for source, target in pairs:
        by_target.setdefault(target, set()).add(source)
    shared = [target for _, target in pairs if target and len(by_target[target]) > 1]
    share = len(shared) / max(1, len(pairs))
    says = f"{share:.1%} of the pairs of train have a target that stands beside other sources, too"
    if shared:
        most = max(shared, key=lambda target: len(by_target[target]))
        says += f", {shortened(most)} beside {len(by_target[most]):,}"
    return (warned if share > 0.1 else passed)(share, says)


@audit("data")
def unlike_lengths(data: PairSet) -> Outcome:
    """Both sides of a pair are about as long, as languages go.

    Of each pair of train with more than ten letters, the logarithm of the ratio of lengths is set beside the middle of
    all: pairs that are off by a factor of three hardly belong together. One in fifty is a warning, one in ten a
    failure. Look at such rows; data.filters.ratio drops them.
    """
    rows = [(len(s), len(t)) for s, t in data.pairs["train"] if min(len(s), len(t)) > 0 and max(len(s), len(t)) > 10]
    if len(rows) < 20:
        raise DoesNotApply("there are too few pairs of any length")
    ratios = np.log([t / s for s, t in rows])
    off = float((np.abs(ratios - np.median(ratios)) > np.log(3)).mean())
    usual = float(np.exp(np.median(ratios)))
    says = f"targets have {usual:.2f} times the letters of their sources; {off:.1%} are off by three times as much"
    return (failed if off > 0.1 else warned if off > 0.02 else passed)(off, says)


@audit("data")
def line_order(data: PairSet) -> Outcome:
    """Each source stands beside its own target, not that of a neighbour, and not any.

    Lengths, signs, numbers and names tell, without knowing either language, how much two lines are alike. In up to
    twelve stretches of every file lines as they stand must be more alike than lines up to ten rows apart. Where others
    are, by more than a fiftieth and four standard deviations, one side has slipped, and it fails: from the row that is
    named on, a translator learns nothing. It fails, too, where lines that belonged together so far no longer do, as
    when half of a file was sorted. Where nothing tells anywhere that lines belong together it warns: one file is in
    another order, or sources and targets have no more in common than questions and answers. Where lines are all alike,
    of one length for example, it is not asked.
    """
    for split, lines in (data.files or data.pairs).items():
        if slipped := where_they_slip(lines):
            by = slipped.by or 0
            rows = f"{abs(by)} row{'s' if abs(by) > 1 else ''} {'later' if by > 0 else 'earlier'}"
            says = f"from about row {slipped.row:,} on, sources go with the target {rows}"
            return failed(slipped.gain, f"{split}: {says}: the files are shifted")
    for split, lines in (data.files or data.pairs).items():
        if (strange := where_they_differ(lines)) is None:
            continue
        if strange.row > 1:
            says = f"{split}: from about row {strange.row:,} on, sources and targets do not belong together"
            return failed(strange.gain, says)
        if not strange.gain:
            raise DoesNotApply("in all that is compared, lines are alike, far apart and side by side")
        return warned(strange.gain, f"{split}: nothing tells that its lines stand beside their own translations")
    return passed(None, "lines stand beside their own translations")


@audit("data")
def swapped_sides(data: PairSet) -> Outcome:
    """Sources are in one language and targets in the other, in every split, from the first row to the last.

    What sources are made of, and what targets, is learnt from every other of the first two thousand pairs of train, by
    runs of three letters; where that does not tell three in four of the rest apart, it is not asked. In stretches of
    every file the pairs are counted whose sides look the other way round, without those that are only taken for such
    because both languages are much alike. One in ten, and more than chance explains, is a warning, every other a
    failure: a file of the other direction was put there, or behind it. Rows that are turned round here and there among
    others are in no stretch more than in the next. Of them it is known that both of their sides are strange at once: by
    how much more often that happens than each side alone explains, their share of the first pairs is told; one in
    twenty is a warning, one in five a failure. Turn those rows round.
    """
    files = data.files or data.pairs
    languages = TwoLanguages(files["train"])
    mixed, (share, says) = languages.mixed(), _most_turned(files, languages)
    if mixed.is_sure and mixed.share >= HERE_AND_THERE and share <= 0.5:
        told = f"train: {mixed.share:.0%} of the pairs have their sides swapped, here and there among the others"
        return (failed if mixed.share >= A_FIFTH else warned)(mixed.share, told)
    if not languages.are_told_apart:
        raise DoesNotApply("the letters of sources and targets do not tell them apart")
    if share <= 0.1:
        return passed(share, "sources are in the language of sources, and targets in that of targets")
    return (failed if share > 0.5 else warned)(share, says)


def _most_turned(files: Mapping[str, Sequence[tuple[str, str]]], languages: TwoLanguages) -> tuple[float, str]:
    """The largest share of a stretch that chance does not explain, and where it is."""
    worst = (0.0, "")
    for split, lines in files.items() if languages.are_told_apart else ():
        for first in stretches_of(len(lines)):
            rows = lines[first : first + STRETCH]
            share, by_chance = languages.turned(rows)
            if share > max(by_chance, 1.5 * worst[0]):  # of those that are all turned round the first
                where = f"{split}: of {len(rows)} pairs from row {first + 1:,} on"
                worst = (share, f"{where}, {share:.0%} have their sides swapped")
    return worst


PAIR_AUDITS: list[Audit] = [
    *(seen_pairs, rows_of_text, copied_targets, many_targets, many_sources),
    *(unlike_lengths, line_order, swapped_sides),
    *SPLIT_AUDITS,
]
