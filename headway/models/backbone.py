"""What all models have in common: embedding, positions, layers, final norm.

ids           [R, B, T]      token ids
padding_mask  [R, B, T]      True where there is a token, False where there is padding; None = no padding
x             [R, B, T, D]   through `layers`

Rows may be padded on the left or on the right, by any amount. Padding is masked, and positions count tokens only, so
that the tokens of a row get the same vectors with any padding.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.models.spec import MAX_LAYERS, ModelSpec
from headway.models.state import Branches, ModelState, SourceMemory
from headway.nn import mixer
from headway.nn.adapters import add_adapters
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.block import Block, FeedForwardSpec, Gelu, Layer, NormSpec
from headway.nn.context import Context
from headway.nn.dropout import Noise, NoiseSpec, WordDropout
from headway.nn.masks import BranchMask, Everything, Mask, Padding
from headway.nn.mingru import MinGruSpec  # noqa: F401 (importing it registers the kind that recipes name)
from headway.nn.mixer import Mixer, Mixers, MixerSpec
from headway.nn.positions import Learned, Positions, PositionSpec
from headway.nn.recurrence import RecurrenceSpec  # noqa: F401 (importing it registers the kinds that recipes name)
from headway.nn.replicated import Embedding
from headway.nn.residual import with_norm
from headway.nn.taps import Tap
from headway.nn.trainable import Carried, Trainable


class BackboneSpec(ModelSpec):
    """A stack of layers over embedded tokens."""

    layers: int = Field(default=4, ge=1, le=MAX_LAYERS)
    """The number of layers (blocks)."""
    width: int = Field(default=128, ge=1)
    """The size of the residual stream, also called d_model or the hidden size."""
    context: int = Field(default=64, ge=1)
    """The longest sequence, in tokens; learned positions have this many vectors. A model with only recurrences, and
    with positions of unlimited length, has no such limit: there it is only the default of data.segment."""
    mixer: Mixers = AttentionSpec()
    """What moves information between positions (attention, rnn, gru, lstm, mingru): one for all layers, or a list with
    one for each."""
    positions: PositionSpec = Learned()
    """The position scheme: none, learned, sinusoidal, alibi, rotary, t5; for encoders alibi-symmetric, t5-symmetric."""
    feedforward: FeedForwardSpec = Gelu()
    """The feed-forward net of each layer, by its nonlinearity: relu, gelu, gelu-tanh, silu, swiglu; or none."""
    norm: NormSpec = Layer()
    """The normalisation and its placement: layer, rms; none = neither norms nor residual connections, layers are
    chained."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout rate of the embeddings and of each sublayer's output."""
    noise: Noise = NoiseSpec()
    """The kind of dropout (independent, or locked over time), word dropout, and separate rates for input and output."""
    embedding_std: float | None = Field(default=None, gt=0)
    """The standard deviation of the initial embeddings; null = 0.02, or 0.3 in models without norms, where nothing
    rescales them."""
    scale_embedding: bool = False
    """Whether embeddings are multiplied by √width (https://arxiv.org/abs/1706.03762); the output matrix is not, even if
    tied."""

    added: ClassVar[frozenset[str]] = frozenset({"noise", "embedding_std", "scale_embedding"})

    @property
    def limit(self) -> int | None:
        """The longest sequence that the positions allow; None = any (training sequences are at most `context`)."""
        return self.context if self.positions.ends else None

    @property
    def remembers(self) -> float:
        return max(one.remembers for one in self.mixers)

    @property
    def horizon(self) -> int | None:
        """The longest text that it can read: its context; or None = any, if all layers carry a state of unlimited
        reach, as recurrences do, and positions have no limit."""
        endless = self.limit is None and all(math.isinf(one.remembers) for one in self.mixers)
        return None if endless else self.context

    @property
    def needs_warmup(self) -> str:
        return "post-norm" if self.norm.placement == "post" else ""

    @property
    def harder_in_training(self) -> bool:
        mixers = (getattr(one, key, 0) for one in self.mixers for key in ("dropout", "weight_dropout"))
        return any((self.dropout, self.noise.words, self.noise.input, self.noise.output, *mixers))

    def problems(self) -> Iterator[Problem]:
        yield from mixer.problems(self.mixer, self.layers, self.width, self.positions)

    @property
    def mixers(self) -> list[MixerSpec]:
        """The mixer of each layer."""
        return mixer.of_layers(self.mixer, self.layers)

    def flops_per_token(self, segment: int) -> int:
        """FLOPs of the layers only, for one token of a segment of this length (headway/scoring/cost.py says what
        counts)."""
        feedforward = self.layers * self.feedforward.flops_per_token(self.width)
        return feedforward + sum(one.flops_per_token(self.width, segment) for one in self.mixers)

    def largest(self, length: int) -> int:
        """Elements per token in the largest tensor of a layer."""
        return max(8 * self.width, *(one.largest(self.width, length) for one in self.mixers))


class Backbone(Trainable):
    sublayers = 2
    """The number of sublayers per layer that add to the residual stream."""
    embedding_parts: ClassVar[tuple[str, ...]] = ("embedding", "positions", "embedding_norm")
    """The modules that embed tokens, below the first layer."""
    head_parts: ClassVar[tuple[str, ...]] = ()
    """The modules of the head, which pretrained weights do not include."""

    def __init__(self, spec: BackboneSpec, vocabulary: int, replicas: int, device: str, mask: Mask):
        super().__init__()
        self.replicas, self.vocabulary = replicas, vocabulary
        self.embedding = Embedding(replicas, vocabulary, spec.width, std=spec.embedding_std or spec.norm.embedding_std)
        self.embedding_scale = math.sqrt(spec.width) if spec.scale_embedding else 1.0
        self.drop_words = WordDropout(replicas, vocabulary, spec.noise.words)
        self.positions = mixer.build_positions(spec.positions, spec.mixers, replicas, spec.width, spec.context)
        self.embedding_norm = spec.norm.build_for_embeddings(replicas, spec.width)
        self.drop = spec.noise.build(replicas, spec.dropout, spec.noise.input)
        needs = Needs(device, spec.positions.kind)
        # The more layers add to the residual stream, the smaller their outputs start (GPT-2).
        out_gain = 1 / math.sqrt(self.sublayers * spec.layers) if spec.norm.adds else 1.0
        noise, at_end = spec.noise, spec.noise.output
        own = [None] * (len(spec.mixers) - 1) + [None if spec.norm.adds else at_end]  # the last layer's: the output's
        shape = spec.feedforward, spec.norm, replicas, spec.width, spec.dropout, out_gain, needs, noise
        self.layers = nn.ModuleList(
            self.build_layer(spec, one, *shape, rate) for one, rate in zip(spec.mixers, own, strict=True)
        )
        self.norm = spec.norm.build_final(replicas, spec.width)
        self.drop_output = noise.build(replicas, 0.0, at_end or 0.0) if spec.norm.adds else nn.Identity()
        self.embedded = Tap()
        self.mask = mask

    def build_layer(self, spec: BackboneSpec, one: MixerSpec, *shape: Any) -> Block:
        """A layer with this mixer; the other arguments are those of `Block`."""
        return Block(one, *shape)

    @property
    def mixers(self) -> list[Mixer]:
        return [layer.mixer for layer in self.layers]  # pyright: ignore

    @property
    def depth(self) -> int:
        return len(self.layers) + 1

    def depth_of(self, name: str) -> int:
        part, _, inside = name.partition(".")
        if part == "layers":
            return int(inside.partition(".")[0]) + 1
        if part in self.embedding_parts:
            return 0
        return self.depth if part in self.head_parts else self.depth - 1  # the final norm belongs to the last layer

    def add_adapters(
        self, targets: Sequence[str], rank: int, alpha: float, dropout: float, seeds: Sequence[int]
    ) -> int:
        return add_adapters(self, targets, rank, alpha, dropout, seeds)

    def is_added(self, name: str) -> bool:
        return ".adapter." in name

    def hidden(
        self,
        ids: Int[Tensor, "R B T"],
        state: ModelState | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "R B T D"], ModelState]:
        """Everything but the output layer. Rows that continue from a state may be padded on the left only. `mask`: a
        mask to use instead of the model's. If the state has branches, `ids` has one token for each of them."""
        check_ids(ids)
        mask = self.mask if mask is None else mask
        state = ModelState((None,) * len(self.layers)) if state is None else state
        if state.branches is not None:
            return self._in_branches(ids, state, state.branches.grown())
        past, before, known = state.length, state.padding_mask, None
        slots = torch.arange(past + ids.shape[2], device=ids.device)
        if padding_mask is None and before is None:
            self.check_length(len(slots))
            at = slots[past:]
        else:
            new = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
            if before is not None:
                mixer.check_rows("model", before.shape, new.shape)
            before = new.new_ones(*new.shape[:2], past) if before is None else before
            known = torch.cat((before, new), dim=2)  # [R, B, K]
            self.check_length(len(slots), known)
            at = (known.cumsum(2) - 1).clamp(min=0)[..., past:]
            mask = mask & Padding(known.flatten(0, 1))
        shape = self.replicas, ids.shape[1]
        across = None if state.memory is None else _cross_context(shape, slots[past:], padding_mask, state.memory)
        context = Context(shape, self.positions, mask, slots[past:], slots, padding_mask, across=across)
        x, states = self._through_layers(ids, at, context, state)
        return x, ModelState(states, len(slots), known, state.memory)

    def _in_branches(
        self, ids: Int[Tensor, "R B K"], state: ModelState, grown: Branches
    ) -> tuple[Float[Tensor, "R B K D"], ModelState]:
        """As if every branch were a row of its own: its token attends only to the tokens of its own prefix."""
        slots = torch.tensor(grown.places, device=ids.device)
        shape, new = (self.replicas, ids.shape[1]), slots[-ids.shape[2] :]
        at = grown.sees.sum(-1) - 1 if grown.padded else new
        self.check_length(grown.places[-1] + 1, grown.sees.flatten(1, 2))
        across = None if state.memory is None else _cross_context(shape, new, None, state.memory)
        context = Context(shape, self.positions, BranchMask(grown.sees), new, slots, across=across)
        x, states = self._through_layers(ids, at, context, state)
        return x, ModelState(states, len(slots), None, state.memory, grown)

    def embed(self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None) -> Float[Tensor, "R B T D"]:
        """The embeddings of these tokens, without positions."""
        x = self.drop_words(self.embedding(ids), ids)
        return x if self.embedding_scale == 1 else x * self.embedding_scale

    @property
    def can_branch(self) -> bool:
        """Whether several hypotheses of a row can share the KV cache of their common prefix."""
        return all(mixer.keeps_slots for mixer in self.mixers)

    def _through_layers(
        self, ids: Int[Tensor, "R B T"], at: Int[Tensor, "*b T"], context: Context, state: ModelState
    ) -> tuple[Float[Tensor, "R B T D"], tuple[Any, ...]]:
        x = self.positions.embed(self.embed(ids, context.padding_mask), at)
        x = self.embedded(self.drop(self.embedding_norm(x)))
        for one in self.mixers:
            one.prepare(context)
        states = []
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x, layer_state = layer(x, context, layer_state)
            states.append(layer_state)
        return self.drop_output(with_norm(x, self.norm)[1]), tuple(states)

    def carried(self, state: ModelState) -> Carried | None:
        """What is carried of a state to the next training batch; None if no layer carries anything."""
        found = {
            f"layers.{n}.{name}": tensor
            for n, (one, own) in enumerate(zip(self.mixers, state.layers, strict=True))
            for name, tensor in one.carried(own).items()
        }
        return found or None

    def going_on_from(self, carried: Carried | None) -> ModelState | None:
        """The state at the start of a training batch, from what was carried over. The segment's slots count from 0, or
        from after the longest memory of its layers."""
        if carried is None:
            return None
        own = [(one, _with_prefix(f"layers.{n}.", carried)) for n, one in enumerate(self.mixers)]
        if len(carried) != sum(len(mine) for _, mine in own):
            raise UserError(f"a state of {', '.join(carried)} comes from another model: this one has {len(own)} layers")
        length, furthest = 0, None
        for one, mine in own:
            told = one.slots_before(mine)
            if told is not None and told.shape[2] > length:
                length, furthest = told.shape[2], told
        return ModelState(tuple(one.going_on_from(mine) for one, mine in own), length, furthest)

    def check_length(self, slots: int, known: Bool[Tensor, "R B K"] | None = None) -> None:
        """Check that learned positions are long enough. The number of tokens is read from the device, which makes the
        host wait, only if the slots exceed the limit."""
        limit = self.positions.limit
        if limit is None or slots <= limit:
            return
        tokens = slots if known is None else int(known.sum(2).max())
        if tokens > limit:
            raise UserError(f"{tokens} tokens, but the learned positions end at {limit} (model.context)")


def check_ids(ids: Any) -> None:
    """Check the type and shape of token ids. Users forget the axis of replicas, so the error says how to add it."""
    expected = "expected token ids as a tensor, [replicas, rows, tokens]"
    if not isinstance(ids, Tensor):
        raise UserError(f"ids: {expected}, not a {type(ids).__name__}")
    if ids.is_floating_point():
        raise UserError(f"ids: {expected} of integers, not {str(ids.dtype).removeprefix('torch.')}")
    if ids.dim() != 3:
        missing = {1: "; replicas and rows are missing: ids[None, None]", 2: "; replicas are missing: ids[None]"}
        raise UserError(f"ids of shape {list(ids.shape)}: {expected}{missing.get(ids.dim(), '')}")


def _cross_context(
    shape: tuple[int, int], queries: Tensor, padding_mask: Tensor | None, memory: SourceMemory
) -> Context:
    """The context for cross attention. It has no positions, because those of two sequences cannot be compared."""
    keys = torch.arange(memory.vectors.shape[2], device=queries.device)
    told = memory.padding_mask
    mask = Everything() if told is None else Padding(told.flatten(0, 1))
    return Context(shape, Positions(), mask, queries, keys, padding_mask, memory.vectors)


def _with_prefix(prefix: str, carried: Carried) -> Carried:
    return {name.removeprefix(prefix): tensor for name, tensor in carried.items() if name.startswith(prefix)}
