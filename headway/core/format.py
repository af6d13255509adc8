"""Formats numbers for tables, charts and sentences."""

import math


def number(value: float) -> str:
    """Four significant digits, with a power of ten only for very large or small numbers."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = max(0, 4 - 1 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:,.{min(digits, 4)}f}"
    return f"{value:.3g}"


def clock(seconds: float) -> str:
    """`1:05`, `2:03:45`: the time left, for progress bars."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"


def duration(seconds: float) -> str:
    """`12.5 s`, `7 minutes`, `3.2 hours`: an approximate duration."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


def byte_size(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
