"""An audit of attention heads: do they look somewhere, and not all at the same?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.look.head_statistics import statistics
from headway.nn.taps import tap_names, watch


@dataclass(frozen=True, eq=False)
class HeadEntropies:
    """How widely each head looks, on some sentences."""

    shares: np.ndarray
    """[layers, heads, sentences]: the mean entropy of a head's rows as a share of the highest possible, the logarithm
    of how many tokens each row may look at. 0 = always at one token, 1 = at all alike."""

    @classmethod
    def of(cls, model: Any, ids: Tensor) -> "HeadEntropies":
        """On these sentences [1, B, T], which hold no padding."""
        names = [name for name in tap_names(model) if name.endswith(".weights")]
        padding_mask = torch.ones_like(ids, dtype=torch.bool)
        with torch.no_grad(), watch(model, *names) as seen:
            model(ids, padding_mask=padding_mask)
        shares = [statistics(seen[name][0]).entropy_share.T.nan_to_num() for name in names]  # [heads, sentences] each
        return cls(torch.stack(shares).cpu().numpy() if shares else np.zeros((0, 0, 0)))


@audit("training")
def collapsed_heads(heads: HeadEntropies) -> Outcome:
    """Few heads are dead: looking at one token always, at all tokens alike, or all in the same way.

    A head whose entropy is below 1 % or above 99 % of the possible on every sentence chooses nothing; heads of a layer
    whose entropies agree to 0.1 % on every sentence (three at least) do the same thing several times. A quarter of all
    heads is a warning, nearly all (95 %) a failure: the model works without attention, or has not trained. An untrained
    model fails this, for all its heads look at everything alike.
    """
    shares = heads.shares
    if shares.size == 0:
        raise DoesNotApply("the model has no heads")
    pointed, even = (shares < 0.01).all(-1), (shares > 0.99).all(-1)
    alike = np.zeros(shares.shape[:2], np.bool_)
    if shares.shape[1] > 1 and shares.shape[2] >= 3:
        alike[(np.ptp(shares, axis=1) < 1e-3).all(-1)] = True
    dead = pointed | even | alike
    share = float(dead.mean())
    same = alike & ~even & ~pointed
    kinds = {"look at one token always": pointed, "look at all alike": even, "do what their neighbours do": same}
    parts = [f"{int(which.sum())} {kind}" for kind, which in kinds.items() if which.any()]
    if not parts:
        return passed(share, f"none of the {dead.size} heads is collapsed")
    layer, head = np.argwhere(dead)[0].tolist()
    sentence = f"of {dead.size} heads {', '.join(parts)} (layer {layer}, head {head} first)"
    return (failed if share >= 0.95 else warned if share >= 0.25 else passed)(share, sentence)


HEAD_AUDITS: list[Audit] = [collapsed_heads]
