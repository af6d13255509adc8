"""What a computation costs: parameters, floating-point operations, and how many of them a device can do.

Models count their own, from their shape, and so does each mixer (`flops_per_token` of a spec): torch's counter finds
nothing in fused attention on a CPU. A multiplication and an addition are two operations; only matrix products count, as
is usual; causal attention is counted whole, since that is what kernels are compared by, and of a window what lies in
it, on both sides. A training step costs three
times a forward pass. Beside it stands 6·N·D, which is that without attention and without what N leaves out or has too
much: by which of four conventions N is counted moves the exponents of scaling laws (https://arxiv.org/abs/2406.12907).
"""

from dataclasses import asdict, dataclass

from headway.nn.positions import Positions
from headway.nn.replicated import Embedding
from headway.nn.trainable import Trainable


@dataclass(frozen=True)
class ParameterCounts:
    """Of one replica, by four conventions."""

    everything: int
    """All numbers that are learnt; a table that is shared counts once."""
    without_embeddings: int
    """Without tables of tokens and of positions; where the output matrix is the table of tokens, without that too."""
    without_positions: int
    """All but what is learnt of positions."""
    matrices: int
    """What tokens are multiplied by: the matrices of the layers and the output matrix, also where it is the table of
    tokens. No norms, no biases, and no table that is only looked up."""

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
    """The rule of thumb: FLOPs of a training."""
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
    """What this device could do at most, if its name is known; the longest name that fits."""
    found = [name for name in PEAKS if name in device_name]
    return PEAKS[max(found, key=len)] if found else None
