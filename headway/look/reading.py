"""A sentence as a model reads it: its tokens, the words they stand for, and the passes through the model.

Models differ in how they are called: one that takes a `padding_mask` is told where padding stands, and gets several
sentences as one padded batch; one that does not gets each sentence alone.
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

PADDING = 4  # slots put behind every sentence, for models that take padding, to see that nobody looks there


@dataclass(frozen=True)
class Sentence:
    text: str
    """As typed, in one line."""
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """As shown: white space has a sign, and an unknown word stands beside the token it became."""
    unknown: tuple[str, ...]
    """The words that the vocabulary lacks."""

    @property
    def warnings(self) -> list[str]:
        if not self.unknown:
            return []
        words = ", ".join(dict.fromkeys(self.unknown))
        are = "is" if len(self.unknown) == 1 else "are"
        return [f"{len(self.unknown)} of {len(self.ids)} words {are} unknown and read as <unk>: {words}"]


LONGEST = 8192
"""Tokens: a picture of more has nothing in it that could be seen."""
MOST_WEIGHTS = 1 << 28
"""Numbers in all maps together: 1 GiB."""


def check_room(sentences: Sequence[Sentence], maps: int, title: str) -> None:
    """Before anything is computed: so many maps of sentences as long as these must have room."""
    longest = max(len(sentence.ids) for sentence in sentences)
    if (needed := maps * len(sentences) * longest**2) > MOST_WEIGHTS:
        most = int((MOST_WEIGHTS / (maps * len(sentences))) ** 0.5)
        raise UserError(
            f"{title} has {maps} attention maps, and of {longest:,} tokens they would take {needed / 2**28:.1f} GiB: "
            f"give a passage of at most {most:,} tokens"
        )


def read(tokenizer: Tokenizer, text: str) -> Sentence:
    found = tokenizer.encode_row(text)
    ids = found.ids.tolist()
    if len(ids) > LONGEST:
        raise UserError(f"{len(ids):,} tokens are too many to look at: give a passage of at most {LONGEST:,}")
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
    """One call of a model, and which sentences its rows are."""

    ids: Int[Tensor, "R B T"]
    padding_mask: Bool[Tensor, "R B T"] | None
    rows: list[int]

    def through(self, model: nn.Module) -> Tensor:
        """The logits."""
        out = model(self.ids) if self.padding_mask is None else model(self.ids, padding_mask=self.padding_mask)
        return out[0] if isinstance(out, tuple) else out


def passes(model: nn.Module, sentences: Sequence[Sentence], padding: int = PADDING) -> Iterator[Pass]:
    """All sentences, through this model."""
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
