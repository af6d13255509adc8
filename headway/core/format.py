"""Numbers as people read them: in tables, charts and sentences alike."""

import math


def number(value: float) -> str:
    """Four significant digits, and never a power of ten for what people can read."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = max(0, 4 - 1 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:,.{min(digits, 4)}f}"
    return f"{value:.3g}"
