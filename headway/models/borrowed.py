"""Encoders that are not of our shape (DeBERTa, MPNet, ALBERT …), as `transformers` runs them, behind the interface of
ours: tokens in, a vector for each out, taps on the way, one replica.

Three things are ours in them. Parameters have the leading axis that all have here (R = 1), and the module is called
with it taken off. Dropout is drawn as everywhere (`core/random.py`), so that a training can be repeated and resumed.
Where attention goes through a fused kernel, queries, keys and values flow by taps, and weights are computed again from
them; an architecture that has attention of its own shows the weights that it has computed.
"""

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headway.core.errors import UserError, did_you_mean
from headway.models.classifier import Classifier, ClassifierSpec
from headway.models.encoder import EncoderSpec
from headway.nn.mixer import Mixer
from headway.nn.positions import Positions
from headway.nn.replicated import Dropout, Trainable, seed_part
from headway.nn.segments import Separated, which_text
from headway.nn.taps import Display, Tap

KERNEL = "headway"
"""What transformers knows our attention function by."""
_TAPS = "headway_taps"


class BorrowedClassifier(Classifier):
    """Pooling and head of ours on top of somebody else's encoder."""

    def __init__(self, spec: ClassifierSpec, vocabulary: int, classes: int, replicas: int, device: str = "cpu"):
        Trainable.__init__(self)  # of a backbone it has the interface, and none of the parts
        if replicas > 1:
            raise UserError(
                f"{_kind(spec)} runs as transformers has it, one replica at a time: train the seeds in turn, with "
                "--together 1"
            )
        assert spec.body is not None
        self.spec, self.replicas, self.vocabulary, self.classes = spec, 1, vocabulary, classes
        self.body = made = built(spec.body.config)
        self.layers = nn.ModuleList(LayerTaps() for _ in range(spec.layers))
        self.is_fused = _wired(made, self.layers)
        self.filling = int(getattr(made.config, "pad_token_id", None) or 0)
        self.embedded = Tap()
        _hook(getattr(made, "embeddings", None) or made.get_input_embeddings(), self.embedded)
        self.positions = Positions()
        self.positions.limit = spec.context
        takes_types = "token_type_ids" in inspect.signature(made.forward).parameters
        self.told_apart = spec.segments if isinstance(spec.segments, Separated) and takes_types else None
        self.pooler = spec.pooling.build(1, spec.width)
        self.head = spec.head.build(1, spec.width, classes)
        self.pooled, self.logits, self.kept = Tap(), Tap(), None

    def hidden(
        self,
        ids: Int[Tensor, "1 B T"],
        state: Any = None,
        padding_mask: Bool[Tensor, "1 B T"] | None = None,
        mask=None,
    ) -> tuple[Float[Tensor, "1 B T D"], Any]:
        self.check_length(ids.shape[2], padding_mask)
        there = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
        # Tokens first, whatever stands around them: architectures count positions by slots.
        order = (~there).long().argsort(dim=-1, stable=True)
        ids, there = ids.gather(2, order), there.gather(2, order)
        ids = ids.masked_fill(~there, self.filling)
        given: dict[str, Any] = {"input_ids": ids[0], "attention_mask": there[0].long()}
        if (by := self.told_apart) is not None:
            given["token_type_ids"] = which_text(ids, there, by.separator, by.count)[0]
        watched = [layer.attention.weights.is_watched for layer in self.layers]  # pyright: ignore
        if any(watched) and not self.is_fused:
            given["output_attentions"] = True
        weights = {name: p.squeeze(0) for name, p in self.body.named_parameters()}
        out = torch.func.functional_call(self.body, weights, kwargs={**given, "return_dict": True})
        for layer, shown in zip(self.layers, getattr(out, "attentions", None) or (), strict=False):
            layer.attention.weights(shown[None])  # pyright: ignore
        back = order.argsort(dim=-1)[..., None].expand(-1, -1, -1, self.spec.width)
        return out.last_hidden_state[None].gather(2, back), None

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
        """Those of `peft`, beside the maps that architectures name so."""
        wanted = re.compile("|".join(_MAKES[target] for target in targets))
        within = re.escape(layers_in(self.body, self.spec.layers))
        named = ((name, re.match(rf"{within}\.\d+\.(.*)", name), part) for name, part in self.body.named_modules())
        places = [name for name, of, part in named if isinstance(part, nn.Linear) and of and wanted.search(f".{of[1]}")]
        if not places:
            return 0
        config = peft().LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=places)
        peft().inject_adapter_in_model(config, self.body)
        for p in self.body.parameters():
            p.requires_grad_(True)  # peft has frozen the others; what is trained, their pace says
        for name, part in list(self.body.named_modules()):
            if ".lora_dropout." in f"{name}." and isinstance(part, nn.Dropout):
                owner, _, key = name.rpartition(".")
                part = BorrowedDropout(dropout, fixed=True)
                setattr(self.body.get_submodule(owner), key, part)
            elif isinstance(part, nn.Linear) and self.is_added(name):
                spread = 1 / math.sqrt(3 * part.in_features) if ".lora_A." in name else 0.0
                part.weight = _with_axis(part.weight.cpu(), spread)
            else:
                continue
            seed_part(self, part, f"body.{name}", seeds)
            part.to(next(self.body.parameters()).device)
        return len(places)

    def is_added(self, name: str) -> bool:
        return ".lora_" in name


_MAKES = {
    "queries": r"\.(query|query_proj|q_lin|q_proj|q)$",
    "keys": r"\.(key|key_proj|k_lin|k_proj|k)$",
    "values": r"\.(value|value_proj|v_lin|v_proj|v)$",
    "output": r"\.(attention\.output\.dense|attention\.dense|out_lin|out_proj|o_proj|o)$",
    "feedforward": r"\.(intermediate\.dense|ffn|ffn_output|fc1|fc2|lin1|lin2)$|(?<!attention)\.output\.dense$",
}
"""What maps are called by whom."""


class LayerTaps(nn.Module):
    """What flows by in one layer of the borrowed module."""

    def __init__(self):
        super().__init__()
        self.attention = AttentionTaps()
        self.stream = Tap()


class AttentionTaps(Mixer):
    """Of a mixer it has what audits ask: the tokens' order is known, by whatever scheme the architecture has."""

    knows_order = True

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.weights = Display()
        self.mixed = Tap()


class BorrowedDropout(nn.Module):
    """Stands where `transformers` has its own."""

    def __init__(self, rate: float, fixed: bool):
        super().__init__()
        self.p = 0.0  # what fused kernels would draw from a stream of their own
        self.drop = Dropout(1, rate, fixed)

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        return self.drop(x[None])[0]


def built(config: Mapping[str, Any]) -> Any:
    """The bare encoder of this configuration, its parameters still to be filled."""
    transformers = library()
    _register(transformers)
    wanted = _config(transformers, config)
    try:
        module = transformers.AutoModel.from_config(wanted, attn_implementation=KERNEL, trust_remote_code=False).float()
    except Exception as problem:  # an activation that it has not, sizes that do not fit each other …
        raise UserError(
            f"transformers cannot build the '{config.get('model_type')}' of config.json: "
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        ) from None
    if getattr(module, "pooler", None) is not None:  # which nobody would train: pooling is ours
        module.pooler = None
    replaced: dict[int, nn.Parameter] = {}
    for name, part in list(module.named_modules()):
        for child, one in list(part.named_children()):
            if isinstance(one, nn.Dropout) or type(one).__name__ == "StableDropout":
                rate = float(getattr(one, "p", getattr(one, "drop_prob", 0.0)) or 0.0)
                setattr(part, child, BorrowedDropout(rate, fixed="attention.self" in f"{name}.{child}"))
        for key, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[key] = replaced.setdefault(id(parameter), _with_axis(parameter))
    return module


def weights_of(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a folder's encoder, as transformers reads them, without a pickle and without code of the folder's;
    those that the folder lacks are not among them. And what else it has: heads, by the first part of their names."""
    transformers = library()
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        with _quiet(transformers):
            found, told = transformers.AutoModel.from_pretrained(
                str(folder), **safe, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except Exception as problem:  # transformers raises whatever it stumbles over
        raise UserError(f"{folder}: transformers cannot read it: {str(problem).splitlines()[0]}") from None
    missing, wrong = set(told["missing_keys"]), told.get("mismatched_keys") or ()
    if lost := [name for name in sorted(missing) if "pooler" not in name]:
        raise UserError(f"{folder}: these weights are missing: {', '.join(lost[:5])}")
    if wrong:
        named = [f"{name} is {list(here)}, config.json says {list(said)}" for name, here, said in sorted(wrong)[:3]]
        raise UserError(f"{folder}: these weights do not fit config.json: {'; '.join(named)}")
    more = sorted(name.removeprefix(f"{found.base_model_prefix}.") for name in told["unexpected_keys"])
    parts = [name for name, _ in found.named_children()]
    if layers := [name for name in more if name.split(".")[0] in parts and re.search(r"\.\d+\.", name)]:
        raise UserError(f"{folder}: these weights have no place in what config.json says: {', '.join(layers[:5])}")
    left = list(dict.fromkeys(name.split(".")[0] for name in more if name.split(".")[0] not in parts))
    weights = {name: tensor.detach().float() for name, tensor in found.named_parameters() if name not in missing}
    return weights, left


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Its report of what it did not find is made ours."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Layers, width, heads, hidden units and longest sequence, by whatever name this architecture has for them."""
    wanted = _config(library(), config)
    if getattr(wanted, "is_encoder_decoder", False):
        raise UserError(f"a '{config.get('model_type')}' model is an encoder with a decoder; expected an encoder alone")
    names = {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "hidden": "intermediate_size",
        "context": "max_position_embeddings",
    }
    found = {ours: getattr(wanted, theirs, None) for ours, theirs in names.items()}
    offset = 2 if config.get("model_type") == "mpnet" else 0  # its positions begin behind the padding token
    context = found["context"]
    found["context"] = context - offset if isinstance(context, int) and context > offset else 512
    if not all(isinstance(found[key], int) for key in ("layers", "width", "heads")):
        raise UserError(
            f"a '{config.get('model_type')}' model does not say how many layers it has, or how wide they are"
        )
    return {key: value for key, value in found.items() if isinstance(value, int)}


def layers_in(module: nn.Module, count: int) -> str:
    """Where the list of layers stands in a module; empty = there is none of so many."""
    lists = [name for name, one in module.named_modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    return lists[0] if lists else ""


def library() -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError(
            "this architecture is run by the package transformers, which is not installed: "
            "pip install 'headway[pretrained]'"
        ) from None
    return transformers


def _config(transformers: Any, config: Mapping[str, Any]) -> Any:
    family = str(config.get("model_type"))
    settings = {key: value for key, value in config.items() if key not in ("model_type", "auto_map", "architectures")}
    try:
        return transformers.AutoConfig.for_model(family, **settings)
    except (ValueError, KeyError):
        hint = did_you_mean(family, transformers.CONFIG_MAPPING)
        raise UserError(
            f"config.json describes a '{family}' model (model_type), which transformers {transformers.__version__} "
            f"does not know{hint if 'did you mean' in hint else ''}; code that comes with weights is not run"
        ) from None
    except Exception as problem:
        raise UserError(f"config.json of a '{family}' model: {problem}") from None


def peft() -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "training.tuning: adapters in this architecture are made by the package peft, which is not installed: "
            "pip install 'headway[pretrained]'"
        ) from None
    return peft


def _with_axis(parameter: nn.Parameter | Tensor, spread: float = 0.0) -> nn.Parameter:
    made = nn.Parameter(parameter.detach()[None].clone(), requires_grad=parameter.requires_grad)
    made.start = (0.0, spread)  # pyright: ignore[reportAttributeAccessIssue]
    made.decays = parameter.ndim >= 2  # pyright: ignore[reportAttributeAccessIssue]
    return made


def _wired(module: Any, layers: nn.ModuleList) -> bool:
    """Let what flows in the module's layers flow by ours; gives whether attention does, too. Which is tried: not every
    architecture asks for the kernel that it was told to use, and some have one layer many times."""
    path, seen = layers_in(module, len(layers)), []
    if path:
        for taps, layer in zip(layers, module.get_submodule(path), strict=True):
            _hook(layer, taps.stream)  # pyright: ignore
            for part in layer.modules():
                object.__setattr__(part, _TAPS, taps.attention)
        watching = [taps.attention.mixed.register_forward_hook(lambda *_: seen.append(1)) for taps in layers]  # pyright: ignore
        weights = {name: p.squeeze(0) for name, p in module.named_parameters()}
        two = torch.zeros(1, 2, dtype=torch.long)
        module.eval()
        with torch.no_grad():
            torch.func.functional_call(module, weights, kwargs={"input_ids": two, "attention_mask": two + 1})
        for one in watching:
            one.remove()
    if len(seen) == len(layers):
        return True
    module.config._attn_implementation = "eager"  # by which it makes its masks, too
    return False


def _hook(module: nn.Module, tap: Any) -> None:
    def through(module: nn.Module, given: tuple, out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        seen = tap(first[None])[0]
        return (seen, *out[1:]) if isinstance(out, tuple) else seen

    module.register_forward_hook(through)


def _register(transformers: Any) -> None:
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    transformers.AttentionInterface.register(KERNEL, attend)
    AttentionMaskInterface.register(KERNEL, sdpa_mask)


def attend(
    module: nn.Module,
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B K S d"],
    value: Float[Tensor, "B K S d"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "B T H d"], None]:
    """As transformers asks for attention: by the fused kernel, with taps around it."""
    taps = getattr(module, _TAPS, None)
    if key.shape[1] != query.shape[1]:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    if taps is None:
        mixed = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
        return mixed.transpose(1, 2).contiguous(), None
    query, key, value = taps.queries(query[None])[0], taps.keys(key[None])[0], taps.values(value[None])[0]
    if taps.weights.is_watched:
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            may = attention_mask.dtype == torch.bool
            scores = scores.masked_fill(~attention_mask, -torch.inf) if may else scores + attention_mask
        taps.weights(scores.softmax(-1).nan_to_num(0.0)[None])
    mixed = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return taps.mixed(mixed[None])[0].transpose(1, 2).contiguous(), None


def _kind(spec: EncoderSpec) -> str:
    return f"a '{spec.body.config.get('model_type')}'" if spec.body else "this model"
