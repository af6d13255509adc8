# quick:  1 CPU core 6 seconds
# full:   1 CPU core 23 seconds
"""One key replaced by hand: a copy to average three, and a key of length 1 to be selected."""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from headway.cases.exercise import (
    Exercise,
    ExerciseClaim,
    ExerciseFinding,
    ExerciseQuestion,
    Reach,
    Ruling,
    drawn_by,
    picture,
    share,
)
from headway.cases.library.B1 import WITHIN, error, least_squares
from headway.draw.charts import Curve, line_chart
from headway.solve import average, find_key, find_query, select
from headway.solve.derivation import number
from headway.solve.draw import draw_key
from headway.solve.geometry import softmax
from headway.solve.inputs import Keys, Vector
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure

THIRD = 2
"""The index of the key that is replaced, counted from 0."""


def copy_of_the_first(keys: Keys, query: Vector) -> Vector:
    """The report's answer for an average of three, where the query averages the first two."""
    return keys[0]


def with_key(keys: Keys, key: Vector) -> Keys:
    replaced = keys.copy()
    replaced[THIRD] = key
    return replaced


def copy_averages_three(instances: int, new_key: Callable[[Keys, Vector], Vector] = copy_of_the_first) -> Ruling:
    rows, missed, total = [], 0, 0
    for of, n, d in (("4 keys, width 8", 4, 8), ("8 keys, width 4", 8, 4)):
        rng, tried, theirs, ours, least = drawn_by("B2", of), 0, 0, 0, 0
        for _ in range(instances):
            keys = rng.normal(size=(n, d))
            two, three = average([0, 1], n), average([0, 1, 2], n)
            found = find_query(keys, two, WITHIN)
            query = least_squares(keys, two) if n <= d else found.query
            if error(keys, query, two) > WITHIN + found.rounding:
                continue  # no query averages two of these keys, so there is nothing to start from
            answer = find_key(query, keys, THIRD, three, within=WITHIN)
            tried += 1
            theirs += error(with_key(keys, new_key(keys, query)), query, three) <= WITHIN + found.rounding
            ours += error(answer.keys, query, three) <= WITHIN + found.rounding
            least += answer.least_error <= WITHIN + found.rounding
        rows.append(
            Reach(
                "share reached",
                f"average 3 of {of}",
                tried,
                share(theirs, tried),
                share(ours, tried),
                share(least, tried),
            )
        )
        missed, total = missed + tried - theirs, total + tried
    return Ruling(
        status="does not hold" if missed else "holds",
        why=f"it does in {total - missed:,} of {total:,} instances where some query averages the first two. The copy "
        "has the score of the first key for every query, so three keys share what two had, and the others get even "
        "less. Any key with that score would do: only its product with the query matters",
        reached=rows,
    )


# --- the part the report did not answer ------------------------------------------------------------------------------


def unit_key(instances: int) -> ExerciseFinding:
    """The score of a key of length 1 is at most ‖q‖: is that enough to beat the others?"""
    rows = [
        _orthogonal(of, length, factor, instances)
        for of, length in (("orthogonal, length 1", 1.0), ("orthogonal, length 2", 2.0))
        for factor in (100.0, 3.0)
    ]
    example = find_key([4.0, 4.0], [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], THIRD, select(THIRD, 3), 1.0, WITHIN)
    return ExerciseFinding(
        why="the best key of length 1 is q/‖q‖, and it gets the weight σ(‖q‖ − log Z), Z = Σ exp(q·k) over the other "
        "keys. So the third value is selected to within ε if and only if ‖q‖ ≥ log Z + log((1 − ε)/ε). For the "
        "report's query and orthogonal keys of length 1 this holds, with the key (k0 + k1)/√2, if the factor is at "
        f"least {_smallest_factor(90):.1f}: 100 is enough, and 3 gives it a weight of {_weight(3, 90):.2f}. For "
        "longer keys, such as Gaussian ones, the query is shorter, and no key of length 1 comes close",
        reached=[*rows, _gaussian(instances)],
        derivation=[
            "The query (4, 4) averages the keys (1, 0) and (0, 1); the third key must have length 1.",
            *example.derivation,
        ],
        figures=[
            picture(
                lambda path: draw_key(example, np.array([-1.0, -1.0]), path),
                "The third key, moved to where a key of length 1 has the largest score: in the direction of the query.",
            ),
            _by_factor(),
        ],
    )


def _orthogonal(of: str, length: float, factor: float, instances: int) -> Reach:
    rng = drawn_by("B2", of)
    keys = [length * np.linalg.qr(rng.normal(size=(8, 4)))[0].T for _ in range(instances)]
    queries = [least_squares(one, average([0, 1], 4), factor) for one in keys]
    return _row(f"{of}, factor {factor:g}", keys, queries)


def _gaussian(instances: int) -> Reach:
    rng = drawn_by("B2", "Gaussian")
    keys = [rng.normal(size=(4, 8)) for _ in range(instances)]
    return _row("Gaussian, width 8, factor 100", keys, [least_squares(one, average([0, 1], 4)) for one in keys])


def _row(of: str, keys: list[Keys], queries: list[Vector]) -> Reach:
    """The median weight of the third key with length 1, and the weight possible by the formula."""
    found, bounds = [], []
    for one, query in zip(keys, queries, strict=True):
        answer = find_key(query, one, THIRD, select(THIRD, len(one)), norm=1.0, within=WITHIN)
        found.append(float(softmax(answer.keys @ query)[THIRD]))
        log_z = float(np.logaddexp.reduce(np.delete(one @ query, THIRD)))
        bounds.append(float(expit(np.linalg.norm(query) - log_z)))
    reached, possible = (number(float(np.median(weights))) for weights in (found, bounds))
    return Reach("weight of the third", of, len(keys), "no answer", reached, possible)


def _weight(factor: float, degrees: float) -> float:
    """The weight of the best key of length 1 among two keys of length 1 at this angle that both have this score."""
    return 1 / (1 + 2 * math.exp(factor - factor / math.cos(math.radians(degrees / 2))))


def _smallest_factor(degrees: float) -> float:
    return (math.log(2) + math.log((1 - WITHIN) / WITHIN)) / (1 / math.cos(math.radians(degrees / 2)) - 1)


def _by_factor() -> Figure:
    factors = [float(f) for f in np.linspace(0, 30, 121)]
    curves = []
    for degrees in (120, 90, 60, 0):
        weights = [_weight(factor, degrees) for factor in factors]
        curves.append(Curve(f"{degrees}°" if degrees else "0°: the same key", factors, weights, weights, weights))
    caption = (
        "The largest weight that a key of length 1 can get, by the factor of the report's query, for two keys of "
        "length 1 at this angle. The wider the angle, the longer the query that gives both their score, and the more a "
        "key in its direction gains."
    )
    return Figure(line_chart(curves, "factor", "weight of the third", caption), caption)


EXERCISE = Exercise(
    title="Which key makes a query average three values, or select one?",
    about="A query that averages the first two values is given. Replace the third key so that the same query averages "
    "three; then replace it by a key of length 1 so that the third value is selected. Scores are plain products q·k. "
    "The query is that of exercise B1 if it works (least squares, times a factor), otherwise Headway's. An answer "
    "counts as correct if at most 1e-6 of all attention is in the wrong place.",
    answered="For the average of three: a copy of the first key. For a key of length 1: no answer was given.",
    reported=Reported(conclusion="a copy of the first key makes the query average three"),
    claims=(
        ExerciseClaim(
            "with a copy of the first key in the third place, the same query averages three", copy_averages_three
        ),
    ),
    questions=(
        ExerciseQuestion(
            "For which queries can a key of length 1 select the third value, and what weight does it get otherwise?",
            unit_key,
        ),
    ),
)
