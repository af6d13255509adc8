"""How audits query a model that matches pictures and captions.

Where a question is about rows of tokens, the answer to a caption is where it is embedded. What is said of a batch of
training are the logits of all its pictures with all its captions.
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
"""Of a batch, where a few are enough."""


PICTURES = 8
"""That are looked at where parts of a model are watched."""


class Matching(Probing):
    per_token, looks_ahead = False, True
    audits = OF_MATCHING

    def see(self, model: Clip, pictures: Tensor) -> Tensor:
        """Pictures, embedded."""
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
        raise DoesNotApply("what the loss of logits is, the model says: `loss_by`")

    def loss_by(self, model: Clip, answers: Tensor, batch: Any) -> Tensor:
        spec = model.spec.contrast
        if spec.kind not in CONTRASTS:
            raise DoesNotApply(f"no definition is known of the loss '{spec.kind}'")
        return CONTRASTS[spec.kind](spec, answers[0].double(), also_right(batch)).mean()

    def clueless(self, model: Clip) -> tuple[float, str]:
        if model.spec.contrast.kind != "infonce":
            raise DoesNotApply("where a pair is asked for by itself there are no choices")
        return equal_chances(ROWS)

    def clueless_of(self, model: Clip, batch: Any) -> tuple[float, str]:
        self.clueless(model)
        return clueless(model.spec.contrast, also_right(batch)), "equal chances for all captions, and for all pictures"

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Captions are whole: what has no END is none. Pairs with different captions come first."""
        seen: set[int] = set()
        again = [k in seen or seen.add(k) is not None for k in batch.caption[0].tolist()]
        order = sorted(range(len(again)), key=again.__getitem__)[:rows]
        some = torch.tensor(order, device=batch.inputs.device)
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **{n: p[:1, some] for n, p in parts.items() if isinstance(p, Tensor)})
