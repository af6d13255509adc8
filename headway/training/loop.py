"""The training loop. It knows R replicas and nothing of the model: `model.loss` gives one loss per replica.

Each step: batch → losses → gradients → clip → step. Numbers stay on the device until they are due to be written. A
replica ends when the run is over, when its loss or gradient is no longer finite, when its patience is, or when somebody
who watches has seen enough; ended replicas keep their weights and the others do not notice.
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
    """What is known of one replica beside its weights; saved with every checkpoint."""

    ended: Status | None = None
    """Before its time."""
    best: float | None = None
    """What the best evaluation so far has given, in `training.best_by`."""
    best_step: int = 0
    evaluations_since_best: int = 0
    lines: int = 0
    """Of metrics, so far."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ended": self.ended and self.ended.as_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ReplicaState":
        known = dict(stored)
        ended, at = known.pop("ended"), known.pop("ended_at", None)
        if "best_loss" in known:  # of an earlier version, which knew no other best
            known["best"] = known.pop("best_loss")
        # An earlier version's is a sentence, with its step beside it.
        told = {"status": ended, "step": at} if isinstance(ended, str) else ended
        return cls(ended=Status.read(told) if told else None, **known)


class Recorder(Protocol):
    """Who writes things down; `Loop` never sees a file."""

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> str | None:
        """Gives the reason to end this replica after an evaluation, if somebody who watches has one."""
        ...

    def checkpoint(self, replica: int, step: int) -> None: ...
    def best(self, replica: int, step: int) -> None: ...
    def progress(self, step: int, total: int, losses: list[float], tokens_per_second: float) -> None: ...
    def ended(self, replica: int) -> None:
        """Its state says how."""
        ...


@dataclass
class Loop:
    model: Trainable
    optimizer: Optimizer
    sampler: Sampler
    spec: TrainingSpec
    setting: Setting
    tokens_per_step: int
    """Of one replica."""
    evaluate: Callable[[], list[Scores]]
    """`split.loss` … for every replica, as the model stands."""
    recorder: Recorder
    replica_states: list[ReplicaState]
    step: int = 0
    parallel: Parallel | None = None
    """How processes share the work; None = this is the only one."""
    carried: CarriedState | None = None
    """What the model carries from batch to batch; None = nothing yet."""
    averages: Averages | None = None
    """Of the weights, which are scored in their place; None = the weights are."""
    lowest_is_best: bool = True
    """Of `training.best_by`."""
    compiling: AutoCompile | None = None
    """Who has it compiled, where that pays; None = nobody."""
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
        """Train to the end, or until Ctrl-C; afterwards everything is saved."""
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
                # About once a second: the numbers leave the device, and those who diverged are noticed.
                if last or due or len(self._pending) >= 500:
                    self.write_down()
                # Not when interrupted: an evaluation nobody planned would count for `best` and `patience`.
                if self.spec.evaluate_on and (self.step == self.total or self.step % self.evaluate_every == 0):
                    self.score()
                if last or self.step % self.checkpoint_every == 0 or not self.anyone_left:
                    self.save()
            if self.compiling is not None:
                self.compiling.stop()
            self.processes.agree()  # that everything could be written

    @property
    def anyone_left(self) -> bool:
        return any(s.ended is None for s in self.replica_states)

    def take_step(self) -> None:
        """One update of every replica that is alive."""
        rate = schedule.factor(self.spec.schedule, self.step, self.warmup, self.total)
        losses, norms = self.update(self.step, rate)
        self.step += 1
        self._pending.append((self.step, losses, norms, rate))

    def write_down(self) -> None:
        """Bring the pending numbers to the host, write them, and end the replicas that diverged."""
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
        """Evaluate every replica; note the best; end those that diverged and those whose patience is over."""
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
        """Replica r takes no further step; the others do not notice."""
        self.replica_states[r].ended = Status(state, step, reason)
        self.alive[r] = False
        self.recorder.metrics(r, [{"step": step, "ended": str(state), "reason": reason}])
        self.recorder.ended(r)
        self.recorder.checkpoint(r, step)

    def _steps(self, duration: schedule.Duration) -> int:
        return duration.in_steps(self.sampler.steps_per_epoch, self.tokens_per_step)


def _finite(x: float) -> bool:
    return abs(x) < float("inf")  # False for NaN too
