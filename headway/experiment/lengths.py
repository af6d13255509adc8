"""Scores runs with segments of several lengths: a table, and a chart with a curve for each way of reading."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headway import tasks
from headway.draw.chart_page import Chart, ChartPage
from headway.draw.charts import Curve
from headway.draw.picture import PictureTable
from headway.experiment.inspect import alike
from headway.experiment.load import load_usable
from headway.experiment.same_tokens import check_same_tokens, naming_in_errors
from headway.run.folder import Run
from headway.scoring.length import TOKENS, LengthScore, check_lengths, score_lengths
from headway.tasks.abilities import ReadsSegments

WAYS = {"apart": "segments apart", "sliding": "sliding", "carried": "state carried"}


@dataclass(frozen=True)
class ArmByLength:
    """Runs that differ only in the seed."""

    name: str
    trained_on: int
    """The segment length of its training."""
    runs: Sequence[Run]
    seeds: Sequence[Sequence[LengthScore]]

    def curve(self, name: str, x: Sequence[float], of: Callable[[Sequence[LengthScore]], Sequence[float]]) -> Curve:
        at = list(zip(*(of(seed) for seed in self.seeds), strict=True))
        middle, low, high = ([f(values) for values in at] for f in (statistics.mean, min, max))
        return Curve(name, x, middle, low, high)

    @property
    def ways(self) -> list[str]:
        return [way for way in WAYS if getattr(self.seeds[0][0], way) is not None]

    def by_way(self, way: str, name: str) -> Curve:
        lengths = [score.length for score in self.seeds[0]]
        return self.curve(name, lengths, lambda seed: [getattr(score, way) for score in seed])


@dataclass(frozen=True)
class LengthPage:
    """The scores by length; displays itself in a notebook."""

    arms: Sequence[ArmByLength]
    split: str
    tokens: int

    def draw(self) -> ChartPage:
        trained = ", ".join(f"{arm.name} {arm.trained_on}" for arm in self.arms)
        how = f"The first {self.tokens:,} tokens of {self.split}, the same for every length. Trained on segments of: "
        how += f"{trained}. Sliding windows move by a quarter of their length."
        if any(len(arm.seeds) > 1 for arm in self.arms):
            how += " Lines are means over seeds; bands reach from the lowest to the highest."
        return ChartPage(
            "Scored with segments of several lengths", how, [self._by_length, self._by_position], (), self.table
        )

    @property
    def _by_length(self) -> Chart:
        curves = [arm.by_way(way, self._named(arm, WAYS[way])) for arm in self.arms for way in arm.ways]
        what = "The loss by segment length. The gap between apart and sliding is the cost of tokens with little context"
        return Chart(curves, "tokens in a segment", "nats per token", what)

    @property
    def _by_position(self) -> Chart:
        """For the longest segments. Distant positions are binned, since there are few segments."""
        curves = []
        for arm in self.arms:
            bins = list(_bins(len(arm.seeds[0][-1].by_position)))
            middles = [(first + end + 1) / 2 for first, end in bins]
            curves.append(
                arm.curve(
                    self._named(arm, f"segments of {arm.seeds[0][-1].length}"),
                    middles,
                    lambda seed, bins=bins: [statistics.mean(seed[-1].by_position[a:b]) for a, b in bins],
                )
            )
        what = "The loss by position in the segment, for the longest segments, apart"
        return Chart(curves, "position in the segment", "nats per token", what)

    def _named(self, arm: ArmByLength, what: str) -> str:
        return what if len(self.arms) == 1 else f"{arm.name}, {what}"

    @property
    def table(self) -> PictureTable:
        rows = []
        for arm in self.arms:
            for k, score in enumerate(arm.seeds[0]):
                means = {way: statistics.mean(getattr(seed[k], way) for seed in arm.seeds) for way in arm.ways}
                shown = [f"{means[way]:.4f}" if way in means else "–" for way in WAYS]
                rows.append([arm.name, str(score.length), *shown, f"{means['apart'] - means['sliding']:+.4f}"])
        note = (
            "segments apart: each read on its own; sliding: overlapping windows, so that every token has context; "
            "state carried: one stream, for models that carry a state; early tokens: apart minus sliding, the cost of "
            "the tokens at the start of a segment, which have little context"
        )
        return PictureTable(["run", "length", *WAYS.values(), "early tokens"], rows, note)

    def as_json(self) -> dict[str, Any]:
        arms = [
            {
                "name": arm.name,
                "trained_on": arm.trained_on,
                "runs": [
                    {"run": str(run.folder), "lengths": [score.as_json() for score in scores]}
                    for run, scores in zip(arm.runs, arm.seeds, strict=True)
                ],
            }
            for arm in self.arms
        ]
        return {"split": self.split, "tokens": self.tokens, "arms": arms}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def by_length(
    runs: Sequence[Run], lengths: Sequence[int], split: str = "valid", tokens: int = TOKENS, which: str = "auto"
) -> LengthPage:
    """Score several runs on the same tokens, in one picture. Runs that differ only in the seed form one curve with a
    band."""
    lengths = sorted(lengths)
    for run in runs:
        tasks.able(run, ReadsSegments)
    check_same_tokens(runs)
    task = tasks.load_for(runs[0])
    assert isinstance(task, ReadsSegments)
    task.check_split(split)
    ids = task.running(split)[0][: tokens + 1]
    for run in runs:
        with naming_in_errors(run):
            check_lengths(lengths, len(ids), run.recipe.model.limit)
    for run in runs:
        run.count_looks_at_test([split])
    arms = []
    for name, same in alike(runs):
        found = [score_lengths(load_usable(run, which)[0], ids, lengths)[0] for run in same]
        arms.append(ArmByLength(name, same[0].recipe.segment, same, found))
    return LengthPage(arms, split, len(ids) - 1)


def _bins(places: int) -> Iterator[tuple[int, int]]:
    """Bins of one position each at first, then growing by a sixth."""
    first = 0
    while first < places:
        end = min(places, first + max(1, first // 6))
        yield first, end
        first = end
