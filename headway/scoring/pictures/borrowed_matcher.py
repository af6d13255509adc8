"""Pretrained CLIP and SigLIP models that match pictures and captions, loaded from a folder by `transformers`.

Weights are read from safetensors, and no code from the folder is run.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.core.errors import UserError
from headway.core.reading import read_json
from headway.scoring.pictures.matching import Matcher, Shown, Told

KINDS = ("clip", "siglip", "siglip2")
"""Supported values of `model_type` in config.json."""
AT_ONCE = 16


class BorrowedMatcher(Matcher):
    def __init__(self, name: str, model: Any, tokenizer: Any, processor: Any, kind: str):
        self.name, self.model, self.tokenizer, self.processor = name, model.eval(), tokenizer, processor
        self.is_sigmoid = kind != "clip"
        self.limit = int(model.config.text_config.max_position_embeddings)
        self.scale = float(model.logit_scale.exp().item())
        self.bias = float(model.logit_bias.item()) if self.is_sigmoid else None

    @torch.no_grad()
    def see(self, pictures: Sequence[Shown]) -> Float[Tensor, "P E"]:
        found = []
        for first in range(0, len(pictures), AT_ONCE):
            images = [one.image for one in pictures[first : first + AT_ONCE]]
            made = self.processor(images=images, return_tensors="pt")
            found.append(_vectors(self.model.get_image_features(**made)))
        return _of_length_one(torch.cat(found))

    @torch.no_grad()
    def tell(self, captions: Sequence[str]) -> Told:
        found, tokens, unknown = [], [], []
        end, strange = self.tokenizer.eos_token_id, self.tokenizer.unk_token_id
        for caption in captions:
            ids = list(self.tokenizer(caption, truncation=False, verbose=False)["input_ids"])
            tokens.append(len(ids))
            # In CLIP's own vocabulary END is also the unknown token, so unknown words cannot be counted.
            unknown.append(0 if strange in (None, end) else ids.count(strange))
            if len(ids) > self.limit:
                ids = [*ids[: self.limit - 1], end if ids[-1] == end else ids[self.limit - 1]]
            given = {"input_ids": torch.tensor([ids])}
            if self.is_sigmoid:  # SigLIP was trained on padded rows and does worse on others
                filling = [self.tokenizer.pad_token_id] * (self.limit - len(ids))
                given = {"input_ids": torch.tensor([ids + filling])}
            else:
                given["attention_mask"] = torch.ones_like(given["input_ids"])
            found.append(_vectors(self.model.get_text_features(**given)))
        return Told(_of_length_one(torch.cat(found)), tokens, unknown)


def open_borrowed(folder: Path) -> BorrowedMatcher:
    """Load the model in a folder."""
    kind = _kind(folder)
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(one.name for one in folder.iterdir() if one.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        if pickles:
            way = "load it where you trust it, and save_pretrained(folder, safe_serialization=True)"
            raise UserError(f"'{folder}' has its weights only as pickle ({pickles[0]}), which can run any code: {way}")
        raise UserError(f"'{folder}' has no weights: expected model.safetensors")
    try:
        library: Any = import_module("transformers")  # by name, as in models/borrowed/module.py
    except ImportError:
        raise UserError("pretrained models need the package transformers: pip install 'headway[pretrained]'") from None

    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    own: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        model, told = library.AutoModel.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **own)
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **own)
        processor = library.AutoImageProcessor.from_pretrained(folder, **own)
    except Exception as problem:  # transformers raises many kinds of exceptions
        reason = str(problem).strip().split("\n")[0] or type(problem).__name__
        raise UserError(f"'{folder}' cannot be read as a model of the kind '{kind}': {reason}") from None
    if missing := sorted(told["missing_keys"]):
        raise UserError(f"'{folder}' lacks {len(missing)} weights of a {kind} model, the first {missing[0]}")
    return BorrowedMatcher(folder.name, model.float(), tokenizer, processor, kind)


def _kind(folder: Path) -> str:
    try:
        config = read_json(folder / "config.json", through_links=True)
        kind = config["model_type"]
    except FileNotFoundError:
        raise UserError(f"'{folder}' is neither a run (no run.json) nor a model (no config.json)") from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"'{folder / 'config.json'}' does not say what model it is: {problem}") from None
    if kind not in KINDS:
        raise UserError(f"'{folder}' is a {kind} model; to match pictures and captions, use one of {', '.join(KINDS)}")
    return kind


def _vectors(found: Any) -> Tensor:
    """The tensor in what `get_…_features` returns: itself, or the pooled output of a model output object."""
    return found if isinstance(found, Tensor) else found.pooler_output


def _of_length_one(x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    return torch.nn.functional.normalize(x.float(), dim=-1)
