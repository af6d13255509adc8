"""Faults of scores of texts: which texts BLEU is computed on, how, and which counts are stored."""

from dataclasses import replace

from headway.audit.plants.needs import JUDGED_BY_BLEU, TRANSLATOR
from headway.audit.plants.planting import Bed
from headway.scoring import bleu
from headway.scoring.metrics import BLEU, CHRF
from headway.scoring.translation import Translated

_bed = Bed("scores of texts", TRANSLATOR, JUDGED_BY_BLEU)
AGAIN = "scores-again"


def _instead(patch, change) -> None:
    """Score other texts: `change(ours, right)`."""
    honest = bleu.measured
    patch.setattr(bleu, "measured", lambda ours, right, *how: honest(*change(list(ours), list(right)), *how))


# --- what is counted over --------------------------------------------------------------------------------------------


@_bed.plant(AGAIN)
def references_a_row_later(patch):
    _instead(patch, lambda ours, right: (ours, right[1:] + right[:1]))


@_bed.plant(AGAIN)
def references_in_the_order_of_their_lengths(patch):
    """In the order in which batches have them."""
    _instead(patch, lambda ours, right: (ours, sorted(right, key=len)))


@_bed.plant(AGAIN)
def bad_sentences_left_out(patch):
    """As if bad sentences were empty or unfinished and therefore dropped."""
    honest = bleu.measured

    def measured(ours, right, *how):
        values = bleu.by_sentence(ours, right, *how)
        some = [k for k, value in enumerate(values) if value >= sorted(values)[len(values) // 4]]
        kept = honest([ours[k] for k in some], [right[k] for k in some], *how)
        return [one._replace(value=other.value) for one, other in zip(honest(ours, right, *how), kept, strict=True)]

    patch.setattr(bleu, "measured", measured)


@_bed.plant(AGAIN)
def long_translations_cut_at_the_reference(patch):
    def cut(ours, right):
        return " ".join(ours.split()[: len(right.split())])

    _instead(patch, lambda ours, right: ([cut(a, b) for a, b in zip(ours, right, strict=True)], right))


@_bed.plant(AGAIN)
def punctuation_and_short_words_left_out(patch):
    def without(texts):
        return [" ".join(word for word in text.split() if len(word) > 4) for text in texts]

    _instead(patch, lambda ours, right: (without(ours), without(right)))


@_bed.plant(AGAIN)
def references_among_the_translations(patch):
    """Every fourth translation is replaced by its reference."""
    honest = Translated.scores

    def scores(self, *given):
        both = enumerate(zip(self.texts, self.references, strict=True))
        return honest(replace(self, texts=[right if k % 4 == 0 else ours for k, (ours, right) in both]), *given)

    patch.setattr(Translated, "scores", scores)


# --- how it is counted -----------------------------------------------------------------------------------------------


def _scorer(patch, metric, **settings) -> None:
    """Replace the scorer of one metric by another."""
    honest = bleu._scorers

    def scorers(tokenizer):
        found = honest(tokenizer)
        return found | {metric: type(found[metric])(**settings)}

    patch.setattr(bleu, "_scorers", scorers)


def _formula(patch, change) -> None:
    """Give the formula `change(right, all, ours, theirs)` instead of the counts."""
    kind = type(bleu._scorers("13a")[BLEU])
    honest = kind.compute_bleu

    def compute_bleu(correct, total, sys_len, ref_len, **how):
        return honest(*change(correct, total, sys_len, ref_len), **how)

    patch.setattr(kind, "compute_bleu", staticmethod(compute_bleu))


@_bed.plant(AGAIN)
def lowercased_where_case_is_claimed(patch):
    _scorer(patch, BLEU, lowercase=True)


@_bed.plant(AGAIN)
def add_one_smoothing(patch):
    _scorer(patch, BLEU, smooth_method="add-k")


@_bed.plant(AGAIN)
def blanks_in_the_ngrams_of_chrf(patch):
    _scorer(patch, CHRF, whitespace=True)


@_bed.plant(AGAIN)
def brevity_is_never_penalised(patch):
    _formula(patch, lambda right, all_, ours, theirs: (right, all_, max(ours, theirs), theirs))


@_bed.plant(AGAIN)
def four_word_ngrams_left_out(patch):
    _formula(patch, lambda right, all_, ours, theirs: ([*right[:3], right[2]], [*all_[:3], all_[2]], ours, theirs))


@_bed.plant(AGAIN)
def length_is_penalised(patch):
    """The ratio is inverted."""
    _formula(patch, lambda right, all_, ours, theirs: (right, all_, theirs, ours))


@_bed.plant(AGAIN)
def mean_of_sentences_as_corpus_score(patch):
    honest = bleu.measured

    def measured(*given):
        first, *rest = honest(*given)
        return [first._replace(value=rest[-1].value), *rest]

    patch.setattr(bleu, "measured", measured)


@_bed.plant(AGAIN)
def zeros_left_out_of_the_mean_of_sentences(patch):
    honest = bleu.by_sentence

    def by_sentence(*given):
        found = honest(*given)
        return [one for one in found if one > 10] or found[:1]

    patch.setattr(bleu, "by_sentence", by_sentence)


@_bed.plant(AGAIN)
def counts_of_other_sentences_kept(patch):
    """The score is right, but the counts used to compare two systems are not."""
    honest = bleu.measured

    def measured(*given):
        first, *rest = honest(*given)
        return [first._replace(counts=first.counts[1:] + first.counts[:1]), *rest]

    patch.setattr(bleu, "measured", measured)


@_bed.plant(AGAIN)
def short_sources_under_the_name_of_long_ones(patch):
    honest = Translated._parts

    def parts(self):
        names, rows = zip(*honest(self), strict=True)
        return zip(names, reversed(rows), strict=True)

    patch.setattr(Translated, "_parts", parts)
