"""Colour scales: the same weight has the same colour in every head, sentence, run and file.

Weights are coloured by their square root, because most are small and small ones are of interest; differences linearly,
because there small ones are noise. The scales are built in OKLab (Ottosson 2020) in equal steps of lightness, so equal
steps look equal and the order is visible without seeing hues, or in grey print. Exact zeros stay blank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

BLANK = (255, 255, 255)
DARK, BLUE, RED = "#2e3440", "#2a78b5", "#c0453b"
"""Colours of simple drawings on white: the given, the result, and what it is compared with."""
CURVES = ("#4a5160", "#2468a8", "#b5442f", "#2f7f4f", "#8250a8", "#a8741a", "#1f8a94", "#b34a7f")
"""Colours of the curves of one chart, on a light background."""
CURVES_ON_DARK = ("#b4bac6", "#6fb1ec", "#ef8d78", "#74c493", "#c39be0", "#dcb066", "#67c6cf", "#ea8fbd")
_STEPS = 256


@dataclass(frozen=True, eq=False)
class ColourScale:
    name: str
    """The quantity shown."""
    remark: str
    """A remark about the colours."""
    low: float
    high: float
    """The range; numbers outside have the colour of the nearest end."""
    power: float
    """The exponent applied to numbers before they are mapped to colours."""
    colours: np.ndarray
    """uint8 [256, 3], from the lowest to the highest."""
    ticks: tuple[float, ...]

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Positions on the scale, from 0 to 1."""
        low, high, at = (np.sign(x) * np.abs(x) ** self.power for x in (self.low, self.high, np.asarray(numbers)))
        return np.clip((at - low) / (high - low), 0, 1)

    def paint(self, numbers: np.ndarray) -> np.ndarray:
        """The colours of numbers, uint8 [..., 3]."""
        painted = self.colours[np.rint(self.places(numbers) * (_STEPS - 1)).astype(int)]
        return np.where((numbers == 0)[..., None], np.array(BLANK, np.uint8), painted)

    def ink(self, number: float) -> str:
        """Black or white, whichever is readable on the colour of this number."""
        red, green, blue = self.paint(np.array(number)) / 255
        return "#ffffff" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.2 else "#1a1a1a"


def _shades(hue: float, lightest: float, darkest: float, steps: int) -> np.ndarray:
    """sRGB colours from light to dark: lightness decreases evenly, chroma is largest past the middle."""
    along = np.linspace(0, 1, steps)
    lightness = lightest + (darkest - lightest) * along
    chroma = 0.012 + 0.1 * np.sin(0.8 * np.pi * along)
    a, b = chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue))
    cones = np.stack(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(to_rgb @ cones**3, 0, 1).T
    gamma = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(gamma * 255).astype(np.uint8)


_BLUES = _shades(255, 0.965, 0.27, _STEPS)
WEIGHTS = ColourScale("weight", "blank: exactly 0", 0.0, 1.0, 0.5, _BLUES, (0, 0.01, 0.1, 0.25, 0.5, 1))
SHARES = replace(WEIGHTS, name="share")
DIFFERENCES = ColourScale(
    "difference",
    "±0.5 and beyond at the ends",
    -0.5,
    0.5,
    1.0,
    np.concatenate([_shades(50, 0.985, 0.42, _STEPS // 2)[::-1], _shades(255, 0.985, 0.36, _STEPS // 2)]),
    (-0.5, -0.25, 0, 0.25, 0.5),
)


def curve_variables(colours: Sequence[str]) -> str:
    """CSS variables for a page with charts: `--curve-1: #4a5160; …`."""
    return " ".join(f"--curve-{k}: {colour};" for k, colour in enumerate(colours, 1))
