"""Texts from elsewhere made safe to print: control characters are shown, not sent to the terminal.

A label, a column's name, a run's name or a model's configuration may hold the bytes by which a terminal is told to wipe
the screen, to change its title or to paste. Everything that is printed goes through here; of such orders, only those
pass that Headway's own tables and bars are made with, and those only to a terminal.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS_AND_BARS = re.compile("(\x1b\\[[0-9;]*m|\x1b\\[[0-9]*[AKG]|\x1b\\[2K|\x1b\\[\\?25[lh]|\r)")


def shown(text: str) -> str:
    """With every order written out, in a way that is right inside JSON as well."""
    return _ORDERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class ShownStream:
    """A stream that people look at."""

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def write(self, text: str) -> int:
        if not _ORDERS.search(text):
            self.stream.write(text)
        elif self.stream.isatty():
            parts = _COLOURS_AND_BARS.split(text)  # every second one is such an order
            self.stream.write("".join(part if k % 2 else shown(part) for k, part in enumerate(parts)))
        else:
            self.stream.write(shown(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def nothing_sent() -> Iterator[None]:
    """While a verb runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (ShownStream(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
