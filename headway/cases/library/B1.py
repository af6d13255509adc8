# quick:  1 CPU core 9 seconds
# full:   1 CPU core 55 seconds
"""Queries by hand: least squares on the desired scores, times 100."""

import math
from collections.abc import Callable, Mapping

import numpy as np

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
from headway.draw.charts import Curve, line_chart
from headway.solve import average, find_queries, find_query, select
from headway.solve.derivation import number, vector
from headway.solve.draw import draw_query
from headway.solve.geometry import entropy, softmax, total_variation
from headway.solve.inputs import Keys, Vector, Weights
from headway.solve.queries import QueryAnswer
from headway.stats.intervals import wilson
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure

WITHIN = 1e-6
"""The attention mass that may be in the wrong place."""

Recipe = Callable[[Keys, Weights], Vector]
"""From keys and desired weights to a query."""
Draw = Callable[[np.random.Generator], Keys]


def least_squares(keys: Keys, wanted: Weights, factor: float = 100.0) -> Vector:
    """The report's answer: the least-squares fit to scores of 1 where attention is wanted and 0 elsewhere, times
    100."""
    return factor * np.linalg.lstsq(keys, (wanted > 0).astype(float), rcond=None)[0]


def error(keys: Keys, query: Vector, wanted: Weights) -> float:
    return total_variation(softmax(keys @ query), wanted)


# --- instances -------------------------------------------------------------------------------------------------------


def gaussian(n: int, d: int) -> Draw:
    return lambda rng: rng.normal(size=(n, d))


def dependent(n: int, d: int, rank: int) -> Draw:
    return lambda rng: rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d))


def on_a_circle(n: int) -> Keys:
    turns = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(turns), np.sin(turns)], axis=1)


GOALS: Mapping[str, Callable[[int], Weights]] = {
    "select 1": lambda n: select(0, n),
    "average 2": lambda n: average([0, 1], n),
}
INDEPENDENT = {"4, width 8": gaussian(4, 8), "8, width 8": gaussian(8, 8)}
OTHERS = {
    "6, width 8, rank 4": dependent(6, 8, rank=4),
    "8, width 4": gaussian(8, 4),
    "16, width 4": gaussian(16, 4),
    "64, width 16": gaussian(64, 16),
}
"""Linearly dependent keys: more keys than dimensions, or than their rank."""


class Count:
    """For the instances of one kind: how many each answer solves, and how many are proved impossible."""

    def __init__(self, goal: str, kind: str, draw: Draw, instances: int, recipe: Recipe):
        self.of, self.instances = f"{goal} of {kind}", instances
        self.reported = self.headway = self.refuted = 0
        rng = drawn_by("B1", goal, kind)
        for _ in range(instances):
            keys = draw(rng)
            wanted = GOALS[goal](len(keys))
            answer = find_query(keys, wanted, WITHIN)
            self.reported += error(keys, recipe(keys, wanted), wanted) <= WITHIN
            self.headway += error(keys, answer.query, wanted) <= WITHIN + answer.rounding
            self.refuted += refuted(answer)

    @property
    def undecided(self) -> int:
        return self.instances - self.headway - self.refuted

    @property
    def row(self) -> Reach:
        possible = f"all but {self.refuted:,}" if self.refuted else "all"
        return Reach(
            "share reached",
            self.of,
            self.instances,
            share(self.reported, self.instances),
            share(self.headway, self.instances),
            f"{possible}, {self.undecided:,} undecided" if self.undecided else possible,
        )


def refutes(keys: Keys, wanted: Weights, μ: Weights) -> bool:
    """Whether a mixture μ of keys proves that no query comes within ε: same mean key, sufficiently higher entropy.

    Within ε of w the divergence KL(w ‖ p) is at most −log(1 − ε/min w), and for every query it is at least H(μ) − H(w).
    """
    size = np.abs(keys).max()
    same_mean = μ.min() >= 0 and abs(μ.sum() - 1) < 1e-12 and np.abs((μ - wanted) @ keys).max() < 1e-9 * size
    return bool(same_mean and entropy(μ) - entropy(wanted) > -math.log1p(-WITHIN / wanted[wanted > 0].min()))


def refuted(answer: QueryAnswer) -> bool:
    return answer.certificate is not None and refutes(answer.keys, answer.wanted, answer.certificate.mixture)


def counted(kinds: Mapping[str, Draw], instances: int, recipe: Recipe) -> list[Count]:
    """Count both goals for keys of every kind."""
    return [Count(goal, kind, draw, instances, recipe) for goal in GOALS for kind, draw in kinds.items()]


# --- claims ----------------------------------------------------------------------------------------------------------


def where_independent(instances: int, recipe: Recipe = least_squares) -> Ruling:
    counts = counted(INDEPENDENT, instances, recipe)
    reached, total = sum(one.reported for one in counts), sum(one.instances for one in counts)
    return Ruling(
        status="holds" if reached == total else "does not hold",
        why=f"it solves {reached:,} of {total:,}: with independent keys any scores can be produced, and 100 for the "
        "wanted keys with 0 for the others leaves those e^−100",
        reached=[one.row for one in counts],
    )


def for_any_keys(instances: int, recipe: Recipe = least_squares) -> Ruling:
    counts = counted(OTHERS, instances, recipe)
    reported, possible = sum(one.reported for one in counts), sum(one.headway for one in counts)
    keys, wanted = np.array([[1.0, 0.0], [3.0, 1.0], [3.0, -1.0]]), select(0, 3)
    answer, theirs = find_query(keys, wanted, WITHIN), recipe(keys, wanted)
    given = softmax(keys @ theirs)
    return Ruling(
        status="holds" if reported >= possible else "does not hold",
        why=f"of {possible:,} instances with dependent keys that have a solution, it finds one for {reported:,}. "
        "Softmax ignores a constant added to all scores, but least squares does not: to select the first of the keys "
        f"(1, 0), (3, 1) and (3, −1), it gives that key {number(given[0])} of the attention",
        reached=[one.row for one in counts],
        derivation=[
            "Keys (1, 0), (3, 1), (3, −1); the first one should be selected.",
            "As reported: the scores nearest to (1, 0, 0) that a query can give, times 100, are "
            f"{vector(keys @ theirs)}: the first is the lowest, and softmax gives {vector(given)}.",
            *answer.derivation,
        ],
        figures=[
            picture(
                lambda path: draw_query(answer, path), "A key that least squares misses, and the query that selects it."
            )
        ],
    )


def three_is_enough(instances: int, factor: float = 3.0) -> Ruling:
    rows, worst = [], 0.0
    for n in (2, 4, 8):
        rng, wanted, left = drawn_by("B1", "factor", n), select(0, n), 0.0
        for _ in range(instances):
            keys = rng.normal(size=(n, 8))
            left = max(left, error(keys, least_squares(keys, wanted, factor), wanted))
        needed = math.log((n - 1) * (1 - WITHIN) / WITHIN)
        cells = f"{left:.2g} (factor {factor:g})", f"{number(WITHIN)} (factor {needed:.1f})", "0 in the limit"
        rows.append(Reach("left to others", f"select 1 of {n}", instances, *cells))
        worst = max(worst, left)
    return Ruling(
        status="holds" if worst <= 0.01 else "does not hold",
        why=f"with a score of {factor:g} for the wanted key and 0 for the n − 1 others, these keep "
        f"(n − 1)/(n − 1 + e^{factor:g}) of the attention: {100 * worst:.0f} % for 8 keys. To leave them 1e-6, the "
        "factor must be log((n − 1)/1e-6), which is 13.8 to 15.8 here; 100 is more than independent keys need",
        reached=rows,
    )


def makes_the_identity(instances: int, recipe: Recipe = least_squares) -> Ruling:
    rows, as_good = [], True
    some = min(instances, max(40, instances // 8))  # each instance needs one query per key
    for kind, draw in {**INDEPENDENT, "8, width 4": OTHERS["8, width 4"]}.items():
        rng, theirs, ours, nobody = drawn_by("B1", "identity", kind), 0, 0, 0
        for _ in range(some):
            keys = draw(rng)
            answers = find_queries(keys, within=WITHIN)
            theirs += all(error(keys, recipe(keys, a.wanted), a.wanted) <= WITHIN for a in answers)
            ours += all(error(keys, a.query, a.wanted) <= WITHIN + a.rounding for a in answers)
            nobody += any(map(refuted, answers))
        as_good &= theirs >= ours
        possible = f"all but {nobody}" if nobody else "all"
        rows.append(Reach("identity reached", f"all of {kind}", some, share(theirs, some), share(ours, some), possible))
    circle = on_a_circle(8)
    answers = find_queries(circle, within=WITHIN)
    theirs = max(error(circle, recipe(circle, a.wanted), a.wanted) for a in answers)
    ours = max(error(circle, a.query, a.wanted) for a in answers)
    rows.append(Reach("wrong in a row", "8 on a circle", 1, f"{theirs:.2g}", number(ours), "0 in the limit"))
    return Ruling(
        status="holds" if as_good and theirs <= WITHIN else "does not hold",
        why="it does for independent keys, but not for more keys than dimensions. Each of 8 keys on a circle can be "
        f"selected, and least squares finds the right directions, but a factor of 100 is too small: {theirs:.2g} of "
        "each row is in the wrong place",
        reached=rows,
    )


def zeros(keys: Keys, wanted: Weights) -> Vector:
    """The report's answer for the average of all."""
    return np.zeros(keys.shape[1])


def zeros_average(instances: int, recipe: Recipe = zeros) -> Ruling:
    rng, worst = drawn_by("B1", "zeros"), 0.0
    for _ in range(instances):
        keys = rng.normal(size=(rng.integers(1, 65), rng.integers(1, 17))) * 10.0 ** rng.integers(-3, 7)
        keys[rng.random(len(keys)) < 0.1] = keys[0]  # some are repeated
        wanted = average(None, len(keys))
        worst = max(worst, error(keys, recipe(keys, wanted), wanted))
    return Ruling(
        status="holds" if worst < 1e-12 else "does not hold",
        why=f"all scores are 0 for any keys, and softmax gives each 1/n: the largest error in "
        f"{instances:,} instances is {worst:.1g}, with 1 to 64 keys of all sizes, including repeated ones",
        reached=[Reach("wrong at most", "average 1 to 64", instances, f"{worst:.1g}", f"{worst:.1g}", "0")],
    )


# --- follow-up questions ---------------------------------------------------------------------------------------------


def how_long(instances: int) -> ExerciseFinding:
    rng, wanted, lengths = drawn_by("B1", "length"), select(0, 4), []
    for _ in range(instances):
        keys = rng.normal(size=(4, 8))
        answer = find_query(keys, wanted, WITHIN)
        least = (math.log1p(-WITHIN) - math.log(WITHIN)) / (answer.margin or math.nan)
        lengths.append((float(np.linalg.norm(least_squares(keys, wanted))), answer.norm, least))
    theirs, ours, least = np.median(lengths, axis=0)
    return ExerciseFinding(
        why="a key can be selected if and only if it is not a mixture (convex combination) of the others. The query "
        "must be at least log((1 − ε)/ε)/margin long, where the margin is the largest lead in score that the key gets "
        f"over the others from a unit vector. For one of 4 Gaussian keys of width 8 that is {least:.1f} (median); "
        f"Headway's queries have {ours:.1f}, the report's {theirs:.1f}. Shorter keys need longer queries; least "
        "squares takes care of that, so the factor is the same for keys of any size",
        reached=[
            Reach(
                "length of q (median)", "1 of 4, width 8", instances, f"{theirs:.1f}", f"{ours:.1f}", f"≥ {least:.1f}"
            )
        ],
        figures=[by_number(min(instances, max(100, instances // 3)))],
    )


def by_number(instances: int) -> Figure:
    at = (2, 4, 6, 8, 12, 16, 24, 32, 48)
    counts = [Count("select 1", f"{n} for the figure", gaussian(n, 4), instances, least_squares) for n in at]
    curves = []
    for name, hits in (
        ("a query exists", [c.headway for c in counts]),
        ("least squares", [c.reported for c in counts]),
    ):
        ends = [wilson(k, instances) or (0.0, 1.0) for k in hits]
        low, high = ([100 * end[side] for end in ends] for side in (0, 1))
        curves.append(Curve(name, at, [100 * k / instances for k in hits], low, high))
    without, undecided = sum(c.refuted for c in counts), sum(c.undecided for c in counts)
    caption = (
        "How often one of n Gaussian keys of width 4 can be selected, and how often least squares times 100 does it: "
        f"{instances:,} instances each, with 95 % intervals. Of those without a query, {without:,} are proved "
        f"impossible by a certificate and {undecided} are undecided."
    )
    return Figure(line_chart(curves, "keys", "% of instances", caption, categories=True), caption)


EXERCISE = Exercise(
    title="Does least squares find the query that selects a key?",
    about="Given keys, find a query whose softmax attention selects one key, or averages the first two, or all; and a "
    "query matrix whose attention is the identity. Scores are plain products q·k. An answer counts as correct if at "
    "most 1e-6 of all attention is in the wrong place. Headway's solver decides whether any query exists: it returns "
    "the query, or a mixture of keys that proves it impossible, and both are checked again here by the plain "
    "formulas.",
    answered="Write down the desired scores (1 where attention is wanted, 0 elsewhere), solve for q by least squares, "
    "and multiply by 100, or by 3. For the average of all keys: q = 0.",
    reported=Reported(
        conclusion="least squares on the desired scores, times 100 or 3, gives the query; zeros give the mean"
    ),
    claims=(
        ExerciseClaim(
            "for linearly independent keys, least squares times 100 selects one, or averages two",
            where_independent,
        ),
        ExerciseClaim("it does so for all keys for which such a query exists", for_any_keys),
        ExerciseClaim("a factor of 3 is enough", three_is_enough),
        ExerciseClaim("row by row, it gives a query matrix whose attention is the identity", makes_the_identity),
        ExerciseClaim("the query 0 averages all keys", zeros_average),
    ),
    questions=(ExerciseQuestion("Which keys can be selected, and how long must the query be?", how_long),),
)
