"""Filters for training pairs: metadata, untranslated rows, and texts that are too long.

Only train is filtered. Held-out splits stay complete, because dropping hard rows would make a different test set.
"""

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from headway.core.spec import Spec
from headway.data.pairs.sources import TextPair, normalised

_TAG = re.compile(r"<[a-zA-Z]")
NAMES_AND_NUMBERS = 2
"""Up to so many words are often the same in two languages."""


class Filters(Spec):
    """Which rows are dropped from train, and counted."""

    metadata: bool = True
    """Drop rows that begin with a tag such as <title> on either side: talk metadata, not text."""
    empty: bool = True
    """Drop rows with an empty side."""
    untranslated: bool = True
    """Drop rows of more than two words whose sides are identical."""
    longest: int | None = Field(default=250, ge=1)
    """Drop rows with more words than this on either side; null = no limit."""
    ratio: float | None = Field(default=None, gt=1)
    """Drop rows where one side has more than ten words and more than this many times the words of the other; null = no
    limit."""

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
        """The remaining pairs, and how many were dropped for each reason."""
        reasons = [self.reason(pair) for pair in pairs]
        kept = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
        return kept, dict(Counter(reason for reason in reasons if reason is not None))
