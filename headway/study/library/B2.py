# quick:  1 CPU core 2 seconds
# full:   1 CPU core 10 seconds
"""One key replaced by hand: a copy to average three, and a key of length 1 to be selected."""

import math
from collections.abc import Callable

import numpy as np

from headway.solve import average, find_key, find_query, select
from headway.solve.draw import draw_key
from headway.solve.geometry import softmax
from headway.solve.given import Keys, Vector
from headway.solve.words import number
from headway.study.claims import Reported
from headway.study.exercise import Claim, Exercise, Finding, Question, Reach, Ruling, drawn_by, picture, share
from headway.study.library.B1 import WITHIN, error, least_squares
from headway.study.report_charts import Curve, line_chart
from headway.study.report_figures import Figure

THIRD = 2
"""The key that is replaced: keys are counted from 0."""


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
                continue  # no query averages two of these keys, so there is none to go on with
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
        standing="does not hold" if missed else "holds",
        why=f"it does in {total - missed:,} of {total:,} instances where some query averages the first two. The copy has the "
        "score of the first key for every query, so three keys share what two had; every other key loses. Any key with "
        "that score would do as well: only the product with the query counts",
        reached=rows,
    )


# --- the part without an answer --------------------------------------------------------------------------------------


def unit_key(instances: int) -> Finding:
    """By how far the query may outdo what the other keys have: the score of a key of length 1 is ‖q‖ at most."""
    rows = []
    for of, lengths in (("orthogonal keys of length 1", 1.0), ("orthogonal keys of length 2", 2.0)):
        rows += [_orthogonal(of, lengths, factor, instances) for factor in (100.0, 3.0)]
    rows.append(_gaussian(instances))
    needed = _smallest_factor(90.0)
    example = find_key([4.0, 4.0], [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], THIRD, select(THIRD, 3), 1.0, WITHIN)
    return Finding(
        why="the best key of length 1 is q/‖q‖, and it gets the weight σ(‖q‖ − log Z), Z = Σ exp(q·k) over the other keys. So "
        "the third value is selected to within ε if and only if ‖q‖ ≥ log Z + log((1 − ε)/ε). For the report's query over "
        f"orthogonal keys of length 1 that is so, with (k0 + k1)/√2, if its factor is {needed:.1f} or more: 100 will do, and "
        f"3 gives it {_weight(3.0, 90.0):.2f}. Over longer keys, such as Gaussian ones, no key of length 1 comes near",
        reached=rows,
        derivation=[
            "A query (4, 4) that averages the keys (1, 0) and (0, 1); the third key is to be of length 1.",
            *example.derivation,
        ],
        figures=[
            picture(
                lambda path: draw_key(example, np.array([-1.0, -1.0]), path),
                "The third key, moved to where a key of length 1 has the largest score: along the query.",
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
    return _row("Gaussian keys, width 8, factor 100", keys, [least_squares(one, average([0, 1], 4)) for one in keys])


def _row(of: str, keys: list[Keys], queries: list[Vector]) -> Reach:
    """What the third key gets in the median, if it is of length 1; none of 50 random ones may get more than the best."""
    rng, found, bounds = drawn_by("B2", "random keys"), [], []
    for one, query in zip(keys, queries, strict=True):
        answer = find_key(query, one, THIRD, select(THIRD, 4), norm=1.0, within=WITHIN)
        others = np.delete(one @ query, THIRD)
        bounds.append(1 / (1 + math.exp(min(700.0, float(np.logaddexp.reduce(others) - np.linalg.norm(query))))))
        found.append(float(softmax(answer.keys @ query)[THIRD]))
        tried = rng.normal(size=(50, 8))
        tried /= np.linalg.norm(tried, axis=1, keepdims=True)
        assert (tried @ query).max() <= np.linalg.norm(query), "no key of length 1 has a larger score than ‖q‖"
    return Reach(
        "weight of the third",
        of,
        len(keys),
        "no answer",
        number(float(np.median(found))),
        number(float(np.median(bounds))),
    )


def _weight(factor: float, degrees: float) -> float:
    """Of the best key of length 1, beside two keys of length 1 at this angle that the query gives this score each."""
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
        "The largest weight that a key of length 1 can be given, by the factor of the report's query, for two keys of length 1 "
        "at this angle: the wider the angle, the longer the query that scores both alike, and the more a key along it gains."
    )
    return Figure(line_chart(curves, "factor", "weight of the third", caption), caption)


EXERCISE = Exercise(
    title="Which key makes a query average three values, or select one?",
    about="A query that averages the first two values is given. Replace the third key so that the same query averages three; "
    "then replace it by a key of length 1 so that the third value is selected. Scores are plain products q·k; the query is the "
    "one of exercise B1, and what is wanted is reached if at most 1e-6 of all attention is in the wrong place.",
    answered="For the average of three: a copy of the first key. For a key of length 1: no answer was given.",
    reported=Reported(conclusion="a copy of the first key makes the query average three"),
    claims=(
        Claim("with a copy of the first key in the third place, the same query averages three", copy_averages_three),
    ),
    questions=(
        Question(
            "For which queries does a key of length 1 select the third value, and what does it get otherwise?", unit_key
        ),
    ),
)
