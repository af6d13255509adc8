"""What models run by `transformers` have in common: the layer of each parameter, and adapters by `peft`."""

import math
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from headway.core.errors import UserError
from headway.models.borrowed.module import BorrowedDropout, built, with_axis
from headway.models.borrowed.taps import LayerTaps, connect_taps, hook, layers_in
from headway.nn.positions import Positions
from headway.nn.seeding import seed_part
from headway.nn.taps import Tap
from headway.nn.trainable import Trainable

_NAME_PATTERNS = {
    "queries": r"\.(query|query_proj|q_lin|q_proj|q)$",
    "keys": r"\.(key|key_proj|k_lin|k_proj|k)$",
    "values": r"\.(value|value_proj|v_lin|v_proj|v)$",
    "output": r"\.(attention\.output\.dense|attention\.dense|out_lin|out_proj|o_proj|o)$",
    "feedforward": r"\.(intermediate\.dense|ffn|ffn_output|fc1|fc2|lin1|lin2|gate_proj|up_proj|down_proj)$"
    r"|(?<!attention)\.output\.dense$",
}
"""The names that architectures give to these matrices."""


class RunByTransformers(Trainable):
    """The interface of a backbone around a module of transformers (`body`), with a single replica."""

    spec: Any

    def borrow(self, spec: Any, vocabulary: int, replicas: int, kind: str) -> None:
        if replicas > 1:
            raise UserError(
                f"a '{spec.body.config.get('model_type')}' model is run by transformers, one replica at a time: train "
                "the seeds one after another, with --together 1"
            )
        self.spec, self.replicas, self.vocabulary = spec, 1, vocabulary
        self.body = built(spec.body.config, kind)
        self.layers = nn.ModuleList(LayerTaps() for _ in range(spec.layers))
        self.is_fused = connect_taps(self.body, self.layers)
        self.pad_id = int(getattr(self.body.config, "pad_token_id", None) or 0)
        self.embedded = Tap()
        hook(getattr(self.body, "embeddings", None) or self.body.get_input_embeddings(), self.embedded)
        self.positions = Positions()
        self.positions.limit = spec.context

    @property
    def body_weights(self) -> dict[str, Tensor]:
        """The module's weights, without the axis of replicas."""
        return {name: p.squeeze(0) for name, p in self.body.named_parameters()}

    @property
    def shows_attention(self) -> bool:
        """Whether attention weights are watched that only the module itself can return."""
        of_layers = (getattr(layer, "attention", None) for layer in self.layers)
        return not self.is_fused and any(taps is not None and taps.weights.is_watched for taps in of_layers)

    def show_attention(self, out: Any) -> None:
        for layer, shown in zip(self.layers, getattr(out, "attentions", None) or (), strict=False):
            layer.attention.weights(shown[None])  # pyright: ignore

    @property
    def embedding(self) -> Any:
        return self.body.get_input_embeddings()

    @property
    def mixers(self) -> list[Any]:
        return []

    @property
    def depth(self) -> int:
        return len(self.layers) + 1

    def depth_of(self, name: str) -> int:
        part, _, inside = name.partition(".")
        if part != "body":
            return self.depth
        within = re.match(rf"{re.escape(layers_in(self.body, self.spec.layers))}\.(\d+)\.", inside)
        return int(within[1]) + 1 if within else 0 if "embed" in inside else self.depth - 1

    def add_adapters(
        self, targets: Sequence[str], rank: int, alpha: float, dropout: float, seeds: Sequence[int]
    ) -> int:
        """Add adapters of `peft` to the matrices with names in `_NAME_PATTERNS`."""
        wanted = re.compile("|".join(_NAME_PATTERNS[target] for target in targets))
        within = re.escape(layers_in(self.body, self.spec.layers))
        named = ((name, re.match(rf"{within}\.\d+\.(.*)", name), part) for name, part in self.body.named_modules())
        places = [name for name, of, part in named if isinstance(part, nn.Linear) and of and wanted.search(f".{of[1]}")]
        if not places:
            return 0
        config = peft().LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=places)
        peft().inject_adapter_in_model(config, self.body)
        for p in self.body.parameters():
            p.requires_grad_(True)  # peft froze the others; here the pace decides what is trained
        for name, part in list(self.body.named_modules()):
            if ".lora_dropout." in f"{name}." and isinstance(part, nn.Dropout):
                owner, _, key = name.rpartition(".")
                part = BorrowedDropout(dropout, fixed=True)
                setattr(self.body.get_submodule(owner), key, part)
            elif isinstance(part, nn.Linear) and self.is_added(name):
                spread = 1 / math.sqrt(3 * part.in_features) if ".lora_A." in name else 0.0
                part.weight = with_axis(part.weight.cpu(), spread)
            else:
                continue
            seed_part(self, part, f"body.{name}", seeds)
            part.to(next(self.body.parameters()).device)
        return len(places)

    def is_added(self, name: str) -> bool:
        return ".lora_" in name


def peft() -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "training.tuning: adapters in this architecture need the package peft, which is not installed: "
            "pip install 'headway[pretrained]'"
        ) from None
    return peft
