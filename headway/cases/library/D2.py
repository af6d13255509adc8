# quick:  1 CPU core 5 seconds
# full:   1 CPU core 15 seconds
"""A convolution as attention with relative biases: weights set by hand, in a real layer."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from headway.cases.exercise import Exercise, ExerciseClaim, ExerciseFinding, ExerciseQuestion, Reach, Ruling, picture
from headway.core import random
from headway.solve import convolution
from headway.solve.construction import Construction, RelativeBias, Stretch, attention_layer
from headway.solve.derivation import number
from headway.solve.draw import draw_construction
from headway.study.design.claims import Reported

KERNEL = (2.0, 0.0, 1.0)
CHANNELS = (1, 4)
BIASES = (math.log(2), -math.inf, 0.0)
"""For the token before, the token itself, and the token after."""


def as_reported(channels: int, biases: tuple[float, ...] = BIASES, value: float = 3.0) -> Construction:
    """W_Q = W_K = 0, W_V = 3I, biases ln 2, −∞ and 0; without padding at the ends."""
    return replace(
        headways(channels),
        layer=attention_layer(channels, 1, values=value * torch.eye(channels, dtype=torch.float64)),
        positions=RelativeBias(torch.tensor([biases], dtype=torch.float64), -1),
        zeros=(0, 0),
    )


def headways(channels: int) -> Construction:
    return convolution(KERNEL, channels=channels)


def direct(x: Stretch) -> Stretch:
    """y_i = 2·x_{i−1} + x_{i+1} by torch's own convolution, with zeros beyond the ends."""
    kernel = torch.tensor(KERNEL, dtype=x.dtype)[None, None]
    return torch.nn.functional.conv1d(x.T[:, None], kernel, padding=1)[:, 0].T


def errors(layer: Construction, instances: int) -> tuple[float, float]:
    """The largest errors, inside and at the two ends, over random sequences of 3 to 64 tokens with Gaussian entries."""
    inside = ends = 0.0
    for k in range(instances):
        drawn = random.generator("exercise", "D2", layer.channels, k)
        length = int(torch.randint(3, 65, (), generator=drawn))
        x = torch.randn(length, layer.channels, generator=drawn, dtype=torch.float64)
        wrong = (layer(x) - direct(x)).abs().amax(1)
        inside, ends = max(inside, float(wrong[1:-1].max())), max(ends, float(wrong[[0, -1]].max()))
    return inside, ends


def computes_the_convolution(instances: int, reported: Callable[[int], Construction] = as_reported) -> Ruling:
    theirs, ours = ({c: errors(make(c), instances)[0] for c in CHANNELS} for make in (reported, headways))
    worst, made = max(theirs.values()), headways(1)
    return Ruling(
        status="holds" if worst < 1e-12 else "does not hold",
        why="without queries and keys only the biases matter: softmax(ln 2, −∞, 0) = (2/3, 0, 1/3), and three times "
        f"that is the kernel. As a layer of headway.nn it differs from torch's conv1d by at most {worst:.1g}, except "
        "at the ends",
        reached=[
            Reach("largest error inside", named(c), instances, f"{theirs[c]:.1g}", f"{ours[c]:.1g}", "0")
            for c in CHANNELS
        ],
        derivation=made.derivation,
        figures=[
            picture(
                lambda path: draw_construction(made, path),
                "The attention weights, and a random sequence through the layer and through the convolution.",
            )
        ],
    )


def at_the_ends(instances: int) -> ExerciseFinding:
    theirs, ours = ({c: errors(make(c), instances)[1] for c in CHANNELS} for make in (as_reported, headways))
    ones = torch.ones(4, 1, dtype=torch.float64)
    got, right = (", ".join(number(float(v)) for v in y[:, 0]) for y in (as_reported(1)(ones), direct(ones)))
    return ExerciseFinding(
        why="softmax normalizes over the visible tokens. At the ends one of the two neighbours is missing, the other "
        "gets all the attention, and the layer gives 3·x where a zero-padded convolution gives x or 2·x: for (1, 1, "
        f"1, 1) it gives ({got}), the convolution ({right}). The report does not say what is wanted there. With a "
        "zero vector before the sequence and one after it to attend to, the layer is the convolution everywhere",
        reached=[
            Reach("largest error at the ends", named(c), instances, f"{theirs[c]:.1f}", f"{ours[c]:.1g}", "0")
            for c in CHANNELS
        ],
    )


def named(channels: int) -> str:
    return f"{channels} channel{'s' if channels > 1 else ''}"


EXERCISE = Exercise(
    title="Can attention with relative biases be the convolution (2, 0, 1)?",
    about="Choose weights and relative biases so that one attention layer computes y_i = 2·x_{i−1} + 0·x_i + "
    "1·x_{i+1}. The answer is put into a real attention layer (headway.nn, float64) and compared with torch's conv1d "
    "on random sequences of 3 to 64 tokens with Gaussian entries. The kernel is not flipped, as in torch.",
    answered="W_Q = W_K = 0 and W_V = 3I; the bias is ln 2 for the token before, 0 (which is ln 1) for the token "
    "after, and −∞ elsewhere.",
    reported=Reported(conclusion="W_Q = W_K = 0, W_V = 3I and biases ln 2, 0 and −∞ compute the convolution"),
    claims=(
        ExerciseClaim(
            "the layer with these weights is the convolution wherever both neighbours exist", computes_the_convolution
        ),
    ),
    questions=(ExerciseQuestion("What happens at the ends of the sequence?", at_the_ends),),
)
