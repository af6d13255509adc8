"""A module of `transformers`, built from its config.json, and weights for it from a folder.

Two things differ from transformers. Parameters have a leading axis of replicas (R = 1), which is removed when the
module is called. Dropout is ours (`core/random.py`), so that training can be repeated and resumed; dropout that an
architecture does without a module is switched off.
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
"""The class of transformers that builds each kind of model."""
_IGNORED_KEYS = ("model_type", "auto_map", "architectures", "dtype", "torch_dtype")
"""Keys of config.json that are ignored, as they do not change what is computed (always in float32)."""
DEFAULT_CONTEXT = 512
"""The context length of a model whose configuration does not give one."""


class BorrowedDropout(nn.Module):
    """Our dropout, in place of that of `transformers`."""

    def __init__(self, rate: float, fixed: bool):
        super().__init__()
        self.p = 0.0  # the rate for fused kernels, which would use a random stream of their own
        self.drop = Dropout(1, rate, fixed)

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        return self.drop(x[None])[0]


def size_of(config: Mapping[str, Any], kind: str = ENCODER) -> int:
    """The number of parameters of a module with this configuration, without allocating memory for them."""
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
        except KeyError:  # an architecture with a fixed list of kernels
            return loader.from_config(wanted, attn_implementation="eager", trust_remote_code=False).float()
    except Exception as problem:  # an unknown activation, sizes that do not fit together …
        raise UserError(
            f"transformers cannot build the '{config.get('model_type')}' of config.json: "
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        ) from None


def built(config: Mapping[str, Any], kind: str = ENCODER) -> Any:
    """The module with this configuration, with parameters still to be initialised."""
    module = _made(config, kind)
    if getattr(module, "pooler", None) is not None:  # it would never be trained: pooling is ours
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
    """The weights of a folder's model, read by transformers without pickle and without running code of the folder;
    weights that the folder lacks are left out. Also the names of what else it has, such as heads."""
    transformers = library()
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        with _quiet(transformers):
            found, told = getattr(transformers, kind).from_pretrained(
                str(folder), **safe, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except Exception as problem:  # transformers can raise anything
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
        raise UserError(f"{folder}: the model of config.json has no such weights: {', '.join(layers[:5])}")
    left = list(dict.fromkeys(name.split(".")[0] for name in more if name.split(".")[0] not in parts))
    weights = {name: tensor.detach().float() for name, tensor in found.named_parameters() if name not in missing}
    buffers = dict(found.named_buffers())
    if beside := [name for name, one in found.state_dict().items() if name in buffers and one.is_floating_point()]:
        raise UserError(f"{folder}: it has buffers beside its weights, which cannot be loaded: {', '.join(beside[:3])}")
    return weights, left


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' own report of missing weights and its progress bars: we report these ourselves."""
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
    """Layers, width, heads, hidden units and context length, under whatever names this architecture has for them."""
    wanted = _config(library(), config)
    if getattr(wanted, "is_encoder_decoder", False):
        raise UserError(f"a '{config.get('model_type')}' model is an encoder-decoder; expected an encoder or a decoder")
    names = {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "hidden": "intermediate_size",
        "context": "max_position_embeddings",
    }
    found = {ours: getattr(wanted, theirs, None) for ours, theirs in names.items()}
    offset = 2 if config.get("model_type") == "mpnet" else 0  # its positions start after the padding token's
    context = found["context"]
    found["context"] = context - offset if isinstance(context, int) and context > offset else DEFAULT_CONTEXT
    if not all(isinstance(found[key], int) for key in ("layers", "width", "heads")):
        raise UserError(
            f"the configuration of a '{config.get('model_type')}' model lacks the number of layers, heads, or the width"
        )
    return {key: value for key, value in found.items() if isinstance(value, int)}


def check_causal(config: Mapping[str, Any]) -> None:
    """Check that this is a causal language model that transformers supports."""
    family = str(config.get("model_type"))
    _config(library(), config)
    if family not in library().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            f"a '{family}' model (model_type of config.json) is not a causal language model, nor another kind that can "
            "be imported; to fine-tune an encoder, use model.start={kind: pretrained, from: …}"
        )


def library() -> Any:
    try:
        return import_module("transformers")  # by name, so that type checkers do not read all of its models
    except ImportError:
        raise UserError(
            "this architecture needs the package transformers, which is not installed: "
            "pip install 'headway[pretrained]'"
        ) from None


def _config(transformers: Any, config: Mapping[str, Any]) -> Any:
    family = str(config.get("model_type"))
    settings = {key: value for key, value in config.items() if key not in _IGNORED_KEYS}
    try:
        return transformers.AutoConfig.for_model(family, **settings)
    except (ValueError, KeyError):
        hint = did_you_mean(family, transformers.CONFIG_MAPPING)
        raise UserError(
            f"config.json describes a '{family}' model (model_type), which transformers {transformers.__version__} "
            f"does not know{hint if 'did you mean' in hint else ''}; Headway does not run code that comes with weights"
        ) from None
    except Exception as problem:
        raise UserError(f"config.json of a '{family}' model: {problem}") from None


def with_axis(parameter: nn.Parameter | Tensor, spread: float = 0.0) -> nn.Parameter:
    made = nn.Parameter(parameter.detach()[None].clone(), requires_grad=parameter.requires_grad)
    made.start = (0.0, spread)  # pyright: ignore[reportAttributeAccessIssue]
    made.decays = parameter.ndim >= 2  # pyright: ignore[reportAttributeAccessIssue]
    return made
