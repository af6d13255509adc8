"""The demo: change how heads are fused, and look whether it mattered.

Four fusions × three seeds of one small recipe, on text that every Python brings along. Each fusion's seeds train as one
population. A table with the spread and what the audits found, a picture of the curves, and what follows from it.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import recipe as recipes
from headway.audit.audit import Finding
from headway.errors import UserError
from headway.experiment import train
from headway.printing import kept, number, show_table
from headway.progress import for_this_terminal
from headway.run import Run
from headway.variation import varied

ARMS = {
    "concat": "heads side by side, as in 2017",
    "shift": "each head in its neighbour's place",
    "reweight": "heads weighted by their norm over the sequence",
    "reweight-causal": "heads weighted by their norm at each position",
}
SEEDS = "seed=0..2"
SCORE = "valid.perplexity"


@dataclass(frozen=True)
class Outcome:
    runs: dict[str, list[Run]]
    picture: Path

    def perplexities(self, arm: str) -> list[float]:
        return [next(s.value for s in run.scores() if s.name == SCORE) for run in self.runs[arm]]

    @property
    def label(self) -> str:
        return next(s.label for s in next(iter(self.runs.values()))[0].scores() if s.name == SCORE)

    def failures(self, arm: str) -> list[Finding]:
        """What failed in any of an arm's runs: one finding per audit."""
        found = [finding for run in self.runs[arm] for finding in kept(run).failures]
        return list({finding.audit: finding for finding in found}.values())

    @property
    def conclusions(self) -> list[str]:
        """What follows, as measured, whichever way it falls; and what does not."""
        found = []
        if "causality" in {finding.audit for finding in self.failures("reweight")}:
            found.append(
                "reweight sees the future: its norm runs over the whole sequence, so its number is no perplexity of a "
                "left-to-right model."
            )
        honest, plain = self.perplexities("reweight-causal"), self.perplexities("concat")
        gaps = [one - other for one, other in zip(honest, plain, strict=True)]
        worse = sum(gap > 0 for gap in gaps)
        found.append(
            f"reweight-causal, the honest form, against concat seed by seed: {statistics.mean(gaps):+.3f} perplexity "
            f"on average ({min(gaps):+.3f} to {max(gaps):+.3f}), worse in {worse} of {len(gaps)} seeds."
        )
        found.append(f"What this cannot conclude: {len(gaps)} seeds show a spread, not a verdict.")
        return found

    def show(self) -> None:
        rows = []
        for arm, meaning in ARMS.items():
            values = self.perplexities(arm)
            spread = f"{number(min(values))} – {number(max(values))}"
            doubts = ", ".join(dict.fromkeys(f.sentence.partition(":")[0] for f in self.failures(arm))) or "passed"
            rows.append([arm, number(statistics.mean(values)), spread, doubts, meaning])
        show_table(["fusion", "perplexity", "spread of 3 seeds", "audits", "what it is"], rows)
        beside = " · ".join(f"{b.method} {number(b.score.value)}" for b in kept(self.runs["concat"][0]).baselines)
        print(f"\n{self.label}\ncheap methods get: {beside}\ncurves: {self.picture}\n")
        print("\n".join(self.conclusions))
        print(f"\nheadway audit {self.runs['reweight'][0].folder}   shows everything that was checked")

    def as_json(self) -> dict[str, Any]:
        arms = {
            arm: {
                "values": self.perplexities(arm),
                "runs": [str(run.folder) for run in self.runs[arm]],
                "failed audits": {finding.audit: finding.sentence for finding in self.failures(arm)},
            }
            for arm in ARMS
        }
        told = {"picture": str(self.picture), "conclusions": self.conclusions}
        return {"score": SCORE, "label": self.label, "arms": arms, **told}


def run_demo(out: Path) -> Outcome:
    """Train what is not trained yet, and draw."""
    reporter = for_this_terminal()
    runs = {}
    for arm in ARMS:
        base = recipes.load("demo", [f"model.mixer.fusion={arm}"])
        names, members = varied(base, arm, [SEEDS])
        begun = any((out / name).exists() for name in names)
        if begun and not all((out / name / "run.json").exists() for name in names):
            raise UserError(f"{out} holds a part of a demo only; remove it, or choose another with --out")
        runs[arm] = train(members, names, out, resume=begun, reporter=reporter)
        if any(str(run.facts["status"]).startswith("interrupted") for run in runs[arm]):
            raise UserError("the demo was stopped; the same command goes on from there")
    return Outcome(runs, draw(runs, out / "curves.png"))


def draw(runs: dict[str, list[Run]], path: Path) -> Path:
    """Validation loss by step: the mean of the seeds, and the band they span."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for arm, colour in zip(runs, ("#4c566a", "#2a78b5", "#c0453b", "#3f8f4f"), strict=True):
        curves = [[(m["step"], m["scores"]["valid.loss"]) for m in run.metrics() if "scores" in m] for run in runs[arm]]
        steps = [step for step, _ in curves[0]]
        losses = list(zip(*([loss for _, loss in curve] for curve in curves), strict=True))
        axes.fill_between(steps, [min(at) for at in losses], [max(at) for at in losses], color=colour, alpha=0.15, lw=0)
        axes.plot(steps, [statistics.mean(at) for at in losses], color=colour, lw=1.6, label=arm)
    axes.set(xlabel="step", ylabel="nats per character, validation", xlim=(0, None))
    axes.set_title("Four ways to fuse heads: mean and span of three seeds", loc="left", fontsize=11)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
