"""Errors that are the user's to mend, with a message that says how.

`UserError` is the only exception the command line turns into a message instead of a traceback. Raise it with a sentence
that says what was given, where, what was expected, and the nearest thing that would have worked.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the caller's, not of Headway's. The command line prints the message and exits with 2."""


class EndedElsewhereError(UserError):
    """Another process of the same run has an error, and says what it is; the command line says nothing for this one."""


class CodeNotRunError(UserError):
    """What a folder holds needs code that lies there too, and nobody has said that it may be run."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'width'?` for a near miss, the list of what exists when it is short, else nothing."""
    names = sorted(set(known))
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    # A full path whose last word is what was typed is the likeliest meaning of all: lr → training.optimizer.lr.
    tails = [name for name in names if name.rsplit(".", 1)[-1] == given.rsplit(".", 1)[-1] and name != given]
    if len(tails) == 1:
        near = tails
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= 12 else ""
