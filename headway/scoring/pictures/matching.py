"""Match pictures and captions given by the user, with any model that embeds both.

    cosine        similarity of the two embeddings, from which the others are computed
    softmax       of scale · cosine over the captions of a picture, or over the pictures of a caption: probabilities
                  if exactly one of them is right
    sigmoid       for models trained with it: the probability of each pair by itself
    CLIPScore     2.5 · max(cosine, 0): https://arxiv.org/abs/2104.08718 (the scale is that of CLIP ViT-B/32; other
                  models have other scales)

A caption that is too long is truncated but keeps its END, since some models take the embedding from there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headway.core.errors import UserError
from headway.data.images.dataset import with_end
from headway.data.images.pictures import squared
from headway.data.tokenizers import Tokenizer
from headway.models.clip import Clip
from headway.scoring.pictures.retrieval import embedded_captions

CLIPSCORE = 2.5
AT_ONCE = 64
"""Batch size for embedding pictures."""
MAX_WORDS_LEFT_OUT = 60
"""At most this many words of a caption are left out, one at a time."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture given by the user."""

    name: str
    image: Any
    """A Pillow image: upright, RGB, in its own size."""
    notes: tuple[str, ...] = ()


class Told(NamedTuple):
    """Embedded captions."""

    vectors: Float[Tensor, "C E"]
    tokens: list[int]
    """Length of each, including special tokens, before truncation."""
    unknown: list[int]
    """How many of these are the unknown word."""


class Matcher(ABC):
    """A model that embeds pictures and captions in a shared space."""

    name: str
    limit: int
    """Context length for captions, including special tokens."""
    scale: float
    bias: float | None = None
    """For models trained with a sigmoid loss."""

    @abstractmethod
    def see(self, pictures: Sequence[Shown]) -> Float[Tensor, "P E"]:
        """Embed pictures as unit vectors."""

    @abstractmethod
    def tell(self, captions: Sequence[str]) -> Told:
        """Embed captions as unit vectors."""


class OwnMatcher(Matcher):
    def __init__(self, name: str, model: Clip, tokenizer: Tokenizer):
        self.name, self.model, self.tokenizer = name, model.eval(), tokenizer
        self.limit = model.spec.context
        contrast: Any = model.contrast
        self.scale = float(contrast.scale[0].detach())
        self.bias = float(contrast.bias[0].detach()) if hasattr(contrast, "bias") else None

    @torch.no_grad()
    def see(self, pictures: Sequence[Shown]) -> Float[Tensor, "P E"]:
        device, size = next(self.model.parameters()).device, self.model.picture.size
        found = []
        for first in range(0, len(pictures), AT_ONCE):
            pixels = np.stack([squared(one.image, size) for one in pictures[first : first + AT_ONCE]])
            found.append(self.model.see(torch.as_tensor(pixels)[None].to(device))[0].float().cpu())
        return torch.cat(found)

    @torch.no_grad()
    def tell(self, captions: Sequence[str]) -> Told:
        ids = []
        for k, caption in enumerate(captions):
            try:
                ids.append(self.tokenizer.encode_rows([caption])[0])
            except UserError as problem:
                reason = str(problem).removeprefix("text 1: ")
                raise UserError(f"caption {k + 1}, '{caption}': {reason}") from None
        table, lengths = with_end(ids, self.limit, self.model.end)
        vectors = embedded_captions(self.model, torch.as_tensor(table), torch.as_tensor(lengths))[0]
        strange = self.tokenizer.unknown
        unknown = [0 if strange is None else int((one == strange).sum()) for one in ids]
        return Told(vectors, [len(one) + 1 for one in ids], unknown)


@dataclass(frozen=True, eq=False)
class Matched:
    """Similarities of every picture with every caption."""

    matcher: Matcher
    pictures: Sequence[Shown]
    captions: Sequence[str]
    told: Told
    cosines: Float[Tensor, "P C"]
    notes: list[str] = field(default_factory=list)
    """Caveats about the inputs, such as truncated captions."""

    @property
    def logits(self) -> Float[Tensor, "P C"]:
        return self.matcher.scale * self.cosines + (self.matcher.bias or 0.0)

    @property
    def of_captions(self) -> Float[Tensor, "P C"]:
        """The probability of each caption, given the picture."""
        return self.logits.softmax(1)

    @property
    def of_pictures(self) -> Float[Tensor, "P C"]:
        """The probability of each picture, given the caption."""
        return self.logits.softmax(0)

    @property
    def alone(self) -> Float[Tensor, "P C"] | None:
        """The probability of each pair by itself, if the model was trained with a sigmoid."""
        return None if self.matcher.bias is None else self.logits.sigmoid()

    @property
    def clip_scores(self) -> Float[Tensor, "P C"]:
        return CLIPSCORE * self.cosines.clamp(min=0)

    def as_json(self) -> dict[str, Any]:
        matrices = {
            "cosine": self.cosines,
            "of_captions": self.of_captions,
            "of_pictures": self.of_pictures,
            "sigmoid": self.alone,
            "clip_score": self.clip_scores,
        }
        sizes = zip(self.captions, self.told.tokens, self.told.unknown, strict=True)
        return {
            "model": self.matcher.name,
            "scale": self.matcher.scale,
            "pictures": [{"name": one.name, "notes": list(one.notes)} for one in self.pictures],
            "captions": [
                {"text": text, "tokens": tokens, "cut": max(0, tokens - self.matcher.limit), "unknown": unknown}
                for text, tokens, unknown in sizes
            ],
            **{name: None if one is None else one.tolist() for name, one in matrices.items()},
            "notes": self.notes,
        }


def match(matcher: Matcher, pictures: Sequence[Shown], captions: Sequence[str]) -> Matched:
    if not pictures or not captions:
        raise UserError("nothing to match: give at least one picture and one caption")
    if blank := [k + 1 for k, caption in enumerate(captions) if not caption.strip()]:
        raise UserError(f"caption {blank[0]} is empty: there is nothing to match")
    told = matcher.tell(captions)
    found = Matched(matcher, pictures, captions, told, matcher.see(pictures).double() @ told.vectors.double().T)
    cut = [k for k, tokens in enumerate(told.tokens) if tokens > matcher.limit]
    if cut:
        first = f"'{_short(captions[cut[0]])}' has {told.tokens[cut[0]]} tokens"
        what = "caption is" if len(cut) == 1 else "captions are"
        found.notes.append(
            f"{len(cut)} {what} longer than the model's {matcher.limit} tokens, and truncated (END is kept): {first}"
        )
    for caption, tokens, unknown in zip(captions, told.tokens, told.unknown, strict=True):
        if unknown:
            found.notes.append(f"'{_short(caption)}': {unknown} of {tokens - 1} tokens are unknown words")
    found.notes.extend(f"{one.name}: {note}" for one in pictures for note in one.notes)
    return found


# --- classes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Zeroshot:
    """Zero-shot classification: classes are given by their names alone."""

    classes: Sequence[str]
    prompts: Sequence[str]
    cosines: Float[Tensor, "P C"]
    chances: Float[Tensor, "P C"]
    notes: list[str]


def classify(matcher: Matcher, pictures: Sequence[Shown], classes: Sequence[str], prompts: Sequence[str]) -> Zeroshot:
    """Classify pictures. A class's embedding is the normalised mean of its prompts' embeddings."""
    if len(classes) < 2:
        raise UserError("give at least two classes to choose from")
    if twice := [name for k, name in enumerate(classes) if name in classes[:k]]:
        raise UserError(f"the class '{twice[0]}' is given twice: each would get half of its probability")
    if wrong := [one for one in prompts if one.count("{}") != 1]:
        raise UserError(f"the prompt '{wrong[0]}' must contain {{}} exactly once, where the class name goes")
    texts = [prompt.replace("{}", name) for name in classes for prompt in prompts]
    found = match(matcher, pictures, texts)
    vectors = found.told.vectors.double().view(len(classes), len(prompts), -1).mean(1)
    cosines = matcher.see(pictures).double() @ torch.nn.functional.normalize(vectors, dim=-1).T
    return Zeroshot(classes, prompts, cosines, (matcher.scale * cosines).softmax(1), found.notes)


# --- the caption game ------------------------------------------------------------------------------------------------


class WordShare(NamedTuple):
    text: str
    share: float
    """How many nats the target's log-probability loses without this word; negative = the caption is better without
    it."""


@dataclass(frozen=True, eq=False)
class Played:
    """The result of one caption that was written to pick one picture out of a set."""

    caption: str
    rank: int
    """Rank of the target: 1 = it is picked."""
    chance: float
    """Probability of the target among all pictures."""
    ahead: float
    """The target's cosine minus the highest cosine of the others."""
    picked: str
    """The name of the picture that ranks first."""
    words: list[WordShare]

    @property
    def wins(self) -> bool:
        return self.rank == 1


def play(matcher: Matcher, pictures: Sequence[Shown], target: int, captions: Sequence[str]) -> list[Played]:
    """How well each caption picks the target, and how much each of its words contributes."""
    if len(pictures) < 2:
        raise UserError("give at least two pictures: the caption has to pick one of them")
    shown = matcher.see(pictures).double()
    played = []
    for caption in captions:
        words = caption.split()
        without = [" ".join(words[:k] + words[k + 1 :]) for k in range(min(len(words), MAX_WORDS_LEFT_OUT))]
        texts = [caption, *(one for one in without if one)]
        cosines = shown @ match(matcher, pictures, texts).told.vectors.double().T  # [P, 1 + words]
        chances = (matcher.scale * cosines).log_softmax(0)[target]
        shares = [WordShare(word, float(chances[0] - after)) for word, after in zip(words, chances[1:], strict=False)]
        own, others = cosines[target, 0], cosines[:, 0].clone()
        others[target] = -math.inf
        # A tie does not count as picked.
        rank = 1 + int((others >= own).sum())
        played.append(
            Played(
                caption,
                rank,
                float(chances[0].exp()),
                float(own - others.max()),
                pictures[target if rank == 1 else int(others.argmax())].name,
                shares,
            )
        )
    return played


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]} …"
