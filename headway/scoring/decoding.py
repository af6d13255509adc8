"""Text from a language model, one token after the other."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.core.errors import UserError
from headway.models.language_model import LanguageModel


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, "N"],
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Iterator[int]:
    """`tokens` ids that follow the prompt, as they are drawn. With or without the cache, the same ids.

    When the context is full, its older half is forgotten. (Forgetting one token at a time would move every other token
    to a new position, and nothing could be kept in the cache.) That of a recurrence is never full.
    """
    context = model.spec.horizon
    if len(prompt) == 0:
        raise UserError("the prompt is empty: there is nothing to go on from")
    if context is not None and len(prompt) > context:
        raise UserError(f"the prompt has {len(prompt)} tokens, but the model's context is {context}")
    if temperature < 0:
        raise UserError(f"a temperature must be 0 (always the likeliest) or more, not {temperature}")
    model.eval()
    device = next(model.parameters()).device
    ids = prompt.to(device, torch.int64).tolist()
    cached = cached and model.why_no_cache is None
    state, fresh = None, ids
    for _ in range(tokens):
        if context is not None and len(ids) > context:
            ids = ids[-max(1, context // 2) :]
            state, fresh = None, ids
        shown = fresh if cached else ids
        logits, state = model(torch.tensor(shown, device=device)[None, None], state if cached else None)
        fresh = [_draw(logits[0, 0, -1].float().cpu(), temperature, top_k, top_p, generator)]
        ids = ids + fresh
        yield fresh[0]


def _draw(
    logits: Float[Tensor, "V"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    logits = logits / temperature
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(max(1, top_k)).values[-1], -torch.inf)
    chances = logits.softmax(-1)
    if top_p is not None:  # the fewest likeliest tokens that together reach top_p (https://arxiv.org/abs/1904.09751)
        ordered, order = chances.sort(descending=True)
        dropped = (ordered.cumsum(0) - ordered) >= top_p
        dropped[0] = False
        chances[order[dropped]] = 0
    return int(torch.multinomial(chances, 1, generator=generator))
