"""The status of a run: a word, the step it came at, and the reason. People read the sentence that `str` makes of it.

The same three are kept wherever a run's end is written down (run.json, metrics.jsonl, checkpoints, a study's failures).
Earlier versions kept the sentence instead, "diverged at step 12: the loss is no longer a finite number"; `read` takes
either.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headway.core.errors import UserError, did_you_mean


class State(StrEnum):
    NOT_BEGUN = "not begun"
    IMPORTED = "imported"
    """Made of somebody else's weights; nothing was trained."""
    STARTED = "started"
    """And neither finished nor interrupted: it is being trained, or its process was killed."""
    INTERRUPTED = "interrupted"
    """Somebody pressed Ctrl-C: it was saved, and can be resumed."""
    FAILED = "failed"
    """An error ended it; the study goes on with the others, and may try it again."""
    NOT_SCORED = "not scored"
    """Trained, but killed before its scores were there."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """Its patience was over."""
    PRUNED = "pruned"
    """Somebody who watched had seen enough."""
    DIVERGED = "diverged"
    """A loss or a gradient was no longer a finite number."""


ENDS = {State.IMPORTED, State.FINISHED, State.STOPPED, State.PRUNED, State.DIVERGED}
_STATES = {str(state) for state in State}
_BEFORE_THE_END = {State.INTERRUPTED, State.STOPPED, State.PRUNED, State.DIVERGED}
_SENTENCE = re.compile(r"(?P<state>[a-z ]+?)(?: at step (?P<step>\d+))?(?:: (?P<reason>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Status:
    state: State
    step: int | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """The sentence; of a run that failed, the reason alone says it."""
        if self.state is State.FAILED and self.reason:
            return self.reason
        said = "not finished" if self.state is State.STARTED else str(self.state)
        if self.state in _BEFORE_THE_END and self.step is not None:
            said += f" at step {self.step}"
        return f"{said}: {self.reason}" if self.reason else said

    @property
    def is_end(self) -> bool:
        """There is nothing left to train."""
        return self.state in ENDS

    @property
    def is_interrupted(self) -> bool:
        return self.state is State.INTERRUPTED

    @property
    def is_diverged(self) -> bool:
        return self.state is State.DIVERGED

    def as_json(self) -> dict[str, Any]:
        return {"status": str(self.state), "step": self.step, "reason": self.reason}

    @classmethod
    def read(cls, facts: Mapping[str, Any], key: str = "status") -> "Status":
        """From what `as_json` gave, among other facts perhaps; or from a sentence of an older version. What is neither
        is a UserError."""
        said = facts.get(key)
        found = _SENTENCE.fullmatch(said) if isinstance(said, str) else None
        if found is None or found["state"] not in _STATES:
            raise UserError(f"{said!r} is no status of a run{did_you_mean(str(said), State)}")
        step = facts.get("step") if found["step"] is None else int(found["step"])
        return cls(State(found["state"]), step, found["reason"] or facts.get("reason"))
