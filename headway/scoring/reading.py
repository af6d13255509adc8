"""How a text is fed to the model for scoring: in segments, in overlapping windows, or as one stream."""

from typing import NamedTuple


class Reading(NamedTuple):
    """Segment length, stride, and whether state is carried."""

    segment: int
    stride: int
    carried: bool = False
    """The text is one stream: each segment continues from the state of the one before."""

    @property
    def label(self) -> str:
        if self.carried:
            return f"segment {self.segment}, state carried"
        return f"segment {self.segment}, stride {self.stride}, no state carried"
