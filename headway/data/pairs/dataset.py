"""Load pairs of texts: read from a source, filtered, tokenised with one vocabulary or two.

Vocabularies are learnt on train, on both sides together or on each by itself. Each is extended by one last token, END,
that the tokenizer does not know: a source ends with it, and a target begins and ends with it. Tokens are cached between
runs (`data/cache.py`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.errors import UserError, did_you_mean
from headway.data import cache
from headway.data.pairs.filters import Filters
from headway.data.pairs.sources import Sides, Splits, TextPair, normalised, read_pairs, some_of, with_valid
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec

SIDES, ARRAYS = ("source", "target"), ("ids", "ends")


@dataclass(frozen=True, eq=False)
class Side:
    """The sources or the targets of one split, with all tokens concatenated, without END."""

    texts: list[str]
    ids: np.ndarray
    """int32"""
    ends: np.ndarray
    """int64: where in `ids` each text ends."""
    end: int
    """The id of END."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text, including END."""
        return np.diff(self.ends, prepend=0) + 1

    def only(self, rows: np.ndarray) -> "Side":
        """A subset of the texts, in this order."""
        begins = np.concatenate(([0], self.ends[:-1]))
        ids = [self.ids[begins[k] : self.ends[k]] for k in rows]
        nothing = np.zeros(0, np.int32)
        ends = np.cumsum([len(one) for one in ids], dtype=np.int64)
        return Side([self.texts[k] for k in rows], np.concatenate([nothing, *ids]), ends, self.end)

    def padded(self, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each text with END, padded to the longest, and the lengths without padding. Texts longer than
        `longest` are truncated but keep END."""
        lengths = np.minimum(self.lengths, longest)
        slots = np.arange(int(lengths.max(initial=1)))
        table = np.zeros((len(self), len(slots)), dtype=np.int32)
        begins = np.concatenate(([0], self.ends[:-1])).astype(np.int64)
        inside = slots < lengths[:, None] - 1
        table[inside] = self.ids[(begins[:, None] + slots)[inside]]
        table[np.arange(len(self)), lengths - 1] = self.end
        return table, lengths


@dataclass(frozen=True, eq=False)
class PairedTexts:
    """One split."""

    source: Side
    target: Side
    seen: np.ndarray
    """bool: whether the same source, ignoring white space, is in train."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def longer(self) -> np.ndarray:
        """The length of each pair's longer side in tokens, with END."""
        return np.maximum(self.source.lengths, self.target.lengths)

    def only(self, rows: np.ndarray) -> "PairedTexts":
        return PairedTexts(self.source.only(rows), self.target.only(rows), self.seen[rows])


@dataclass(frozen=True, eq=False)
class PairedSet:
    name: str
    tokenizer: Tokenizer
    """The tokenizer of the sources, and of the targets if the vocabulary is joint."""
    target_tokenizer: Tokenizer
    splits: Mapping[str, PairedTexts]
    """By name; "train" is always the first."""
    identity: str
    """A fingerprint of everything the tokens depend on."""
    held_out: bool
    """Whether `valid` was held out of train because the source has none."""
    dropped: Mapping[str, int]
    """How many pairs of train were dropped, by reason."""
    files: Mapping[str, Sequence[TextPair]]
    """By split, all pairs in the order of the source, before anything was dropped or held out."""

    @property
    def is_joint(self) -> bool:
        return self.tokenizer is self.target_tokenizer

    def split(self, name: str) -> PairedTexts:
        if name not in self.splits:
            hint = did_you_mean(name, self.splits)
            if name == "valid":
                hint += "; with data.valid_fraction=0.1 a tenth of train becomes it"
            raise UserError(f"the pairs of '{self.name}' have no split '{name}'{hint}")
        return self.splits[name]


def ids_of(side: Side) -> list[np.ndarray]:
    """The tokens of each text, without END."""
    return np.split(side.ids, side.ends[:-1]) if len(side) else []


def load(
    source: str,
    path: str | None,
    sides: Sides,
    filters: Filters,
    valid_fraction: float,
    tokenizer: TokenizerSpec,
    target_tokenizer: TokenizerSpec | None,
    most: int | None = None,
) -> PairedSet:
    """Read the pairs and tokenise them, or take the tokens from the cache. Vocabularies are learnt on train only."""
    rows, name = read_pairs(source, path, sides), Path(path).name if path else source
    files = dict(rows)
    rows["train"], dropped = filters.applied(rows["train"])
    if not rows["train"]:
        told = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise UserError(f"'{name}' has no pairs to train on{f': data.filters dropped {told}' if told else ''}")
    held_out = "valid" not in rows and valid_fraction > 0
    if held_out:
        rows = with_valid(rows, valid_fraction, name)
    if most is not None:
        rows["train"] = some_of(rows["train"], most, name)
    identity = _identity(rows, tokenizer, target_tokenizer)
    sides_of = {"both": (tokenizer, (0, 1))}
    if target_tokenizer is not None:
        sides_of = {"source": (tokenizer, (0,)), "target": (target_tokenizer, (1,))}
    made: dict[int, tuple[Tokenizer, cache.Arrays]] = {}
    for which, (spec, of) in sides_of.items():
        names = [f"{split}/{SIDES[k]}/{part}" for split in rows for k in of for part in ARRAYS]
        entry = f"pairs-{identity}-{which}"
        found = cache.tokenised(entry, names, lambda spec=spec, of=of: _tokenise(name, rows, spec, of))
        made |= dict.fromkeys(of, found)
    in_train = {normalised(pair.source) for pair in rows["train"]}
    splits = {}
    for split, pairs in rows.items():
        sides_made = []
        for k in (0, 1):
            (tokenizer_made, arrays), texts = made[k], [pair[k] for pair in pairs]
            ids, ends = (arrays[f"{split}/{SIDES[k]}/{part}"] for part in ARRAYS)
            sides_made.append(Side(texts, ids, ends, tokenizer_made.size))
        seen = np.array([normalised(pair.source) in in_train for pair in pairs], dtype=np.bool_)
        splits[split] = PairedTexts(sides_made[0], sides_made[1], seen)
    return PairedSet(name, made[0][0], made[1][0], splits, identity, held_out, dropped, files)


def _tokenise(name: str, rows: Splits, spec: TokenizerSpec, sides: Sequence[int]) -> tuple[Tokenizer, cache.MakePieces]:
    """Learn a vocabulary on these sides of train, and tokenise these sides of all splits."""
    tokenizer = spec.learn("\n".join(pair[k] for k in sides for pair in rows["train"]))
    arrays = {}
    for split, pairs in rows.items():
        for k in sides:
            try:
                encoded = tokenizer.encode_rows([pair[k] for pair in pairs])
            except UserError as problem:
                raise UserError(f"'{name}', {SIDES[k]}s of split '{split}', {problem}") from None
            arrays[f"{split}/{SIDES[k]}/ids"] = np.concatenate([np.zeros(0, np.int32), *encoded])
            arrays[f"{split}/{SIDES[k]}/ends"] = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    return tokenizer, arrays.items


def _identity(rows: Splits, spec: TokenizerSpec, target_spec: TokenizerSpec | None) -> str:
    """A hash (32 hex digits) of everything the tokens depend on."""
    digest = cache.fingerprint(spec)
    digest.update(b"one\n" if target_spec is None else f"two\n{target_spec.identity()}\n".encode())
    for split, pairs in rows.items():
        digest.update(hashlib.sha256(split.encode()).digest())
        for pair in pairs:
            # Digests have a fixed length, so moving characters between a source, its target or the next pair changes
            # the hash.
            for side in pair:
                digest.update(hashlib.sha256(side.encode(errors="surrogatepass")).digest())
    return digest.hexdigest()[:32]
