"""Audits of translation pairs: do source and target belong together, and are held-out pairs new?"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.association import Associations
from headway.audit.data.pair_set import PairSet
from headway.audit.data.pair_splits import SPLIT_AUDITS
from headway.audit.data.row_set import shortened
from headway.audit.data.two_languages import TwoLanguages
from headway.data.pairs.alignment import STRETCH, find_mismatch, find_shift, stretches_of
from headway.data.pairs.filters import NAMES_AND_NUMBERS, Filters
from headway.data.pairs.sources import TextPair

HERE_AND_THERE, A_FIFTH = 0.05, 0.2
"""Thresholds for scattered swapped pairs: honest data sets of texts and words have less than 2 %."""
MISALIGNED, MISALIGNED_IF_UNCLEAR, MANY_MISALIGNED = 0.1, 0.15, 0.3
"""Multi30k, TED, Pig Latin and spelt-out numbers have less than 2 %, a few hundred pairs of them up to 8 %. Where words
tell less clearly, as in sentences of at most six words, it is up to 11 %."""
SAME_IN_BOTH, ENOUGH_SHORT = 0.2, 50
"""Pairs of one or two words, if there are so many: in honest data sets less than 10 % have equal sides."""


@audit("data")
def seen_pairs(data: PairSet) -> Outcome:
    """Few sources of a held-out split are in train, and few of its targets.

    Both sides are compared ignoring case, punctuation and white space. A source that is in train can be answered from
    memory; a target that is in train is familiar to the decoder. Up to 2 % of either pass (short sentences occur twice
    in any honest data set), up to 10 % is a warning, more a failure. If both sides of a pair are in train, it is a
    copy, and 5 % is a failure. Drop such pairs from train. Targets do not count if data.exact says that there is one
    right answer: short answers, such as sums, are shared by many sources.
    """
    worst, held_out = (0.0, ""), data.held_out
    whole = set(data.normalised["train"]) - {("", "")}
    known = [{pair[k] for pair in whole} - {""} for k in (0, 1)]
    for split in held_out:
        rows = data.normalised[split]
        shares = [sum(row[k] in known[k] for row in rows) / len(rows) for k in (0, 1)]
        both = sum(row in whole for row in rows) / len(rows)
        # If pairs are made by a rule, two sources may well have the same target.
        share = max(shares[0], 0 if data.one_answer else shares[1], 2 * both)
        says = (
            f"of {split}, {shares[0]:.1%} of sources, {shares[1]:.1%} of targets and {both:.1%} of pairs are in train"
        )
        worst = max(worst, (share, says))
    share, says = worst
    return (failed if share > 0.1 else warned if share > 0.02 else passed)(share, says)


@audit("data")
def rows_of_text(data: PairSet) -> Outcome:
    """The pairs of all splits are texts: few are metadata, empty, or too long.

    Counted are pairs with a side that begins with a tag, such as <title>; with an empty side; and with more than 250
    words on a side. One in a hundred of a split is a warning, one in twenty a failure: metadata are not sentences, and
    their translation is often empty, or the same address. data.filters drops such rows from train, unless it is
    disabled; held-out splits are never filtered, and with an empty reference only an empty translation is right.
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
    """Few targets equal their own source, or are contained in it.

    Pairs of more than two words whose sides are equal but for case and punctuation were never translated; if one side
    contains all of the other, columns were joined, and the source gives the answer away. One in a hundred of a split is
    a warning, one in ten a failure: such rows teach the model to copy, and copying solves them. Pairs of one or two
    words are often equal in two languages, names above all; they count only if more than a fifth of such pairs are
    equal. data.filters.untranslated drops longer pairs whose sides are exactly equal from train.
    """
    found = [_copied(split, pairs) for split, pairs in data.normalised.items() if pairs]
    share, says = max(found, key=lambda one: one[0], default=(0.0, "there are no pairs"))
    return (failed if share > 0.1 else warned if share > 0.01 else passed)(share, says)


def _copied(split: str, pairs: Sequence[tuple[str, str]]) -> tuple[float, str]:
    """The share of pairs that were not translated, and a sentence about them."""
    short = [pair for pair in pairs if pair[0] and len(pair[0].split()) <= NAMES_AND_NUMBERS]
    short_equal = [source for source, target in short if source == target]
    equal = [source for source, target in pairs if source == target and source.count(" ") >= NAMES_AND_NUMBERS]
    if len(short_equal) > SAME_IN_BOTH * len(short) and len(short) >= ENOUGH_SHORT:
        equal, short_equal = equal + short_equal, []
    held = [pair for pair in pairs if pair[0] != pair[1] and _holds_the_other(*pair)]
    says = f"{len(equal):,} of {len(pairs):,} pairs of {split} are the same on both sides"
    says += f", such as {shortened(equal[0])}" if equal else ""
    says += f"; in {len(held):,} one side contains the other, as {shortened(max(held[0], key=len))}" if held else ""
    says += f"; and {len(short_equal):,} of one or two words, as names often are" if short_equal else ""
    return (len(equal) + len(held)) / len(pairs), says


def _holds_the_other(source: str, target: str) -> bool:
    """Whether one side, of more than two words, is part of the other."""
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    return shorter.count(" ") >= NAMES_AND_NUMBERS and f" {shorter} " in f" {longer} "


@audit("data")
def many_targets(data: PairSet) -> Outcome:
    """Few sources of train have several targets; none if each has exactly one right translation.

    Several translations of one source are no fault by themselves, but if there are many the rows may be shifted, or the
    sources cut: above a fifth of the pairs it is a warning. If data.exact says that there is one right answer, a single
    source with two is a failure.
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
    """Few targets of train have several sources.

    Different sources have the same translation now and then: in honest data sets of sentences and words, one pair in a
    hundred has a target that another source also has. Above a tenth it is a warning. The same line may have been
    written for everything that was missing, or each line several times in one of two files. If the task has only a few
    possible answers, or maps the forms of a word to the word, it is as it should be.
    """
    pairs = data.normalised["train"]
    by_target: dict[str, set[str]] = {}
    for source, target in pairs:
        by_target.setdefault(target, set()).add(source)
    shared = [target for _, target in pairs if target and len(by_target[target]) > 1]
    share = len(shared) / max(1, len(pairs))
    says = f"{share:.1%} of the pairs of train have a target that other sources have, too"
    if shared:
        most = max(shared, key=lambda target: len(by_target[target]))
        says += f"; {shortened(most)} has {len(by_target[most]):,}"
    return (warned if share > 0.1 else passed)(share, says)


@audit("data")
def unlike_lengths(data: PairSet) -> Outcome:
    """Source and target are of similar length, allowing for the languages.

    For each pair of train with more than ten characters, the logarithm of the ratio of lengths is compared with the
    median of all: pairs that are off by a factor of three hardly belong together. One in fifty is a warning, one in ten
    a failure. Look at such rows; data.filters.ratio drops them.
    """
    rows = [(len(s), len(t)) for s, t in data.pairs["train"] if min(len(s), len(t)) > 0 and max(len(s), len(t)) > 10]
    if len(rows) < 20:
        raise DoesNotApply("there are too few pairs of more than ten characters")
    ratios = np.log([t / s for s, t in rows])
    off = float((np.abs(ratios - np.median(ratios)) > np.log(3)).mean())
    usual = float(np.exp(np.median(ratios)))
    says = f"targets have {usual:.2f} times the characters of their sources; {off:.1%} are off by a factor of three"
    return (failed if off > 0.1 else warned if off > 0.02 else passed)(off, says)


@audit("data")
def line_order(data: PairSet) -> Outcome:
    """Each source is next to its own target, not that of a neighbouring line or another one.

    Lengths, punctuation, numbers and names show how similar two lines are, without knowing either language. In up to
    twelve stretches of every file, lines side by side must be more similar than lines up to ten rows apart. If lines at
    another distance are more similar, by more than 2 % and four standard deviations, one side has shifted, and it
    fails: from the named row on, a translator learns nothing. It also fails if lines that belonged together up to a row
    no longer do, as when half of a file was sorted. If nothing shows anywhere that lines belong together it warns: one
    file is in another order, or sources and targets have no more in common than questions and answers. If all lines are
    alike, of one length for example, the audit does not apply.
    """
    for split, lines in (data.files or data.pairs).items():
        if slipped := find_shift(lines):
            by = slipped.by or 0
            rows = f"{abs(by)} row{'s' if abs(by) > 1 else ''} {'later' if by > 0 else 'earlier'}"
            says = f"from about row {slipped.row:,} on, sources match the target {rows}"
            return failed(slipped.gain, f"{split}: {says}: the files are shifted")
    for split, lines in (data.files or data.pairs).items():
        if (strange := find_mismatch(lines)) is None:
            continue
        if strange.row > 1:
            says = f"{split}: from about row {strange.row:,} on, sources and targets do not belong together"
            return failed(strange.gain, says)
        if not strange.gain:
            raise DoesNotApply("lines are equally similar side by side and far apart, so nothing can be compared")
        return warned(strange.gain, f"{split}: nothing shows that lines are next to their own translations")
    return passed(None, "lines are next to their own translations")


@audit("data")
def misaligned_pairs(data: PairSet) -> Outcome:
    """Few pairs, scattered among the others, have a target that belongs to another source.

    How often a word of a target is beside a word of a source, beyond chance, is counted in half of up to ten thousand
    pairs of train, and each target of the other half, and of held-out splits, is ranked: does its own source explain
    it better than nineteen sources of similar length? Of pairs that belong together the own source is first; of others
    it is anywhere, so twice the share in the lower half is the share of misaligned pairs. One in ten is a warning,
    three in ten a failure: lines were paired by a faulty aligner, or one file was partly shuffled. The true share may
    be larger, since a target that went to a similar source looks right. If the words do not tell even the other pairs
    clearly, as in sums and their results, the audit does not apply.
    """
    files = data.files or data.pairs
    words = Associations(files["train"])
    found = {split: words.of_train() if split == "train" else words.of(pairs) for split, pairs in files.items()}
    sure = {split: one for split, one in found.items() if one.is_sure}
    if not sure:
        raise DoesNotApply("the words of sources and targets do not tell which belong together")
    worst = max(sure, key=lambda split: sure[split].share)
    share, some = sure[worst].share, MISALIGNED if sure[worst].is_clear else MISALIGNED_IF_UNCLEAR
    says = f"{worst}: {share:.0%} of the targets suit their sources no better than any other"
    return (failed if share >= MANY_MISALIGNED else warned if share >= some else passed)(share, says)


@audit("data")
def swapped_sides(data: PairSet) -> Outcome:
    """Sources are in one language and targets in the other, in every split, from the first row to the last.

    Character trigrams of sources and targets are learnt from every other one of the first two thousand pairs of train;
    if they do not tell three in four of the rest apart, the audit does not apply. In stretches of every file, pairs
    that look swapped are counted, minus those expected by mistake because the languages are similar and the pairs
    short. More than one in ten, and more than chance explains, is a warning, more than half a failure: a file of the
    opposite direction was used, or appended. Swapped rows that are scattered among others do not stand out in any
    stretch. But both of their sides look wrong at once, and how much more often that happens than each side alone
    explains gives their share of the first pairs; one in twenty is a warning, one in five a failure. Swap those rows
    back.
    """
    files = data.files or data.pairs
    languages = TwoLanguages(files["train"])
    mixed, (share, says) = languages.mixed(), _most_turned(files, languages)
    if mixed.is_sure and mixed.share >= HERE_AND_THERE and share <= 0.5:
        sentence = f"train: {mixed.share:.0%} of the pairs have their sides swapped, scattered among the others"
        return (failed if mixed.share >= A_FIFTH else warned)(mixed.share, sentence)
    if not languages.are_told_apart:
        raise DoesNotApply("character trigrams do not tell sources and targets apart")
    if share <= 0.1:
        return passed(share, "sources are in the language of sources, and targets in that of targets")
    return (failed if share > 0.5 else warned)(share, says)


def _most_turned(files: Mapping[str, Sequence[tuple[str, str]]], languages: TwoLanguages) -> tuple[float, str]:
    """The largest share of swapped pairs in a stretch that is not explained by chance, and where it is."""
    worst = (0.0, "")
    for split, lines in files.items() if languages.are_told_apart else ():
        for first in stretches_of(len(lines)):
            rows = lines[first : first + STRETCH]
            share, by_chance = languages.turned(rows)
            if share > max(by_chance, 1.5 * worst[0]):  # of several that are all swapped, the first
                where = f"{split}: of {len(rows)} pairs from row {first + 1:,} on"
                worst = (share, f"{where}, {share:.0%} have their sides swapped")
    return worst


PAIR_AUDITS: list[Audit] = [
    *(seen_pairs, rows_of_text, copied_targets, many_targets, many_sources),
    *(unlike_lengths, line_order, misaligned_pairs, swapped_sides),
    *SPLIT_AUDITS,
]
