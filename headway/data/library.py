"""Adopt a vocabulary of the `tokenizers` library as a Headway tokenizer, or say why it cannot be one.

Scores are given per byte of text, so tokenizers that normalise text or cannot restore it are refused.
"""

import json
import re
from typing import Any

import tokenizers
from tokenizers import AddedToken, pre_tokenizers

from headway.core.errors import UserError
from headway.data.tokenizers import UNKNOWN, Tokenizer
from headway.data.vocabularies import Char, Word

FEW = 32
"""How many single bytes a vocabulary may lack: thirteen never occur in UTF-8, and some characters are never used."""
_PROBE = "It's 3 o'clock,\n\n  naïve 日本 😀\t(yes!)  \r\n\x00\x1f end "


def adopted(library: tokenizers.Tokenizer, where: str, rows: int | None = None) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and notes for the user. `rows` is the number of embeddings of the model; None = one per token."""
    tree = json.loads(library.to_str())  # in the library's current format: older files lack some keys
    if problem := _why_not(tree, library):
        raise UserError(f"{where}: {problem}")
    library.no_truncation()
    library.no_padding()
    size, notes = library.get_vocab_size(), []
    if rows is not None and size > rows:
        raise UserError(f"{where} has {size:,} tokens, but the model only {rows:,} embeddings (vocab_size)")
    if rows is not None and size < rows:
        names = [f"<|unused-{row}|>" for row in range(size, rows)]
        library.add_tokens([AddedToken(name, normalized=False) for name in names])
        notes.append(f"the model has {rows - size:,} more embeddings than tokens; they are named {names[0]} …")
    kind = _kind(tree)
    if kind == "bpe" and (lacking := _lacking(library)):
        notes.append(f"the vocabulary lacks {lacking} of the 256 single bytes; texts with one of them are refused")
    content = json.dumps({"headway_tokenizer": 1, "kind": kind, "library": json.loads(library.to_str())})
    tokenizer = Tokenizer.from_json(content)
    known = "".join(sign for sign in _PROBE if not tokenizer.lacks(sign))
    if kind == "bpe" and tokenizer.decode(tokenizer.encode(known).ids) != known:
        raise UserError(f"{where} does not decode to the text it encoded, so scores per byte are not possible")
    return tokenizer, notes


def _why_not(tree: dict[str, Any], library: tokenizers.Tokenizer) -> str | None:
    """Why a vocabulary cannot be adopted; None = it can."""
    kind, vocabulary = _kind(tree), library.get_vocab()
    if kind is None:
        return (
            f"a {tree['model'].get('type')} vocabulary; expected byte-level BPE, as in GPT-2, or one that Headway wrote"
        )
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return f"its {len(vocabulary):,} tokens are not numbered from 0 to {len(vocabulary) - 1:,}"
    if kind == "word" and vocabulary.get(UNKNOWN) != 0:
        return f"a word vocabulary whose token 0 is not {UNKNOWN}"
    for token in library.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or re.search(r"\S\s", token.content):
            return f"its token {token.content!r} absorbs white space, so bytes cannot be counted"
    if kind != "bpe":
        return None
    if tree.get("normalizer"):
        return f"it normalises text first ({tree['normalizer'].get('type')}), so bytes cannot be counted"
    if any(part.get("add_prefix_space") for part in _steps(tree)):
        return "it adds a space before every text (add_prefix_space), which is not part of the text"
    if tree["model"].get("dropout"):
        return f"it splits words at random (dropout {tree['model']['dropout']})"
    if (lacking := _lacking(library)) > FEW:
        return f"it lacks {lacking} of the 256 single bytes, so hardly any text can be written"
    return None


def _lacking(library: tokenizers.Tokenizer) -> int:
    vocabulary = library.get_vocab()
    return sum(sign not in vocabulary for sign in pre_tokenizers.ByteLevel.alphabet())


def _kind(tree: dict[str, Any]) -> str | None:
    """Which of Headway's tokenizers this is; None = none of them."""
    model, steps = tree["model"].get("type"), _steps(tree)
    if model == "BPE" and any(step.get("type") == "ByteLevel" for step in steps):
        return "bpe"
    if model == "WordLevel":
        ours = {_cut(spec.learn("")): spec.kind for spec in (Char(), Word(), Word(punctuation="apart"))}
        return ours.get(json.dumps(steps, sort_keys=True))
    return None


def _cut(tokenizer: Tokenizer) -> str:
    """How a Headway tokenizer splits text, for comparison."""
    return json.dumps(_steps(json.loads(tokenizer.to_json())["library"]), sort_keys=True)


def _steps(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The pre-tokenisation steps."""
    first = tree.get("pre_tokenizer") or {}
    return first.get("pretokenizers", [first])
