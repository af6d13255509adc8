"""How a text is read when it is scored: in segments, in windows that overlap, or as one stream."""

from typing import NamedTuple


class Reading(NamedTuple):
    """How a text is read when it is scored."""

    segment: int
    stride: int
    carried: bool = False
    """From left to right as one stream, each segment going on from the state of the one before."""

    @property
    def label(self) -> str:
        if self.carried:
            return f"segment {self.segment}, state carried"
        return f"segment {self.segment}, stride {self.stride}, no state carried"
