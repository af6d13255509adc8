"""Shared by the tests of training: a loop over a tiny language model that records into lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from headway.data.running.batches import Crops
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.replicated import set_dropout
from headway.training import setting
from headway.training.adam import AdamW
from headway.training.loop import Loop
from headway.training.population import Population
from headway.training.schedule import Constant, Duration
from headway.training.spec import TrainingSpec

TEXT = torch.randint(13, (500,), generator=torch.Generator().manual_seed(0))
MODEL = LanguageModelSpec(layers=1, width=8, context=6, mixer=AttentionSpec(heads=2))


@dataclass
class Recorder:
    """A recorder in memory."""

    lines: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    bests: list[tuple[int, int]] = field(default_factory=list)
    endings: list[int] = field(default_factory=list)

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> None:
        self.lines.setdefault(replica, []).extend(lines)

    def checkpoint(self, replica: int, step: int) -> None:
        self.checkpoints.append((replica, step))

    def best(self, replica: int, step: int) -> None:
        self.bests.append((replica, step))

    def progress(self, step: int, total: int, losses: list[float], tokens_per_second: float) -> None: ...

    def ended(self, replica: int) -> None:
        self.endings.append(replica)

    def losses(self, replica: int) -> list[float]:
        return [line["loss"] for line in self.lines[replica] if "loss" in line]

    def evaluated(self, replica: int) -> list[int]:
        return [line["step"] for line in self.lines[replica] if "scores" in line]


@pytest.fixture
def made_loop() -> Callable[..., Loop]:
    """Makes a loop, not run yet, for these seeds, rates and dropouts (one value each, or one for all). `scores` are the
    losses that successive evaluations find, one list per replica. The population is `loop.population`."""

    def made_loop(
        seeds: Sequence[int] = (0,),
        rates: Sequence[float] = (3e-3,),
        dropouts: Sequence[float] = (0.0,),
        steps: int = 12,
        scores: Sequence[Sequence[float]] | None = None,
        on_evaluate: Callable[[Loop], None] = lambda loop: None,
        **training: Any,
    ) -> Loop:
        replicas = len(seeds)
        rates, dropouts = (list(given) * (replicas if len(given) == 1 else 1) for given in (rates, dropouts))
        given = {
            "schedule": Constant(),
            "evaluate_on": [],
            "batch": 8,
            "optimizer": AdamW(),
            "device": "cpu",
        } | training
        spec = TrainingSpec(duration=Duration(steps, "steps"), **given)
        model = MODEL.build(13, list(seeds))
        set_dropout(model, dropouts)
        optimizer = spec.optimizer.build(dict(model.named_parameters()), rates, [0.1] * replicas)
        population = Population(model, optimizer, replicas)
        turns = iter(zip(*scores, strict=True)) if scores else None

        def evaluate() -> list[dict[str, float]]:
            on_evaluate(loop)
            found = next(turns) if turns else [1.0] * replicas
            return [{f"{split}.loss": loss for split in spec.evaluate_on} for loss in found]

        loop = Loop(
            model,
            optimizer,
            Crops().build(TEXT, MODEL.context, spec.batch, list(seeds)),
            spec,
            setting.choose(spec, MODEL.width),
            tokens_per_step=spec.batch * MODEL.context,
            evaluate=evaluate,
            recorder=Recorder(),
            replica_states=population.replica_states,
        )
        loop.population = population
        return loop

    return made_loop


@pytest.fixture
def ran(made_loop) -> Callable[..., Loop]:
    """The same loop, after it has run."""

    def ran(*args: Any, **settings: Any) -> Loop:
        loop = made_loop(*args, **settings)
        loop.run()
        return loop

    return ran
