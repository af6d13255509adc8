"""Audits of tokens: does the vocabulary fit the text, and was it made from the train split alone?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned


@dataclass(frozen=True, eq=False)
class TokenSet:
    """The tokens of each split, train first; rows are concatenated."""

    ids: Mapping[str, np.ndarray]
    vocabulary: int
    """Number of different tokens."""
    unknown: int | None = None
    """The token for words that are not in the vocabulary."""
    show: Callable[[list[int]], list[str]] = lambda ids: [str(i) for i in ids]
    """Tokens as text, for examples: `tokenizer.pieces`."""

    @cached_property
    def counts(self) -> dict[str, np.ndarray]:
        return {split: np.bincount(ids, minlength=self.vocabulary) for split, ids in self.ids.items() if len(ids)}


@audit("data")
def out_of_vocabulary(data: TokenSet) -> Outcome:
    """Few tokens of a split are unknown words, and the unknown token occurs in train.

    An unknown word is easy to predict and hides what the text says, so a perplexity on text with many of them looks
    better than it is, and a classifier does not see them. Above 10 % of a split's tokens is a warning, above 30 % a
    failure. (WikiText-2, whose rare words are <unk>, has 5 to 6 %.) It is also a warning if a held-out split has more
    than 1 % and train has none: the model never saw the token, so what it predicts for it is an accident of the initial
    weights. Use BPE; or a smaller vocabulary, whose unknown words occur in train as well.
    """
    if data.unknown is None:
        raise DoesNotApply("the vocabulary has a token for every text")
    shares = {split: counts[data.unknown] / counts.sum() for split, counts in data.counts.items()}
    worst = max(shares, key=lambda split: shares[split])
    sentence = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    sentence = f"unknown words: {sentence} of the tokens"
    if shares[worst] > 0.3:
        return failed(shares[worst], sentence)
    if shares[worst] > 0.01 and not shares["train"]:
        return warned(shares[worst], f"{sentence}; the model never saw one in training")
    return (warned if shares[worst] > 0.1 else passed)(shares[worst], sentence)


@audit("data")
def vocabulary_from_train(data: TokenSet) -> Outcome:
    """The vocabulary was made from the train split alone.

    A word that is not in train can be in the vocabulary only if the vocabulary was made from other text. One made from
    all splits has tokens that are in held-out splits and not in train, and few others that train lacks. One made from
    other text (GPT-2's, say) has few of these and many that are in no split: that is no leak. So the audit fails if
    more than half of the tokens that train lacks are in held-out splits. Three or fewer are ignored (BPE may have a
    stray one). Learn the vocabulary on train.
    """
    held = [split for split in data.counts if split != "train"]
    if not held or "train" not in data.counts:
        raise DoesNotApply("there is no split other than train")
    lacking = data.counts["train"] == 0
    if data.unknown is not None:
        lacking[data.unknown] = False
    elsewhere = lacking & (sum(data.counts[split] for split in held) > 0)
    count, of = int(elsewhere.sum()), int(lacking.sum())
    if not count:
        return passed(0, f"every token of {', '.join(held)} is in train")
    some = ", ".join(f"‘{piece}’" for piece in data.show(np.flatnonzero(elsewhere)[:5].tolist()))
    sentence = f"{count:,} of {data.vocabulary:,} tokens are in held-out splits but not in train, such as {some}"
    if count > 3 and count > of / 2:
        return failed(count, f"{sentence}: the vocabulary was made from more than train")
    return passed(count, f"{sentence}; {of - count:,} more are in no split")


TOKEN_AUDITS: list[Audit] = [out_of_vocabulary, vocabulary_from_train]
