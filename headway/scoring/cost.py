"""What a model costs: floating-point operations, counted from its shape.

Counted here and not by torch's counter, which finds nothing in fused attention on a CPU. A multiplication and an
addition are two operations; only matrix products count, as is usual; causal attention is counted whole, since that is
what kernels are compared by. A training step costs three times a forward pass.
"""

from headway.models.backbone import BackboneSpec
from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec


def forward_flops_per_token(spec: LanguageModelSpec, vocabulary: int, segment: int) -> int:
    """For one token of a segment of this length, in one replica."""
    return backbone_flops_per_token(spec, segment) + 2 * spec.width * vocabulary


def forward_flops_per_row(spec: ClassifierSpec, classes: int, length: int) -> int:
    """For one text, filled up to this length, in one replica."""
    hidden = spec.head.hidden or spec.width
    return length * backbone_flops_per_token(spec, length) + 2 * hidden * (spec.width + classes)


def backbone_flops_per_token(spec: BackboneSpec, segment: int) -> int:
    """Of the layers alone."""
    D = spec.width
    hidden = spec.feedforward.hidden_units(D)
    projections = 4 * D * D  # queries, keys, values, output
    attention = 2 * segment * D  # scores, and the weighted sum
    feedforward = (3 if spec.feedforward.kind == "swiglu" else 2) * D * hidden
    return 2 * spec.layers * (projections + attention + feedforward)


def training_flops_per_token(spec: LanguageModelSpec, vocabulary: int, segment: int) -> int:
    return 3 * forward_flops_per_token(spec, vocabulary, segment)


PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Dense bf16 (fp16 where there is no bf16) matrix operations per second, from the vendor's data sheets."""


def peak_flops(device_name: str) -> float | None:
    """What this device could do at most, if its name is known; the longest name that fits."""
    found = [name for name in PEAKS if name in device_name]
    return PEAKS[max(found, key=len)] if found else None
