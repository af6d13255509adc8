"""Reads weights from other libraries: safetensors in one file or several, checks that they fit, and keys of
config.json.

Nothing is unpickled, since that would run any code in the file.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from headway.core.errors import UserError
from headway.core.reading import opened, parse_json, read_text
from headway.core.reading import read_json as read_any_json

MAX_NUMBERS_PER_TOKEN = 100
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_weights(folder: Path, loader: str) -> dict[str, Tensor]:
    """Read all tensors, from one file or from those that an index names. `loader`: the class of transformers that can
    convert other formats to safetensors, for the error message."""
    return {key: tensor for file in files_of(folder, loader) for key, tensor in _read_safetensors(file).items()}


def files_of(folder: Path, loader: str = "AutoModel") -> list[Path]:
    """The files with a folder's weights."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        raise UserError(_why_no_weights(folder, loader))
    named = read_json(folder / INDEX).get("weight_map")
    parts = list(named.values()) if isinstance(named, dict) else []
    if not parts or not all(isinstance(part, str) and Path(part).name == part for part in parts):
        raise UserError(f"{folder / INDEX} names no files of this folder (weight_map)")
    return [folder / part for part in sorted(set(parts))]


class Stored(NamedTuple):
    """A tensor's description in a file's header."""

    dtype: str
    shape: tuple[int, ...]


def stored_in(folder: Path, loader: str = "AutoModel") -> dict[str, Stored]:
    """Descriptions of all tensors in a folder's files, without reading their data."""
    found = {}
    for file in files_of(folder, loader):
        with _named(file), safetensors.safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                part = content.get_slice(name)
                found[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
    return found


def check_stored(folder: Path, config: Mapping[str, Any], loader: str = "AutoModel") -> dict[str, Stored]:
    """Check, before anything is read or built, that no weights are quantized and that every layer can have some."""
    stored = stored_in(folder, loader)
    if isinstance(config.get("quantization_config"), dict):
        method = config["quantization_config"].get("quant_method", "some method")
        raise UserError(f"{folder}: its weights are quantised ({method}), {_HOW_TO_CONVERT}")
    if rounded := [f"{name} ({one.dtype})" for name, one in stored.items() if _is_quantized(name, one)]:
        raise UserError(f"{folder}: its weights are quantised, such as {rounded[0]}, {_HOW_TO_CONVERT}")
    for key in _LAYERS if "num_hidden_groups" not in config else ():  # with groups, layers share their weights
        if isinstance(layers := config.get(key), int) and layers > len(stored):
            raise UserError(
                f"{folder}: config.json has {layers:,} layers ({key}), but there are only {len(stored)} tensors"
            )
    return stored


_HOW_TO_CONVERT = (
    "which cannot be used without their scales and code; expected float32, float16 or bfloat16. "
    "To convert them with transformers: load the model, model.dequantize(), model.save_pretrained(…)"
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_PLAIN = ("F64", "F32", "F16", "BF16")


def _is_quantized(name: str, one: Stored) -> bool:
    """Whether a tensor is quantized. Integers may be positions or masks, but not a weight matrix."""
    is_weight = "weight" in name.rpartition(".")[2] and len(one.shape) > 1
    return one.dtype not in _PLAIN and (one.dtype.startswith("F") or is_weight)


def check_fit(found: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], what: str) -> None:
    """Check that exactly these names are there, with these shapes. `what`: the model's name, for messages."""
    if strange := [name for name in found if name not in shapes]:
        raise UserError(f"these weights do not belong to {what}: {some(strange)}")
    if missing := [name for name in shapes if name not in found]:
        raise UserError(f"these weights are missing: {some(missing)}")
    if wrong := [
        f"{name} is {list(found[name].shape)}, config.json says {list(shape)}"
        for name, shape in shapes.items()
        if list(found[name].shape) != list(shape)
    ]:
        raise UserError(f"these weights do not fit config.json: {some(wrong, '; ')}")
    if whole := [f"{name} ({t.dtype})" for name, t in found.items() if not t.is_floating_point()]:
        raise UserError(f"these weights are not floating-point numbers (quantized?): {some(whole)}")
    check_finite(found)


def check_finite(found: Mapping[str, Tensor]) -> None:
    # Minimum and maximum are NaN if any number is, and computing them takes a tenth of the time.
    ends = {name: torch.stack(t.float().aminmax()) for name, t in found.items() if t.numel()}
    if broken := [name for name, end in ends.items() if not bool(end.isfinite().all())]:
        raise UserError(f"these weights are not all finite numbers (NaN or infinity): {some(broken)}")


def check_shape(tree: Mapping[str, Any], vocabulary: int, folder: Path, stored: Mapping[str, Stored]) -> None:
    """Check the sizes in config.json before anything is built: they must be integers, and the model must not be larger
    than its files."""
    sizes = {
        "layers": tree["layers"],
        "width": tree["width"],
        "positions": tree["context"],
        "heads": tree["mixer"]["heads"],
        "hidden units": tree["feedforward"]["hidden"] or 1,
        "segments": tree["segments"].get("count", 1),
        "tokens": vocabulary,
    }
    for what, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"{folder / 'config.json'}: expected a number of {what}, not {size!r}")
    for what, rate in (("dropout", tree["dropout"]), ("dropout of attention", tree["mixer"].get("dropout", 0.0))):
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"{folder / 'config.json'}: {what}: expected 0 ≤ rate < 1, not {rate!r}")
    if not 0 < tree["norm"].get("eps", 1e-12) < math.inf:
        raise UserError(f"{folder / 'config.json'}: expected a small positive norm epsilon, not {tree['norm']['eps']}")
    there = sum(math.prod(one.shape) for one in stored.values())
    what = max(sizes, key=lambda name: sizes[name])
    if there and sizes[what] > there:
        raise UserError(f"{folder}: config.json has {sizes[what]:,} {what}, but only {there:,} parameters are stored")
    D = sizes["width"]
    layer = 4 * D * D + 2 * D * sizes["hidden units"]
    if "body" not in tree and (said := D * (vocabulary + sizes["positions"]) + sizes["layers"] * layer) > 2 * there:
        raise UserError(f"{folder}: config.json describes {said:,} parameters, but the weights have {there:,}")


class Taken(NamedTuple):
    """The weights that a folder provides for one of our models."""

    weights: dict[str, Tensor]
    """Under our names, in float32."""
    left: list[str]
    """Further weights, such as heads for other tasks, by the first part of their names."""


class Key(NamedTuple):
    """A key of config.json and the equivalent key of our model spec."""

    theirs: str
    ours: tuple[str, ...]
    default: Any
    """The default if config.json does not have the key."""

    def read_from(self, tree: Any) -> Any:
        """The value in our spec's tree."""
        for part in self.ours:
            tree = tree[part]
        return tree

    def put_into(self, tree: dict[str, Any], value: Any) -> None:
        *above, last = self.ours
        for part in above:
            tree = tree.setdefault(part, {})
        tree[last] = value


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_any_json(path, through_links=True)  # files in the hub's cache are links
    except FileNotFoundError:
        raise UserError(f"{path} is missing: is this the folder of a model?") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected keys and values")
    return content


def library_text(path: Path) -> str:
    """Read a tokenizer.json, and check its largest token number: the library allocates memory for that many tokens, so
    a wrong one could be fatal."""
    text = read_text(path, through_links=True)
    tree = parse_json(text.encode(), path)
    try:
        vocabulary = tree["model"].get("vocab") or {}
        numbers = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
        numbers += [token["id"] for token in tree.get("added_tokens") or []]
        largest, count = max(map(int, numbers), default=0), len(vocabulary) + len(numbers)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} cannot be read: it is not a file of the tokenizers library") from None
    if largest > MAX_NUMBERS_PER_TOKEN * count + MAX_NUMBERS_PER_TOKEN:
        raise UserError(f"{path} has a token number {largest:,}, but only about {count:,} tokens: it is not valid")
    return text


def some(things: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(things) - 5} more" if len(things) > 5 else ""
    return between.join(things[:5]) + more


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with _named(path), opened(path, through_links=True):  # refuses pipes, for example
        return safetensors.torch.load_file(path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to errors."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing, but {INDEX} names it") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _why_no_weights(folder: Path, loader: str) -> str:
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern))
    if not pickles:
        return f"{folder} has no {WEIGHTS}"
    again = f"{loader}.from_pretrained('{folder}').save_pretrained('{folder}')"
    return (
        f"{folder} has its weights only as pickle ({pickles[0]}), which Headway does not read, since unpickling runs "
        f"any code in the file. If you trust it, transformers writes {WEIGHTS} with {again}"
    )
