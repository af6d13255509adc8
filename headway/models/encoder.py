"""What encoders add to the backbone: attention in both directions, rows with two texts, and pretrained weights."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from pydantic import TypeAdapter, ValidationError, model_validator
from torch import Tensor

from headway.core.spec import Problem
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.start import BorrowedBody, Drawn, StartSpec
from headway.nn.masks import Everything
from headway.nn.segments import NoSegments, SegmentSpec

_START = TypeAdapter(StartSpec)


class EncoderSpec(BackboneSpec):
    """A stack of layers in which every token attends to every other."""

    start: StartSpec = Drawn()
    """The initial weights: drawn (by the seed), or pretrained, with `from`; then layers, width and everything else that
    the weights determine are taken from that model and need not be given."""
    segments: SegmentSpec = NoSegments()
    """Segment embeddings, which say which of two texts in a row a token belongs to: none, separated."""

    body: BorrowedBody | None = None
    """An encoder of another architecture, run by transformers; set by `start`. null = Headway's own layers."""

    added: ClassVar[frozenset[str]] = BackboneSpec.added | {"start", "segments", "body"}

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("start"):
            return given
        try:
            return _START.validate_python(given["start"]).completed(given)
        except ValidationError:
            return given  # the error is reported when `start` itself is validated

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if (kind := self.positions.kind) in ("alibi", "t5"):
            what = "would favour the furthest later tokens" if kind == "alibi" else "cannot tell later tokens apart"
            reason = f"{kind} is made for attending backwards; in an encoder, which also attends forwards, it {what}"
            yield Problem(("positions",), f"{reason}; use {kind}-symmetric")

    @property
    def own_tokenizer(self) -> dict[str, Any] | None:
        return self.start.tokenizer

    @property
    def starts_random(self) -> bool:
        return self.start.is_random

    @property
    def pretrained_as(self) -> str | None:
        return self.start.called

    @property
    def trained_first(self) -> Any:
        return None if self.start.before is None else self.start

    def short(self, tree: dict[str, Any]) -> dict[str, Any]:
        return dict(self.start.short(tree))


class Encoder(Backbone):
    embedding_parts = (*Backbone.embedding_parts, "segments")

    spec: EncoderSpec
    notes: Sequence[str] = ()
    """Notes of `start.fill`, if training starts from pretrained weights."""

    def __init__(self, spec: EncoderSpec, vocabulary: int, replicas: int, device: str):
        super().__init__(spec, vocabulary, replicas, device, Everything())
        self.spec = spec
        self.segments = spec.segments.build(replicas, spec.width)

    def embed(self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None) -> Float[Tensor, "R B T D"]:
        x = super().embed(ids, padding_mask)
        return x if self.segments is None else x + self.segments(ids, padding_mask)
