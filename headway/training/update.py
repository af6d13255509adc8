"""One training step: batch → losses → gradients → clip → new weights, for all replicas, without waiting for the device.

Everything that changes from step to step (the step itself, the learning rate) is a tensor, so on CUDA the whole step is
recorded once as a CUDA graph and then replayed. That is one launch instead of hundreds, and for small models launch
overhead is most of the time. If batches have several shapes, each shape has its own graph.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.core.errors import UserError
from headway.nn.kernels import launching
from headway.nn.kernels.trusted import compared_together
from headway.nn.replicated import copies_for_products
from headway.nn.trainable import Trainable
from headway.training.averaging import Averages
from headway.training.capacity import is_out_of_memory
from headway.training.carried import CarriedState
from headway.training.compiling import compiled_loss
from headway.training.optimizers import Optimizer
from headway.training.parallel import Parallel
from headway.training.setting import Setting, keep_freed_memory
from headway.training.spec import TrainingSpec

_LOG = logging.getLogger("headway")
STEPS_BEFORE_RECORDING = 3  # warm-up, in which kernels are chosen and compiled; these steps train like the others

Losses = Float[Tensor, "R"]
Result = TypeVar("Result")


class TrainingBatch(Protocol):
    @property
    def first_row(self) -> int:
        """The index of the first of these rows in the whole batch."""
        ...

    @property
    def begins(self) -> Bool[Tensor, "..."]:
        """Whether the rows start again, so that no state is carried over from the previous step."""
        ...

    def part(self, k: int, n: int) -> Any:
        """The k-th of n equal slices of the rows."""
        ...


class Sampler(Protocol):
    steps_per_epoch: int

    def at(self, step: Any) -> TrainingBatch:
        """The batch of this step, which can be a tensor."""
        ...


@runtime_checkable
class SamplerOfShapes(Sampler, Protocol):
    """A sampler whose batches have several shapes."""

    def shape_of(self, step: int) -> int:
        """The shape of this step's batch."""
        ...

    def of_shape(self, shape: int) -> Sampler:
        """The sampler for steps with this shape."""
        ...


class Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    losses: Losses
    norms: Losses


class Update:
    def __init__(
        self,
        model: Trainable,
        optimizer: Optimizer,
        sampler: Sampler,
        spec: TrainingSpec,
        setting: Setting,
        alive: Bool[Tensor, "R"],
        parallel: Parallel | None = None,
        carried: CarriedState | None = None,
        averages: Averages | None = None,
    ):
        self.model, self.optimizer, self.sampler, self.spec, self.setting = model, optimizer, sampler, spec, setting
        self.alive = alive  # changed in place: by a step if a loss or gradient is not finite, and by the loop
        self.parallel = parallel or Parallel(model)
        self.carried = CarriedState(self.parallel.processes) if carried is None else carried
        self.averages = averages
        self.loss = model.loss
        self.copies = copies_for_products(model)
        self.compiled_shapes: set[int] | None = None  # shapes compiled so far; None = not compiled
        if alive.device.type == "cpu":
            keep_freed_memory()
        self.rate = torch.zeros((), device=alive.device)
        self.steps_taken: Counter[int] = Counter()  # per shape
        self.recordings: dict[int, Recording] = {}
        self.stream = torch.cuda.Stream() if alive.is_cuda else None
        self._discard_recordings()
        if setting.compiled:
            self.compile(whole=True)

    def compile(self, backend: str = "inductor", whole: bool = False) -> None:
        """Use compiled programs from the next step on. Nothing else changes: weights, optimizer state, noise and data
        stay the same, so steps differ only by the rounding of the compiler's kernels. CUDA graphs are discarded and
        recorded again."""
        self._discard_recordings()
        if self.stream is not None:
            self._try_kernels()
        # By default the compiler makes one program for all shapes, which is slower than one for each of a few shapes.
        dynamic = False if isinstance(self.sampler, SamplerOfShapes) else None
        self.loss = compiled_loss(self.model, dynamic, backend, whole)
        with launching.in_use():
            self.optimizer.compile()
        self.compiled_shapes = set()

    def uncompile(self) -> None:
        """Undo `compile`, from the next step on."""
        self.compiled_shapes, self.loss = None, self.model.loss
        self.optimizer.uncompile()
        self._discard_recordings()

    def _discard_recordings(self) -> None:
        self.recordings.clear()
        self.steps_taken.clear()
        self.pool = torch.cuda.graph_pool_handle() if self.stream is not None else None

    def _try_kernels(self) -> None:
        """Run the loss once uncompiled, because attention's kernel is checked only outside torch.compile
        (`nn/backends.py`)."""
        if isinstance(self.sampler, SamplerOfShapes):  # texts too short for that kernel
            return
        self.model.train()
        with torch.no_grad():
            self._losses_of(self.sampler.at(self.model.clock.step).part(0, parts := self.spec.accumulate), parts)

    def _losses_of(self, part: Any, of: int) -> Losses:
        """The losses of the first of so many parts of a batch, uncompiled. Nothing of the training changes by it."""
        before = self.carried.before(0, of, part.begins) if self.carried else None
        with self.setting.autocast():
            return self.model.loss(part, before)[0]

    def build_kernels(self, sampler: Sampler) -> None:
        """Compute the gradients of one row to find out which kernels a step asks for, and build all that are new at the
        same time. (A few more are asked for: by the plain code in the place of those that are missing.) One after
        another, as the first step would, takes three times as long."""
        batch, rows = sampler.at(self.model.clock.step), self.spec.batch
        try:
            part = batch.part(0, rows)
        except UserError:  # a batch that cannot be split, such as a contrastive one
            part, rows = batch.part(0, 1), 1
        with compared_together():
            self.optimizer.ask_for_kernels()
            try:
                with self.copies.in_use():
                    self._losses_of(part, rows).sum().backward()
            except Exception as error:
                if not is_out_of_memory(error):  # a whole batch may need more memory without kernels than a step does
                    raise
            for p in self.optimizer.parameters:
                p.grad = None

    def __call__(self, step: int, rate: float) -> tuple[Losses, Losses]:
        """Take this step at this fraction of the learning rates; return each replica's loss and gradient norm."""
        if not self.model.training:  # train() visits all modules, which takes a quarter of a millisecond
            self.model.train()
        self.model.clock.step.fill_(step)
        self.rate.fill_(rate)
        shape, sampler = 0, self.sampler
        if isinstance(sampler, SamplerOfShapes):
            shape = sampler.shape_of(step)
            sampler = sampler.of_shape(shape)
        if self.stream is None:
            return self.compute(sampler, shape)
        with launching.in_use():
            return self.on_gpu(sampler, shape)

    def on_gpu(self, sampler: Sampler, shape: int) -> tuple[Losses, Losses]:
        if not self.setting.recorded:
            return self.compute(sampler, shape)
        if not self.steps_taken and self.compiled_shapes is None:
            self.on_side_stream(lambda: self.build_kernels(sampler))
        if shape not in self.recordings and self.steps_taken[shape] == STEPS_BEFORE_RECORDING:
            self.recordings[shape] = self.record(sampler, shape)
        self.steps_taken[shape] += 1
        if shape not in self.recordings:
            return self.on_side_stream(lambda: self.compute(sampler, shape))
        recorded = self.recordings[shape]
        recorded.graph.replay()
        return recorded.losses.clone(), recorded.norms.clone()  # the next replay overwrites them

    def compute(self, sampler: Sampler, shape: int) -> tuple[Losses, Losses]:
        """Take a step. If compiling fails at the first step of a shape, train on without compiling."""
        if self.compiled_shapes is None or shape in self.compiled_shapes:
            return self.take(sampler)
        self.compiled_shapes.add(shape)
        steps = self.optimizer.steps.clone()
        try:
            return self.take(sampler)
        except Exception as error:  # a compiler can raise anything: a truncated cache file, unsupported code …
            if is_out_of_memory(error):
                raise
            told = " ".join(f"{type(error).__name__}: {error}".split())
            _LOG.warning(f"compiling failed ({told[:300]}); training continues uncompiled")
        # Compilation happens at the first call, so no weights have changed yet.
        self.compiled_shapes, self.loss = None, self.model.loss
        self.optimizer.uncompile()
        self.optimizer.steps.copy_(steps)
        for p in self.optimizer.parameters:
            p.grad = None
        return self.take(sampler)

    def take(self, sampler: Sampler) -> tuple[Losses, Losses]:
        batch = sampler.at(self.model.clock.step)  # the whole batch, in every process: it is only token ids
        losses = torch.zeros_like(self.alive, dtype=torch.float32)
        rank, world = self.parallel.processes.rank, self.parallel.processes.world
        parts = self.spec.accumulate
        whole = self.model.counted(batch) if parts * world > 1 else None
        with self.copies.in_use():  # no weight changes before all parts are done
            for k in range(parts):
                part = batch.part(rank * parts + k, world * parts)
                self.model.clock.first_row = part.first_row
                before = self.carried.before(k, parts, part.begins) if self.carried else None
                with self.setting.autocast():
                    part_losses, state = self.loss(part, before)
                # If parts have different numbers of counted items, the batch mean is not the mean of their means.
                own = None if whole is None else self.model.counted(part)
                if own is None or whole is None:
                    part_losses = part_losses / parts
                else:
                    part_losses = part_losses * (world * own / whole)
                part_losses.sum().backward()  # each replica's weights get gradients from its own loss only
                if state is not None:
                    self.carried.after(k, parts, state)
                losses += part_losses.detach()
        self.parallel.average(losses)
        self.alive &= losses.isfinite()
        norms = self.optimizer.step(self.rate, self.alive, self.spec.clip)
        if self.averages is not None:
            self.averages.update(self.model.clock.step, self.alive)
        for p in self.optimizer.parameters:
            p.grad = None
        return losses, norms

    def on_side_stream(self, compute: Callable[[], Result]) -> Result:
        """Compute on the stream that the CUDA graph will use, because autograd remembers the stream it first ran on."""
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = compute()
        torch.cuda.current_stream().wait_stream(self.stream)
        return found

    def record(self, sampler: Sampler, shape: int) -> Recording:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            found = self.compute(sampler, shape)
        return Recording(graph, *found)
