# quick:  1 CPU core 6 seconds
# full:   1 CPU core 23 seconds
"""Max pooling as attention with relative biases: should the query depend on its own token?"""

from collections.abc import Callable
from dataclasses import replace

import torch

from headway.cases.exercise import (
    Exercise,
    ExerciseClaim,
    ExerciseFinding,
    ExerciseQuestion,
    Reach,
    Ruling,
    picture,
    share,
)
from headway.core import random
from headway.draw.charts import Curve, line_chart
from headway.solve import max_pool
from headway.solve.construction import Construction, RelativeBias, Stretch, attention_layer
from headway.solve.derivation import number
from headway.solve.draw import draw_construction
from headway.solve.relative import max_pool_as_reported, max_pool_bound
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure

WINDOWS = (3, 5)
SCALE = 100.0
"""C in the report's formula, which only says that it is large."""
WRONG = 0.01
"""More than this from the maximum counts as wrong, for inputs of size one."""
BOUND = 1e-3
"""The largest error allowed for Headway's layer on any input."""


def as_reported(window: int) -> Construction:
    return max_pool_as_reported(window, scale=SCALE)


def two_channels_as_reported(window: int) -> Construction:
    """The same weights for two channels, in one head."""
    identity = torch.eye(2, dtype=torch.float64)
    return replace(
        max_pool(window, channels=2),
        layer=attention_layer(2, 1, queries=SCALE * identity, keys=SCALE * identity, values=identity),
        positions=RelativeBias(torch.zeros(1, window, dtype=torch.float64), -(window // 2)),
    )


def errors(layer: Construction, instances: int, change: Callable[[Stretch], Stretch] = lambda x: x) -> list[float]:
    """The error at one position of each random sequence, because positions of one sequence share tokens."""
    found = []
    for k in range(instances):
        drawn = random.generator("exercise", "D3", layer.channels, k)
        length = int(torch.randint(3, 65, (), generator=drawn))
        x = change(torch.randn(length, layer.channels, generator=drawn, dtype=torch.float64))
        place = int(torch.randint(length, (), generator=drawn))
        found.append(float((layer(x) - layer.direct(x))[place].abs().max()))
    return found


def wrong(found: list[float]) -> str:
    return share(sum(one > WRONG for one in found), len(found))


def is_the_maximum(instances: int, reported: Callable[[int], Construction] = as_reported) -> Ruling:
    rows, worst = [], 0.0
    for window in WINDOWS:
        of, theirs, ours = (
            f"window of {window}",
            errors(reported(window), instances),
            errors(max_pool(window, within=BOUND), instances),
        )
        worst = max(worst, *theirs)
        rows.append(Reach("share wrong", of, instances, wrong(theirs), wrong(ours), "none"))
        rows.append(Reach("largest error", of, instances, f"{max(theirs):.1g}", f"{max(ours):.1g}", "0 in the limit"))
    x = torch.tensor([[2.0], [-1.0], [2.0]], dtype=torch.float64)
    middle = number(float(reported(3)(x)[1, 0]))
    rows.sort(key=lambda row: row.quantity, reverse=True)
    return Ruling(
        status="does not hold" if worst > WRONG else "holds",
        why="the scores are C²·x_i·x_j, so if the token's own x_i is negative, the smallest value of the window wins: "
        f"for x = (2, −1, 2) it gives {middle} in the middle, where the maximum is 2. Of random positions with "
        f"windows of {WINDOWS[0]}, {rows[0].reported} are wrong",
        reached=rows,
        derivation=[
            "x = (2, −1, 2), a window of 3 around the middle; W_Q = W_K = C, W_V = 1.",
            "The query of the middle is −C and the keys are 2C, −C, 2C, so the scores are −2C², C², −2C².",
            "The largest score is that of −1, the smallest value of the window; a larger C only increases its weight.",
        ],
        figures=[by_own_value()],
    )


def by_own_value() -> Figure:
    own = [k / 40 for k in range(-60, 61)]
    windows = [torch.tensor([[1.0], [x], [-1.0]], dtype=torch.float64) for x in own]
    layers = {"as reported": max_pool_as_reported(3, scale=3.0), "Headway": max_pool(3, within=max_pool_bound(3, 9.0))}
    values = {"maximum": [max(1.0, x) for x in own]}
    values |= {name: [float(layer(x)[1, 0]) for x in windows] for name, layer in layers.items()}
    curves = [Curve(name, own, found, found, found) for name, found in values.items()]
    caption = (
        "The output in the middle of (1, x, −1), by x: as reported with C = 3, and Headway's with C = 9, so that the "
        "scores are equal at x = 1."
    )
    return Figure(line_chart(curves, "x", "output", caption), caption)


def where_right(instances: int) -> ExerciseFinding:
    one, two = (errors(make(3), instances, torch.abs) for make in (as_reported, two_channels_as_reported))
    ours_one, ours_two = (errors(max_pool(3, channels=c), instances, torch.abs) for c in (1, 2))
    nearly_zero = as_reported(3)(torch.tensor([[1.0], [1e-5], [0.0]], dtype=torch.float64))[1, 0]
    return ExerciseFinding(
        why="it is right if x_i is positive and not too small: the error is up to W₀((n − 1)/e)/(C²·x_i), so no C "
        f"works for all positive inputs. In the middle of (1, 0.00001, 0) it gives {number(float(nearly_zero))} with "
        "C = 100. With several channels in one head it is wrong for positive inputs too: a head copies all channels "
        "of one token, but the largest value of each channel may be at a different token, so one head per channel is "
        "needed",
        reached=[
            Reach("share wrong", "x > 0, 1 channel", instances, wrong(one), wrong(ours_one), "none"),
            Reach("share wrong", "x > 0, 2 channels", instances, wrong(two), wrong(ours_two), "none"),
        ],
    )


def what_does_it(instances: int) -> ExerciseFinding:
    rows, made = [], max_pool(3, within=BOUND)
    for window in WINDOWS:
        scale = max_pool_bound(window, 1.0) / BOUND
        layer, of = max_pool(window, within=BOUND), f"window of {window}, C = {scale:.3g}"
        worst = torch.full((window, 1), -1 / scale - BOUND, dtype=torch.float64)
        worst[window // 2] = 0.0  # all others at the distance below the maximum that gives the largest error
        at_worst = float((layer(worst) - layer.direct(worst)).abs()[window // 2, 0])
        rows.append(Reach("largest error", of, instances, "–", f"{max(errors(layer, instances)):.1g}", f"≤ {BOUND:g}"))
        rows.append(Reach("error on the worst input", of, 1, "–", f"{at_worst:.3g}", f"≤ {BOUND:g}"))
    rows.sort(key=lambda row: row.quantity, reverse=True)
    return ExerciseFinding(
        why="a constant query: W_Q = 0, b_Q = C, W_K = W_V = I, and one head of width 1 per channel. Then token j has "
        "the score C·x_j, independently of the querying token, and for windows of n the error is at most "
        "W₀((n − 1)/e)/C for any input; the input that attains this bound is tested too",
        reached=rows,
        derivation=made.derivation,
        figures=[
            picture(
                lambda path: draw_construction(made, path),
                "The attention weights, and a random sequence through the layer and through the definition.",
            )
        ],
    )


EXERCISE = Exercise(
    title="Can attention with relative biases be max pooling?",
    about="Choose weights and relative biases so that one attention layer gives the largest value of a window around "
    "each token. The answer is put into a real attention layer (headway.nn, float64) and compared with the definition, "
    "each time at one position of a random sequence of 3 to 64 tokens with Gaussian entries. More than 0.01 from the "
    "maximum counts as wrong. At the ends of the sequence the window is truncated.",
    answered="W_Q = W_K = C for a large C, W_V = I; the bias is 0 within the window and −∞ elsewhere.",
    reported=Reported(conclusion="W_Q = W_K = C and W_V = I compute max pooling, for a large C"),
    claims=(ExerciseClaim("the layer with these weights gives the largest value of the window", is_the_maximum),),
    questions=(
        ExerciseQuestion("For which inputs is it right?", where_right),
        ExerciseQuestion("What computes the maximum for every input?", what_does_it),
    ),
)
