"""Cost: parameter counts, FLOPs, and the peak FLOPs of devices.

Models and mixers count their own FLOPs from their shape (`flops_per_token` of a spec), because torch's counter finds
nothing in fused attention on a CPU. A multiply-add counts as two operations, and only matrix products count, as is
usual. Causal attention is counted as the full square, since kernels are compared that way; local attention counts its
window, on both sides. A training step costs three times a forward pass. The rule of thumb 6·N·D is given as well; it
ignores attention, and which of four conventions for N is used changes the exponents of scaling laws
(https://arxiv.org/abs/2406.12907).
"""

from dataclasses import asdict, dataclass

from headway.nn.positions import Positions
from headway.nn.replicated import Embedding
from headway.nn.trainable import Trainable


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of one replica, by four conventions."""

    everything: int
    """All trainable parameters; shared ones count once."""
    without_embeddings: int
    """Without token and position embeddings, and so without the output matrix if it is tied to the token embedding."""
    without_positions: int
    """Without position embeddings."""
    matrices: int
    """The matrices in matrix products: those of the layers and the output matrix, also if it is tied to the token
    embedding. No norms, no biases, no embeddings that are only looked up."""

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def count_parameters(model: Trainable) -> ParameterCounts:
    def of(kind: type) -> set[int]:
        return {id(p) for module in model.modules() if isinstance(module, kind) for p in module.parameters()}

    places = of(Positions)
    tables = of(Embedding) - places
    numbers = {id(p): p.numel() // model.replicas for p in model.parameters()}
    matrices = {id(p) for p in model.parameters() if p.ndim > 2} - tables - places  # [R, in, out]
    head = {id(model.output_table)} if model.output_table is not None else set()
    return ParameterCounts(
        sum(numbers.values()),
        sum(n for key, n in numbers.items() if key not in tables | places),
        sum(n for key, n in numbers.items() if key not in places),
        sum(n for key, n in numbers.items() if key in matrices | head),
    )


def six_n_d(parameters: int, tokens: int) -> float:
    """Training FLOPs by the rule of thumb 6·N·D."""
    return 6.0 * parameters * tokens


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
    """Peak FLOPs per second of a device, by the longest known name that its name contains; None = unknown device."""
    found = [name for name in PEAKS if name in device_name]
    return PEAKS[max(found, key=len)] if found else None
