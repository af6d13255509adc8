"""A folder of weights from elsewhere: safetensors in one file or several, whether they fit, and the keys of
config.json.

Nothing is unpickled: that would run whatever code a file holds.
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

MOST_TIMES = 100
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_weights(folder: Path, loader: str) -> dict[str, Tensor]:
    """All tensors, from one file or from the several that an index names. `loader`: the class of transformers that
    could write them as safetensors, where they are not."""
    return {key: tensor for file in files_of(folder, loader) for key, tensor in _read_safetensors(file).items()}


def files_of(folder: Path, loader: str = "AutoModel") -> list[Path]:
    """The files that hold a folder's weights."""
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
    """A tensor in a file, as its header describes it."""

    dtype: str
    shape: tuple[int, ...]


def stored_in(folder: Path, loader: str = "AutoModel") -> dict[str, Stored]:
    """What a folder's files hold, without reading it."""
    found = {}
    for file in files_of(folder, loader):
        with _named(file), safetensors.safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 (it is no mapping)
                part = content.get_slice(name)
                found[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
    return found


def check_stored(folder: Path, config: Mapping[str, Any], loader: str = "AutoModel") -> dict[str, Stored]:
    """Before anything is read or built: weights are plain numbers, and there are some for every layer."""
    stored = stored_in(folder, loader)
    if isinstance(config.get("quantization_config"), dict):
        method = config["quantization_config"].get("quant_method", "some method")
        raise UserError(f"{folder}: its weights are quantised ({method}), {_MEANS_NOTHING}")
    if rounded := [f"{name} ({one.dtype})" for name, one in stored.items() if _is_rounded(name, one)]:
        raise UserError(f"{folder}: its weights are quantised, such as {rounded[0]}, {_MEANS_NOTHING}")
    for key in _LAYERS if "num_hidden_groups" not in config else ():  # where layers share their weights
        if isinstance(layers := config.get(key), int) and layers > len(stored):
            raise UserError(
                f"{folder}: config.json says {layers:,} layers ({key}), and there are {len(stored)} weights"
            )
    return stored


_MEANS_NOTHING = (
    "which without the scales and the code of who rounded them mean nothing; expected float32, float16 or bfloat16. "
    "transformers writes them so: load it there, model.dequantize(), model.save_pretrained(…)"
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_PLAIN = ("F64", "F32", "F16", "BF16")


def _is_rounded(name: str, one: Stored) -> bool:
    """Whole numbers beside the weights may be positions, or masks; what is a matrix of weights may not."""
    is_weight = "weight" in name.rpartition(".")[2] and len(one.shape) > 1
    return one.dtype not in _PLAIN and (one.dtype.startswith("F") or is_weight)


def check_fit(found: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], what: str) -> None:
    """All of these names are there, in these shapes, and nothing else is. `what`: a GPT-2 of 12 layers."""
    if strange := [name for name in found if name not in shapes]:
        raise UserError(f"these weights have no place in {what}: {some(strange)}")
    if missing := [name for name in shapes if name not in found]:
        raise UserError(f"these weights are missing: {some(missing)}")
    if wrong := [
        f"{name} is {list(found[name].shape)}, config.json says {list(shape)}"
        for name, shape in shapes.items()
        if list(found[name].shape) != list(shape)
    ]:
        raise UserError(f"these weights do not fit config.json: {some(wrong, '; ')}")
    if whole := [f"{name} ({t.dtype})" for name, t in found.items() if not t.is_floating_point()]:
        raise UserError(f"these weights are no floating-point numbers (quantised?): {some(whole)}")
    check_finite(found)


def check_finite(found: Mapping[str, Tensor]) -> None:
    # The least and the largest are NaN where any number is, and are found in a tenth of the time.
    ends = {name: torch.stack(t.float().aminmax()) for name, t in found.items() if t.numel()}
    if broken := [name for name, end in ends.items() if not bool(end.isfinite().all())]:
        raise UserError(f"these weights are not all finite numbers (NaN or infinity): {some(broken)}")


def check_shape(tree: Mapping[str, Any], vocabulary: int, folder: Path, stored: Mapping[str, Stored]) -> None:
    """What config.json says of sizes, before anything of these sizes is built: whole numbers, and a model that could be
    in the files."""
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
            raise UserError(f"{folder / 'config.json'}: {what}: expected a share from 0 to below 1, not {rate!r}")
    if not 0 < tree["norm"].get("eps", 1e-12) < math.inf:
        raise UserError(f"{folder / 'config.json'}: expected a small number that norms add, not {tree['norm']['eps']}")
    there = sum(math.prod(one.shape) for one in stored.values())
    what = max(sizes, key=lambda name: sizes[name])
    if there and sizes[what] > there:
        raise UserError(f"{folder}: config.json says {sizes[what]:,} {what}, and its weights are {there:,} numbers")
    D = sizes["width"]
    layer = 4 * D * D + 2 * D * sizes["hidden units"]
    if "body" not in tree and (said := D * (vocabulary + sizes["positions"]) + sizes["layers"] * layer) > 2 * there:
        raise UserError(f"{folder}: config.json says a model of {said:,} numbers, and its weights are {there:,}")


class Taken(NamedTuple):
    """What a folder has for a model of ours."""

    weights: dict[str, Tensor]
    """Under our names, in float32."""
    left: list[str]
    """What it has besides: heads for other tasks, by the first part of their names."""


class Key(NamedTuple):
    """A key of config.json and the key of our model spec that means the same."""

    theirs: str
    ours: tuple[str, ...]
    default: Any
    """What the others take where config.json does not say."""

    def read_from(self, tree: Any) -> Any:
        """The value in a tree of ours."""
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
        content = read_any_json(path, through_links=True)  # what the hub's cache holds are links
    except FileNotFoundError:
        raise UserError(f"{path} is missing: is this the folder of a model?") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected keys and values")
    return content


def library_text(path: Path) -> str:
    """A tokenizer.json, before the library sees it: it makes room for as many tokens as the largest number says, which
    may be any."""
    text = read_text(path, through_links=True)
    tree = parse_json(text.encode(), path)
    try:
        vocabulary = tree["model"].get("vocab") or {}
        numbers = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
        numbers += [token["id"] for token in tree.get("added_tokens") or []]
        largest, count = max(map(int, numbers), default=0), len(vocabulary) + len(numbers)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} cannot be read: it is no tokenizer that the library wrote") from None
    if largest > MOST_TIMES * count + MOST_TIMES:
        raise UserError(f"{path} numbers a token {largest:,}, and has about {count:,} of them: this is no vocabulary")
    return text


def some(things: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(things) - 5} more" if len(things) > 5 else ""
    return between.join(things[:5]) + more


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with _named(path), opened(path, through_links=True):  # a file, not a pipe that nobody writes to
        return safetensors.torch.load_file(path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What goes wrong with a file is said with its name."""
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
        f"{folder} has its weights only as pickle ({pickles[0]}), which is not read: unpickling runs whatever code "
        f"the file holds. If you trust it, transformers writes {WEIGHTS} with {again}"
    )
