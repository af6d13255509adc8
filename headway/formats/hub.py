"""Fetches models from the hub by name: only files that can be read without running code.

Fetches weights as safetensors, the configuration and the tokenizer, and nothing else. In particular no pickles, which
run whatever code their author put into them.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from headway.core.errors import UserError
from headway.core.hub import Address, fetch

CONFIG = "config.json"
_WEIGHTS = re.compile(r"[^/]+\.safetensors")
_BESIDE = re.compile(
    r"config\.json|generation_config\.json|[^/]+\.safetensors\.index\.json|"
    r"tokenizer\.json|tokenizer_config\.json|vocab\.json|target_vocab\.json|merges\.txt|source\.spm|target\.spm|special_tokens_map\.json|added_tokens\.json"
)
_PICKLE = re.compile(r"[^/]+\.(bin|pt|pth|ckpt|pkl|pickle)")
_OTHERS = re.compile(r".+\.(?:fp16|bf16|fp32)\.safetensors|adapter_model\.safetensors")


def fetch_model(repo_id: str) -> Path:
    """Fetch the weights, `config.json` and tokenizer of `owner/name` or `owner/name@revision`; returns the folder."""
    address = Address.parse(repo_id, "model")
    folder, _ = fetch(address, lambda names: _choose(names, address))
    return folder


def _choose(names: Sequence[str], address: Address) -> list[str]:
    """Choose files of the top folder only: other folders contain the same model in other formats."""
    weights = [name for name in names if _WEIGHTS.fullmatch(name) and not _OTHERS.fullmatch(name)]
    pickles = [name for name in names if _PICKLE.fullmatch(name)]
    if not weights and pickles:
        raise UserError(
            f"model '{address}' has its weights only as pickle ({', '.join(pickles[:3])}), which can run any code when "
            "read; Headway reads safetensors: look for a revision or a copy that has them"
        )
    if not weights:
        there = ", ".join(sorted(names)[:8])
        raise UserError(
            f"model '{address}' has no safetensors weights; {'there are: ' + there if there else 'it is empty'}"
        )
    if CONFIG not in names:
        raise UserError(f"model '{address}' has no {CONFIG}, so its architecture is unknown")
    return sorted({*weights, *(name for name in names if _BESIDE.fullmatch(name))})
