"""A vocabulary made elsewhere by the `tokenizers` library, as a Tokenizer of ours; or the reason why it cannot be one.

Scores are told per byte of text, so what changes text before it cuts it, or does not give it back, is refused.
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
"""Single bytes that a vocabulary may lack: those that are in no text in UTF-8 are thirteen, and there are signs that
nobody writes."""
_PROBE = "It's 3 o'clock,\n\n  naïve 日本 😀\t(yes!)  \r\n\x00\x1f end "


def adopted(library: tokenizers.Tokenizer, where: str, rows: int | None = None) -> tuple[Tokenizer, list[str]]:
    """For a model with vectors for `rows` tokens, None = for as many as there are; and what there is to say."""
    tree = json.loads(library.to_str())  # as the library writes it today: older files leave out what we look at
    if problem := _why_not(tree, library):
        raise UserError(f"{where}: {problem}")
    library.no_truncation()
    library.no_padding()
    size, notes = library.get_vocab_size(), []
    if rows is not None and size > rows:
        raise UserError(f"{where} has {size:,} tokens, but the model has vectors for only {rows:,} (vocab_size)")
    if rows is not None and size < rows:
        names = [f"<|unused-{row}|>" for row in range(size, rows)]
        library.add_tokens([AddedToken(name, normalized=False) for name in names])
        notes.append(f"the model has {rows - size:,} vectors more than tokens; they are called {names[0]} …")
    kind = _kind(tree)
    if kind == "bpe" and (lacking := _lacking(library)):
        notes.append(f"the vocabulary lacks {lacking} of the 256 single bytes; a text that has one is refused")
    content = json.dumps({"headway_tokenizer": 1, "kind": kind, "library": json.loads(library.to_str())})
    tokenizer = Tokenizer.from_json(content)
    known = "".join(sign for sign in _PROBE if not tokenizer.lacks(sign))
    if kind == "bpe" and tokenizer.decode(tokenizer.encode(known).ids) != known:
        raise UserError(f"{where} does not give back the text it was given, so nothing could be scored per byte")
    return tokenizer, notes


def _why_not(tree: dict[str, Any], library: tokenizers.Tokenizer) -> str | None:
    """What keeps a vocabulary from being one of ours, in words."""
    kind, vocabulary = _kind(tree), library.get_vocab()
    if kind is None:
        return f"a {tree['model'].get('type')} vocabulary; expected byte-level BPE, as GPT-2's is, or one Headway wrote"
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return f"its {len(vocabulary):,} tokens are not numbered from 0 to {len(vocabulary) - 1:,}"
    if kind == "word" and vocabulary.get(UNKNOWN) != 0:
        return f"a word vocabulary whose token 0 is not {UNKNOWN}"
    for token in library.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or re.search(r"\S\s", token.content):
            return f"its token {token.content!r} takes in white space, and bytes could not be counted"
    if kind != "bpe":
        return None
    if tree.get("normalizer"):
        return f"it changes text before cutting it ({tree['normalizer'].get('type')}), and bytes could not be counted"
    if any(part.get("add_prefix_space") for part in _steps(tree)):
        return "it puts a space before every text (add_prefix_space), which is no part of that text"
    if tree["model"].get("dropout"):
        return f"it cuts words at random (dropout {tree['model']['dropout']})"
    if (lacking := _lacking(library)) > FEW:
        return f"it lacks {lacking} of the 256 single bytes, so hardly any text can be written"
    return None


def _lacking(library: tokenizers.Tokenizer) -> int:
    vocabulary = library.get_vocab()
    return sum(sign not in vocabulary for sign in pre_tokenizers.ByteLevel.alphabet())


def _kind(tree: dict[str, Any]) -> str | None:
    """Which of our tokenizers this is; None = none of them."""
    model, steps = tree["model"].get("type"), _steps(tree)
    if model == "BPE" and any(step.get("type") == "ByteLevel" for step in steps):
        return "bpe"
    if model == "WordLevel":
        ours = {_cut(spec.learn("")): spec.kind for spec in (Char(), Word(), Word(punctuation="apart"))}
        return ours.get(json.dumps(steps, sort_keys=True))
    return None


def _cut(tokenizer: Tokenizer) -> str:
    """How a tokenizer of ours cuts text, to compare with another."""
    return json.dumps(_steps(json.loads(tokenizer.to_json())["library"]), sort_keys=True)


def _steps(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """What happens to text before it meets the vocabulary, one step after the other."""
    first = tree.get("pre_tokenizer") or {}
    return first.get("pretokenizers", [first])
