"""The loss of every token of a text that a user typed."""

from dataclasses import dataclass

import numpy as np
import torch

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.models.language_model import LanguageModel
from headway.scoring.likelihood import Surprise, losses_of
from headway.scoring.masked import Guesses
from headway.scoring.reading import Reading


@dataclass(frozen=True)
class ScoredText:
    pieces: list[str]
    nats: list[float | None]
    """One per piece; None where there was no context to predict it from."""
    unknown: int
    """How many tokens are the unknown word."""
    begins_a_line: bool
    """Whether a line end was put in front, so that the first token was predicted too."""
    surprise: Surprise | Guesses


@torch.no_grad()
def score_text(model: LanguageModel, tokenizer: Tokenizer, text: str, reading: Reading, token_kind: str) -> ScoredText:
    """Score a text as the beginning of a new line if the vocabulary has a line end, else from its second token on."""
    tokens = tokenizer.encode(text)
    ids = tokens.ids.tolist()
    if not ids:
        raise UserError("the text is empty: there is nothing to score")
    begins_a_line = tokenizer.line_end is not None
    shown = [tokenizer.line_end, *ids] if begins_a_line else ids
    if len(shown) < 2:
        raise UserError("the text is a single token, and this vocabulary has no line end to predict it from")
    nats = losses_of(model, torch.tensor(shown), reading)[0].double().tolist()
    scored = slice(0 if begins_a_line else 1, None)
    unknown = sum(i == tokenizer.unknown for i in ids)
    summary = Surprise(
        sum(nats),
        len(nats),
        int(np.asarray(tokens.starts)[scored].sum()),
        int(np.asarray(tokens.bytes)[scored].sum()),
        reading.segment,
        reading.stride,
        token_kind,
        unknown,
        reading.carried,
    )
    return ScoredText(tokenizer.pieces(ids), nats if begins_a_line else [None, *nats], unknown, begins_a_line, summary)
