"""Compare the maps of two runs side by side on the same scale, with their differences.

Maps are compared cell by cell only if both runs split the sentence into the same tokens; otherwise both are drawn with
a note. Heads have no order: head 1 of one run need not correspond to head 1 of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headway.draw.colours import DIFFERENCES
from headway.draw.picture import Grid, Panel, Picture, finite, percent
from headway.look.head_statistics import distance_between


@dataclass(frozen=True, eq=False)
class Pair:
    """A panel of each run, and the second minus the first."""

    title: str
    ours: Panel
    theirs: Panel

    @property
    def difference(self) -> np.ndarray:
        return self.theirs.matrix.astype(float) - self.ours.matrix

    @property
    def distance(self) -> float:
        """Mean share of a row's weight that differs."""
        return float(distance_between(torch.tensor(self.ours.matrix), torch.tensor(self.theirs.matrix)))


@dataclass(frozen=True, eq=False)
class MapComparison:
    ours: Grid
    theirs: Grid
    sentence: str
    subtitle: str
    """How to read the pictures."""
    notes: list[str]
    """The notes of both."""

    @property
    def why_not(self) -> str | None:
        """Why nothing can be compared cell by cell, or None."""
        a, b = self.ours.panels[0][0], self.theirs.panels[0][0]
        both = f"{self.ours.title} and {self.theirs.title} do not"
        if a.columns != b.columns:
            differ = f"read the same tokens ({_first_difference(a.columns, b.columns)})"
            return f"{both} {differ}: both are shown without a comparison"
        if a.rows != b.rows:  # gradients of classifiers, whose rows are their predictions
            differ = f"predict the same ({_first_difference(a.rows, b.rows)})"
            return f"{both} {differ}: both are shown without a comparison"
        if not self.pairs:
            return f"{self.ours.title} and {self.theirs.title} have no layer and head in common: nothing is compared"
        return None

    @property
    def pairs(self) -> list[Pair]:
        """Panels with the same title."""
        theirs = {panel.title: panel for row in self.theirs.panels for panel in row}
        mine = [panel for row in self.ours.panels for panel in row]
        return [Pair(panel.title, panel, theirs[panel.title]) for panel in mine if panel.title in theirs]

    @property
    def differ_most(self) -> str:
        """A sentence on the largest difference."""
        most = max(self.pairs, key=lambda pair: pair.distance)
        i, j = np.unravel_index(np.abs(most.difference).argmax(), most.difference.shape)
        a, b = most.ours.matrix[i, j], most.theirs.matrix[i, j]
        return (
            f"They differ most in {most.title}, where {percent(most.distance)} of the weight lies elsewhere: above all "
            f"from '{most.ours.rows[i]}' ({i}) to '{most.ours.columns[j]}' ({j}), {a:.2f} in {self.ours.title} and "
            f"{b:.2f} in {self.theirs.title}."
        )

    def draw(self) -> Picture:
        title = f"{self.ours.title} and {self.theirs.title}"
        if self.why_not:
            return Picture(title, self.sentence, self.subtitle, [self.ours, self.theirs], [self.why_not, *self.notes])
        by_row: list[list[Panel]] = []
        by_name = {pair.title: pair for pair in self.pairs}
        for row in self.ours.panels:
            shared = [by_name[panel.title] for panel in row if panel.title in by_name]
            if shared:
                by_row.append([self._panel(pair) for pair in shared])
        difference = Grid(f"{self.theirs.title} − {self.ours.title}", by_row, DIFFERENCES)
        order = "Heads have no order: a head of one run need not correspond to that number in the other."
        said = [self.differ_most, *([order] if len(self.pairs) > 1 else []), *self.notes]
        return Picture(title, self.sentence, self.subtitle, [self.ours, self.theirs, difference], said)

    def as_json(self) -> dict[str, Any]:
        if self.why_not:
            return {"compared": False, "why": self.why_not}
        distances = {pair.title: pair.distance for pair in self.pairs}
        return {"compared": True, "differ_most": self.differ_most, "distances": distances}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()

    def _panel(self, pair: Pair) -> Panel:
        caption = (f"moved {percent(pair.distance)}", f"at most {finite(float(np.abs(pair.difference).max()))}")
        return Panel(pair.title, pair.difference, pair.ours.rows, pair.ours.columns, caption)


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """The lengths if they differ, else the first two elements that differ."""
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)}"
    return next(f"'{a}' and '{b}'" for a, b in zip(ours, theirs, strict=True) if a != b)
