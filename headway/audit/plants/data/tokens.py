"""Faults of vocabularies: learnt on held-out splits, or far too small."""

from dataclasses import replace

import numpy as np

from headway.audit.data.tokens import TokenSet
from headway.audit.plants.needs import part
from headway.audit.plants.planting import Bed, Need, Random

_bed = Bed("tokens")
WORDS = Need("words as tokens", lambda recipe: part(recipe, "data.tokenizer.kind") == "word", ("data.tokenizer=word",))


def _learnt_on_everything(clean: TokenSet, rng: Random) -> TokenSet:
    """Give some words that only a held-out split has tokens of their own."""
    split = next(name for name in clean.ids if name != "train")
    ids = clean.ids[split].copy()
    places = rng.permutation(len(ids))[:40]
    ids[places] = clean.vocabulary + np.arange(len(places)) // 2
    more = clean.vocabulary + 20
    return TokenSet({**clean.ids, split: ids}, more, clean.unknown, lambda ids: [f"word {k}" for k in ids])


def _unknown(share: float):
    def change(clean: TokenSet, rng: Random) -> TokenSet:
        """Make this share of the tokens of each split unknown words."""
        unknown = clean.unknown or 0
        ids = {s: np.where(rng.random(len(of)) < share, unknown, of) for s, of in clean.ids.items()}
        return replace(clean, ids=ids)

    return change


_bed.data(TokenSet, "vocabulary-from-train", "a vocabulary that was learnt on all splits", _learnt_on_everything)
_bed.data(TokenSet, "out-of-vocabulary", "a vocabulary that lacks a third of all words", _unknown(0.4), WORDS)
