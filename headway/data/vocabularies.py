"""Specs of vocabularies: characters, bytes, words or byte pairs of the train split, or a given one.

`spec.learn(text)` gives a `Tokenizer` (`tokenizers.py`).
"""

import json
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from headway.core.errors import UserError
from headway.core.progress import following
from headway.core.reading import read_text
from headway.core.variants import Variant
from headway.data.letters import BLANK, LINE_END, WHITE, chunks, letters_of
from headway.data.tokenizer_kinds import BYTE_OF_SIGN, BpeTokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from headway.data.tokenizers import UNKNOWN, Tokenizer


class TokenizerSpec(Variant):
    """How a vocabulary is made."""

    @abstractmethod
    def learn(self, text: str) -> Tokenizer:
        """The tokenizer, learnt from the train split."""

    def identity(self) -> str:
        """Everything apart from the text that the tokens depend on."""
        return self.model_dump_json()

    is_given: ClassVar[bool] = False
    """Whether it is read from a file, which may later be gone, instead of learnt from the train split."""


class Char(TokenizerSpec):
    """One token per character. The vocabulary is the characters of the train split, and text with others is refused."""

    kind: Literal["char"] = "char"
    unknown: bool = False
    """Whether characters that the train split lacks become `<unk>`; otherwise text with such characters is refused."""

    added: ClassVar[frozenset[str]] = frozenset({"unknown"})

    def identity(self) -> str:
        return self.model_dump_json(exclude=None if self.unknown else {"unknown"})

    def learn(self, text: str) -> Tokenizer:
        letters = [*([UNKNOWN] if self.unknown else []), *sorted(letters_of(text))]
        numbers = {letter: i for i, letter in enumerate(letters)}
        model = models.WordLevel(numbers, unk_token=UNKNOWN) if self.unknown else models.WordLevel(numbers)
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        return CharTokenizer(library)


class Byte(TokenizerSpec):
    """One token per UTF-8 byte: 256 tokens, nothing is learnt, and any text can be written."""

    kind: Literal["byte"] = "byte"

    def learn(self, text: str) -> Tokenizer:
        library = tokenizers.Tokenizer(models.BPE(dict(BYTE_OF_SIGN), []))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return ByteTokenizer(library)


class Word(TokenizerSpec):
    """One token per word, and one per line end. Words that the vocabulary lacks become `<unk>`."""

    kind: Literal["word"] = "word"
    size: Annotated[int, Field(ge=3)] | None = None
    """The largest vocabulary, with `<unk>` and the line end counted; the most frequent words of the train split are
    kept. null = all of its words."""
    lower: bool = False
    """Whether text is lower-cased."""
    punctuation: Literal["attached", "apart"] = "attached"
    """Whether punctuation stays attached to its word or becomes tokens of its own: `(yes!)` or `( yes ! )`. Apostrophes
    inside a word are never split off."""

    def learn(self, text: str) -> Tokenizer:
        counts = self._counts(text)
        always = [UNKNOWN, LINE_END]
        # Most frequent first, ties in alphabetical order.
        words = [word for word in sorted(counts, key=lambda word: (-counts[word], word)) if word not in always]
        kept = (always + words)[: self.size]
        return WordTokenizer(self._library({word: i for i, word in enumerate(kept)}))

    def _counts(self, text: str) -> Counter[str]:
        """Word counts. The library splits each distinct white-space-separated string only once."""
        strings: Counter[str] = Counter()
        pieces = following("counting words", chunks(text, 1 << 20), len, len(text))
        for piece in pieces:
            strings.update(piece.split())  # five times as fast as a regular expression that also finds line ends
            strings[LINE_END] += piece.count(LINE_END)
        library, counts = self._library({}), Counter[str]()
        if self.punctuation == "attached" and not self.lower:
            return strings
        for string, times in strings.items():
            if library.normalizer is not None:
                string = library.normalizer.normalize_str(string)
            for word, _ in library.pre_tokenizer.pre_tokenize_str(string):
                counts[word] += times
        return counts

    def _library(self, vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
        library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
        if self.lower:
            library.normalizer = normalizers.Lowercase()
        word = f"[^{WHITE}]+" if self.punctuation == "attached" else rf"{UNKNOWN}|\w+(?:['’]\w+)*|[^{WHITE}\w]"
        library.pre_tokenizer = pre_tokenizers.Split(Regex(f"\n|{word}"), "removed", invert=True)
        return library


class Bpe(TokenizerSpec):
    """Byte pair encoding: common words are one token, rare ones several, and any text can be written. A line end is
    always a token of its own, and no token spans several words. (Sennrich et al. 2016,
    https://arxiv.org/abs/1508.07909)
    """

    kind: Literal["bpe"] = "bpe"
    size: Annotated[int, Field(ge=256)] = 4096
    """The size of the vocabulary, with the 256 single bytes counted."""
    lower: bool = False
    """Whether text is lower-cased; then the model writes no capitals either."""

    added: ClassVar[frozenset[str]] = frozenset({"lower"})

    def identity(self) -> str:
        return self.model_dump_json(exclude=None if self.lower else {"lower"})

    def learn(self, text: str) -> Tokenizer:
        letters, signs = r" ?[\p{L}\p{M}]+| ?\p{N}+", rf" ?[^{WHITE}\p{{L}}\p{{M}}\p{{N}}]+"
        # The last of several spaces goes with the word after it, as a single space does.
        blanks = f"[{BLANK}]+(?![^{WHITE}])|[{BLANK}]+"
        library = tokenizers.Tokenizer(models.BPE())
        if self.lower:
            library.normalizer = normalizers.Lowercase()
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(f"\n|{letters}|{signs}|{blanks}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        trainer = trainers.BpeTrainer(vocab_size=self.size, initial_alphabet=list(BYTE_OF_SIGN), show_progress=False)
        library.train_from_iterator(following("counting byte pairs", chunks(text), len, len(text)), trainer)
        return BpeTokenizer(library)


class Given(TokenizerSpec):
    """An existing vocabulary, used as it is: another run's, or an imported model's."""

    kind: Literal["given"] = "given"
    is_given: ClassVar[bool] = True
    path: str
    """The tokenizer.json of a run folder, or one that the `tokenizers` library wrote (byte-level BPE, or words)."""

    def learn(self, text: str) -> Tokenizer:
        content = self._content()
        try:
            tree = json.loads(content)
            ours = not isinstance(tree, dict) or "headway_tokenizer" in tree or "model" not in tree
            library = None if ours else tokenizers.Tokenizer.from_str(content)
        except Exception as problem:  # the library has no more specific exception
            raise UserError(f"data.tokenizer.path: {self.path} cannot be read: {problem}") from None
        if library is None:
            return Tokenizer.from_json(content)
        from headway.data.library import adopted

        return adopted(library, self.path)[0]

    def identity(self) -> str:
        return self._content()

    def _content(self) -> str:
        try:
            return read_text(Path(self.path), through_links=True)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"data.tokenizer.path: {self.path} cannot be read: {reason}") from None
