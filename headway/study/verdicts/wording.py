"""How numbers are formatted in verdicts: effects with as many digits as their interval justifies, lists, counts."""

import math
from collections.abc import Container, Iterable, Sequence

SCIENTIFIC_FROM = 1e9


def digits(interval: tuple[float, float]) -> int:
    """How many decimals to print, so that half the interval has two significant digits."""
    reach = (interval[1] - interval[0]) / 2
    if not math.isfinite(reach) or reach <= 0:
        return 2
    return min(6, max(0, 1 - math.floor(math.log10(reach))))


def fixed(value: float, decimals: int) -> str:
    """Format with this many decimals; never '-0.0', and in scientific notation if huge."""
    if abs(value) >= SCIENTIFIC_FROM:
        return f"{value:.2g}".replace("inf", "∞")
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def amount(effect: float, interval: tuple[float, float], unit: str = "") -> str:
    """`12.3 [9.8, 15.1] perplexity`."""
    places = digits(interval)
    low, high = (fixed(end, places) for end in interval)
    return f"{fixed(effect, places)} [{low}, {high}]{' ' if unit else ''}{unit}"


def times(factor: float, interval: tuple[float, float], of: str) -> str:
    """`a factor of 35.7 [21.9, 58.2] in perplexity`."""
    told, low, high = (f"{value:,.0f}" if 1e3 <= value < 1e6 else f"{value:.3g}" for value in (factor, *interval))
    return f"a factor of {told} [{low}, {high}] in {of}".replace("inf", "∞")


def percent(share: float) -> str:
    return f"{fixed(100 * share, 1)} %"


def mirrored(interval: tuple[float, float]) -> tuple[float, float]:
    """The interval of the effect with its sign flipped."""
    return -interval[1], -interval[0]


def plain(value: float) -> str:
    """A single number without an interval: four significant digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return fixed(value, min(6, max(0, 3 - math.floor(math.log10(abs(value))))))


def large(value: float) -> str:
    """`1.2M`, `3.4k`: for parameter counts and FLOPs."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def chance(p: float) -> str:
    """`p = 0.03`, `p < 0.0001`."""
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def seeds(count: int) -> str:
    return f"{count} seed" + ("" if count == 1 else "s")


def listed(names: Iterable[object]) -> str:
    """`a, b and c`."""
    given: Sequence[str] = [str(name) for name in names]
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}" if given else "none"


def sentence(text: str, names: Container[str] = ()) -> str:
    """Add a full stop, and a capital letter unless the text begins with one of these names."""
    text = text.strip()
    if text.split(" ", 1)[0].rstrip(":,") not in names:
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!", ".”", "?”", "!”")) else f"{text}."
