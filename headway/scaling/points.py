"""Read the points of a scaling law from a table: one row per trained model, with parameters, tokens, FLOPs and loss.

Parameters and one of tokens and FLOPs are enough; FLOPs are taken as 6·N·D if they are not given. Columns are
recognized by their usual names. Mistakes in a table are reported before anything is fitted, with the row they are in.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headway.core.errors import UserError, did_you_mean
from headway.core.reading import read_text
from headway.stats.isoflop import budgets_of
from headway.stats.scaling import MIN_POINTS, Points

NAMES = {
    "parameters": ("parameters", "params", "n", "nparams", "numparams", "numparameters", "modelsize", "size"),
    "tokens": ("tokens", "d", "trainingtokens", "traintokens", "ntokens", "numtokens", "datasetsize"),
    "flops": ("flops", "flop", "c", "compute", "trainingflops", "trainingflop", "totalflops", "trainingcompute"),
    "loss": ("loss", "l", "validloss", "valloss", "validationloss", "evalloss", "testloss", "finalloss"),
}
"""Usual column names, in lower case and reduced to letters."""
COSTS = ("parameters", "tokens", "flops")
UNITS = (*COSTS, "loss")
MISSING = ("", "nan", "na", "n/a", "none", "null", "-", "inf", "-inf", "+inf", "infinity")
_LARGEST_LOSS = 13.0  # nats per token: a uniform guess among e^13 = 440,000 words, more than vocabularies have
_BITS, _PERPLEXITY = ("bits", "bpb", "bpc", "bpt", "bpw"), ("perplexity", "ppl")  # in the name of a loss column
_SAME_UNITS = 100.0  # attention and embedding tables change FLOPs from 6·N·D by less than this factor
_LIKELY = {1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "10¹²", 1e15: "10¹⁵", 1e18: "10¹⁸"}


@dataclass(frozen=True)
class Choice:
    """The columns to use, and their units."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """parameters, tokens, flops, loss → the name of a column, if it is not a usual one."""
    units: Mapping[str, float] = field(default_factory=dict)
    """parameters, tokens, flops, loss → the factor for the numbers in the table."""


@dataclass(frozen=True, eq=False)
class PointTable:
    points: Points
    """The points to fit: finite, positive, without duplicates."""
    groups: list[np.ndarray]
    """The indices of each budget's points, cheapest first; empty if costs are spread over a range."""
    source: str
    columns: dict[str, str]
    """Which quantity is read from which column; missing FLOPs or tokens are computed from the others."""
    not_finite: int
    """The number of rows left out because a value is not finite."""
    repeated: int
    """The number of duplicate rows left out."""
    conventions: dict[str, np.ndarray] = field(default_factory=dict)
    """Other columns that count parameters, by name."""

    @property
    def _of_cost(self) -> list[str]:
        return [name for name in self.columns if name != "loss"]

    def notes(self) -> list[str]:
        found = []
        if self.not_finite:
            many = f"{self.not_finite} rows have" if self.not_finite > 1 else "1 row has"
            left_out = "are left out" if self.not_finite > 1 else "is left out"
            found.append(f"{many} no finite loss (or no finite {', '.join(self._of_cost)}) and {left_out}")
        if self.repeated:
            many = f"{self.repeated} rows are" if self.repeated > 1 else "1 row is"
            found.append(f"{many} an exact duplicate of another and {'count' if self.repeated > 1 else 'counts'} once")
        if "flops" not in self.columns:
            found.append("FLOPs are not given and are taken as 6·N·D")
        if "tokens" not in self.columns:
            found.append("tokens are not given and are taken as FLOPs/(6·N)")
        return found


def read_points(path: Path, choice: Choice | None = None) -> PointTable:
    """Read a table from a file with comma-, tab- or semicolon-separated columns."""
    choice = choice or Choice()
    try:
        text = read_text(path, through_links=True).removeprefix("\ufeff")
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; expected a table of points in a .csv file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {path}: {reason}") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty; expected a header and one row per trained model")
    separator = max(",\t;", key=lines[0].count)
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator, strict=True)]
    except csv.Error as error:
        raise UserError(f"{path} is not a valid CSV file ({error})") from None
    names, rows = rows[0], rows[1:]
    if all(_number(name) is not None for name in names):
        raise UserError(f"the first line of {path} holds numbers; it should name the columns: parameters,tokens,loss")
    return table(names, rows, path.name, choice)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], source: str, choice: Choice) -> PointTable:
    places = _columns(names, source, choice)
    units = _units(choice, places)
    _check_name_of_loss(names[places["loss"]], source, units)
    values = {key: _values(names, rows, source, key, place) for key, place in places.items()}
    for key, unit in units.items():
        values[key] = values[key] * unit
    finite = np.isfinite(values["loss"])
    for key in COSTS:
        if key in values:
            _check_positive(values[key], finite, source, names[places[key]])
    others = {
        name: _values(names, rows, source, "parameters", k)
        for k, name in enumerate(names)
        if k not in places.values() and _plain(name).startswith(("parameters", "params", "nparams"))
    }
    filled = _filled(values)
    kept = finite & np.isfinite(np.stack(list(filled.values()))).all(0)
    stacked = np.stack([filled[key] for key in ("parameters", "tokens", "loss")], 1)
    _, first = np.unique(stacked, axis=0, return_index=True)
    once = np.isin(np.arange(len(kept)), first)
    chosen = kept & once
    points = Points(*(filled[key][chosen] for key in ("parameters", "tokens", "flops", "loss")))
    _check(points, source, int((~kept).sum()), places, choice)
    conventions = {name: column[chosen] for name, column in others.items()}
    conventions = {name: column for name, column in conventions.items() if (column > 0).all()}
    return PointTable(
        points,
        budgets_of(points),
        source,
        {key: names[place] for key, place in places.items()},
        int((~kept).sum()),
        int((kept & ~once).sum()),
        conventions,
    )


# --- columns ---------------------------------------------------------------------------------------------------------


def _columns(names: Sequence[str], source: str, choice: Choice) -> dict[str, int]:
    """The index of each quantity's column."""
    found: dict[str, int] = {}
    for key, usual in NAMES.items():
        if given := choice.columns.get(key):
            if given not in names:
                raise UserError(f"{source} has no column '{given}' (--{key}){did_you_mean(given, names)}")
            found[key] = names.index(given)
            continue
        known = {_plain(name): k for k, name in reversed(list(enumerate(names)))}
        for name in usual:
            if sum(name == _plain(other) for other in names) > 1:
                raise UserError(f"{source}: two columns are named '{names[known[name]]}'; rename one ({key})")
        if place := next((known[name] for name in usual if name in known), None):
            found[key] = place
        elif place == 0:
            found[key] = 0
    for key in ("loss", "parameters"):
        if key not in found:
            raise UserError(f"{source} has no column named '{key}'{_nearest(key, names)}")
    if "tokens" not in found and "flops" not in found:
        raise UserError(f"{source} has neither a column of tokens nor of FLOPs{_nearest('tokens', names)}")
    return found


def _nearest(key: str, names: Sequence[str]) -> str:
    plain = {_plain(name): name for name in names}
    near = [name for word, name in plain.items() if any(usual in word for usual in NAMES[key] if len(usual) > 3)]
    meant = f"; did you mean --{key} '{near[0]}'?" if near else ""
    return f"{meant or f'; name it with --{key}'}; there are: {', '.join(names)}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _units(choice: Choice, places: Mapping[str, int]) -> dict[str, float]:
    for key in choice.units:
        if key not in UNITS:
            raise UserError(f"--unit {key}: expected one of {', '.join(UNITS)}{did_you_mean(key, UNITS)}")
        if key not in places:
            raise UserError(f"--unit {key}: the table has no such column; these values are computed from the others")
    return dict(choice.units)


def _check_name_of_loss(name: str, source: str, units: Mapping[str, float]) -> None:
    plain = _plain(name)
    if any(word in plain for word in _PERPLEXITY):
        raise UserError(f"{source}: '{name}' looks like a perplexity; expected its logarithm, in nats per token")
    if "loss" not in units and any(word in plain for word in _BITS):
        raise UserError(f"{source}: '{name}' looks like bits; to convert to nats, give --unit loss=0.693147")


# --- values ----------------------------------------------------------------------------------------------------------


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _values(names: Sequence[str], rows: Sequence[Sequence[str]], source: str, key: str, place: int) -> np.ndarray:
    found = np.full(len(rows), math.nan)
    for k, row in enumerate(rows):
        if place >= len(row):
            raise UserError(f"{source}, row {k + 1}: only {len(row)} cells, but '{names[place]}' is column {place + 1}")
        if row[place].lower() in MISSING:
            continue
        value = _number(row[place])
        if value is None:
            raise UserError(f"{source}, row {k + 1}: '{row[place]}' in column '{names[place]}' is not a number ({key})")
        found[k] = value
    return found


def _filled(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All four quantities; tokens or FLOPs that are not given are computed from the others."""
    n, loss = values["parameters"], values["loss"]
    tokens = values["tokens"] if "tokens" in values else values["flops"] / (6 * n)
    flops = values["flops"] if "flops" in values else 6 * n * tokens
    return {"parameters": n, "tokens": tokens, "flops": flops, "loss": loss}


def _check_positive(values: np.ndarray, finite: np.ndarray, source: str, name: str) -> None:
    wrong = np.flatnonzero((values <= 0) & finite)
    if len(wrong):
        raise UserError(f"{source}, row {wrong[0] + 1}: '{name}' is {values[wrong[0]]:g}; expected more than 0")


# --- plausibility ----------------------------------------------------------------------------------------------------


def _check(points: Points, source: str, left_out: int, places: Mapping[str, int], choice: Choice) -> None:
    if len(points) < MIN_POINTS:
        also = f" ({left_out} more have no finite loss)" if left_out else ""
        raise UserError(
            f"{source}: {len(points)} points{also} are too few to fit five parameters; give at least {MIN_POINTS}"
        )
    if (points.loss <= 0).any():
        raise UserError(f"{source}: there is a loss of {points.loss.min():g}; expected nats per token, above 0")
    if np.median(points.loss) > _LARGEST_LOSS:
        low, high = points.loss.min(), points.loss.max()
        raise UserError(
            f"{source}: losses from {low:.4g} to {high:.4g} look like perplexities; expected their logarithms"
        )
    if np.ptp(points.loss) == 0:
        raise UserError(f"{source}: all losses are {points.loss[0]:g}, so no law can be fitted")
    _check_units(points, source, places, choice)
    groups = budgets_of(points)
    if len(groups) == 1:
        said = f"all {len(points)} points cost the same, {points.flops.mean():.3g} FLOPs"
        raise UserError(f"{source}: {said}; a scaling law needs at least two budgets")
    for what, values in (("parameters", points.parameters), ("tokens", points.tokens)):
        if len(np.unique(values)) < 3:
            raise UserError(f"{source}: {what} take {len(np.unique(values))} values; fitting a power needs at least 3")


def _check_units(points: Points, source: str, places: Mapping[str, int], choice: Choice) -> None:
    """Check orders of magnitude: FLOPs are a few times N·D; if only two of the three are given, models are assumed to
    have thousands of parameters and as many tokens."""
    ratio = float(np.median(points.flops / (6 * points.parameters * points.tokens)))
    all_given = {"tokens", "flops"} <= set(places)
    if all_given and 0.02 < ratio < 50:
        return _check_rows(points, source)
    for key, low, high in (("parameters", 50.0, 1e14), ("tokens", 1e3, 1e16), ("flops", 1e6, 1e30)):
        values = getattr(points, key)
        if key in places and np.median(values) < low:
            usual = 1e15 if key == "flops" else 1e6
            unit = (_unit_that_fits(points, key) if all_given else _usual_unit(points, key, places)) or usual
            logarithms = " (or to be logarithms)" if key == "flops" and values.max() < 40 else ""
            shown = f"{key} from {values.min():.4g} to {values.max():.4g} seem to be in {_LIKELY[unit]}{logarithms}"
            raise UserError(f"{source}: {shown}; if so, give --unit {key}={unit:g}")
        if key in places and np.median(values) > high:
            raise UserError(f"{source}: {key} of {np.median(values):.3g} are implausibly many")
        if key in places and values.min() < low:
            odd = f"{key} of {values.min():.4g} in one row, but {_middle(values)} in most"
            raise UserError(f"{source}: {odd}: are rows in different units?")
    if not all_given:
        return None
    said = f"{source}: FLOPs are {ratio:.3g} times 6·N·D (N {_middle(points.parameters)}, D {_middle(points.tokens)},"
    said = f"{said} C {_middle(points.flops)}): these values do not fit together"
    meant = [(key, unit) for key in COSTS if key not in choice.units and (unit := _unit_that_fits(points, key))]
    if meant:
        key, unit = max(meant, key=lambda one: (one[0] == "tokens", one[1]))
        said += f"; {key} seem to be in {_LIKELY[unit]}: if so, give --unit {key}={unit:g}"
    raise UserError(said)


def _check_rows(points: Points, source: str) -> None:
    """Check for rows whose values do not fit together although those of most rows do."""
    ratios = points.flops / (6 * points.parameters * points.tokens)
    off = np.abs(np.log(ratios / np.median(ratios)))
    if off.max() > math.log(_SAME_UNITS):
        k, many = int(off.argmax()), int((off > math.log(_SAME_UNITS)).sum())
        shown = f"N {points.parameters[k]:.4g}, D {points.tokens[k]:.4g}, C {points.flops[k]:.4g}"
        also = f" (and {many - 1} more)" if many > 1 else ""
        raise UserError(
            f"{source}: the row with {shown}{also} has FLOPs {ratios[k]:.3g} times 6·N·D, but most rows "
            f"{np.median(ratios):.3g} times; are rows in different units?"
        )


def _usual_unit(points: Points, key: str, places: Mapping[str, int]) -> float | None:
    """The likely unit of tokens if only parameters are given: the one nearest to twenty tokens per parameter."""
    if key != "tokens" or "parameters" not in places:
        return None
    wanted = 20 * float(np.median(points.parameters / points.tokens))
    return min((1e3, 1e6, 1e9, 1e12), key=lambda unit: abs(math.log(wanted / unit)))


def _unit_that_fits(points: Points, key: str) -> float | None:
    """The power of 1000 with which FLOPs are about 6·N·D."""
    ratio = float(np.median(points.flops / (6 * points.parameters * points.tokens)))
    wanted = 1 / ratio if key == "flops" else ratio
    unit = 1000.0 ** round(math.log(max(wanted, 1e-300), 1000))
    return unit if unit in _LIKELY and 0.05 < wanted / unit < 20 else None


def _middle(values: np.ndarray) -> str:
    return f"about {float(np.median(values)):.2g}"
