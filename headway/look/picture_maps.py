"""Attention maps and gradients of a model that matches pictures and captions, for one picture and caption.

attention    for each head, the attention that each patch or each word gets, averaged over all queries
gradients    how much the cosine similarity depends on each patch and each word: the norm of d cosine / d embedding,
             scaled to sum to one (Simonyan et al. 2013, https://arxiv.org/abs/1312.6034)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.draw.colours import SHARES, WEIGHTS, ColourScale
from headway.draw.picture import Grid, Panel, Picture, PictureTable
from headway.look.reading import Sentence, read
from headway.models.clip import Clip
from headway.nn.taps import tap_names, watch


@dataclass(frozen=True, eq=False)
class PictureMaps:
    """The maps of one picture and caption. In a notebook it draws itself."""

    title: str
    name: str
    """The name of the picture."""
    sentence: Sentence
    tokens: tuple[str, ...]
    """The tokens of the caption, with END."""
    pixels: UInt8[np.ndarray, "S S 3"]
    cosine: float
    by_patch: Float[Tensor, "N N"]
    """Gradient norm by patch, scaled to sum to one."""
    by_word: Float[Tensor, "T"]
    among_patches: dict[tuple[int, int], Float[Tensor, "N N"]]
    """By (layer, head): the mean attention that each patch gets."""
    among_words: dict[tuple[int, int], Float[Tensor, "T"]]

    def draw(self, show: str = "heads", layer: int | None = None, head: int | None = None) -> Picture:
        said = f"the cosine similarity of picture and caption is {self.cosine:.3f}"
        if show == "gradients":
            grids = [
                self._picture(SHARES),
                Grid("by patch", [[self._patches("gradients", self.by_patch)]], SHARES),
                Grid("by word", [[self._words("gradients", self.by_word)]], SHARES),
            ]
            how = f"How much the match depends on each patch and word: {said}, and the norm of its gradient is shown."
        else:
            patches, words = (
                _rows(_chosen(maps, layer, head), make)
                for maps, make in ((self.among_patches, self._patches), (self.among_words, self._words))
            )
            if not patches and not words:
                raise UserError(f"{self.title} has no attention to show here; see --show gradients")
            grids = [self._picture(WEIGHTS)]
            grids += [Grid("among patches", patches, WEIGHTS)] if patches else []
            grids += [Grid("among words", words, WEIGHTS)] if words else []
            how = f"How much attention each patch and each word gets, averaged over all queries; {said}."
        return Picture(f"{self.title}: {self.name}", self.sentence.text, how, grids, self.sentence.warnings, self.table)

    def _picture(self, scale: ColourScale) -> Grid:
        """The picture as the model gets it."""
        n = len(self.by_patch)
        grey = self.pixels.mean(-1) / 255
        small = grey.reshape(n, len(grey) // n, n, -1).mean((1, 3))
        places = _places(n)
        return Grid("picture", [[Panel("as the model sees it", small, places, places, (), self.pixels)]], scale)

    def _patches(self, title: str, shares: Float[Tensor, "N N"]) -> Panel:
        places = _places(len(shares))
        return Panel(title, shares.numpy(), places, places, ())

    def _words(self, title: str, shares: Float[Tensor, "T"]) -> Panel:
        return Panel(title, shares[None].numpy(), ("",), self.tokens, ())

    @property
    def table(self) -> PictureTable:
        rows = [[token, f"{share:.3f}"] for token, share in zip(self.tokens, self.by_word.tolist(), strict=True)]
        return PictureTable(["word", "share of the gradient"], rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "image": self.name,
            "caption": self.sentence.text,
            "tokens": list(self.tokens),
            "unknown": list(self.sentence.unknown),
            "cosine": self.cosine,
            "gradient_by_patch": self.by_patch.tolist(),
            "gradient_by_word": self.by_word.tolist(),
            "attention": [
                {"layer": layer, "head": head, "of": of, "shares": shares.tolist()}
                for of, maps in (("patches", self.among_patches), ("words", self.among_words))
                for (layer, head), shares in maps.items()
            ],
        }

    def _repr_html_(self) -> str:
        return self.draw("gradients")._repr_html_()


def picture_maps(
    model: Clip, tokenizer: Tokenizer, pixels: UInt8[np.ndarray, "3 S S"], caption: str, name: str, title: str
) -> PictureMaps:
    """The maps of the first replica of a model for a picture and a caption."""
    sentence, limit = read(tokenizer, caption), model.spec.context
    if len(sentence.ids) >= limit:
        reason = f"the caption has {len(sentence.ids)} tokens, but the model reads {limit - 1}"
        raise UserError(f"{reason} (model.context, less one for END)")
    device = next(model.parameters()).device
    ids = torch.tensor([*sentence.ids, model.end], device=device).expand(model.replicas, 1, -1)
    pictures = torch.as_tensor(pixels).to(device).expand(model.replicas, 1, -1, -1, -1)
    weights = [tap for tap in tap_names(model) if tap.endswith(".weights")]
    with torch.enable_grad(), watch(model, "embedded", "picture.embedded", *weights) as seen:
        cosine = (model.see(pictures)[0, 0] * model(ids)[0, 0]).sum()
        slopes = torch.autograd.grad(cosine, [seen["picture.embedded"], seen["embedded"]])
    by_patch, by_word = (_shares(slope[0, 0].norm(dim=-1)) for slope in slopes)
    n = pixels.shape[-1] // model.spec.picture.patch
    among: dict[bool, dict[tuple[int, int], Tensor]] = {True: {}, False: {}}
    for tap in weights:
        of_picture = tap.startswith("picture.")
        layer = int(tap.removeprefix("picture.").split(".")[1])
        got = seen[tap][0, 0].detach().double().mean(1).cpu()  # [H, K]: the mean over queries
        for head, shares in enumerate(got):
            among[of_picture][layer, head] = shares.view(n, n) if of_picture else shares
    return PictureMaps(
        title,
        name,
        sentence,
        (*sentence.tokens, "END"),
        np.ascontiguousarray(pixels.transpose(1, 2, 0)),
        float(cosine.detach()),
        by_patch.view(n, n),
        by_word,
        among[True],
        among[False],
    )


def _shares(lengths: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    lengths = lengths.detach().double().cpu()
    return lengths / lengths.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _chosen(maps: dict[tuple[int, int], Tensor], layer: int | None, head: int | None) -> dict[tuple[int, int], Tensor]:
    found = {at: one for at, one in maps.items() if layer in (None, at[0]) and head in (None, at[1])}
    if maps and not found:
        layers, heads = (max(at[k] for at in maps) for k in (0, 1))
        raise UserError(f"there is no such head: layers are 0 to {layers}, heads 0 to {heads}")
    return found


def _rows(maps: dict[tuple[int, int], Tensor], make: Any) -> list[list[Panel]]:
    """A row of panels for each layer."""
    layers = sorted({layer for layer, _ in maps})
    return [
        [make(f"layer {layer} · head {head}", shares) for (at, head), shares in maps.items() if at == layer]
        for layer in layers
    ]


def _places(n: int) -> tuple[str, ...]:
    return tuple(str(k + 1) for k in range(n))
