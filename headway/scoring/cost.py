"""What a computation costs: floating-point operations, and how many of them a device can do.

Models count their own, from their shape, and so does each mixer (`flops_per_token` of a spec): torch's counter finds
nothing in fused attention on a CPU. A multiplication and an addition are two operations; only matrix products count, as
is usual; causal attention is counted whole, since that is what kernels are compared by. A training step costs three
times a forward pass.
"""

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
