"""Every score a second time, by its plain definition. Nothing here computes with headway/scoring: two computations that
share no code do not share a fault either.

    text    read from its file again → tokens → windows → log-softmax in float64 → nats of every token that is due;
            or, where state is carried, one segment after the other in the place of windows
    rows    read from their table again → tokens, cut, without any padding → softmax → counts of what is right

A split is counted whole where that is a matter of a second, else in parts spread over it, of which the scorer is asked
as well.
"""

import gzip
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from headway.data.labelled import sources as tables
from headway.data.labelled.sources import KNOWN_TABLES
from headway.data.labelled.tables import ENDINGS, Row, read_table
from headway.data.running.sources import FILES, KNOWN_SETS, known_files
from headway.data.tokenizers import Tokenizer, Tokens
from headway.scoring.score import Score


class Answer(Protocol):
    """How a model of one replica is asked."""

    def __call__(self, ids: Tensor, /, **beside: Tensor) -> Tensor:
        """Everything it says of rows of tokens [1, B, T]; `beside`: what else it must be given, such as sources."""
        ...

    def going_on(self, ids: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """The same of rows that continue those which left this state; and the state that they leave."""
        ...


AT_ONCE = 2**22
"""Logits: 32 MB in float64."""
CLOSE = 1e-4
"""Chances that differ by less: which of two classes is the likelier one depends on the order of sums."""
_STEMS = {"valid": ("valid", "val", "dev")}


class Counted(NamedTuple):
    values: dict[str, float]
    """By name, without the split: loss, perplexity, accuracy, recall.CLASS …"""
    pieces: np.ndarray
    """Mean nats of every window or row: how much the loss of a part depends on which part it is."""
    loose: Mapping[str, float] = MappingProxyType({})
    """By how much a count may be off, by name: for rows whose two likeliest classes are too close to say which."""


class Recount(ABC):
    """One split, ready to be counted. A part of it is whatever `count` and `given` understand."""

    @property
    @abstractmethod
    def whole(self) -> Any: ...

    @property
    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """Spread out, always the same, and small."""

    @abstractmethod
    def count(self, part: Any, answer: Answer) -> Counted: ...

    @abstractmethod
    def given(self, part: Any) -> Any:
        """This part as the scorer has its splits."""

    @abstractmethod
    def size(self, part: Any) -> int:
        """In tokens."""

    @abstractmethod
    def compare(self) -> str | None:
        """In words, where what is scored under this name is not what its source has under it."""

    @cached_property
    def difference(self) -> str | None:
        """The same, found once."""
        return self.compare()

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """In words, where scores (by name, without the split) tell by themselves that they are not of all of it."""
        return None

    def unaided(self, answer: Answer) -> float | None:
        """The loss of some tokens where the text ends before them; None where answers are not of tokens to come."""
        return None


# --- language models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextRecount(Recount):
    text: str
    """Read again."""
    tokens: Tokens
    """Of it, made again."""
    used: Tokens
    """What the scorer takes for them."""
    segment: int
    stride: int
    carried: bool = False
    """The text is one stream: each segment goes on from the state of the one before."""

    @property
    def whole(self) -> slice:
        return slice(0, len(self.tokens))

    @property
    def parts(self) -> list[slice]:
        """At the beginning, in the middle and at the end, three windows and a half each: the last one is moved back."""
        n, length = len(self.tokens), self.segment + 2 * self.stride + self.stride // 2 + 1
        begins = sorted({max(0, (n - length) * k // 2) for k in range(3)})
        return [slice(begin, min(begin + length, n)) for begin in begins]

    def count(self, part: slice, answer: Answer) -> Counted:
        ids, is_whole = torch.as_tensor(self.tokens.ids[part]).long(), part == self.whole
        nats = (
            stream_nats(answer, ids, self.segment)
            if self.carried
            else token_nats(answer, ids, self.segment, self.stride)
        )
        size = len(self.text.encode()) if is_whole else int(self.tokens.bytes[part].sum())
        words = len(self.text.split()) if is_whole else int(self.tokens.starts[part].sum())
        # The first token has nothing before it and is not predicted: neither is what it stands for.
        size -= int(self.tokens.bytes[part][0])
        words -= int(self.tokens.starts[part][0])
        values = {"loss": nats.mean(), "perplexity": _exp(nats.mean())}
        if words:
            values["perplexity_per_word"] = _exp(nats.sum() / words)
        if size:
            values["bits_per_byte"] = nats.sum() * math.log2(math.e) / size
        pieces = [nats[k : k + self.segment].mean() for k in range(0, len(nats), self.segment)]
        return Counted({name: float(value) for name, value in values.items()}, np.array(pieces))

    def given(self, part: slice) -> Tokens:
        return Tokens(self.tokens.ids[part], self.tokens.bytes[part], self.tokens.starts[part])

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """The same nats are shared out among tokens, words and bytes: from two scores one knows how many there were."""
        loss, tokens = scores["loss"].value if "loss" in scores else 0.0, len(self.tokens) - 1
        names = ("perplexity_per_word", "bits_per_byte")
        per_word, bits = (scores[name].value if name in scores else 0.0 for name in names)
        shared = {
            "words": (math.log(per_word) if 0 < per_word < math.inf else 0.0, int(self.tokens.starts[1:].sum())),
            "bytes": (bits * math.log(2), int(self.tokens.bytes[1:].sum())),
        }
        for what, (nats, there) in shared.items():
            if not (loss > 0 and nats > 0 and there):
                continue
            share = loss / nats * tokens
            if not abs(share - there) <= max(1e-5 * there, 0.5):
                return (
                    f"its {tokens:,} tokens have {there:,} {what}; its scores are of text with {share:,.1f} to as many"
                )
        return None

    @torch.no_grad()
    def unaided(self, answer: Answer) -> float:
        """Eight windows of each of 16 lengths, spread over the text, and the token behind each: it is nowhere in what
        the model is given, nor is anything that comes later."""
        ids, nats = torch.as_tensor(self.tokens.ids).long(), []
        longest = min(self.segment, len(ids) - 1)
        lengths = np.linspace(min(longest, self.segment - self.stride + 1), longest, 16).astype(int)
        for length in map(int, np.unique(lengths)):
            begins = np.linspace(0, len(ids) - 1 - length, 8).astype(int)
            rows = torch.stack([ids[begin : begin + length + 1] for begin in begins])
            logits = answer(rows[None, :, :-1])[0, :, -1].double().cpu()
            chances = logits - logits.logsumexp(-1, keepdim=True)
            nats.append(-chances.gather(-1, rows[:, -1:])[:, 0])
        return float(torch.cat(nats).mean())

    def size(self, part: slice) -> int:
        return (part.stop - part.start) * self.segment // self.stride

    def compare(self) -> str | None:
        ours, theirs = self.tokens.ids, self.used.ids
        if len(ours) != len(theirs):
            return f"{len(theirs):,} tokens are scored, and the text has {len(ours):,}"
        if off := int((ours != theirs).sum()):
            return f"{off:,} of the {len(ours):,} tokens that are scored are not those of the text"
        if (size := int(self.used.bytes.sum())) != len(self.text.encode()):
            return f"its tokens are said to stand for {size:,} bytes, and the text has {len(self.text.encode()):,}"
        if (words := int(self.used.starts.sum())) != len(self.text.split()):
            return f"its tokens are said to begin {words:,} words, and the text has {len(self.text.split()):,}"
        return None


@torch.no_grad()
def token_nats(answer: Answer, ids: Tensor, segment: int, stride: int) -> np.ndarray:
    """Of every token but the first. Windows begin every `stride` tokens, and the last one ends where the text ends; a
    token is due in the first window that reaches it."""
    targets = len(ids) - 1
    length, last = min(segment, targets), max(0, targets - segment)
    begins, nats = [*range(0, last, stride), last], []
    at_once, done = 1, 0
    while begins:
        some, begins = begins[:at_once], begins[at_once:]
        rows = torch.stack([ids[begin : begin + length + 1] for begin in some])
        chances = _log_softmax(answer(rows[None, :, :-1])[0])
        for begin, row, said in zip(some, rows, chances, strict=True):
            of_targets = -said.gather(-1, row[1:, None])[:, 0]
            nats.append(of_targets[done - begin :])
            done = begin + length
        at_once = max(1, AT_ONCE // (length * chances.shape[-1]))
    return torch.cat(nats).numpy()


@torch.no_grad()
def stream_nats(answer: Answer, ids: Tensor, segment: int) -> np.ndarray:
    """Of every token but the first, each segment read once, from left to right."""
    nats, state = [], None
    for read in ids[:-1].split(segment):
        logits, state = answer.going_on(read[None, None], state)
        chances, begin = _log_softmax(logits[0, 0]), len(nats)
        nats += [-float(said[ids[begin + k + 1]]) for k, said in enumerate(chances)]
    return np.array(nats)


def _log_softmax(logits: Tensor) -> Tensor:
    logits = logits.double().cpu()
    logits = logits - logits.amax(-1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def text_again(source: str, path: str | None, split: str, texts: dict[str, str]) -> str:
    """The text of a split as its file has it. What was cut off one text for it must be all that is left of that text.
    What a program makes, or the hub has, is taken as it was read."""
    file, cut = None, False
    if source == FILES and path is not None:
        folder = Path(path).expanduser()
        file = _file(folder, split, (".txt", ".txt.gz")) if folder.is_dir() else folder
        cut = not folder.is_dir()
    elif source in KNOWN_SETS:
        known = KNOWN_SETS[source]
        cut = known.train_share is not None
        file = known_files(source, known.files)["train" if cut else split]
    if file is None:
        return texts[split]
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8-sig").replace("\r\n", "\n")
    if not cut:
        return text
    length = len(texts["train"])
    return text[:length] if split == "train" else text[length:]


# --- classifiers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowRecount(Recount):
    rows: Sequence[Row]
    """Read again."""
    train: Sequence[str]
    """Texts."""
    used: Any
    """The rows that the scorer takes for them."""
    classes: tuple[str, ...]
    tokenizer: Tokenizer
    context: int

    @property
    def whole(self) -> np.ndarray:
        return np.arange(len(self.rows))

    @property
    def parts(self) -> list[np.ndarray]:
        """Rows from everywhere, and the shortest and longest: what is wrong with padding shows in these."""
        by_length = np.argsort(self.used.lengths[: len(self.rows)], kind="stable")
        everywhere = np.linspace(0, len(self.rows) - 1, 24).astype(int)
        return [np.unique(np.concatenate([everywhere, by_length[:4], by_length[-4:]]))]

    def count(self, part: np.ndarray, answer: Answer) -> Counted:
        rows = [self.rows[k] for k in part]
        chances = self._chances(rows, answer)
        right = [self.classes.index(row.label) for row in rows]
        chosen = [max(range(len(said)), key=said.__getitem__) for said in chances]
        of_right = [said[k] for said, k in zip(chances, right, strict=True)]
        nats = np.array([-math.log(chance) if chance > 0 else math.inf for chance in of_right])
        hits = [a == b for a, b in zip(chosen, right, strict=True)]
        values = {"loss": float(nats.mean()), "accuracy": sum(hits) / len(hits)}
        known = {" ".join(text.split()) for text in self.train}
        seen = [" ".join(row.text.split()) in known for row in rows]
        if any(seen) and not all(seen):
            values["accuracy_seen"] = _share(hit for hit, was in zip(hits, seen, strict=True) if was)
            values["accuracy_unseen"] = _share(hit for hit, was in zip(hits, seen, strict=True) if not was)
        for k, name in enumerate(self.classes):
            precision = _share(b == k for a, b in zip(chosen, right, strict=True) if a == k)
            recall = _share(a == k for a, b in zip(chosen, right, strict=True) if b == k)
            values |= {f"precision.{name}": precision, f"recall.{name}": recall}
            values[f"f1.{name}"] = _f1(precision, recall)
        return Counted(values, nats, self._loose(chances, chosen, right, values))

    def _loose(
        self, chances: list[list[float]], chosen: list[int], right: list[int], values: dict[str, float]
    ) -> dict[str, float]:
        """A row that could be of either of two classes moves what is counted of these two."""
        ranked = [sorted(range(len(said)), key=said.__getitem__, reverse=True)[:2] for said in chances]
        close = [two for two, said in zip(ranked, chances, strict=True) if len(two) == 2 and _apart(said, two) < CLOSE]
        found = dict.fromkeys((name for name in values if name.startswith("accuracy")), len(close) / len(chances))
        found |= {name: float(len(close) > 0) for name in ("accuracy_seen", "accuracy_unseen")}
        for k, name in enumerate(self.classes):
            touched = sum(k in two for two in close)
            recall, precision = touched / max(right.count(k), 1), touched / max(chosen.count(k) - touched, 1)
            found |= {f"recall.{name}": recall, f"precision.{name}": precision, f"f1.{name}": recall + precision}
        return found

    @torch.no_grad()
    def _chances(self, rows: Sequence[Row], answer: Answer) -> list[list[float]]:
        """Rows of one length are asked together: nothing is ever filled up."""
        ids = [ids[: self.context] for ids in self.tokenizer.encode_rows([row.text for row in rows])]
        found: list[list[float]] = [[] for _ in rows]
        for length in {len(one) for one in ids}:
            here = [k for k, one in enumerate(ids) if len(one) == length]
            for first in range(0, len(here), 64):
                some = here[first : first + 64]
                table = torch.as_tensor(np.stack([ids[k] for k in some])).long()
                powers = answer(table[None])[0].double().cpu()
                powers = (powers - powers.amax(-1, keepdim=True)).exp()
                for k, said in zip(some, powers / powers.sum(-1, keepdim=True), strict=True):
                    found[k] = said.tolist()
        return found

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """An interval tells of how many rows it is. (95 %, Wilson: https://doi.org/10.1080/01621459.1927.10502953)"""
        n, z, score = len(self.rows), 1.959964, scores.get("accuracy")
        if score is None or score.interval is None:
            return None
        p = score.value
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = ((p + z * z / (2 * n) + sign * half) / (1 + z * z / n) for sign in (-1, 1))
        if max(abs(low - score.interval[0]), abs(high - score.interval[1])) <= 1e-4:
            return None
        said, right = (f"{first:.3f} to {last:.3f}" for first, last in (score.interval, (low, high)))
        return f"an accuracy of {p:.3f} is said to be between {said}; of {n:,} rows the interval is {right}"

    def given(self, part: np.ndarray) -> Any:
        return self.used.only(part)

    def size(self, part: np.ndarray) -> int:
        return len(part) * self.context

    def compare(self) -> str | None:
        theirs = [(text, self.classes[k]) for text, k in zip(self.used.texts, self.used.labels, strict=True)]
        if len(theirs) != len(self.rows):
            return f"{len(theirs):,} rows are scored, and the source has {len(self.rows):,}"
        if off := sum(tuple(row) != one for row, one in zip(self.rows, theirs, strict=True)):
            return f"{off:,} of the {len(theirs):,} rows that are scored have another text or class in the source"
        ids, lengths = self.tokenizer.encode_rows([row.text for row in self.rows]), self.used.lengths
        if [len(one) for one in ids] != lengths.tolist() or not np.array_equal(np.concatenate(ids), self.used.ids):
            return "the tokens that are scored are not those of the texts"
        return None


def rows_again(source: str, path: str | None, columns: Any, split: str, used: dict[str, list[Row]]) -> list[Row]:
    """The rows of a split as its table has them. Those that were held out of train must be all that train has not."""
    names: dict[str, str] = {}
    if source in KNOWN_TABLES:
        known = KNOWN_TABLES[source]
        names, read = known.names, (known.text, known.label, known.header)
        files: dict[str, Path | None] = {**known_files(source, known.files)}
    elif source == tables.FILES and path is not None:
        folder, read = Path(path).expanduser(), (columns.text, columns.label, columns.header)
        files = {one: _file(folder, one, ENDINGS) for one in used} if folder.is_dir() else {"train": folder}
    else:
        return used[split]

    def of(file: Path) -> list[Row]:
        return [Row(text, names.get(label, label)) for text, label in read_table(file, *read)]

    of_train = files["train"]
    if files.get("valid") is None and split in ("train", "valid") and "valid" in used and of_train is not None:
        other, left = Counter(used["valid" if split == "train" else "train"]), []
        for row in of(of_train):
            if other[row]:
                other[row] -= 1
            else:
                left.append(row)
        return left
    file = files.get(split)
    return used[split] if file is None else of(file)


def _file(folder: Path, split: str, endings: Sequence[str]) -> Path | None:
    named = (folder / f"{stem}{ending}" for stem in _STEMS.get(split, (split,)) for ending in endings)
    return next((file for file in named if file.exists()), None)


def _apart(said: list[float], two: list[int]) -> float:
    return said[two[0]] - said[two[1]]


def _share(hits: Any) -> float:
    hits = list(hits)
    return sum(hits) / len(hits) if hits else math.nan


def _f1(precision: float, recall: float) -> float:
    """Where nothing was chosen, or nothing was there to be found, but not neither, there is no hit."""
    if math.isnan(precision) and math.isnan(recall):
        return math.nan
    if math.isnan(precision) or math.isnan(recall) or precision + recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
