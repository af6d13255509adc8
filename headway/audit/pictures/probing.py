"""How audits query a model that matches pictures and captions.

For checks of rows of tokens, the output for a caption is its embedding. The outputs for a training batch are the logits
of all its pictures with all its captions.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from headway.audit.audit import DoesNotApply
from headway.audit.models.learning import equal_chances
from headway.audit.pictures.definitions import CONTRASTS, also_right, clueless
from headway.audit.pictures.matching import OF_MATCHING
from headway.audit.probing import Probing
from headway.models.clip import Clip

ROWS = 4
"""Number of pairs of a batch, where a few are enough."""


PICTURES = 8
"""Number of pictures for checks that watch modules."""


class Matching(Probing):
    per_token, looks_ahead = False, True
    audits = OF_MATCHING

    def see(self, model: Clip, pictures: Tensor) -> Tensor:
        """The embeddings of pictures."""
        return model.see(pictures)

    def logits(self, model: Clip, cosines: Tensor) -> Tensor:
        return model.contrast(cosines)

    def answer_batch(self, model: Clip, batch: Any) -> Tensor:
        return model.match(batch.pictures, batch.inputs, batch.padding_mask)

    def run_whole(self, model: Clip, ids: Tensor, padding_mask: Tensor | None, batch: Any) -> None:
        self.run(model, ids, padding_mask)
        model.see(batch.pictures[:, :PICTURES])

    def apart(self, model: Clip) -> Sequence[Module]:
        return [model.picture]

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        raise DoesNotApply("the loss of these logits depends on the model: see `loss_by`")

    def loss_by(self, model: Clip, answers: Tensor, batch: Any) -> Tensor:
        spec = model.spec.contrast
        if spec.kind not in CONTRASTS:
            raise DoesNotApply(f"the loss '{spec.kind}' has no definition to compare with")
        return CONTRASTS[spec.kind](spec, answers[0].double(), also_right(batch)).mean()

    def clueless(self, model: Clip) -> tuple[float, str]:
        if model.spec.contrast.kind != "infonce":
            raise DoesNotApply(
                "with a sigmoid loss each pair is judged by itself, so there are no choices to guess among"
            )
        return equal_chances(ROWS)

    def clueless_of(self, model: Clip, batch: Any) -> tuple[float, str]:
        self.clueless(model)
        return clueless(model.spec.contrast, also_right(batch)), "a uniform guess among all captions, and all pictures,"

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Some pairs, with different captions first. Captions are not cut, because they must include END."""
        seen: set[int] = set()
        again = [k in seen or seen.add(k) is not None for k in batch.caption[0].tolist()]
        order = sorted(range(len(again)), key=again.__getitem__)[:rows]
        some = torch.tensor(order, device=batch.inputs.device)
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **{n: p[:1, some] for n, p in parts.items() if isinstance(p, Tensor)})
