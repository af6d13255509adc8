"""Makes text safe to print: control characters are shown, not sent to the terminal.

A label, a column name, a run's name or a model's configuration may contain escape sequences that clear the screen,
change the window title or paste text. All output goes through here. Only the sequences that Headway's own tables and
progress bars use are passed on, and only to a terminal.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS_AND_BARS = re.compile("(\x1b\\[[0-9;]*m|\x1b\\[[0-9]*[AKG]|\x1b\\[2K|\x1b\\[\\?25[lh]|\r)")


def shown(text: str) -> str:
    """The text with every control character escaped, in a way that is valid inside JSON as well."""
    return _ORDERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class ShownStream:
    """An output stream that escapes control characters."""

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def write(self, text: str) -> int:
        if not _ORDERS.search(text):
            self.stream.write(text)
        elif self.stream.isatty():
            parts = _COLOURS_AND_BARS.split(text)  # every second part is a permitted sequence
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
    """Replace stdout and stderr by escaping streams while a command runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (ShownStream(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
