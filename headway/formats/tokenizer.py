"""tokenizer.json of the `tokenizers` library, both ways: what AutoTokenizer reads, and a Tokenizer of ours from it.

Our tokenizers are the library's inside, so text becomes the same ids there and here. Decoding needs a word: the library
puts a space between tokens unless told otherwise, and `DECODERS` tells it what `Tokenizer.decode` does.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers, processors

from headway.core.errors import UserError
from headway.data.tokenizers import UNKNOWN, Char, Tokenizer, Word

FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"

DECODERS = {
    "char": lambda: decoders.Fuse(),
    "bpe": lambda: decoders.ByteLevel(),
    # A space before every token but the first, and none around line ends. (No word begins with two line ends, so
    # the "continuation prefix" that this decoder removes is never there.)
    "word": lambda: decoders.Sequence(
        [
            decoders.WordPiece(prefix="\n\n", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(" ?\n ?"), "\n"),
        ]
    ),
}

_PROBE = "It's 3 o'clock,\n\n  naïve 日本 😀\t(yes!)  \r\n\x00\x1f end "


def library_of(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's own tokenizer, for others to use."""
    library = tokenizers.Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_json())["library"]))
    if library.decoder is None:
        library.decoder = DECODERS[tokenizer.kind]()
    return library


def tokenizer_config(library: tokenizers.Tokenizer, context: int) -> dict[str, Any]:
    """tokenizer_config.json. No unknown token is named in it: what is named there is cut out of the middle of words."""
    special = ("bos_token", "eos_token") if library.token_to_id(END_OF_TEXT) is not None else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **dict.fromkeys(special, END_OF_TEXT),
    }


def read_tokenizer(path: Path, rows: int, without: int | None = None) -> tuple[Tokenizer, list[str]]:
    """A tokenizer that the library wrote, for a model with vectors for `rows` tokens; and what there is to say.
    `without`: a token that is none of ours, because it is not for text."""
    try:
        library = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    except FileNotFoundError:
        again = f"AutoTokenizer.from_pretrained('{path.parent}').save_pretrained('{path.parent}')"
        raise UserError(f"{path} is missing: without it text is no ids; transformers writes one with {again}") from None
    except Exception as problem:  # the library raises nothing more particular
        raise UserError(f"{path} cannot be read: {problem}") from None
    if without is not None:
        library = _numbered(library, lambda number: None if number == without else number - (number > without))
        rows -= 1
    tree = json.loads(library.to_str())  # as the library writes it today: older files leave out what we look at
    if problem := _why_not(tree, library):
        raise UserError(f"{path}: {problem}")
    library.no_truncation()
    library.no_padding()
    size, notes = library.get_vocab_size(), []
    if size > rows:
        raise UserError(f"{path} has {size:,} tokens, but the model has vectors for only {rows:,} (vocab_size)")
    if size < rows:
        names = [f"<|unused-{row}|>" for row in range(size, rows)]
        library.add_tokens([AddedToken(name, normalized=False) for name in names])
        notes.append(f"the model has {rows - size:,} vectors more than tokens; they are called {names[0]} …")
    kind = _kind(tree)
    content = json.dumps({"headway_tokenizer": 1, "kind": kind, "library": json.loads(library.to_str())})
    tokenizer = Tokenizer.from_json(content)
    if kind == "bpe" and tokenizer.decode(tokenizer.encode(_PROBE).ids) != _PROBE:
        raise UserError(f"{path} does not give back the text it was given, so nothing could be scored per byte")
    return tokenizer, notes


def with_end(library: tokenizers.Tokenizer, name: str) -> tokenizers.Tokenizer:
    """With a token more, which is put behind every text: number 0, and every other is one higher."""
    tree = json.loads(_numbered(library, lambda number: number + 1).to_str())
    tree["model"]["vocab"][name] = 0
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"] = [{"id": 0, "content": name, **token}, *tree["added_tokens"]]
    made = tokenizers.Tokenizer.from_str(json.dumps(tree))
    made.post_processor = processors.TemplateProcessing(single=f"$A {name}", special_tokens=[(name, 0)])
    return made


def _numbered(library: tokenizers.Tokenizer, number: Callable[[int], int | None]) -> tokenizers.Tokenizer:
    """The same with other numbers; tokens that get none are left out, and nothing is put behind a text."""
    tree = json.loads(library.to_str())
    if not isinstance(vocabulary := tree["model"].get("vocab"), dict):
        raise UserError(f"a {tree['model'].get('type')} vocabulary; expected byte-level BPE, or one Headway wrote")
    changed = {name: number(k) for name, k in vocabulary.items()}
    tree["model"]["vocab"] = {name: k for name, k in changed.items() if k is not None}
    added = [{**token, "id": number(token["id"])} for token in tree["added_tokens"]]
    tree |= {"added_tokens": [token for token in added if token["id"] is not None], "post_processor": None}
    return tokenizers.Tokenizer.from_str(json.dumps(tree))


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
    if lacking := [sign for sign in pre_tokenizers.ByteLevel.alphabet() if sign not in vocabulary]:
        return f"it lacks {len(lacking)} of the 256 single bytes, so not every text can be written"
    return None


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
