"""Running text as independent rows, pieces of one length or lines, for models that read whole rows in both
directions."""

from dataclasses import dataclass

import numpy as np

from headway.data.marks import Marks
from headway.data.running.corpus import Corpus, TextBySplit
from headway.data.tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class TextRows:
    """The rows of one split, with all tokens concatenated, without special tokens."""

    ids: np.ndarray
    """int32"""
    ends: np.ndarray
    """int64: where in `ids` each row ends."""
    longest: int
    """The maximum row length in tokens."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, without special tokens."""
        return np.diff(self.ends, prepend=0)

    def only(self, rows: slice) -> "TextRows":
        """A slice of the rows."""
        begin, *_ = (self.ends - self.lengths)[rows]
        ends = self.ends[rows]
        return TextRows(self.ids[begin : ends[-1]], ends - begin, self.longest)

    def beginning(self, tokens: int | None) -> "TextRows":
        """The first rows, up to so many tokens in total, but at least one row."""
        if tokens is None:
            return self
        return self.only(slice(max(1, int(np.searchsorted(self.ends, tokens, side="right")))))

    def padded(self, marks: Marks) -> tuple[np.ndarray, np.ndarray]:
        """[CLS] row [SEP], padded to the longest, and the lengths without padding."""
        lengths = self.lengths + marks.room()
        slots = np.arange(int(lengths.max(initial=marks.room())))
        table = np.full((len(self), len(slots)), marks.pad, dtype=np.int32)
        inside = (slots >= marks.before) & (slots < lengths[:, None] - marks.behind)
        table[inside] = self.ids
        edges = marks.around([np.zeros(0, np.int32)])
        table[:, : marks.before] = edges[: marks.before]
        for k, mark in enumerate(edges[::-1][: marks.behind], 1):
            table[np.arange(len(self)), lengths - k] = mark
        return table, lengths


class RowCorpus(TextBySplit[TextRows]):
    """Text by split, in rows; the tokenizer has special tokens."""


def in_rows(corpus: Corpus, tokenizer: Tokenizer, longest: int, by_line: bool) -> RowCorpus:
    """Split a corpus into rows of at most `longest` tokens, not counting special tokens. `tokenizer` has special
    tokens."""
    if by_line:
        splits = {split: rows_of_lines(text, tokenizer, longest) for split, text in corpus.texts.items()}
    else:
        splits = {split: pieces(tokens.ids, longest) for split, tokens in corpus.splits.items()}
    how = f"{'lines' if by_line else 'pieces'} of {longest}"
    return RowCorpus(corpus.name, tokenizer, splits, f"{corpus.identity} in {how}", corpus.texts)


def pieces(ids: np.ndarray, longest: int) -> TextRows:
    """Consecutive pieces; the last may be shorter."""
    return TextRows(ids, np.append(np.arange(longest, len(ids), longest), len(ids)), longest)


def rows_of_lines(text: str, tokenizer: Tokenizer, longest: int) -> TextRows:
    """Every line that has tokens; a line longer than a row continues in the next row."""
    lines = [ids for ids in tokenizer.encode_rows(text.split("\n")) if len(ids)]
    cut = [line[k : k + longest] for line in lines for k in range(0, len(line), longest)]
    ids = np.concatenate([np.zeros(0, np.int32), *cut])
    return TextRows(ids, np.cumsum([len(row) for row in cut], dtype=np.int64), longest)
