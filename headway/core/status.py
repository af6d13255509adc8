"""The status of a run: a state, the step at which it was reached, and the reason. `str` makes a sentence of it.

These three are stored wherever the end of a run is recorded (run.json, metrics.jsonl, checkpoints, a study's failures).
Earlier versions stored the sentence instead, such as "diverged at step 12: the loss is no longer a finite number";
`read` accepts both.
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
    """Made from imported weights; nothing was trained."""
    STARTED = "started"
    """Neither finished nor interrupted: it is training, or its process was killed."""
    INTERRUPTED = "interrupted"
    """Stopped by Ctrl-C; it was saved and can be resumed."""
    FAILED = "failed"
    """Ended by an error. A study continues with its other runs, and may try this one again."""
    NOT_SCORED = "not scored"
    """Trained, but killed before it was scored."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """Early stopping: no improvement within the patience."""
    PRUNED = "pruned"
    """Ended early by a listener, such as a search's pruner."""
    DIVERGED = "diverged"
    """The loss or a gradient was no longer finite."""


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
        """The status as a sentence. For a failed run, the reason alone."""
        if self.state is State.FAILED and self.reason:
            return self.reason
        said = "not finished" if self.state is State.STARTED else str(self.state)
        if self.state in _BEFORE_THE_END and self.step is not None:
            said += f" at step {self.step}"
        return f"{said}: {self.reason}" if self.reason else said

    @property
    def is_end(self) -> bool:
        """Whether there is nothing left to train."""
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
        """Read what `as_json` wrote (possibly among other facts), or the sentence of an older version. Raises UserError
        for anything else."""
        said = facts.get(key)
        found = _SENTENCE.fullmatch(said) if isinstance(said, str) else None
        if found is None or found["state"] not in _STATES:
            raise UserError(f"{said!r} is not a run's status{did_you_mean(str(said), State)}")
        step = facts.get("step") if found["step"] is None else int(found["step"])
        return cls(State(found["state"]), step, found["reason"] or facts.get("reason"))
