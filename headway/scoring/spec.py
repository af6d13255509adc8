"""The scoring part of a recipe."""

from typing import ClassVar, Literal

from pydantic import Field

from headway.core.spec import Spec
from headway.scoring.decoding import DecodingSpec, Greedy

State = Literal["carried", "fresh"]


class ScoringSpec(Spec):
    """What is measured after training, and how."""

    added: ClassVar[frozenset[str]] = frozenset({"state", "decoding", "bleu_tokenizer"})

    splits: list[str] | None = None
    """Which splits to score; null = all but train."""
    segment: int | None = Field(default=None, ge=1)
    """Tokens the model sees at once; null = data.segment. More than in training tests length extrapolation."""
    stride: int | None = Field(default=None, ge=1)
    """How far the window moves. The last `stride` tokens of each window are scored, the others are context; null =
    segment."""
    state: State | None = None
    """carried: the split is one stream, and each segment continues from the state of the one before (a recurrence's, or
    attention's with mixer.memory); fresh: every segment starts without one; null = carried if the model was trained so
    (data.batches=contiguous) and the window does not stride."""
    decoding: DecodingSpec = Greedy()
    """How translations are written: greedy, beam, sampled."""
    bleu_tokenizer: Literal["13a", "none", "intl", "char"] = "13a"
    """sacreBLEU's tokenizer; none = split at white space, for texts that are tokenised already."""
