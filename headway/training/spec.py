"""The training part of a recipe."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from headway.core.spec import Problem, Spec
from headway.training.averaging import AveragingSpec
from headway.training.optimizers import AdamW, OptimizerSpec
from headway.training.parallel import Ddp, ParallelSpec
from headway.training.schedule import Cosine, Duration, ScheduleSpec
from headway.training.tuning import Full, TuningSpec


class TrainingSpec(Spec):
    """How the model is trained. The defaults train."""

    added: ClassVar[frozenset[str]] = frozenset({"averaging", "tuning", "best_by"})

    duration: Duration = Duration(1000, "steps")
    """How long: '1000 steps', '10 epochs', '2.5M tokens'."""
    batch: int = Field(default=16, ge=1)
    """Rows per replica and step."""
    accumulate: int = Field(default=1, ge=1)
    """Compute the batch in this many parts, to save memory; the result is the same."""
    optimizer: OptimizerSpec = AdamW()
    """Which way down: adamw, adam, sgd, adagrad."""
    schedule: ScheduleSpec = Cosine()
    """How the learning rate moves: cosine, linear, constant."""
    clip: float | None = Field(default=1.0, gt=0)
    """The longest gradient, per replica; null = no limit."""
    tuning: TuningSpec = Full()
    """Which weights are moved, and how fast: full, frozen, last, layerwise, lora."""
    averaging: AveragingSpec | None = None
    """Score and keep a mean of the weights that training passes through: tail, moving; null = the last ones."""
    evaluate_every: Duration = Duration(250, "steps")
    """How often to score during training. The last step is always scored."""
    evaluate_on: list[str] = Field(default=["valid"])
    """The splits to score during training; the first is the one `best` and `patience` go by. [] = none."""
    evaluate_tokens: int | None = Field(default=20000, ge=1)
    """At most this many tokens of each split during training, so that curves cost little; null = all. The scores after
    training are always on the whole split."""
    keep_best: bool = False
    """Keep the checkpoint that is best on the first split of `evaluate_on`, and score that one."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a new best; null = never."""
    best_by: str = "loss"
    """What `keep_best` and `patience` go by: loss (the lowest); or another metric that is evaluated while a model
    trains, such as accuracy, of classifiers (the highest; of equals, the first)."""
    checkpoint_every: Duration = Duration(1000, "steps")
    """How much can be lost if the process is killed."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 …; auto takes CUDA where there is one."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """What matrix products are computed in; weights stay float32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch.compile is used: from the first step (on), never (off), or beside the training on a GPU and from
    the step on at which it is done, where that ends sooner (auto)."""

    parallel: ParallelSpec = Ddp()
    """What several processes, started by torchrun, share: ddp the rows of the batch, fsdp the weights too."""

    def problems(self) -> Iterator[Problem]:
        if self.batch % self.accumulate:
            reason = f"a batch of {self.batch} rows cannot be computed in {self.accumulate} equal parts"
            yield Problem(("batch", "accumulate"), reason)
        if (self.keep_best or self.patience) and not self.evaluate_on:
            key = "keep_best" if self.keep_best else "patience"
            yield Problem((key, "evaluate_on"), f"{key} needs a split to go by, but evaluate_on is empty")
        if self.best_by != "loss" and not (self.keep_best or self.patience):
            yield Problem(("best_by",), "nothing goes by it: set training.keep_best=true or training.patience")
