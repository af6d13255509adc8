"""The tokenizer of a pretrained encoder, read from its folder, with its special tokens.

WordPiece, BPE or SentencePiece. The text need not be restorable (`library.py` is stricter, for models that are scored
per byte), so it may be lower-cased and stripped of accents, as in the model's training. The special tokens around a
text are taken from the library's own template (`marks.py`): `[CLS] a text [SEP]`, `<s>one</s></s>another</s>`.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken

from headway.core.errors import UserError
from headway.data.letters import show
from headway.data.marks import Template
from headway.data.tokenizer_kinds import byte_of_sign
from headway.data.tokenizers import Tokenizer
from headway.data.tokens import Tokens


class BorrowedTokenizer(Tokenizer):
    kind = "borrowed"

    def __init__(
        self, library: tokenizers.Tokenizer, rows: int | None = None, special: Mapping[str, str] | None = None
    ):
        """`rows`: the number of embeddings of the model, some of which may be unused. `special`: token names by use
        (mask, separator, padding …)."""
        library.no_truncation()
        library.no_padding()
        size = library.get_vocab_size()
        highest = max(library.get_vocab().values(), default=-1)
        if rows is not None and highest >= rows:
            raise UserError(f"the tokenizer has a token id {highest:,}, but the model has only {rows:,} embeddings")
        self._library, self.size, self.line_end = library, rows or max(size, highest + 1), None
        self.special = {use: name for use, name in (special or {}).items() if library.token_to_id(name) is not None}
        self._tree = json.loads(library.to_str())
        self.unknown = self._unknown()
        self._by_bytes = "ByteLevel" in json.dumps(self._tree.get("pre_tokenizer"))
        self.marks = self._template()
        mask = library.get_added_tokens_decoder().get(-1 if self.marks is None else self.marks.mask)
        self.takes_blank = mask is not None and mask.lstrip
        library.encode_special_tokens = True  # special tokens in a text are read as ordinary characters

    def number(self, use: str) -> int | None:
        """The id of the special token with this use (mask, separator, padding, first); None = there is none."""
        return self._library.token_to_id(self.special[use]) if use in self.special else None

    @property
    def mask_name(self) -> str:
        return self.special.get("mask", "")

    def _template(self) -> Template | None:
        """Find the special tokens that the library puts around one text and around two."""
        one, two = self._library.encode("a"), self._library.encode("a", "a")
        if 1 not in one.special_tokens_mask:
            return None
        runs: list[tuple[int, ...]] = []
        for marked, found in itertools.groupby(
            zip(two.special_tokens_mask, two.ids, strict=True), lambda pair: pair[0]
        ):
            runs.append(tuple(k for _, k in found) if marked else ())
        around = one.special_tokens_mask
        first, last = around.index(0), around[::-1].index(0)
        between = next((run for run in runs[1:-1] if run), ())
        known = {use: -1 if (k := self.number(use)) is None else k for use in ("first", "separator", "mask", "padding")}
        ends = tuple(one.ids[:first]), between, tuple(one.ids[len(around) - last :])
        return Template(known["first"], known["separator"], known["mask"], known["padding"], *ends)

    def parts(self, text: str) -> Iterator[Tokens]:
        yield self.encode(text)  # in one go: normalisation may depend on more than one word

    def encode(self, text: str) -> Tokens:
        self._refuse(text)
        tokens = self._measure(text, self._library.encode(text, add_special_tokens=False))
        if len(tokens):
            tokens.bytes[-1] += len(text.encode()) - tokens.bytes.sum()
        return tokens

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        covers = [end for _, end in encoding.offsets]
        ends = np.concatenate(([0], letter_ends))[covers]
        return np.maximum.accumulate(ends) if len(ends) else np.zeros(0, np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._library.decode([int(k) for k in ids], skip_special_tokens=False)

    def pieces(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return [self._piece(int(k)) for k in ids]

    def _piece(self, number: int) -> str:
        name = self._library.id_to_token(number)
        if name is None:
            return f"<unused-{number}>"
        signs = byte_of_sign()
        if self._by_bytes and all(sign in signs for sign in name):
            return show(bytes(signs[sign] for sign in name))
        return show(name.replace("▁", " ").encode())

    def _unknown(self) -> int | None:
        model = self._tree["model"]
        if model.get("unk_token") is not None:
            return self._library.token_to_id(model["unk_token"])
        return model.get("unk_id")

    def to_json(self) -> str:
        content = {"headway_tokenizer": 1, "kind": self.kind, "library": self._tree}
        return json.dumps({**content, "size": self.size, "special": self.special}, ensure_ascii=False)

    @classmethod
    def restored(cls, content: dict[str, Any]) -> "BorrowedTokenizer":
        library = tokenizers.Tokenizer.from_str(json.dumps(content["library"]))
        return cls(library, content["size"], content["special"])

    def _bytes_of(self, token: str) -> bytes:
        return token.encode()


def word_piece(vocabulary: Sequence[str], settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's tokenizer from vocab.txt, for folders without a tokenizer.json."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    numbers = {name: k for k, name in enumerate(vocabulary)}
    unknown = _named(settings, "unk_token", "[UNK]")
    library = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token=unknown))
    library.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    first, last = _named(settings, "cls_token", "[CLS]"), _named(settings, "sep_token", "[SEP]")
    others = (_named(settings, "pad_token", "[PAD]"), _named(settings, "mask_token", "[MASK]"))
    if missing := [name for name in (unknown, first, last) if name not in numbers]:
        raise UserError(f"the vocabulary lacks {', '.join(missing)}")
    kept = [name for name in (unknown, first, last, *others) if name in numbers]
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in kept])
    library.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, numbers[first]), (last, numbers[last])],
    )
    return library


def _named(settings: Mapping[str, Any], key: str, default: str) -> str:
    """A token's name: settings give it as a string or as an object with `content`."""
    found = settings.get(key) or default
    return found["content"] if isinstance(found, dict) else str(found)
