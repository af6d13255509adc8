"""Which pairs are left out of training: metadata, untranslated rows, and texts that are too long.

Only train is filtered. Held-out splits are scored as their source has them: whoever drops hard rows there has made
another test.
"""

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from headway.core.spec import Spec
from headway.data.pairs.sources import TextPair, normalised

_TAG = re.compile(r"<[a-zA-Z]")
NAMES_AND_NUMBERS = 2
"""Words: as much may be the same in two languages, and often is."""


class Filters(Spec):
    """What is dropped from train, and counted."""

    metadata: bool = True
    """Rows that begin with a tag on either side, as <title>: what is said about a text, not the text."""
    empty: bool = True
    """Rows with nothing on one of the sides."""
    untranslated: bool = True
    """Rows of more than two words that are the same on both sides."""
    longest: int | None = Field(default=250, ge=1)
    """Rows with more words than this on one of the sides; null = none is too long."""
    ratio: float | None = Field(default=None, gt=1)
    """Rows whose one side has more than so many times the words of the other, and more than ten; null = any may."""

    def reason(self, pair: TextPair) -> str | None:
        """Why this pair is dropped, or None. The first reason counts."""
        words = [len(side.split()) for side in pair]
        if self.empty and not all(words):
            return "empty"
        if self.metadata and any(_TAG.match(side) for side in pair):
            return "metadata"
        same = normalised(pair.source) == normalised(pair.target)
        if self.untranslated and same and words[0] > NAMES_AND_NUMBERS:
            return "untranslated"
        if self.longest is not None and max(words) > self.longest:
            return "too long"
        if self.ratio is not None and max(words) > 10 and max(words) > self.ratio * min(words):
            return "unlike lengths"
        return None

    def applied(self, pairs: Sequence[TextPair]) -> tuple[list[TextPair], dict[str, int]]:
        """The pairs that are left, and how many were dropped for which reason."""
        reasons = [self.reason(pair) for pair in pairs]
        kept = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
        return kept, dict(Counter(reason for reason in reasons if reason is not None))
