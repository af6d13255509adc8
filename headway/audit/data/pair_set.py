"""Translation pairs by split, as data audits use them: as given, normalised, and with each pair as one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headway.audit.data.row_set import RowSet, held_out_of, normalise


@dataclass(frozen=True, eq=False)
class PairSet:
    """Pairs by split, train first, in the order of their files."""

    pairs: Mapping[str, Sequence[tuple[str, str]]]
    one_answer: bool = False
    """Whether each source has exactly one right translation."""
    files: Mapping[str, Sequence[tuple[str, str]]] | None = None
    """The same pairs before any were dropped or held out; None if none were."""

    @property
    def held_out(self) -> list[str]:
        return held_out_of(self.pairs)

    @cached_property
    def normalised(self) -> dict[str, list[tuple[str, str]]]:
        return {split: [(_normalised(s), _normalised(t)) for s, t in pairs] for split, pairs in self.pairs.items()}

    @cached_property
    def sources(self) -> RowSet:
        return RowSet({split: [source for source, _ in pairs] for split, pairs in self.pairs.items()})

    @cached_property
    def rows(self) -> RowSet:
        """Both sides of a pair as one text."""
        return RowSet({split: [f"{s}\t{t}" for s, t in pairs] for split, pairs in self.pairs.items()})


def _normalised(text: str) -> str:
    """As `normalise`, but a text without any word, such as ((())) or 🙂, is kept: others must not count as equal."""
    return normalise(text) or " ".join(text.split())
