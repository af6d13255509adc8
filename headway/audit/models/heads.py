"""An audit of attention heads: do they attend selectively, and do they differ from each other?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.populations.members import OneOrMember
from headway.audit.probe import Probe
from headway.look.head_statistics import entropy_shares
from headway.nn.taps import tap_names, watch


@dataclass(frozen=True, eq=False)
class HeadEntropies:
    """How widely each head attends, on some sentences."""

    shares: Sequence[np.ndarray]
    """Of each layer, [heads, sentences]: the mean entropy of a head's attention as a share of the maximum, which is the
    logarithm of the number of tokens a query may see. 0 = always one token, 1 = uniform."""

    @classmethod
    def of(cls, probe: OneOrMember) -> "HeadEntropies":
        """Computed on the sentences of the probe, which have no padding."""
        return cls(probe.share(_entropies))


def _entropies(everyone: Probe) -> list[list[np.ndarray]]:
    """Of each replica, the shares of every layer."""
    names = [name for name in tap_names(everyone.model) if name.endswith(".weights")]
    with torch.no_grad(), watch(everyone.model, *names) as seen:
        whole = torch.ones_like(everyone.sentences, dtype=torch.bool)
        everyone.how.run_whole(everyone.model, everyone.sentences, whole, everyone.batch)
    layers = [entropy_shares(seen[name]).mT.nan_to_num().cpu().numpy() for name in names]  # [R, heads, sentences] each
    return [[layer[r] for layer in layers] for r in range(len(everyone.sentences))]


@audit("training")
def collapsed_heads(heads: HeadEntropies) -> Outcome:
    """Few heads are collapsed: attending to one token, uniformly to all, or all in the same way.

    A head whose entropy is below 1 % or above 99 % of the maximum on every sentence selects nothing; heads of a layer
    whose entropies agree to 0.1 % on every sentence (at least three) do the same thing several times. A quarter of all
    heads is a warning, nearly all (95 %) a failure: the model works without attention, or has not trained. An untrained
    model fails this, because all its heads attend uniformly.
    """
    if not any(layer.size for layer in heads.shares):
        raise DoesNotApply("the model has no heads")
    places = [(n, head) for n, layer in enumerate(heads.shares) for head in range(len(layer))]
    pointed = np.concatenate([(layer < 0.01).all(-1) for layer in heads.shares])
    even = np.concatenate([(layer > 0.99).all(-1) for layer in heads.shares])
    alike = np.concatenate([np.full(len(layer), _all_alike(layer)) for layer in heads.shares])
    dead = pointed | even | alike
    share = float(dead.mean())
    same = alike & ~even & ~pointed
    kinds = {"attending to one token": pointed, "attending uniformly": even, "doing what their neighbours do": same}
    parts = [f"{int(which.sum())} {kind}" for kind, which in kinds.items() if which.any()]
    if not parts:
        return passed(share, f"none of the {dead.size} heads is collapsed")
    layer, head = places[int(dead.argmax())]
    sentence = f"of {dead.size} heads: {', '.join(parts)} (the first is layer {layer}, head {head})"
    return (failed if share >= 0.95 else warned if share >= 0.25 else passed)(share, sentence)


def _all_alike(shares: np.ndarray) -> bool:
    """Whether all heads of a layer [heads, sentences] have the same entropies."""
    heads, sentences = shares.shape
    return heads > 1 and sentences >= 3 and bool((np.ptp(shares, axis=0) < 1e-3).all())


HEAD_AUDITS: list[Audit] = [collapsed_heads]
