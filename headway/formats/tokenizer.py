"""tokenizer.json of the `tokenizers` library, both ways: writes what AutoTokenizer reads, and reads it as a Tokenizer.

Our tokenizers use the library internally, so text gets the same ids there and here. Decoding must be configured: by
default the library puts a space between tokens, and `DECODERS` makes it do what `Tokenizer.decode` does.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, processors

from headway.core.errors import UserError
from headway.data.library import adopted
from headway.data.tokenizers import Tokenizer
from headway.formats.weights import library_text

FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"

DECODERS = {
    "char": lambda: decoders.Fuse(),
    "bpe": lambda: decoders.ByteLevel(),
    # A space before every token except the first, and none around line ends. (No word starts with two line ends, so
    # this decoder never finds the "continuation prefix" that it would remove.)
    "word": lambda: decoders.Sequence(
        [
            decoders.WordPiece(prefix="\n\n", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(" ?\n ?"), "\n"),
        ]
    ),
}


def library_of(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's tokenizer inside one of ours, ready for use elsewhere."""
    library = tokenizers.Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_json())["library"]))
    if library.decoder is None:
        library.decoder = DECODERS[tokenizer.kind]()
    return library


def tokenizer_config(library: tokenizers.Tokenizer, context: int) -> dict[str, Any]:
    """tokenizer_config.json. It names no unknown token, since the library would split words that contain its text."""
    special = ("bos_token", "eos_token") if library.token_to_id(END_OF_TEXT) is not None else ()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **dict.fromkeys(special, END_OF_TEXT),
    }


def with_template(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's tokenizer with a template that adds special tokens as the model reads them: [CLS] text [SEP]."""
    library, marks = library_of(tokenizer), tokenizer.marks
    assert marks is not None
    cls, sep, mask = tokenizer.pieces([marks.cls, marks.sep, marks.mask])
    if tokenizer.takes_blank:  # the mask token includes the preceding blank, like the tokens it replaces
        library.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False, special=True)])
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, marks.cls), (sep, marks.sep)],
    )
    return library


def marked_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """tokenizer_config.json of a vocabulary with special tokens."""
    marks = tokenizer.marks
    assert marks is not None
    names = tokenizer.pieces([marks.cls, marks.sep, marks.mask, marks.pad])
    return {
        **tokenizer_config(library_of(tokenizer), context),
        **dict(zip(("cls_token", "sep_token", "mask_token", "pad_token"), names, strict=True)),
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }


def read_tokenizer(path: Path, rows: int, without: int | None = None) -> tuple[Tokenizer, list[str]]:
    """Read a tokenizer for a model with `rows` embeddings, with notes. `without`: a token to leave out because it is
    not for text."""
    try:
        library = tokenizers.Tokenizer.from_str(library_text(path))
    except FileNotFoundError:
        again = f"AutoTokenizer.from_pretrained('{path.parent}').save_pretrained('{path.parent}')"
        raise UserError(
            f"{path} is missing, but needed to tokenize text; transformers writes one with {again}"
        ) from None
    except Exception as problem:  # the library raises only plain Exceptions
        raise UserError(f"{path} cannot be read: {problem}") from None
    if without is not None:
        library = _numbered(library, lambda number: None if number == without else number - (number > without))
        rows -= 1
    return adopted(library, str(path), rows)


def with_end(library: tokenizers.Tokenizer, name: str) -> tokenizers.Tokenizer:
    """The tokenizer with an extra token, number 0, appended to every text; all other numbers grow by one."""
    tree = json.loads(_numbered(library, lambda number: number + 1).to_str())
    tree["model"]["vocab"][name] = 0
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"] = [{"id": 0, "content": name, **token}, *tree["added_tokens"]]
    made = tokenizers.Tokenizer.from_str(json.dumps(tree))
    made.post_processor = processors.TemplateProcessing(single=f"$A {name}", special_tokens=[(name, 0)])
    return made


def _numbered(library: tokenizers.Tokenizer, number: Callable[[int], int | None]) -> tokenizers.Tokenizer:
    """The tokenizer with other numbers. Tokens that get none are left out, and nothing is appended to texts."""
    tree = json.loads(library.to_str())
    if not isinstance(vocabulary := tree["model"].get("vocab"), dict):
        raise UserError(f"a {tree['model'].get('type')} vocabulary; expected byte-level BPE, or one written by Headway")
    changed = {name: number(k) for name, k in vocabulary.items()}
    tree["model"]["vocab"] = {name: k for name, k in changed.items() if k is not None}
    added = [{**token, "id": number(token["id"])} for token in tree["added_tokens"]]
    tree |= {"added_tokens": [token for token in added if token["id"] is not None], "post_processor": None}
    return tokenizers.Tokenizer.from_str(json.dumps(tree))
