"""Our pooling and classification head on top of an encoder run by `transformers` (DeBERTa, MPNet, ALBERT …)."""

import inspect
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.models.borrowed.body import RunByTransformers
from headway.models.borrowed.module import ENCODER
from headway.models.classifier import Classifier, ClassifierSpec
from headway.nn.segments import Separated, which_text
from headway.nn.taps import Tap
from headway.nn.trainable import Trainable


class BorrowedClassifier(RunByTransformers, Classifier):
    def __init__(self, spec: ClassifierSpec, vocabulary: int, classes: int, replicas: int, device: str = "cpu"):
        Trainable.__init__(self)
        self.borrow(spec, vocabulary, replicas, ENCODER)
        self.classes = classes
        takes_types = "token_type_ids" in inspect.signature(self.body.forward).parameters
        self.told_apart = spec.segments if isinstance(spec.segments, Separated) and takes_types else None
        self.pooler = spec.pooling.build(1, spec.width)
        self.head = spec.head.build(1, spec.width, classes)
        self.pooled, self.logits, self.kept = Tap(), Tap(), None

    def hidden(
        self,
        ids: Int[Tensor, "1 B T"],
        state: Any = None,
        padding_mask: Bool[Tensor, "1 B T"] | None = None,
        mask=None,
    ) -> tuple[Float[Tensor, "1 B T D"], Any]:
        self.check_length(ids.shape[2], padding_mask)
        there = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
        # Move tokens before the padding, because these architectures count positions by slots.
        order = (~there).long().argsort(dim=-1, stable=True)
        ids, there = ids.gather(2, order), there.gather(2, order)
        ids = ids.masked_fill(~there, self.pad_id)
        given: dict[str, Any] = {"input_ids": ids[0], "attention_mask": there[0].long()}
        if (by := self.told_apart) is not None:
            given["token_type_ids"] = which_text(ids, there, by.separator, by.count)[0]
        if self.shows_attention:
            given["output_attentions"] = True
        out = torch.func.functional_call(self.body, self.body_weights, kwargs={**given, "return_dict": True})
        self.show_attention(out)
        back = order.argsort(dim=-1)[..., None].expand(-1, -1, -1, self.spec.width)
        return out.last_hidden_state[None].gather(2, back), None
