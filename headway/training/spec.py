"""The training part of a recipe."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from headway.core.spec import Problem, Spec
from headway.training.adam import AdamW
from headway.training.averaging import AveragingSpec
from headway.training.optimizers import OptimizerSpec
from headway.training.parallel import Ddp, ParallelSpec
from headway.training.schedule import Cosine, Duration, ScheduleSpec
from headway.training.tuning import Full, TuningSpec


class TrainingSpec(Spec):
    """How the model is trained. The defaults work."""

    added: ClassVar[frozenset[str]] = frozenset({"averaging", "tuning", "best_by"})

    duration: Duration = Duration(1000, "steps")
    """The length of training: '1000 steps', '10 epochs', '2.5M tokens'."""
    batch: int = Field(default=16, ge=1)
    """Rows per replica and step."""
    accumulate: int = Field(default=1, ge=1)
    """Gradient accumulation: compute the batch in this many parts to save memory, with the same result."""
    optimizer: OptimizerSpec = AdamW()
    """adamw, adam, sgd or adagrad."""
    schedule: ScheduleSpec = Cosine()
    """The learning-rate schedule: cosine, linear, constant."""
    clip: float | None = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm, replica by replica; null = no clipping."""
    tuning: TuningSpec = Full()
    """Which weights are trained, and how fast: full, frozen, last, layerwise, lora."""
    averaging: AveragingSpec | None = None
    """Weight averaging: score and keep the mean of the weights over the last part of the training (tail), or an
    exponential moving average (moving); null = the last weights."""
    evaluate_every: Duration = Duration(250, "steps")
    """How often to evaluate during training. The last step is always evaluated."""
    evaluate_on: list[str] = Field(default=["valid"])
    """The splits to evaluate during training; `keep_best` and `patience` use the first. [] = none."""
    evaluate_tokens: int | None = Field(default=20000, ge=1)
    """Evaluate at most this many tokens of each split during training, to save time; null = all. Scores after training
    are always on whole splits."""
    keep_best: bool = False
    """Keep and score the checkpoint that is best on the first split of `evaluate_on`."""
    patience: int | None = Field(default=None, ge=1)
    """Early stopping: stop after this many evaluations without a new best; null = never."""
    best_by: str = "loss"
    """The criterion of `keep_best` and `patience`: loss (the lowest), or another metric that is evaluated during
    training, such as a classifier's accuracy (the highest; of equals, the first)."""
    checkpoint_every: Duration = Duration(1000, "steps")
    """How often to save a checkpoint to resume from; a killed process loses at most this much."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 …; auto = CUDA if there is any."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """The precision of matrix products; weights stay float32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile: on = from the first step; off; auto = on a GPU, compile in the background during training and use
    it as soon as it is ready, if training then finishes sooner."""

    parallel: ParallelSpec = Ddp()
    """What is divided among processes started by torchrun: ddp = the rows of the batch; fsdp = also the weights."""

    def problems(self) -> Iterator[Problem]:
        if self.batch % self.accumulate:
            reason = f"a batch of {self.batch} rows cannot be computed in {self.accumulate} equal parts"
            yield Problem(("batch", "accumulate"), reason)
        if (self.keep_best or self.patience) and not self.evaluate_on:
            key = "keep_best" if self.keep_best else "patience"
            yield Problem((key, "evaluate_on"), f"{key} needs a split to evaluate, but evaluate_on is empty")
        if self.best_by != "loss" and not (self.keep_best or self.patience):
            yield Problem(("best_by",), "it has no effect: set training.keep_best=true or training.patience")
