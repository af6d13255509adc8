"""Attention maps of a translator: encoder self-attention, cross-attention and decoder self-attention.

The maps are of the model's own translation of a source. The mean of all cross-attention heads gives a rough alignment
of target tokens to source tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.core.errors import UserError
from headway.draw.colours import WEIGHTS
from headway.draw.picture import Grid, Panel, Picture, PictureTable, finite, percent
from headway.look.head_statistics import entropy_shares
from headway.look.maps import MapStack
from headway.look.reading import Sentence
from headway.models.translator import Translator
from headway.nn.taps import tap_names, watch

NOTE = "entropy of ln n: the entropy of the weights divided by its maximum for n keys, so 100 % is uniform."
STACKS = {"encoder": "source to source", "cross": "translation to source", "decoder": "translation to its own past"}


@dataclass(frozen=True, eq=False)
class TranslationMaps:
    """The maps of one translation. In a notebook it draws itself."""

    title: str
    sentence: Sentence
    """The source."""
    target: tuple[str, ...]
    """The tokens of the translation, including END."""
    translation: str
    stacks: dict[str, list[Float[Tensor, "_ Q K"]]]
    """For each stack and layer, the weights of its heads. Row i of `cross` is from predicting token i of the target."""
    largest_difference: float
    """The largest difference between the kernel's output and weights·values, over all layers."""

    @property
    def at_source(self) -> Float[Tensor, "T S"]:
        """Attention of each target token to the source, averaged over all heads. Without an encoder, the source
        precedes the translation in one row, and the END of the source begins the translation."""
        layers = self.stacks.get("cross") or self.stacks["decoder"]
        return torch.stack([layer.mean(0) for layer in layers]).mean(0)[:, : len(self.sentence.tokens) + 1]

    @property
    def alignment(self) -> list[int]:
        """For each token of the translation, the source token with the most attention."""
        return self.at_source.argmax(-1).tolist()

    @property
    def all_stacks(self) -> list[MapStack]:
        return [
            MapStack(stack, STACKS[stack], *self._labels(stack, layers[0].shape[-1]), dict(enumerate(layers)))
            for stack, layers in self.stacks.items()
        ]

    def grids(self, layer: int | None = None, head: int | None = None) -> list[Grid]:
        found = []
        for stack, layers in self.stacks.items():
            rows = [
                [self._panel(stack, n, h) for h in self._heads(layers[n], head)] for n in self._layers(layers, layer)
            ]
            found.append(Grid(f"{stack}: {STACKS[stack]}", rows, WEIGHTS))
        return found

    def grid(self, layer: int | None = None, head: int | None = None) -> Grid:
        """The cross-attention maps, for comparing two runs."""
        grids = dict(zip(self.stacks, self.grids(layer, head), strict=True))
        return grids.get("cross") or grids["decoder"]

    def draw(self, layer: int | None = None, head: int | None = None) -> Picture:
        how = (
            "Each row shows the attention weights of one token; rows of the translation are the tokens being predicted."
        )
        said, grids = f"{self.sentence.text} → {self.translation}", self.grids(layer, head)
        if layer is None and head is None:
            grids = [*grids, self._aligned()]
        return Picture(f"Attention of {self.title}", said, how, grids, self.notes, self.table())

    def _aligned(self) -> Grid:
        weights, (_, columns) = self.at_source, self._labels("cross", 0)
        panel = Panel("mean of all heads", weights.numpy(), self.target, columns, ())
        return Grid("alignment: source tokens of each token of the translation", [[panel]], WEIGHTS)

    def rollout_grid(self, layer: int | None = None) -> Grid:
        raise UserError("rollout needs a single sequence, but a translator has two; use --show heads")

    def draw_rollout(self, layer: int | None = None) -> Picture:
        raise UserError("rollout needs a single sequence, but a translator has two; use --show heads")

    @property
    def notes(self) -> list[str]:
        kernel = f"{self.title}: the kernel's output and weights·values differ by at most {self.largest_difference:.1e}"
        return [kernel, *self.sentence.warnings]

    def table(self) -> PictureTable:
        """The relative entropy of each head."""
        rows = [
            [found["stack"], str(found["layer"]), str(found["head"]), percent(found["entropy_share"])]
            for found in self.as_json()["heads"]
        ]
        return PictureTable(["stack", "layer", "head", "entropy of ln n"], rows, NOTE)

    def as_json(self) -> dict[str, Any]:
        heads = [
            {"stack": stack, "layer": n, "head": h, "entropy_share": share if share == share else None}
            for stack, layers in self.stacks.items()
            for n, weights in enumerate(layers)
            for h, share in enumerate(entropy_shares(weights).tolist())
        ]
        return {
            "tokens": list(self.sentence.tokens),
            "unknown": list(self.sentence.unknown),
            "target": list(self.target),
            "translation": self.translation,
            "alignment": self.alignment,
            "largest_difference": self.largest_difference,
            "heads": heads,
        }

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()

    def _panel(self, stack: str, layer: int, head: int) -> Panel:
        weights = self.stacks[stack][layer][head]
        rows, columns = self._labels(stack, weights.shape[-1])
        share = entropy_shares(weights).item()
        caption = (f"entropy {finite(share)} of ln n",)
        return Panel(f"{stack} · layer {layer} · head {head}", weights.numpy(), rows, columns, caption)

    def _labels(self, stack: str, keys: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The labels of rows and columns."""
        source, begun = (*self.sentence.tokens, "END"), ("END", *self.target[:-1])
        return {
            "encoder": (source, source),
            "cross": (self.target, source),
            "decoder": (self.target, begun if keys == len(begun) else (*self.sentence.tokens, *begun)),
        }[stack]

    def _layers(self, layers: Sequence[Tensor], layer: int | None) -> Sequence[int]:
        if layer is None:
            return range(len(layers))
        if not 0 <= layer < len(layers):
            raise UserError(f"{self.title} has no layer {layer}: it has layers 0 to {len(layers) - 1}")
        return [layer]

    def _heads(self, weights: Tensor, head: int | None) -> Sequence[int]:
        if head is None:
            return range(len(weights))
        if not 0 <= head < len(weights):
            raise UserError(f"{self.title} has no head {head}: it has heads 0 to {len(weights) - 1}")
        return [head]


@torch.no_grad()
def translation_maps(
    model: Translator, sentence: Sentence, written: Sequence[int], pieces: Sequence[str], translation: str, title: str
) -> TranslationMaps:
    """The maps of this translation: `written` are its tokens without END, `pieces` the same for display."""
    device, end, source_end = next(model.parameters()).device, model.vocabulary - 1, model.source_vocabulary - 1
    sources = torch.tensor([*sentence.ids, source_end], device=device)[None, None]
    ids = torch.tensor([end, *written], device=device)[None, None]
    places = attention_stacks(model)
    if not any(places.values()):
        raise UserError(f"{title} has no attention layers, so there are no maps to draw")
    taps = [f"{path}.{tap}" for paths in places.values() for path in paths for tap in ("weights", "values", "mixed")]
    with watch(model, *taps) as seen:
        model(sources, ids)
    found = {name: tensor[0, 0].cpu() for name, tensor in seen.items()}
    off = max(
        float((found[f"{path}.mixed"] - found[f"{path}.weights"] @ found[f"{path}.values"]).abs().max())
        for paths in places.values()
        for path in paths
    )
    # Without an encoder the source is left-padded: cut the padding off.
    most = sources.shape[2] + ids.shape[2] - 1
    stacks = {
        stack: [found[f"{path}.weights"][..., -most:] for path in paths] for stack, paths in places.items() if paths
    }
    return TranslationMaps(title, sentence, (*pieces, "END"), translation, stacks, off)


def attention_stacks(model: Translator) -> dict[str, list[str]]:
    """The module paths of all attention by stack, layer by layer."""
    return {
        "encoder": _attention(model, "encoder.", "attention"),
        "cross": _attention(model, "layers.", "cross_attention"),
        "decoder": _attention(model, "layers.", "attention"),
    }


def _attention(model: Translator, prefix: str, kind: str) -> list[str]:
    ending = f".{kind}.weights"
    names = [name for name in tap_names(model) if name.startswith(prefix) and name.endswith(ending)]
    return [name.removesuffix(".weights") for name in names]
