"""Attention maps: the attention weights of every layer and head, whatever kernel computed them.

Fused kernels never materialise the weights. They are recomputed from the model's queries and keys, and weights·values
is compared with the kernel's output, so that a map states how far it is from what the kernel computed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.draw.colours import SHARES, WEIGHTS
from headway.draw.picture import Grid, Panel, Picture, PictureTable, finite, percent
from headway.look import head_statistics as of_maps
from headway.look.reading import Sentence, check_room, passes, read
from headway.nn.taps import tap_names, watch

_COLUMNS = (
    "Means over the queries that see more than one key. entropy: of the weights, in nats; of ln n: divided by its "
    "maximum for n keys, so 100 % is uniform; distance: from query to key, in tokens; itself, first, previous: the "
    "share of the weight on the query's own token, on the first token, on the token before the query"
)
_PADDING = "; padding: the share on padding, 0 unless a mask is wrong"

TRUSTED = 1e-3  # float32 rounding stays far below this, a wrong mask far above


@dataclass(frozen=True, eq=False)
class MapStack:
    """Maps of one kind of attention, layer by layer."""

    name: str
    what: str
    """A description, for headings."""
    rows: tuple[str, ...]
    """The queries."""
    columns: tuple[str, ...]
    """The keys."""
    layers: dict[int, Float[Tensor, "_ Q K"]]
    """The weights of each layer's heads."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The attention of one model on one sentence. In a notebook it draws itself."""

    title: str
    """The name of the run."""
    sentence: Sentence
    layers: dict[int, Float[Tensor, "_ T T"]]
    """The weights of each layer's heads, by layer number, without padding."""
    padding: dict[int, Float[Tensor, "_"]] | None
    """The share of weight on padding, before it was cut off; None if there was no padding."""
    largest_difference: float
    """The largest difference between the kernel's output and weights·values, over all layers."""

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.sentence.tokens

    @property
    def all_stacks(self) -> list[MapStack]:
        return [MapStack("self", "each token to all that it may see", self.tokens, self.tokens, self.layers)]

    def weights(self, layer: int, head: int) -> Float[Tensor, "T T"]:
        """Row i: the attention weights of query i."""
        return self.layers[self._layer(layer)][self._head(layer, head)]

    @cached_property
    def statistics(self) -> dict[int, of_maps.Statistics]:
        """Statistics of the heads of each layer."""
        return {layer: of_maps.statistics(weights) for layer, weights in self.layers.items()}

    def rollout(self, layer: int | None = None) -> Float[Tensor, "T T"]:
        """Row i: how much of each token is in token i after this layer (default: the last)."""
        last = max(self.layers) if layer is None else self._layer(layer)
        return of_maps.rollout([weights for number, weights in self.layers.items() if number <= last])

    def grid(self, layer: int | None = None, head: int | None = None) -> Grid:
        """One row per layer and one column per head, or only the given layer or head."""
        layers = self.layers if layer is None else [self._layer(layer)]
        heads = {n: range(len(self.layers[n])) if head is None else [self._head(n, head)] for n in layers}
        return Grid(self.title, [[self._panel(n, h) for h in heads[n]] for n in layers], WEIGHTS)

    def rollout_grid(self, layer: int | None = None) -> Grid:
        last = max(self.layers) if layer is None else self._layer(layer)
        matrix = self.rollout(layer).numpy()
        panel = Panel(f"rollout to layer {last}", matrix, self.tokens, self.tokens, ())
        return Grid(self.title, [[panel]], SHARES)

    def draw(self, layer: int | None = None, head: int | None = None) -> Picture:
        how = "Each row is a query token and shows its attention weights."
        text = self.sentence.text
        return Picture(
            f"Attention of {self.title}", text, how, [self.grid(layer, head)], self.notes, self.table(layer, head)
        )

    def draw_rollout(self, layer: int | None = None) -> Picture:
        how = (
            "Each row is a token and shows how much of each input token it contains: heads averaged, the residual "
            "stream added, rows scaled to sum to one, layers multiplied."
        )
        text = self.sentence.text
        return Picture(f"Rollout of {self.title}", text, how, [self.rollout_grid(layer)], self.notes)

    @property
    def notes(self) -> list[str]:
        kernel = f"{self.title}: the kernel's output and weights·values differ by at most {self.largest_difference:.1e}"
        if not self.largest_difference < TRUSTED:
            kernel += ", which is too much: these maps do not show what the kernel computed"
        return [kernel, *self.sentence.warnings]

    def table(self, layer: int | None = None, head: int | None = None) -> PictureTable:
        """One row per head, of all or only of the given layer or head."""
        names = {
            "entropy": "entropy",
            "entropy_share": "of ln n",
            "distance": "distance",
            "on_self": "itself",
            "on_first": "first",
            "on_previous": "previous",
            "on_padding": "padding",
        }
        shares = ("entropy_share", "on_self", "on_first", "on_previous", "on_padding")
        rows = []
        for found in self.as_json()["heads"]:
            if layer in (None, found["layer"]) and head in (None, found["head"]):
                shown = [percent(found[k]) if k in shares else finite(found[k]) for k in names if k in found]
                rows.append([str(found["layer"]), str(found["head"]), *shown])
        columns = [name for k, name in names.items() if self.padding is not None or k != "on_padding"]
        note = _COLUMNS + ("" if self.padding is None else _PADDING) + "."
        return PictureTable(["layer", "head", *columns], rows, note)

    def as_json(self) -> dict[str, Any]:
        heads = []
        for layer, found in self.statistics.items():
            for head in range(len(self.layers[layer])):
                values = found.of(head)
                if self.padding is not None:
                    values["on_padding"] = float(self.padding[layer][head])
                known = {k: v if v == v else None for k, v in values.items()}  # JSON has no NaN
                heads.append({"layer": layer, "head": head, **known})
        return {
            "tokens": list(self.tokens),
            "unknown": list(self.sentence.unknown),
            "largest_difference": self.largest_difference,
            "heads": heads,
        }

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()

    def _panel(self, layer: int, head: int) -> Panel:
        found = self.statistics[layer].of(head)
        caption = (
            f"entropy {finite(found['entropy'])} ({percent(found['entropy_share'])})",
            f"distance {finite(found['distance'])}",
            f"itself {percent(found['on_self'])}",
            f"first {percent(found['on_first'])}",
            f"previous {percent(found['on_previous'])}",
        )
        matrix = self.layers[layer][head].numpy()
        return Panel(f"layer {layer} · head {head}", matrix, self.tokens, self.tokens, caption)

    def _layer(self, layer: int) -> int:
        if layer not in self.layers:
            there = ", ".join(map(str, self.layers))
            raise UserError(f"{self.title} has no attention in layer {layer}; layers with attention: {there}")
        return layer

    def _head(self, layer: int, head: int) -> int:
        heads = len(self.layers[self._layer(layer)])
        if not 0 <= head < heads:
            has = f"heads 0 to {heads - 1}" if heads > 1 else "one head, head 0"
            raise UserError(f"{self.title} has no head {head} in layer {layer}: it has {has}")
        return head


@torch.no_grad()
def maps_of(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], title: str = "model", replica: int = 0
) -> list[Maps]:
    """The attention maps of a model for each of these sentences."""
    names = attention_layers(model)
    if not names:
        raise UserError(
            f"{title} has no attention layers, so there are no maps to draw; "
            "to see what its predictions depend on, use --show gradients"
        )
    sentences = [read(tokenizer, text) for text in texts]
    heads = max((n for m in model.modules() if isinstance(n := getattr(m, "heads", None), int)), default=1)
    check_room(sentences, len(names) * heads, title)
    taps = [f"{path}.{tap}" for path in names.values() for tap in ("weights", "values", "mixed")]
    made: list[Maps] = []
    for one in passes(model, sentences):
        with watch(model, *taps) as seen:
            one.through(model)
        for row, number in enumerate(one.rows):
            sentence = sentences[number]
            padding_mask = torch.arange(one.ids.shape[2]) < len(sentence.ids)
            at = {tap: found[replica, row].cpu() for tap, found in seen.items()}  # [H, T, …]
            weights = {n: at[f"{path}.weights"] for n, path in names.items()}
            fused = [path for path in names.values() if f"{path}.mixed" in at]  # others return their own weights
            off = [at[f"{path}.mixed"] - at[f"{path}.weights"] @ at[f"{path}.values"] for path in fused]
            difference = max((one[:, padding_mask].abs().max().item() for one in off), default=0.0)
            padding = (
                None if padding_mask.all() else {n: of_maps.on_padding(w, padding_mask) for n, w in weights.items()}
            )
            length = len(sentence.ids)
            cut = {n: w[:, :length, :length] for n, w in weights.items()}
            made.append(Maps(title, sentence, cut, padding, difference))
    return made


def attention_layers(model: nn.Module) -> dict[int, str]:
    """The module paths of all self-attention, by layer number."""
    paths = [name.removesuffix(".weights") for name in tap_names(model) if re.search(r"\battention\.weights$", name)]
    numbers = [int(found[-1]) if (found := re.findall(r"\d+", path)) else k for k, path in enumerate(paths)]
    if len(set(numbers)) < len(paths):  # an encoder's and a decoder's: numbered in order
        numbers = list(range(len(paths)))
    return dict(zip(numbers, paths, strict=True))
