"""Errors that the user can fix, with messages that say how.

`UserError` is the only exception that the command line turns into a message instead of a traceback. Its message should
say what was given, where, what was expected, and the closest valid value.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake by the caller, not a bug in Headway. The command line prints the message and exits with 2."""


class NoRoomError(UserError):
    """Something needs more memory than there is, by an estimate from below; nothing was allocated."""


class EndedElsewhereError(UserError):
    """Another process of the same run failed and reports the error; this process exits without a message."""


class CodeNotRunError(UserError):
    """A folder needs code that is stored in it, and the user has not allowed that code to run."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'width'?` for a near miss, the list of known names when it is short, otherwise nothing."""
    names = sorted(set(known))
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    # A full path that ends in the given word is the most likely meaning: lr → training.optimizer.lr.
    tails = [name for name in names if name.rsplit(".", 1)[-1] == given.rsplit(".", 1)[-1] and name != given]
    if len(tails) == 1:
        near = tails
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= 12 else ""
