"""The training loop. It knows only that there are R replicas: `model.loss` returns one loss per replica.

Each step: batch → losses → gradients → clip → optimizer step. Losses stay on the device until they are written. A
replica ends when the run is over, when its loss or gradient is no longer finite, by early stopping, or when the
recorder asks for it. Ended replicas keep their weights, and the others are not affected.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.core.status import State, Status
from headway.nn.trainable import Trainable
from headway.training import schedule
from headway.training.auto_compile import AutoCompile
from headway.training.averaging import Averages
from headway.training.carried import CarriedState
from headway.training.interrupts import interruptible
from headway.training.optimizers import Optimizer
from headway.training.parallel import Parallel
from headway.training.setting import Setting
from headway.training.spec import TrainingSpec
from headway.training.update import Sampler, Update

Scores = dict[str, float]


@dataclass
class ReplicaState:
    """The state of one replica beside its weights; saved with every checkpoint."""

    ended: Status | None = None
    """Set if it ended early."""
    best: float | None = None
    """The best value of `training.best_by` so far."""
    best_step: int = 0
    evaluations_since_best: int = 0
    lines: int = 0
    """The number of lines of metrics so far."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ended": self.ended and self.ended.as_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ReplicaState":
        known = dict(stored)
        ended, at = known.pop("ended"), known.pop("ended_at", None)
        if "best_loss" in known:  # from an earlier version, in which the loss was the only criterion
            known["best"] = known.pop("best_loss")
        # An earlier version saved a sentence, and the step separately.
        told = {"status": ended, "step": at} if isinstance(ended, str) else ended
        return cls(ended=Status.read(told) if told else None, **known)


class Recorder(Protocol):
    """Writes metrics and checkpoints; `Loop` itself never touches a file."""

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> str | None:
        """Record lines of metrics; return a reason to end this replica (pruning), or None."""
        ...

    def checkpoint(self, replica: int, step: int) -> None: ...
    def best(self, replica: int, step: int) -> None: ...
    def progress(self, step: int, total: int, losses: list[float], tokens_per_second: float) -> None: ...
    def ended(self, replica: int) -> None:
        """This replica ended; its `ReplicaState` says why."""
        ...


@dataclass
class Loop:
    model: Trainable
    optimizer: Optimizer
    sampler: Sampler
    spec: TrainingSpec
    setting: Setting
    tokens_per_step: int
    """Tokens of one replica."""
    evaluate: Callable[[], list[Scores]]
    """Returns `split.loss` … for every replica, with the model's current weights."""
    recorder: Recorder
    replica_states: list[ReplicaState]
    step: int = 0
    parallel: Parallel | None = None
    """How processes share the work; None = there is only this one."""
    carried: CarriedState | None = None
    """The state that the model carries from batch to batch; None = nothing yet."""
    averages: Averages | None = None
    """Averages of the weights, which are scored in their place; None = no averaging."""
    lowest_is_best: bool = True
    """Whether the lowest value of `training.best_by` is the best."""
    compiling: AutoCompile | None = None
    """Compiles the model if that pays off; None = never."""
    interrupted: bool = False
    _pending: list[tuple[int, Tensor, Tensor, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = self._steps(self.spec.duration)
        self.warmup = self._steps(self.spec.schedule.warmup) if self.spec.schedule.warmup else 0
        self.evaluate_every = self._steps(self.spec.evaluate_every)
        self.checkpoint_every = self._steps(self.spec.checkpoint_every)
        self.alive = torch.tensor([s.ended is None for s in self.replica_states], device=self.setting.device)
        self.shared = self.parallel or Parallel(self.model)
        self.processes = self.shared.processes
        self.carried = CarriedState(self.processes) if self.carried is None else self.carried
        self.carried.check_rows(self.spec.batch)
        self.update = Update(
            self.model,
            self.optimizer,
            self.sampler,
            self.spec,
            self.setting,
            self.alive,
            self.shared,
            self.carried,
            self.averages,
        )
        self._clock = (time.perf_counter(), self.step)

    def run(self) -> None:
        """Train to the end, or until Ctrl-C, and save."""
        if self.step >= self.total or not self.anyone_left:
            return
        with interruptible(aloud=self.processes.is_writer) as stop_asked:
            self._clock = (time.perf_counter(), self.step)
            while self.step < self.total and self.anyone_left and not self.interrupted:
                if self.compiling is not None:
                    self.compiling.before(self.step, self.update)
                self.take_step()
                a_second_ago = time.perf_counter() - self._clock[0] > 1.0
                self.interrupted, due = self.processes.agree(stop_asked(), a_second_ago)
                last = self.step == self.total or self.interrupted
                # About once a second: copy losses from the device, and end replicas that diverged.
                if last or due or len(self._pending) >= 500:
                    self.write_down()
                # Not when interrupted: an unplanned evaluation would count for `best` and `patience`.
                if self.spec.evaluate_on and (self.step == self.total or self.step % self.evaluate_every == 0):
                    self.score()
                if last or self.step % self.checkpoint_every == 0 or not self.anyone_left:
                    self.save()
            if self.compiling is not None:
                self.compiling.stop()
            self.processes.agree()  # fails if something could not be written

    @property
    def anyone_left(self) -> bool:
        return any(s.ended is None for s in self.replica_states)

    def take_step(self) -> None:
        """Take one step with every replica that is alive."""
        rate = schedule.factor(self.spec.schedule, self.step, self.warmup, self.total)
        losses, norms = self.update(self.step, rate)
        self.step += 1
        self._pending.append((self.step, losses, norms, rate))

    def write_down(self) -> None:
        """Copy the pending losses and norms to the host, write them, and end replicas that diverged."""
        if not self._pending:
            return
        steps, losses, norms, rates = zip(*self._pending, strict=True)
        losses, norms = torch.stack(losses).tolist(), torch.stack(norms).tolist()  # the only wait for the device
        began, from_step = self._clock
        seconds = time.perf_counter() - began
        tokens_per_second = (
            (self.step - from_step) * self.tokens_per_step * len(self.replica_states) / max(seconds, 1e-9)
        )
        for r, replica_state in enumerate(self.replica_states):
            if replica_state.ended is not None:
                continue
            replica_state.seconds += seconds
            base = self.optimizer.base_rates[r]
            lines, broke = [], None
            for step, loss, norm, rate in zip(steps, losses, norms, rates, strict=True):
                if not _finite(loss[r]) or not _finite(norm[r]):
                    broke = (step, "gradient" if _finite(loss[r]) else "loss")
                    break
                lines.append({"step": step, "loss": loss[r], "norm": norm[r], "rate": base * rate})
            self.recorder.metrics(r, lines)
            if broke:
                self._end(r, State.DIVERGED, broke[0], f"the {broke[1]} is no longer a finite number")
        self.recorder.progress(self.step, self.total, losses[-1], tokens_per_second)
        if self.compiling is not None:
            self.compiling.after(from_step, self.step, seconds)
        self._pending.clear()
        self._clock = (time.perf_counter(), self.step)

    def score(self) -> None:
        """Evaluate every replica, keep track of the best, and end those that diverged or stop early."""
        self.write_down()
        self.model.eval()
        with self.averages.in_place() if self.averages else nullcontext(), torch.no_grad(), self.setting.autocast():
            all_scores = self.shared.asked_for(self.evaluate)
        for r, (scores, replica_state) in enumerate(zip(all_scores, self.replica_states, strict=True)):
            if replica_state.ended is not None:
                continue
            on = self.spec.evaluate_on[0]
            loss = scores[f"{on}.loss"]
            if not _finite(loss):
                self._end(r, State.DIVERGED, self.step, f"the loss on {on} is no longer a finite number")
                continue
            enough = self.recorder.metrics(r, [{"step": self.step, "scores": scores}])
            found, best = scores[f"{on}.{self.spec.best_by}"], replica_state.best
            if best is None or (found < best if self.lowest_is_best else found > best):
                replica_state.best, replica_state.best_step = found, self.step
                replica_state.evaluations_since_best = 0
                if self.spec.keep_best:
                    self.recorder.best(r, self.step)
            else:
                replica_state.evaluations_since_best += 1
            if enough:
                self._end(r, State.PRUNED, self.step, enough)
            elif self.spec.patience and replica_state.evaluations_since_best >= self.spec.patience:
                best = f"{'lowest' if self.lowest_is_best else 'highest'} {self.spec.best_by}"
                self._end(r, State.STOPPED, self.step, f"no new {best} in {self.spec.patience} evaluations")
        self._clock = (time.perf_counter(), self.step)

    def save(self) -> None:
        self.write_down()
        for r, replica_state in enumerate(self.replica_states):
            if replica_state.ended is None:
                self.recorder.checkpoint(r, self.step)
        self._clock = (time.perf_counter(), self.step)

    def _end(self, r: int, state: State, step: int, reason: str) -> None:
        """End replica r; the others are not affected."""
        self.replica_states[r].ended = Status(state, step, reason)
        self.alive[r] = False
        self.recorder.metrics(r, [{"step": step, "ended": str(state), "reason": reason}])
        self.recorder.ended(r)
        self.recorder.checkpoint(r, step)

    def _steps(self, duration: schedule.Duration) -> int:
        return duration.in_steps(self.sampler.steps_per_epoch, self.tokens_per_step)


def _finite(x: float) -> bool:
    return abs(x) < float("inf")  # False for NaN too
