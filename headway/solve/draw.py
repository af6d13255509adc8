"""Drawings of the answers: keys, query and decision regions in the plane, weights as bars, and matrices."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.core.errors import UserError
from headway.draw.colours import BLUE, DARK, RED
from headway.solve.derivation import number
from headway.solve.geometry import length

if TYPE_CHECKING:
    from headway.solve.construction import Construction
    from headway.solve.keys import KeyAnswer
    from headway.solve.queries import QueryAnswer
    from headway.solve.replacement import FixedLayerAnswer

REGIONS = ("#d7e6f2", "#f6dcd9", "#dcecdd", "#f7ecd0", "#e5dcef", "#d6ecec", "#f3dfeb", "#e6e6da")


def draw_query(answer: "QueryAnswer", path: Path) -> Path:
    flat = answer.keys.shape[1] == 2
    figure, panels = _figure(path, 2 if flat else 1, flat)
    if flat:
        unit = _unit(answer.keys)
        _plane(panels[0], answer.keys / unit, answer.query, answer.wanted > 0)
        panels[0].set(xlabel="" if unit == 1 else f"in units of {number(unit)}")
    _bars(panels[-1], answer.wanted, answer.weights, f"{answer.verdict}: {number(answer.error)} in the wrong place")
    return _saved(figure, path)


def draw_queries(answers: "Sequence[QueryAnswer]", path: Path) -> Path:
    figure, panels = _figure(path, 1, square=True)
    reached = sum(a.verdict == "reached" for a in answers)
    _matrix(
        panels[0], np.stack([a.weights for a in answers]), f"softmax(QKᵀ): {reached} of {len(answers)} rows reached"
    )
    panels[0].set(xlabel="key", ylabel="query")
    return _saved(figure, path)


def draw_key(answer: "KeyAnswer", old: np.ndarray, path: Path) -> Path:
    """Draw the new key; `old` is the key it replaces."""
    flat = len(answer.query) == 2
    figure, panels = _figure(path, 2 if flat else 1, flat)
    if flat:
        keys = np.vstack([answer.keys, old])
        unit = _unit(keys)
        _plane(panels[0], answer.keys / unit, answer.query, np.arange(len(answer.keys)) == answer.replaced, True)
        panels[0].plot(*old / unit, "o", mfc="white", mec=RED, ms=9, zorder=4)
        arrow = {"arrowstyle": "->", "color": RED, "ls": ":"}
        panels[0].annotate("", answer.key / unit, old / unit, arrowprops=arrow, zorder=3)
        panels[0].set(xlabel="" if unit == 1 else f"in units of {number(unit)}")
        if answer.norm is not None:
            circle = answer.norm / unit * np.exp(1j * np.linspace(0, 2 * np.pi, 200))
            panels[0].plot(circle.real, circle.imag, color=RED, lw=0.8, ls="--")
        panels[0].set_title(f"key {answer.replaced}: from ○ to ●", loc="left", fontsize=10)
    _bars(panels[-1], answer.wanted, answer.weights, f"{answer.verdict}: {number(answer.error)} in the wrong place")
    return _saved(figure, path)


def draw_construction(made: "Construction", path: Path, tokens: int = 12) -> Path:
    """Draw the attention weights, and a random sequence through the layer and the direct computation."""
    import torch

    from headway.core import random

    x = torch.randn(tokens, made.channels, generator=random.generator(0, "solve", "picture"), dtype=torch.float64)
    A = made.attention(x)
    figure, panels = _figure(path, len(A[:2]) + 1, square=True)
    before, after = made.zeros
    for h, panel in enumerate(panels[:-1]):
        title = f"weights of head {h}" if len(A) > 1 else "weights"
        _matrix(panel, A[h].numpy(), title, extent=(-before - 0.5, tokens + after - 0.5, tokens - 0.5, -0.5))
        panel.set(xlabel="key (zeros beyond the lines)" if before + after else "key", ylabel="query")
        for edge in [-0.5] * bool(before) + [tokens - 0.5] * bool(after):
            panel.axvline(edge, color=DARK, lw=0.6, ls=":")
    last = panels[-1]
    last.plot(x[:, 0], color=DARK, lw=1, ls=":", label="input")
    last.plot(made.direct(x)[:, 0], color=RED, lw=4, alpha=0.3, label="direct")
    last.plot(made(x)[:, 0], color=BLUE, lw=1.4, label="attention")
    last.set_title(made.what, loc="left", fontsize=10)
    last.set(xlabel="position")
    last.legend(frameon=False, fontsize=8)
    _plain_axes(last)
    return _saved(figure, path)


def draw_matrices(matrices: dict[str, Any], path: Path) -> Path:
    figure, panels = _figure(path, len(matrices), square=True)
    size = max(
        float(np.abs(np.asarray(matrix)).max()) for matrix in matrices.values()
    )  # one scale, so that they can be compared
    for panel, (title, matrix) in zip(panels, matrices.items(), strict=True):
        _matrix(panel, np.asarray(matrix), title, size=size)
    return _saved(figure, path)


def draw_fixed_layer(answer: "FixedLayerAnswer", path: Path) -> Path:
    here = answer.here
    return draw_matrices(
        {
            "M at X₁ (tokens stacked)": here.matrix,
            "Jacobian at X₁": here.jacobian,
            "Jacobian − M": here.jacobian - here.matrix,
        },
        path,
    )


def _plane(panel: Any, keys: np.ndarray, query: np.ndarray, marked: np.ndarray, around_zero: bool = False) -> None:
    """Draw the keys, their hull, and for every direction of a query the key with the highest score."""
    middle = np.zeros(2) if around_zero else keys.mean(0)
    reach = 1.35 * (float(np.abs(keys - middle).max()) or float(np.abs(middle).max()) or 1.0)
    grid = np.linspace(-reach, reach, 401)
    x, y = np.meshgrid(grid, grid)
    best = (np.stack([x, y], -1) @ ((keys - middle) / reach).T).argmax(-1)
    extent = (middle[0] - reach, middle[0] + reach, middle[1] - reach, middle[1] + reach)
    rank = np.full(len(keys), -1)
    present = np.unique(best)
    rank[present] = np.arange(len(present)) % len(REGIONS)
    picture = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in REGIONS], dtype=np.uint8)[rank[best]]
    panel.imshow(picture, extent=extent, origin="lower", aspect="equal", interpolation="nearest", zorder=0)
    hull = _hull(keys)
    panel.fill(*keys[hull].T, fill=False, ec=DARK, lw=0.8, alpha=0.6, zorder=2)
    panel.plot(*keys[~marked].T, "o", color=DARK, ms=6, zorder=5)
    panel.plot(*keys[marked].T, "o", color=RED, ms=8, zorder=5)
    for name, key in _names(keys[:30], 0.02 * reach):
        distance = float(np.linalg.norm(key - middle))
        away = (key - middle) / distance if distance > 1e-9 * reach else np.array([0.0, 1.0])
        place = (9 + 2 * len(name)) * away
        panel.annotate(name, key, xytext=place, textcoords="offset points", ha="center", va="center", zorder=6)
    norm = length(query)
    if norm:
        tip = middle + query / norm * 0.85 * reach
        panel.annotate("", tip, middle, arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 1.8}, zorder=4)
        panel.text(0.03, 0.03, f"→ q, of norm {number(norm)}", color=BLUE, transform=panel.transAxes, zorder=6)
    else:
        panel.plot(*middle, "x", color=BLUE, ms=8, zorder=6)
        panel.text(0.03, 0.03, "× q = 0", color=BLUE, transform=panel.transAxes, zorder=6)
    panel.set_title("colour: the key with the largest score, by direction of q", loc="left", fontsize=10)
    panel.set(xlim=extent[:2], ylim=extent[2:])


def _names(keys: np.ndarray, near: float) -> list[tuple[str, np.ndarray]]:
    """The labels of the keys; keys too close to distinguish share one label."""
    groups: list[list[int]] = []
    for j, key in enumerate(keys):
        group = next((g for g in groups if np.abs(keys[g[0]] - key).max() <= near), None)
        groups.append([j]) if group is None else group.append(j)
    return [(", ".join(map(str, g[:4])) + (" …" if len(g) > 4 else ""), keys[g[0]]) for g in groups]


def _unit(keys: np.ndarray) -> float:
    """The unit of the axes: 1, unless the keys are too large or too small for them."""
    size = float(np.abs(keys).max())
    return 1.0 if size == 0 or 1e-6 < size < 1e6 else size


def _hull(points: np.ndarray) -> list[int]:
    """The corners of the convex hull of points in the plane, in order (Andrew's chain)."""
    order = sorted(range(len(points)), key=lambda k: tuple(points[k]))

    def half(indices: list[int]) -> list[int]:
        chain: list[int] = []
        for k in indices:
            while len(chain) > 1:
                a, b = points[chain[-1]] - points[chain[-2]], points[k] - points[chain[-1]]
                if a[0] * b[1] - a[1] * b[0] > 0:
                    break
                chain.pop()
            chain.append(k)
        return chain

    return half(order)[:-1] + half(order[::-1])[:-1] or order[:1]


def _bars(panel: Any, wanted: np.ndarray, weights: np.ndarray, title: str) -> None:
    at = np.arange(len(weights))
    panel.bar(at, wanted, 0.8, color=RED, alpha=0.25, label="wanted")
    panel.bar(at, weights, 0.45, color=BLUE, label="given")
    panel.set_title(title, loc="left", fontsize=10)
    panel.set(xlabel="key", ylabel="weight", ylim=(0, max(float(wanted.max()), float(weights.max())) * 1.15))
    panel.set_xticks(at if len(at) <= 20 else at[:: len(at) // 10])
    panel.legend(frameon=False, fontsize=8)
    _plain_axes(panel)


def _matrix(
    panel: Any, matrix: np.ndarray, title: str, extent: tuple[float, ...] | None = None, size: float = 0
) -> None:
    from matplotlib.ticker import MaxNLocator

    size = size or float(np.abs(matrix).max()) or 1.0
    one_sided = matrix.min() >= 0
    colours, least = ("Blues", 0.0) if one_sided else ("RdBu", -size)
    shown = panel.imshow(matrix, cmap=colours, vmin=least, vmax=size, extent=extent)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    panel.set_title(title, loc="left", fontsize=10)
    panel.figure.colorbar(shown, ax=panel, shrink=0.8, pad=0.03)
    panel.spines[:].set_visible(False)


def _plain_axes(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25, axis="y")
    panel.set_axisbelow(True)


def _figure(path: Path, panels: int, square: bool) -> tuple[Any, list[Any]]:
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--plot {path}: the picture's name must end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path}: there is no folder {path.parent}")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, panels, figsize=(4.6 * panels, 4.2 if square else 3.4), layout="constrained", squeeze=False
    )
    return figure, list(axes[0])


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
