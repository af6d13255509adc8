"""Tokenise sentences for looking inside a model, and run them through it.

A model that takes a `padding_mask` gets several sentences as one padded batch; other models get each sentence alone.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.nn.positions import Positions

PADDING = 4  # extra padding after every sentence, to check that it gets no attention


@dataclass(frozen=True)
class Sentence:
    text: str
    """The text as typed, joined into one line."""
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """Tokens for display: white space as visible symbols, unknown words beside the unknown token."""
    unknown: tuple[str, ...]
    """Words that are not in the vocabulary."""

    @property
    def warnings(self) -> list[str]:
        if not self.unknown:
            return []
        words = ", ".join(dict.fromkeys(self.unknown))
        are = "is" if len(self.unknown) == 1 else "are"
        return [f"{len(self.unknown)} of {len(self.ids)} words {are} unknown and read as <unk>: {words}"]


LONGEST = 8192
"""The longest sentence in tokens; a larger map would be illegible."""
MAX_WEIGHTS = 1 << 28
"""Limit on the elements of all maps together: 1 GiB in float32."""


def check_room(sentences: Sequence[Sentence], maps: int, title: str) -> None:
    """Raise a UserError, before anything is computed, if so many maps of these sentences would take too much memory."""
    longest = max(len(sentence.ids) for sentence in sentences)
    if (needed := maps * len(sentences) * longest**2) > MAX_WEIGHTS:
        most = int((MAX_WEIGHTS / (maps * len(sentences))) ** 0.5)
        raise UserError(
            f"{title} has {maps} attention maps; for {longest:,} tokens they would take {needed / 2**28:.1f} GiB: "
            f"give a text of at most {most:,} tokens"
        )


def read(tokenizer: Tokenizer, text: str) -> Sentence:
    found = tokenizer.encode_row(text)
    ids = found.ids.tolist()
    if len(ids) > LONGEST:
        raise UserError(f"{len(ids):,} tokens are too many to look at: give a text of at most {LONGEST:,}")
    if not found.bytes.any():
        raise UserError("the sentence is empty: there is nothing to look at")
    tokens, unknown, begin, content = tokenizer.pieces(ids), [], 0, text.encode()
    for k, (token, size) in enumerate(zip(ids, found.bytes.tolist(), strict=True)):
        if token == tokenizer.unknown:
            unknown.append(content[begin : begin + size].decode(errors="replace").strip())
            tokens[k] = f"{tokens[k]} {unknown[-1]}" if unknown[-1] != tokens[k] else tokens[k]
        begin += size
    return Sentence(" ".join(text.split()), tuple(ids), tuple(tokens), tuple(unknown))


@dataclass(frozen=True)
class Pass:
    """One call of a model, and the sentences that its rows are."""

    ids: Int[Tensor, "R B T"]
    padding_mask: Bool[Tensor, "R B T"] | None
    rows: list[int]

    def through(self, model: nn.Module) -> Tensor:
        """Run the model; returns the logits."""
        out = model(self.ids) if self.padding_mask is None else model(self.ids, padding_mask=self.padding_mask)
        return out[0] if isinstance(out, tuple) else out


def passes(model: nn.Module, sentences: Sequence[Sentence], padding: int = PADDING) -> Iterator[Pass]:
    """The calls that run all sentences through this model."""
    parameter = next(model.parameters())
    device, replicas = parameter.device, len(parameter)
    if "padding_mask" not in inspect.signature(model.forward).parameters:
        for row, sentence in enumerate(sentences):
            yield Pass(torch.tensor(sentence.ids, device=device).expand(replicas, 1, -1), None, [row])
        return
    longest = max(len(s.ids) for s in sentences)
    limits = [m.limit for m in model.modules() if isinstance(m, Positions) and m.limit is not None]
    width = max(longest, min([longest + padding, *limits]))
    ids = torch.zeros(replicas, len(sentences), width, dtype=torch.int64, device=device)
    padding_mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        ids[:, row, : len(sentence.ids)] = torch.tensor(sentence.ids, device=device)
        padding_mask[:, row, : len(sentence.ids)] = True
    yield Pass(ids, padding_mask, list(range(len(sentences))))
