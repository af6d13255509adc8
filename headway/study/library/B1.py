# quick:  1 CPU core 3 seconds
# full:   1 CPU core 30 seconds
"""Queries by hand: does least squares find them?"""

import math
from collections.abc import Callable

import numpy as np

from headway.solve import average, find_queries, find_query, select
from headway.solve.draw import draw_query
from headway.solve.geometry import entropy, softmax, total_variation
from headway.solve.given import Keys, Vector, Weights
from headway.solve.queries import Certificate
from headway.solve.words import number, vector
from headway.study.claims import Reported
from headway.study.exercise import Claim, Exercise, Finding, Question, Reach, Ruling, drawn_by, picture, share
from headway.study.report_charts import Curve, line_chart
from headway.study.report_figures import Figure
from headway.scoring.accuracy import wilson

WITHIN = 1e-6
"""Of all attention, what may be in the wrong place."""

Recipe = Callable[[Keys, Weights], Vector]
"""From keys and wanted weights to a query."""
Draw = Callable[[np.random.Generator], Keys]


def least_squares(keys: Keys, wanted: Weights, factor: float = 100.0) -> Vector:
    """The report's answer: scores of 1 where attention is wanted and 0 elsewhere, as nearly as can be, times 100."""
    return factor * np.linalg.lstsq(keys, (wanted > 0).astype(float), rcond=None)[0]


def gaussian(n: int, d: int) -> Draw:
    return lambda rng: rng.normal(size=(n, d))


def dependent(n: int, d: int, rank: int) -> Draw:
    return lambda rng: rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d))


def on_a_circle(n: int) -> Keys:
    turns = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(turns), np.sin(turns)], axis=1)


FIRST: dict[str, Callable[[int], Weights]] = {
    "select one": lambda n: select(0, n),
    "average two": lambda n: average([0, 1], n),
}
INDEPENDENT = {"4 keys of width 8": gaussian(4, 8), "8 keys of width 8": gaussian(8, 8)}
OTHERS = {
    "6 keys of width 8 in a space of 4": dependent(6, 8, rank=4),
    "8 keys of width 4": gaussian(8, 4),
    "16 keys of width 4": gaussian(16, 4),
    "64 keys of width 16": gaussian(64, 16),
}


def error(keys: Keys, query: Vector, wanted: Weights) -> float:
    return total_variation(softmax(keys @ query), wanted)


def refutes(keys: Keys, wanted: Weights, certificate: Certificate | None) -> bool:
    """Whether a mixture μ of keys proves that no query comes near: it has the same mean key, and is so much more even.

    Within ε of w the divergence KL(w ‖ p) is at most −log(1 − ε/min w), and for every query it is H(μ) − H(w) or more.
    """
    if certificate is None:
        return False
    μ, size = certificate.mixture, np.abs(keys).max()
    same_mean = μ.min() >= 0 and abs(μ.sum() - 1) < 1e-12 and np.abs((μ - wanted) @ keys).max() < 1e-9 * size
    return bool(same_mean and entropy(μ) - entropy(wanted) > -math.log1p(-WITHIN / wanted[wanted > 0].min()))


class Count:
    """Of the instances of one kind: how many each answer reaches, and how many nobody can."""

    def __init__(self, draw: Draw, goal: Callable[[int], Weights], instances: int, recipe: Recipe, *facts: str):
        self.instances, self.reported, self.headway, self.refuted = instances, 0, 0, 0
        rng = drawn_by("B1", *facts)
        for _ in range(instances):
            keys = draw(rng)
            wanted = goal(len(keys))
            answer = find_query(keys, wanted, WITHIN)
            self.reported += error(keys, recipe(keys, wanted), wanted) <= WITHIN
            self.headway += error(keys, answer.query, wanted) <= WITHIN + answer.rounding
            self.refuted += refutes(keys, wanted, answer.certificate)

    def row(self, what: str) -> Reach:
        left = self.instances - self.headway - self.refuted
        possible = share(self.headway, self.instances) if not left else f"{left} undecided"
        if self.refuted and not left:
            possible += f"; {self.refuted:,} refuted"
        return Reach(
            what,
            self.instances,
            share(self.reported, self.instances),
            share(self.headway, self.instances),
            possible,
        )


def where_independent(instances: int, recipe: Recipe = least_squares) -> Ruling:
    counts = {
        f"{goal} of {keys}": Count(draw, FIRST[goal], instances, recipe, goal, keys)
        for goal in FIRST
        for keys, draw in INDEPENDENT.items()
    }
    missed = sum(one.instances - one.reported for one in counts.values())
    total = sum(one.instances for one in counts.values())
    return Ruling(
        standing="does not hold" if missed else "holds",
        why=f"it reaches {total - missed:,} of {total:,}: independent keys can be given any scores at all, and with 100 "
        f"for the wanted ones and 0 for the others, e^−100 is left; the query need not be that long (below)",
        reached=[one.row(what) for what, one in counts.items()],
    )


def for_any_keys(instances: int, recipe: Recipe = least_squares) -> Ruling:
    counts = {
        f"{goal} of {keys}": Count(draw, FIRST[goal], instances, recipe, goal, keys)
        for goal in FIRST
        for keys, draw in OTHERS.items()
    }
    reported, possible = sum(one.reported for one in counts.values()), sum(one.headway for one in counts.values())
    keys, wanted = np.array([[1.0, 0.0], [3.0, 1.0], [3.0, -1.0]]), select(0, 3)
    answer, theirs = find_query(keys, wanted, WITHIN), recipe(keys, wanted)
    given = softmax(keys @ theirs)
    return Ruling(
        standing="holds" if reported >= possible else "does not hold",
        why=f"of {possible:,} instances with dependent keys for which there is a query, it finds one for {reported:,}. "
        "Softmax does not see a constant that is added to all scores, but least squares does: of the keys (1, 0), "
        f"(3, 1) and (3, −1) it is to select the first, and gives it {number(given[0])}",
        reached=[one.row(what) for what, one in counts.items()],
        derivation=[
            "Keys (1, 0), (3, 1), (3, −1); the first is to be selected.",
            f"As reported: the scores nearest to (1, 0, 0) that a query gives, times 100, are {vector(keys @ theirs)}: "
            f"the first is the lowest, and softmax gives {vector(given)}.",
            *answer.derivation,
        ],
        figures=[
            picture(
                lambda path: draw_query(answer, path),
                "The key that least squares misses, and the query that selects it.",
            )
        ],
    )


def three_is_enough(instances: int, factor: float = 3.0) -> Ruling:
    rows, worst = [], 0.0
    for n in (2, 4, 8):
        rng, found = drawn_by("B1", "factor", n), []
        for _ in range(instances):
            keys, wanted = rng.normal(size=(n, 8)), select(0, n)
            found.append(error(keys, least_squares(keys, wanted, factor), wanted))
        worst = max(worst, *found)
        needed = math.log((n - 1) * (1 - WITHIN) / WITHIN)
        what = f"select one of {n}: the factor, and what it leaves"
        rows.append(
            Reach(what, instances, f"{factor:g}: {max(found):.2g}", f"{number(needed)}: {WITHIN:g}", "0 for ever larger")
        )
    return Ruling(
        standing="holds" if worst <= 0.01 else "does not hold",
        why=f"with {factor:g} for the wanted score and 0 for the others, the others keep (n − 1)/(n − 1 + e^{factor:g}) "
        f"of the attention: up to {worst:.0%} for 8 keys. For 1e-6 the factor must be log((n − 1)/1e-6), 13.8 to 15.8 "
        "here; 100 is more than anybody needs",
        reached=rows,
    )


def makes_the_identity(instances: int, recipe: Recipe = least_squares) -> Ruling:
    rows, all_reached = [], True
    for what, draw in {**INDEPENDENT, "8 keys of width 4": gaussian(8, 4)}.items():
        rng, theirs, ours = drawn_by("B1", "identity", what), 0, 0
        for _ in range(some := max(30, instances // 8)):
            keys = draw(rng)
            answers = find_queries(keys, within=WITHIN)
            theirs += all(error(keys, recipe(keys, a.wanted), a.wanted) <= WITHIN for a in answers)
            ours += all(error(keys, a.query, a.wanted) <= WITHIN + a.rounding for a in answers)
        all_reached &= theirs >= ours
        rows.append(Reach(f"identity for {what}", some, share(theirs, some), share(ours, some), share(ours, some)))
    circle = on_a_circle(8)
    answers = find_queries(circle, within=WITHIN)
    theirs = max(error(circle, recipe(circle, a.wanted), a.wanted) for a in answers)
    ours = max(a.error for a in answers)
    all_reached &= theirs <= WITHIN
    rows.append(
        Reach("identity for 8 keys on a circle: wrong in a row", 1, f"{theirs:.2g}", f"{ours:.2g}", "0 for ever longer")
    )
    return Ruling(
        standing="holds" if all_reached else "does not hold",
        why="for independent keys it does, and not for more keys than dimensions: of 8 keys on a circle each can be "
        f"selected, and least squares finds the directions, but a factor of 100 leaves {theirs:.2g} of each row in the "
        "wrong place",
        reached=rows,
    )


def zeros_average(instances: int, query_for: Recipe = lambda keys, wanted: np.zeros(keys.shape[1])) -> Ruling:
    rng, worst = drawn_by("B1", "zeros"), 0.0
    for _ in range(instances):
        keys = rng.normal(size=(rng.integers(1, 65), rng.integers(1, 17))) * 10.0 ** rng.integers(-3, 7)
        keys[rng.random(len(keys)) < 0.1] = keys[0]  # some are repeated
        wanted = average(None, len(keys))
        worst = max(worst, error(keys, query_for(keys, wanted), wanted))
    return Ruling(
        standing="holds" if worst < 1e-12 else "does not hold",
        why=f"all scores are 0, whatever the keys, and softmax gives each 1/n: at most {worst:.1g} off in {instances:,} "
        "instances with 1 to 64 keys of any size, repeated ones among them",
        reached=[Reach("average all of 1 to 64 keys: wrong at most", instances, f"{worst:.1g}", f"{worst:.1g}", "0")],
    )


def how_long(instances: int) -> Finding:
    """The length of the query, for independent keys; and the share that can be selected, by the number of keys."""
    rng, theirs, ours, least = drawn_by("B1", "length"), [], [], []
    for _ in range(instances):
        keys, wanted = rng.normal(size=(4, 8)), select(0, 4)
        answer = find_query(keys, wanted, WITHIN)
        theirs.append(float(np.linalg.norm(least_squares(keys, wanted))))
        ours.append(answer.norm)
        least.append((math.log1p(-WITHIN) - math.log(WITHIN)) / (answer.margin or math.nan))
    a, b, c = (float(np.median(lengths)) for lengths in (theirs, ours, least))
    return Finding(
        why=f"to select one of 4 Gaussian keys of width 8 to within 1e-6, half of the queries need be no longer than "
        f"{number(b)}, and a query shorter than log((1 − ε)/ε)/margin, {number(c)} here, cannot do it; the report's have "
        f"{number(a)}. A key can be selected if and only if it is not a mixture of the others",
        reached=[Reach("select one of 4 keys of width 8: length of q (median)", instances, f"{a:.1f}", f"{b:.1f}", f"≥ {c:.1f}")],
        figures=[_by_number(instances)],
    )


def _by_number(instances: int) -> Figure:
    at = (2, 4, 6, 8, 12, 16, 24, 32, 48)
    curves: dict[str, list[tuple[float, float, float]]] = {"a query exists": [], "least squares": []}
    for n in at:
        found = Count(gaussian(n, 4), FIRST["select one"], instances // 3, least_squares, "by number", str(n))
        for name, hits in zip(curves, (found.headway, found.reported), strict=True):
            low, high = wilson(hits, found.instances) or (0.0, 1.0)
            curves[name].append((100 * hits / found.instances, 100 * low, 100 * high))
    drawn = [Curve(name, at, *zip(*points, strict=True)) for name, points in curves.items()]
    caption = (
        f"How often one of n Gaussian keys of width 4 can be selected, and how often least squares times 100 does: "
        f"{instances // 3:,} instances each, with 95 % intervals. Every instance without a query has a certificate."
    )
    return Figure(line_chart(drawn, "keys", "% of instances", caption, categories=True), caption)


EXERCISE = Exercise(
    title="Does least squares find the query that selects a key?",
    about="Given keys, find a query whose softmax attention selects one key, or averages the first two, or all; and a query "
    "matrix that is the identity. Scores are plain products q·k. An answer reaches what is wanted if at most 1e-6 of all "
    "attention is in the wrong place. Whether any query can is decided by Headway's solver: it gives the query, or a mixture of "
    "keys that forbids it, and both are checked here by a few lines of their own.",
    answered="Write down the wanted scores (1 where attention is wanted, 0 elsewhere), solve for q by least squares, multiply by "
    "100 (or 3). For the average of all: q = 0.",
    reported=Reported(conclusion="least squares on the wanted scores, times 100 or 3, gives the query; zeros give the mean"),
    claims=(
        Claim("where keys are linearly independent, least squares times 100 selects a key, and averages two", where_independent),
        Claim("it does so for any keys for which there is such a query", for_any_keys),
        Claim("a factor of 3 is enough", three_is_enough),
        Claim("row by row, it gives a query matrix whose attention is the identity", makes_the_identity),
        Claim("the query 0 averages all keys", zeros_average),
    ),
    questions=(Question("Which keys can be selected, and how long must the query be?", how_long),),
)
