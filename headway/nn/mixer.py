"""Mixers move information between positions: one interface for attention, recurrences and other kinds.

    y, state = mixer(x, context, state)          x, y [R, B, T, D]

A mixer keeps to itself its heads and its mask (if it has any), its dropout, its state, its cost and its limitations, so
that no other code has to ask for its kind. A new mixer is a spec and a module; see `attention.py`. A model has one spec
for all its layers, or a list with one for each.
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
from headway.nn.replicated import PendingBias
from headway.nn.trainable import Carried

Stream = Float[Tensor, "R B T D"]


class Mixer(nn.Module):
    why_no_cache: str | None = None
    """Why a position's output cannot be kept when later tokens arrive, or None. If set, text is sampled without a KV
    cache or state."""
    reach: int | None = None
    """How many slots a position can attend to, including its own; None = no limit."""

    keeps_slots: bool = False
    """Whether its state has one slot per token, and a mask selects which of them a token attends to. Then several
    hypotheses can share the slots of their common prefix."""

    reads_products: bool = False
    """Whether its input is used only in matrix products."""

    knows_order: bool = False
    """Whether in an encoder it depends on the order of the tokens even without positions."""

    advances: str | None = None
    """A phrase for the part of the mixer whose state `advance` computes, if that is not the whole state; else None."""

    def forward(self, x: Stream, context: Context, state: Any = None) -> tuple[Stream | PendingBias, Any]:
        """The output at each position, and the new state, to be passed in with the next tokens of the same rows. A
        state of None = there are no earlier tokens."""
        raise NotImplementedError

    def advance(self, x: Stream, context: Context, state: Any = None) -> Any:
        """Only the state after these tokens, for measurements of how it evolves from token to token."""
        return self(x, context, state)[1]

    def prepare(self, context: Context) -> None:
        """Compute what layers share in a context before the first layer runs. Then all layers look alike to the
        compiler, and it compiles only one program."""

    def summary(self, state: Any) -> Float[Tensor, "R B N"] | None:
        """The whole state of each row as one vector; None = the state has no fixed size."""
        return None

    def carried(self, state: Any) -> Carried:
        """What is carried of a state to the next training batch: tensors [R, B, …] by name; zeros = empty."""
        return {}

    def going_on_from(self, carried: Carried) -> Any:
        """The state for `forward` from what was carried over, or None if nothing was."""
        return None

    def step_bound(self) -> Float[Tensor, "R"] | None:
        """For a recurrence: an upper bound of ‖∂state_t/∂state_{t−1}‖ for any input, from its weights alone; None = the
        weights give no bound."""
        return None

    def slots_before(self, carried: Carried) -> Bool[Tensor, "R B S"] | None:
        """Carried slots that the next segment can attend to: True where one holds a token, False where it is empty.
        None = the carried state has no slots."""
        return None


def check_parts(kind: str, carried: Carried, parts: Collection[str]) -> None:
    """Check that a state has exactly these parts, or none; another mixer's state would silently be ignored."""
    if carried and carried.keys() != set(parts):
        own = f"has a state of {' and '.join(parts)}" if parts else "carries no state"
        raise UserError(f"a state of {' and '.join(carried)} comes from another mixer: this {kind} {own}")


def check_rows(kind: str, left: Sequence[int], read: Sequence[int]) -> None:
    """Check that a state [R, B, …] has as many replicas and rows as the input [R, B, …]."""
    if tuple(left[:2]) != tuple(read[:2]):
        (of, rows), (R, B) = left[:2], read[:2]
        said = f"the state of this {kind} is for {_several(of, 'replica')} and {_several(rows, 'row')}"
        raise UserError(f"{said}; it does not fit a batch of {_several(R, 'replica')} and {_several(B, 'row')}")


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


class MixerSpec(Variant):
    """A mixer: what moves information between positions."""

    @abstractmethod
    def build(self, replicas: int, width: int, out_gain: float, needs: Needs) -> Mixer:
        """The mixer of one layer. The output projection starts with `out_gain` times its usual standard deviation."""

    @property
    def why_no_cross(self) -> str | None:
        """Why it cannot be used as cross attention; None = it can."""
        return f"{self.kind} moves information along one sequence and cannot attend to another"

    def build_cross(self, replicas: int, width: int, out_gain: float, needs: Needs) -> Mixer:
        """The cross attention of one layer: it attends to the memory in `Context.across`, not to its own sequence."""
        raise NotImplementedError(self.why_no_cross)

    @abstractmethod
    def flops_per_token(self, width: int, segment: int) -> int:
        """FLOPs of a forward pass for one token of a segment of this length; see `scoring/cost.py`."""

    @property
    def number_of_heads(self) -> int | None:
        """The number of attention heads; None = this mixer has none."""
        return None

    def state_sizes(self, width: int) -> dict[str, int]:
        """The parts of a row's state that have a fixed size, with their sizes: what `summary` concatenates and
        `going_on_from` takes. Empty = there are none."""
        return {}

    @property
    def why_no_rotary(self) -> str | None:
        """Why it cannot use rotary positions, or None if it can."""
        return None

    @property
    def remembers(self) -> float:
        """How many slots before a segment it can use when batches are contiguous: 0, a number, or math.inf for a
        recurrence."""
        return 0.0

    @property
    def why_not_causal(self) -> str | None:
        """Why it would see the future despite a causal mask, or None."""
        return None

    @property
    def only_encodes(self) -> bool:
        """Whether it can be used in encoders only, because it needs later tokens."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether in an encoder a position sees later ones."""
        return True

    def largest(self, width: int, length: int) -> int:
        """Elements per token of the largest tensor in a forward pass, to tell how many rows fit into memory."""
        return width

    def kept(self, width: int) -> int:
        """Elements per token that are kept for the backward pass at least, to tell what cannot fit into memory."""
        return width

    def problems_with(self, width: int) -> Iterator[Problem]:
        """What is incompatible with a model of this width; keys are the mixer's own."""
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
    """Why these mixers cannot be the layers of one model; keys are the model's."""
    if isinstance(mixers, list) and len(mixers) != layers:
        reason = f"the list has {len(mixers)} mixer{'s' if len(mixers) != 1 else ''} for {layers} layers"
        yield Problem(("mixer", "layers"), f"{reason}; it takes one for each layer, or a single one for all")
        return
    named = {f"mixer.{n}": one for n, one in enumerate(mixers)} if isinstance(mixers, list) else {"mixer": mixers}
    for name, one in named.items():
        for problem in one.problems_with(width):
            yield Problem(("width", *(f"{name}.{key}" for key in problem.keys)), problem.reason)
        if positions.rotates and one.why_no_rotary:
            reason = f"{positions.kind} positions need a query-key product, but {one.why_no_rotary}"
            yield Problem(("positions", name), f"{reason}; use another scheme")
        if positions.marks_embeddings and math.isfinite(one.remembers) and one.remembers:
            reason = f"{positions.kind} positions start again in every segment, so the memory would have the same"
            reason += " positions as the segment itself; use rotary, alibi, t5 or none"
            yield Problem(("positions", f"{name}.memory"), reason)
    heads = [one.number_of_heads for one in of_layers(mixers, layers)]
    if positions.acts_in_heads and (without := [n for n, count in enumerate(heads) if count is None]):
        kinds = dict.fromkeys(of_layers(mixers, layers)[n].kind for n in without)
        layers_without = f"layer {', '.join(map(str, without))} ({', '.join(kinds)})"
        reason = f"{positions.kind} positions act inside attention heads, and {layers_without} has none"
        yield Problem(("positions", "mixer"), f"{reason}; use none, learned or sinusoidal")
        return
    keys = ("positions", "width", *(f"{name}.heads" for name, one in named.items() if one.number_of_heads))
    yield from (Problem(keys, reason) for reason in positions.problems_with(width, [h for h in heads if h]))


def build_positions(
    spec: PositionSpec, mixers: Sequence[MixerSpec], replicas: int, width: int, context: int
) -> Positions:
    """The position scheme for all layers. One that acts inside heads is built once per number of heads."""
    counts = list(dict.fromkeys(count for mixer in mixers if (count := mixer.number_of_heads)))
    if spec.acts_in_heads and len(counts) > 1:
        return PositionsByHeads({heads: spec.build(replicas, width, heads, context) for heads in counts})
    return spec.build(replicas, width, counts[0] if counts else 1, context)
