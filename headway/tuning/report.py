"""Reports of a search: a table of its trials, the importance of each key, and a figure of both."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.trial import TrialState

from headway.core import random
from headway.core.files import write_whole
from headway.draw.colours import BLUE, RED
from headway.scoring.metrics import metric_of
from headway.tuning.space import Between, Space

MIN_TRIALS = 4  # trials needed to estimate importance


def importance(study: optuna.Study) -> dict[str, float]:
    """The share of the score's variance over the space that each key explains alone (fANOVA: a forest fitted to the
    finished trials). Empty if there are too few trials, or if nothing varied."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < MIN_TRIALS or len({trial.value for trial in done}) < 2:
        return {}
    seed = random.key("importance", len(done)) % 2**32
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=64, seed=seed)
    varied = [name for name in done[0].params if len({trial.params[name] for trial in done}) > 1]
    if not varied:
        return {}
    found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=varied)
    return {name: float(share) for name, share in found.items()}


def write_table(study: optuna.Study, space: Space, on: str, path: Path) -> None:
    """Write one line per trial, as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", *space, on, "evaluations", "ended"])
    for trial in study.get_trials(deepcopy=False):
        values = [trial.params.get(name, "") for name in space]
        ended = trial.user_attrs.get("ended", trial.state.name.lower())
        score = trial.value if trial.state == TrialState.COMPLETE else ""  # otherwise it is the last evaluation
        table.writerow([trial.number, *values, score, len(trial.intermediate_values), ended])
    write_whole(path, text.getvalue())


def draw(study: optuna.Study, space: Space, on: str, weights: Mapping[str, float], path: Path) -> None:
    """Left: the importance of each key. Then, for every key, the score by value, with the best trial marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    figure, axes = plt.subplots(1, 1 + len(space), figsize=(3.2 * (1 + len(space)), 3.2), layout="constrained")
    bars, *slices = axes
    names = sorted(space, key=lambda name: weights.get(name, 0.0))
    bars.barh(names, [weights.get(name, 0.0) for name in names], color="#4c566a", height=0.6)
    bars.set(xlim=(0, 1), xlabel="share of the variance")
    bars.set_title("Importance" if weights else "Too few trials to tell", loc="left", fontsize=10)
    best = (min if metric_of(on).lower_is_better else max)((t for t in done), key=lambda t: t.value or 0.0)
    for place, (name, dimension) in zip(slices, space.items(), strict=True):
        place.scatter([t.params[name] for t in done], [t.value for t in done], s=16, color=BLUE, alpha=0.7, lw=0)
        place.scatter([best.params[name]], [best.value], s=60, facecolors="none", edgecolors=RED, lw=1.6)
        place.set(xlabel=name, ylabel=on if place is slices[0] else "")
        if isinstance(dimension, Between) and dimension.log:
            place.set_xscale("log")
    for place in axes:
        place.spines[["top", "right"]].set_visible(False)
        place.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
    plt.close(figure)
