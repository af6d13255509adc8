"""The runs of a ladder as points of a scaling law: one row per finished run, with its cost and loss.

points.csv in the study's folder has all of them, with the parameters counted in four ways. `headway scaling fit` reads
it.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import UserError
from headway.core.files import write_whole
from headway.run.record import read_json
from headway.scaling.analysis import ScalingAnalysis, analyse
from headway.scaling.points import Choice, PointTable, table
from headway.scoring.cost import six_n_d
from headway.scoring.score import Score
from headway.study.results.results import Results

FILE = "points.csv"
SCORE = "valid.loss"
COLUMNS = [
    "arm",
    "family",
    "budget",
    "width",
    "layers",
    "seed",
    "parameters",
    "parameters_without_embeddings",
    "parameters_without_positions",
    "parameters_matrices",
    "tokens",
    "flops",
    "flops_6nd",
    "loss",
    "loss_error",
    "seconds",
]


def points_of(results: Results, score: str = SCORE) -> list[dict[str, Any]]:
    """One row per run that has ended; the loss of a diverged run is NaN."""
    ended = {run.folder.name: run for run in results.runs}
    found = []
    for arm in results.study.arms:
        for seed in results.study.seeds:
            name = f"{arm.name}.seed-{seed}"
            status = results.missing.get(name)
            if name not in ended and not (status is not None and status.is_diverged):
                continue
            told = ended[name].scores.get(score) if name in ended else None
            found.append(_row(results, arm.name, arm.levels, seed, results.folder / "runs" / name, told))
    return found


def _row(
    results: Results, arm: str, levels: Mapping[str, str], seed: int, folder: Path, told: Score | None
) -> dict[str, Any]:
    facts = read_json(folder / "run.json")
    try:
        steps, counts = int(facts["step"]), facts["counts"]
        tokens, flops = steps * int(facts["tokens_per_step"]), steps * int(facts["flops_per_step"])
    except KeyError:
        raise UserError(f"{folder} was made by a version that did not record costs: train it again") from None
    kept = read_json(folder / "scores.json").get(told.name, {}) if told is not None else {}
    return {
        "arm": arm,
        **{key: levels.get(key, "") for key in ("family", "budget", "width")},
        "layers": results.study.recipes[arm].model.layers,
        "seed": seed,
        "parameters": counts["everything"],
        **{f"parameters_{key}": counts[key] for key in ("without_embeddings", "without_positions", "matrices")},
        "tokens": tokens,
        "flops": flops,
        "flops_6nd": six_n_d(counts["everything"], tokens),
        "loss": math.nan if told is None else told.value,
        "loss_error": standard_error(kept.get("counts")),
        "seconds": facts.get("seconds", math.nan),
    }


def standard_error(pieces: Sequence[Sequence[float]] | None) -> float:
    """The standard error of a mean over tokens, from (nats, tokens) of pieces of the text. Neighbouring tokens are
    correlated, pieces are much less so."""
    if not pieces:
        return math.nan
    nats, tokens = np.array(pieces, dtype=np.float64).T
    off = nats - nats.sum() / tokens.sum() * tokens
    n = len(off)
    return float(np.sqrt((off**2).sum() / (n * (n - 1))) / tokens.mean())


def write_points(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / FILE, written.getvalue())
    return folder / FILE


def tables_of(results: Results, choice: Choice | None = None, score: str = SCORE) -> dict[str, PointTable]:
    """The points of each family by name; without families, under an empty name."""
    rows = _rows_of(results, score)
    return {
        family: table(COLUMNS, own, family or results.folder.name, choice or Choice()) for family, own in rows.items()
    }


def laws_of(results: Results, score: str = SCORE) -> dict[str, ScalingAnalysis]:
    """The scaling analysis of each family. It is cached, because verdicts and report need the same fits."""
    rows = _rows_of(results, score)
    return {family: _fitted(own, family or results.folder.name) for family, own in rows.items()}


@lru_cache(maxsize=8)
def _fitted(rows: tuple[tuple[str, ...], ...], source: str) -> ScalingAnalysis:
    return analyse(table(COLUMNS, rows, source, Choice()))


def _rows_of(results: Results, score: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    if results.study.ladder is None:
        raise UserError(f"{results.folder} is no ladder: a scaling law needs a study with ladder:, not arms or factors")
    rows = points_of(results, score)
    if not rows:
        raise UserError(f"no run of {results.folder} has finished yet: headway scaling run trains them")
    families = dict.fromkeys(row["family"] for row in rows)
    return {
        family: tuple(tuple(_written(row[name]) for name in COLUMNS) for row in rows if row["family"] == family)
        for family in families
    }


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
