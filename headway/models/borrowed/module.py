"""A module of `transformers`, made from its config.json, and weights for it from a folder.

Two things are ours in it. Parameters have the leading axis that all have here (R = 1), and the module is called with it
taken off. Dropout is drawn as everywhere (`core/random.py`), so that a training can be repeated and resumed; where an
architecture draws it by itself, it is left out.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.errors import UserError, did_you_mean
from headway.models.borrowed.taps import KERNEL, register
from headway.nn.replicated import Dropout

ENCODER, CAUSAL = "AutoModel", "AutoModelForCausalLM"
"""What is asked for, by the class of transformers that gives it."""
_UNREAD = ("model_type", "auto_map", "architectures", "dtype", "torch_dtype")
"""Keys of config.json that say nothing of what is computed: all is computed in float32."""
NO_PLACES = 512
"""How long a sequence is read of a model that does not say what it has positions for."""


class BorrowedDropout(nn.Module):
    """Stands where `transformers` has its own."""

    def __init__(self, rate: float, fixed: bool):
        super().__init__()
        self.p = 0.0  # what fused kernels would draw from a stream of their own
        self.drop = Dropout(1, rate, fixed)

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        return self.drop(x[None])[0]


def size_of(config: Mapping[str, Any], kind: str = ENCODER) -> int:
    """How many numbers a module of this configuration has, without making room for them."""
    with torch.device("meta"):
        module = _made(config, kind)
    if "input_ids" not in inspect.signature(module.forward).parameters:
        raise UserError(f"a '{config.get('model_type')}' model reads no tokens; expected one that reads text")
    return sum(p.numel() for p in module.parameters())


def _made(config: Mapping[str, Any], kind: str) -> Any:
    transformers = library()
    register(transformers)
    wanted, loader = _config(transformers, config), getattr(transformers, kind)
    try:
        try:
            return loader.from_config(wanted, attn_implementation=KERNEL, trust_remote_code=False).float()
        except KeyError:  # an architecture that knows its kernels by name
            return loader.from_config(wanted, attn_implementation="eager", trust_remote_code=False).float()
    except Exception as problem:  # an activation that it has not, sizes that do not fit each other …
        raise UserError(
            f"transformers cannot build the '{config.get('model_type')}' of config.json: "
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        ) from None


def built(config: Mapping[str, Any], kind: str = ENCODER) -> Any:
    """The module of this configuration, its parameters still to be filled."""
    module = _made(config, kind)
    if getattr(module, "pooler", None) is not None:  # which nobody would train: pooling is ours
        module.pooler = None
    replaced: dict[int, nn.Parameter] = {}
    for name, part in list(module.named_modules()):
        for key, value in vars(part).items():
            if isinstance(value, float) and "drop" in key and not isinstance(part, nn.Dropout):
                setattr(part, key, 0.0)
        for child, one in list(part.named_children()):
            if isinstance(one, nn.Dropout) or type(one).__name__ == "StableDropout":
                rate = float(getattr(one, "p", getattr(one, "drop_prob", 0.0)) or 0.0)
                setattr(part, child, BorrowedDropout(rate, fixed="attention.self" in f"{name}.{child}"))
        for key, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[key] = replaced.setdefault(id(parameter), with_axis(parameter))
    return module


def weights_of(folder: Path, kind: str = ENCODER) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a folder's model, as transformers reads them, without a pickle and without code of the folder's;
    those that the folder lacks are not among them. And what else it has: heads, by the first part of their names."""
    transformers = library()
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        with _quiet(transformers):
            found, told = getattr(transformers, kind).from_pretrained(
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
    buffers = dict(found.named_buffers())
    if beside := [name for name, one in found.state_dict().items() if name in buffers and one.is_floating_point()]:
        raise UserError(f"{folder}: it has numbers beside its weights, which are not read: {', '.join(beside[:3])}")
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
        raise UserError(f"a '{config.get('model_type')}' model is an encoder with a decoder; expected one of the two")
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
    found["context"] = context - offset if isinstance(context, int) and context > offset else NO_PLACES
    if not all(isinstance(found[key], int) for key in ("layers", "width", "heads")):
        raise UserError(
            f"a '{config.get('model_type')}' model does not say how many layers it has, or how wide they are"
        )
    return {key: value for key, value in found.items() if isinstance(value, int)}


def check_causal(config: Mapping[str, Any]) -> None:
    """It is a causal language model, of a kind that transformers knows."""
    family = str(config.get("model_type"))
    _config(library(), config)
    if family not in library().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            f"a '{family}' model (model_type of config.json) is no causal language model, and none of the others that "
            "are imported; an encoder is trained on: model.start={kind: pretrained, from: …}"
        )


def library() -> Any:
    try:
        return import_module("transformers")  # by name: who checks types would read all the models it has
    except ImportError:
        raise UserError(
            "this architecture is run by the package transformers, which is not installed: "
            "pip install 'headway[pretrained]'"
        ) from None


def _config(transformers: Any, config: Mapping[str, Any]) -> Any:
    family = str(config.get("model_type"))
    settings = {key: value for key, value in config.items() if key not in _UNREAD}
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


def with_axis(parameter: nn.Parameter | Tensor, spread: float = 0.0) -> nn.Parameter:
    made = nn.Parameter(parameter.detach()[None].clone(), requires_grad=parameter.requires_grad)
    made.start = (0.0, spread)  # pyright: ignore[reportAttributeAccessIssue]
    made.decays = parameter.ndim >= 2  # pyright: ignore[reportAttributeAccessIssue]
    return made
