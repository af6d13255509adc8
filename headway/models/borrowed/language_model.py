"""A language model run by `transformers` (GPT-NeoX, OPT, Phi, Gemma, Qwen3, BLOOM …), with the interface of ours.

ids     [1, B, T]
logits  [1, B, T, V]

Its state is the KV cache of transformers, if that holds keys and values per slot, and if decoding with it gives the
same logits as reading the whole sequence. Both are tried out when the model is built. Otherwise the whole sequence is
read again for every token.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core.errors import UserError
from headway.models.borrowed.body import RunByTransformers
from headway.models.borrowed.module import CAUSAL
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.taps import Tap
from headway.nn.trainable import Carried, Trainable

_TOLERANCE = 1e-4  # relative to the largest logit: sums of another shape round differently


@dataclass(frozen=True)
class CachedState:
    """The state of a borrowed model. Continuing from it does not change it."""

    cache: Any
    length: int

    def of_rows(self, rows: Int[Tensor, "1 N"], same_sources: bool = False) -> "CachedState":
        chosen = _copied(self.cache)
        chosen.batch_select_indices(rows[0])
        return CachedState(chosen, self.length)


class BorrowedLanguageModel(RunByTransformers, LanguageModel):
    multiplies_out = False  # some architectures scale or cap their logits

    def __init__(self, spec: LanguageModelSpec, vocabulary: int, replicas: int, device: str = "cpu"):
        Trainable.__init__(self)
        self.borrow(spec, vocabulary, replicas, CAUSAL)
        self.logits = Tap()
        self._why_no_cache = self._tried()

    @property
    def why_no_cache(self) -> str | None:
        return self._why_no_cache

    @property
    def can_branch(self) -> bool:
        return False

    @property
    def output_table(self) -> Tensor | None:
        own = self.body.get_output_embeddings()
        return own.weight if own is not None and own.weight is self.embedding.weight else None

    def forward(
        self,
        ids: Int[Tensor, "1 B T"],
        state: Any = None,
        padding_mask: Bool[Tensor, "1 B T"] | None = None,
    ) -> tuple[Float[Tensor, "1 B T V"], Any]:
        out, back, after = self._run(self.body, "", ids, state, padding_mask)
        return self.logits(_in_place(out.logits[None], back)), after

    def go_on(self, ids: Int[Tensor, "1 B T"], state: Any) -> tuple[Float[Tensor, "1 B T V"], Any]:
        return self(ids, state)

    def hidden(
        self,
        ids: Int[Tensor, "1 B T"],
        state: Any = None,
        padding_mask: Bool[Tensor, "1 B T"] | None = None,
        mask: Any = None,
    ) -> tuple[Float[Tensor, "1 B T D"], Any]:
        prefix = self.body.base_model_prefix
        out, back, after = self._run(self.body.base_model, f"{prefix}.", ids, state, padding_mask)
        return _in_place(out[0][None], back), after

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "1"], None]:
        return self.losses(batch.inputs, batch.targets).mean((1, 2)), None

    def losses_going_on(
        self, inputs: Int[Tensor, "1 B T"], targets: Int[Tensor, "1 B T"], state: Carried | None
    ) -> tuple[Float[Tensor, "1 B T"], None]:
        logits, _ = self(inputs)
        nats = F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), reduction="none")
        return nats.view(targets.shape), None

    def carried(self, state: Any) -> None:
        return None

    def going_on_from(self, carried: Carried | None) -> None:
        return None

    def _run(
        self, module: Any, prefix: str, ids: Tensor, state: CachedState | None, padding_mask: Tensor | None
    ) -> tuple[Any, Tensor | None, CachedState | None]:
        """The module's output; the order to restore, if tokens were moved; and the state after them."""
        past = 0 if state is None else state.length
        order = None
        if padding_mask is not None and not bool(padding_mask.all()):
            if past:
                raise UserError("a model run by transformers cannot continue from rows with padding")
            # Move tokens before the padding: the causal mask then hides it, and slots are positions.
            order = (~padding_mask).long().argsort(dim=-1, stable=True)
            ids = ids.masked_fill(~padding_mask, self.pad_id).gather(2, order)
        self.check_length(past + ids.shape[2], padding_mask)
        there = torch.ones(ids.shape[1], past + ids.shape[2], dtype=torch.long, device=ids.device)
        given: dict[str, Any] = {"input_ids": ids[0], "attention_mask": there, "return_dict": True}
        if self.shows_attention:
            given["output_attentions"] = True
        if self.why_no_cache is None:
            given |= {"use_cache": True, "past_key_values": None if state is None else _copied(state.cache)}
        else:
            given["use_cache"] = False
        weights = {name.removeprefix(prefix): p for name, p in self.body_weights.items() if name.startswith(prefix)}
        out = torch.func.functional_call(module, weights, kwargs=given)
        self.show_attention(out)
        back = None if order is None else order.argsort(dim=-1)
        has_state = self.why_no_cache is None and order is None
        return out, back, CachedState(out.past_key_values, past + ids.shape[2]) if has_state else None

    @torch.no_grad()
    def _tried(self) -> str | None:
        """Why it cannot decode with a KV cache, found out by trying; None = it can."""
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        self._why_no_cache = None
        ids = (torch.arange(6).view(1, 2, 3) * 7 + 1) % self.embedding.weight.shape[-2]
        try:
            whole, _ = self(ids)
            _, state = self(ids[..., :2])
            cache, of_slots = state.cache, (DynamicLayer, DynamicSlidingWindowLayer)
            if not isinstance(cache, DynamicCache) or not all(type(one) in of_slots for one in cache.layers):
                return "its cache in transformers does not hold keys and values per slot"
            last, _ = self(ids[:, [1, 0], 2:], state.of_rows(torch.tensor([[1, 0]])))
        except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as problem:
            return f"transformers has no KV cache for it ({type(problem).__name__})"
        off = (last[0, :, 0] - whole[0, [1, 0], 2]).abs().max()
        return None if off <= _TOLERANCE * whole.abs().max() else "with its cache logits differ from those without"


def _copied(cache: Any) -> Any:
    """A copy of the cache that may be updated: its layers replace their tensors and do not write into them."""
    made = copy.copy(cache)
    made.layers = [copy.copy(one) for one in cache.layers]
    return made


def _in_place(x: Float[Tensor, "1 B T n"], back: Int[Tensor, "1 B T"] | None) -> Float[Tensor, "1 B T n"]:
    return x if back is None else x.gather(2, back[..., None].expand(-1, -1, -1, x.shape[-1]))
