"""What moves information between positions: the one interface of attention, recurrences and whatever else does.

    y, state = mixer(x, context, state)          x, y [R, B, T, D]

A mixer knows what is its own, and nobody else asks what kind it is: its heads and its mask (if it has any), its
dropout, the state that it goes on from, what it costs, and what it cannot do. A new one is a spec and a module; see
`attention.py`. A model has one for all its layers, or a list with one for each.
"""

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any

from jaxtyping import Bool, Float
from pydantic import Discriminator, Tag
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.positions import Positions, PositionsByHeads, PositionSpec
from headway.nn.replicated import Unbiased
from headway.nn.trainable import Carried

Stream = Float[Tensor, "R B T D"]


class Mixer(nn.Module):
    why_no_cache: str | None = None
    """Why a position's output cannot be kept while later tokens arrive: then text is sampled without a state."""
    reach: int | None = None
    """How many slots a position looks at, its own included; None = there is no limit."""

    keeps_slots: bool = False
    """Whether what it goes on from is a slot for every token, and a mask says which of them a token sees: then several
    ways to go on can share what they have in common."""

    reads_products: bool = False
    """Whether what it reads goes into matrix products, and nowhere else."""

    knows_order: bool = False
    """Whether it tells by itself in which order the tokens of an encoder stand; else only positions can."""

    advances: str | None = None
    """Whose state `advance` leads from token to token, in words, where that is not all there is."""

    def forward(self, x: Stream, context: Context, state: Any = None) -> tuple[Stream | Unbiased, Any]:
        """What each position makes of the others, and the state to go on from: whatever this mixer wants to be given
        with the next tokens of the same rows. None = nothing came before."""
        raise NotImplementedError

    def advance(self, x: Stream, context: Context, state: Any = None) -> Any:
        """The state alone, behind these tokens: for those who follow how it is led from one to the next."""
        return self(x, context, state)[1]

    def prepare(self, context: Context) -> None:
        """What layers share of a context, computed before the first of them: then all layers are alike to a compiler,
        and one program serves them all."""

    def summary(self, state: Any) -> Float[Tensor, "R B N"] | None:
        """All that a state holds of the rows that were read, as one vector for each; None = it has no fixed size."""
        return None

    def carried(self, state: Any) -> Carried:
        """What of a state the next batch of training goes on from: tensors [R, B, …] by name, zeros for nothing."""
        return {}

    def going_on_from(self, carried: Carried) -> Any:
        """The state that `carried` was taken from, or None where it is empty."""
        return None

    def step_bound(self) -> Float[Tensor, "R"] | None:
        """Of a recurrence: what ‖∂state_t/∂state_{t−1}‖ cannot exceed by its weights alone, whatever is read; None =
        they do not say."""
        return None

    def slots_before(self, carried: Carried) -> Bool[Tensor, "R B S"] | None:
        """Slots that positions of the next segment may look back at: True where one holds a token, False where nothing
        came before. None = what is carried stands at no place."""
        return None


def check_parts(kind: str, carried: Carried, parts: Collection[str]) -> None:
    """A state is of these parts, or of none: what another mixer left would else be taken for nothing at all."""
    if carried and carried.keys() != set(parts):
        own = f"goes on from {' and '.join(parts)}" if parts else "goes on from nothing"
        raise UserError(f"a state of {' and '.join(carried)} was left by another mixer: this {kind} {own}")


def check_rows(kind: str, left: Sequence[int], read: Sequence[int]) -> None:
    """A state [R, B, …] belongs to the rows that left it, and not to those [R, B, …] that are read now."""
    if tuple(left[:2]) != tuple(read[:2]):
        (of, rows), (R, B) = left[:2], read[:2]
        said = f"the state of this {kind} is of {_several(of, 'replica')} and {_several(rows, 'row')}"
        raise UserError(f"{said}; a batch of {_several(R, 'replica')} and {_several(B, 'row')} cannot go on from it")


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


class MixerSpec(Variant):
    """What moves information between positions."""

    @abstractmethod
    def build(self, replicas: int, width: int, out_gain: float, needs: Needs) -> Mixer:
        """For one layer. Weights of the last map start with `out_gain` times their usual deviation."""

    @property
    def why_no_cross(self) -> str | None:
        """Why it cannot look at another sequence, as a decoder looks at what an encoder made; None = it can."""
        return f"{self.kind} moves information along one sequence, and looks at no other"

    def build_cross(self, replicas: int, width: int, out_gain: float, needs: Needs) -> Mixer:
        """For one layer, to look at the memory in its context (`Context.across`) and not at its own sequence."""
        raise NotImplementedError(self.why_no_cross)

    @abstractmethod
    def flops_per_token(self, width: int, segment: int) -> int:
        """Operations of a forward pass for one token of a segment of this length; see `scoring/cost.py`."""

    @property
    def number_of_heads(self) -> int | None:
        """Heads that positions can turn or add to; None = this mixer has none."""
        return None

    def state_sizes(self, width: int) -> dict[str, int]:
        """The parts of the state that a row leaves behind, and their sizes, where these do not grow with it: what a
        `summary` is made of, and what `going_on_from` takes. Empty = there are none."""
        return {}

    @property
    def why_not_turned(self) -> str | None:
        """Why positions that turn queries and keys tell it nothing of distances, or None."""
        return None

    @property
    def remembers(self) -> float:
        """How many slots of what came before a segment it can go on from, where batches follow each other: none, so
        many, or all (math.inf) as a recurrence does."""
        return 0.0

    @property
    def why_not_causal(self) -> str | None:
        """Why it would see the future behind a causal mask, or None."""
        return None

    @property
    def only_encodes(self) -> bool:
        """Whether there is no sense in it where later tokens are not known."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether a position of an encoder sees those after it."""
        return True

    def largest(self, width: int, length: int) -> int:
        """Numbers per token in the largest tensor of a forward pass: so many rows fit into memory."""
        return width

    def problems_with(self, width: int) -> Iterator[Problem]:
        """What does not go together with a model of this width; keys are the mixer's own."""
        yield from ()


def _one_or_each(given: Any) -> str:
    return "each layer" if isinstance(given, list) else "all layers"


Mixers = Annotated[
    Annotated[MixerSpec, Tag("all layers")] | Annotated[list[MixerSpec], Tag("each layer")],
    Discriminator(_one_or_each),
]
"""One for all layers, or a list with one for each."""


def of_layers(mixers: MixerSpec | list[MixerSpec], layers: int) -> list[MixerSpec]:
    return mixers if isinstance(mixers, list) else [mixers] * layers


def problems(
    mixers: MixerSpec | list[MixerSpec], layers: int, width: int, positions: PositionSpec
) -> Iterator[Problem]:
    """Why these mixers cannot be the layers of one model; keys are those of the model."""
    if isinstance(mixers, list) and len(mixers) != layers:
        reason = f"the list has {len(mixers)} mixer{'s' if len(mixers) != 1 else ''} for {layers} layers"
        yield Problem(("mixer", "layers"), f"{reason}; it takes one for each layer, or a single one for all")
        return
    named = {f"mixer.{n}": one for n, one in enumerate(mixers)} if isinstance(mixers, list) else {"mixer": mixers}
    for name, one in named.items():
        for problem in one.problems_with(width):
            yield Problem(("width", *(f"{name}.{key}" for key in problem.keys)), problem.reason)
        if positions.turns and one.why_not_turned:
            reason = f"{positions.kind} turns queries and keys for the sake of their product, and {one.why_not_turned}"
            yield Problem(("positions", name), f"{reason}; use another scheme")
        if positions.marks_embeddings and math.isfinite(one.remembers) and one.remembers:
            reason = f"{positions.kind} positions begin anew in every segment: what is remembered would stand where the"
            reason += " segment itself does; use rotary, alibi, t5 or none"
            yield Problem(("positions", f"{name}.memory"), reason)
    heads = [one.number_of_heads for one in of_layers(mixers, layers)]
    if positions.acts_in_heads and (without := [n for n, count in enumerate(heads) if count is None]):
        kinds = dict.fromkeys(of_layers(mixers, layers)[n].kind for n in without)
        layers_without = f"layer {', '.join(map(str, without))} ({', '.join(kinds)})"
        reason = f"{positions.kind} acts inside of attention, and there are no heads in {layers_without}"
        yield Problem(("positions", "mixer"), f"{reason}; use none, learned or sinusoidal")
        return
    keys = ("positions", "width", *(f"{name}.heads" for name, one in named.items() if one.number_of_heads))
    yield from (Problem(keys, reason) for reason in positions.problems_with(width, [h for h in heads if h]))


def build_positions(
    spec: PositionSpec, mixers: Sequence[MixerSpec], replicas: int, width: int, context: int
) -> Positions:
    """The scheme for all layers. One that acts inside of heads is built once for every number of them."""
    counts = list(dict.fromkeys(count for mixer in mixers if (count := mixer.number_of_heads)))
    if spec.acts_in_heads and len(counts) > 1:
        return PositionsByHeads({heads: spec.build(replicas, width, heads, context) for heads in counts})
    return spec.build(replicas, width, counts[0] if counts else 1, context)
