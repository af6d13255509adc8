"""Testbeds in which faults are planted to see whether audits detect them: a model, a population, data, a scored run.

Each testbed is built from a recipe once, without faults; a fault is then planted, and only what it can affect is built
again. `look` gives the findings of audits, and `trace` every number that can be observed. If both are the same with and
without a fault, the fault changes nothing in this recipe.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway import tasks
from headway.audit.audit import NOT_CARRIED_OUT, Audit, DoesNotApply, Report, run_audits
from headway.audit.plants.planting import Fault, Patches, planted
from headway.audit.populations.populations import POPULATION_AUDITS
from headway.audit.populations.side_by_side import MEMBERS, SideBySide
from headway.audit.probe import Probe
from headway.audit.runner import audit_model, audits_of
from headway.audit.scores.scores import audit_scores
from headway.core.errors import UserError
from headway.experiment import train as training
from headway.experiment.assembly import assemble
from headway.experiment.audit import scored_population
from headway.experiment.evaluate import score_splits_again
from headway.experiment.train import train
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, open_run
from headway.tasks.task import Task
from headway.training.population import load_weights
from headway.training.setting import Setting
from headway.training.update import Update

STEPS = 3
"""Training steps before a model is audited: enough for everything trainable to have moved."""
SHORT = ("training.duration=40 steps", "training.evaluate_every=10 steps", "training.checkpoint_every=40 steps")
"""Changes to a recipe's training where a whole run is needed."""
EVALUATED, SCORED = 4000, 20_000
"""Tokens evaluated during such a run, and scored after it."""

ROUNDING = 1e-5
"""Tolerance relative to the largest number, for differences between kernels."""

NO_FAULT = Fault("none", "", "")


class TestbedSetup:
    """What all testbeds share: a recipe, its data, and a temporary folder."""

    def __init__(self, recipe: Recipe, folder: Path):
        self.recipe, self.folder = recipe, folder
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.task: Task = tasks.load(recipe)

    def members(self, recipe: Recipe) -> list[Recipe]:
        """Copies of the recipe with different seeds."""
        return [recipe.model_copy(update={"seed": recipe.seed + k}) for k in range(MEMBERS)]

    def trained(self, recipes: Sequence[Recipe]) -> list[dict[str, Tensor]]:
        """The weights of these recipes after a few real training steps, as one population."""
        setting = Setting(torch.device(self.device), torch.float32, False, False, ())
        population, sampler = assemble(recipes, replace(self.task, recipe=recipes[0]), setting)
        alive = torch.ones(len(recipes), dtype=torch.bool, device=self.device)
        update = Update(population.model, population.optimizer, sampler, recipes[0].training, setting, alive)
        with torch.enable_grad():
            for step in range(STEPS):
                update(step, 1.0)
        named = list(population.model.named_parameters())
        return [{name: p[r].detach().clone() for name, p in named} for r in range(len(recipes))]

    @cached_property
    def weights(self) -> list[dict[str, Tensor]]:
        return self.trained(self.members(self.recipe))


class Testbed(ABC):
    subjects: Sequence[str]
    """The subjects of the audits that it tests."""

    def __init__(self, setup: TestbedSetup):
        self.setup = setup

    def why_not(self, fault: Fault) -> str | None:
        """Why the fault cannot be planted here; None if it can."""
        return None

    @cached_property
    def clean(self) -> Report:
        return self.look(NO_FAULT)

    def changes_something(self, fault: Fault) -> bool:
        """Whether anything observable differs from the clean testbed."""
        with_it = self.trace(fault)
        return len(with_it) != len(self.clean_trace) or not all(map(_same, with_it, self.clean_trace))

    @cached_property
    def clean_trace(self) -> list[Any]:
        return self.trace(NO_FAULT)

    @abstractmethod
    def look(self, fault: Fault, audits: Sequence[Audit] | None = None) -> Report:
        """What audits find with this fault; all audits, or these."""

    @abstractmethod
    def trace(self, fault: Fault) -> list[Any]:
        """Tensors and numbers that a fault may change."""


class ModelTestbed(Testbed):
    """A single model after a few steps."""

    subjects = ("model",)

    def look(self, fault: Fault, audits: Sequence[Audit] | None = None) -> Report:
        with self._probe(fault) as probe:
            return audit_model(probe, None if audits is None else _with_dependencies(audits, audits_of(probe)))

    @contextmanager
    def _probe(self, fault: Fault) -> Iterator[Probe]:
        setup = self.setup
        recipe = setup.recipe.with_changes(fault.recipe) if fault.recipe else setup.recipe
        with planted(fault):
            task = replace(setup.task, recipe=recipe)

            def fresh() -> Any:
                return task.build([recipe.seed], setup.device).eval()

            batch = task.sampler([recipe.seed], setup.device).at(0)
            probe = Probe(fresh(), recipe, batch, task.probing, fresh, trained=True)
            weights = setup.trained([recipe])[0] if fault.trains else setup.weights[0]
            load_weights(probe.model, 0, weights)
            with torch.no_grad():
                fault.spoil(probe.model)
            yield probe

    def trace(self, fault: Fault) -> list[Any]:
        """All outputs of the model: in both modes, with padding, in pieces; its loss, weights and batch."""
        with self._probe(fault) as probe, torch.no_grad():
            excerpt = probe.excerpt(4, 64)
            padded = probe.padded()

            def asked() -> list[Any]:
                probe.model.clock.set(0)
                return [probe.answer(probe.sentences), probe.model.loss(excerpt)[0]]

            modes = probe.in_both_modes(asked)
            found = [*modes["evaluation"], *modes["training"], probe.answer(padded.ids, padded.padding_mask)]
            try:
                half = probe.length // 2
                first, state = probe.how.go_on(probe.model, probe.sentences[:, :, :half], None)
                found += [first, probe.how.go_on(probe.model, probe.sentences[:, :, half:], state)[0]]
            except DoesNotApply:
                pass
            weights = [p.detach().clone() for model in (probe.model, probe.fresh()) for p in model.parameters()]
            return [*found, *weights, probe.batch.inputs, probe.batch.targets]


class PopulationTestbed(Testbed):
    """Models of several seeds after a few steps, together and each alone."""

    subjects = ("population",)

    def look(self, fault: Fault, audits: Sequence[Audit] | None = None) -> Report:
        with planted(fault), torch.enable_grad():
            return run_audits(POPULATION_AUDITS if audits is None else audits, self._members())

    def _members(self) -> SideBySide:
        setup = self.setup
        recipes = setup.members(setup.recipe)
        return SideBySide(recipes, setup.weights, [None] * len(recipes), setup.task, setup.device)

    def trace(self, fault: Fault) -> list[Any]:
        with planted(fault):
            members = self._members()
            batch = members.batch()
            with torch.no_grad():
                found = [members.answers(members.together, batch), batch.inputs]
            model = members.model(members.all, trained=False)
            found += [p.detach().clone() for p in model.parameters()]
            losses, norms = members.update(model, members.all)(0, 1.0)
            return [*found, losses, norms, *(p.detach() for p in model.parameters())]


class DataTestbed(Testbed):
    """The recipe's own data, and the batches that training reads."""

    subjects = ("data",)

    @cached_property
    def sets(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        return self.setup.task.evidence.looked_at()

    def why_not(self, fault: Fault) -> str | None:
        if fault.of is None or any(isinstance(given, fault.of) for given, _ in self.sets):
            return None
        return f"it needs {fault.kind}, which these data do not have"

    def look(self, fault: Fault, audits: Sequence[Audit] | None = None) -> Report:
        report = Report()
        for given, of_these in self.sets:
            if fault.of is not None and not isinstance(given, fault.of):
                continue
            asked = [one for one in of_these if audits is None or one in audits]
            report += run_audits(asked, fault.into(given) if fault.of else given) if asked else Report()
        if fault.of is None:
            with planted(fault):
                report += self.setup.task.gather_evidence().reading()
        return report

    def trace(self, fault: Fault) -> list[Any]:
        if fault.of is not None:
            return [fault.name]  # a fault of the data always changes something
        with planted(fault):
            batch: Any = self.setup.task.sampler([self.setup.recipe.seed], "cpu").at(0)
            return [batch.inputs, batch.targets]


class RunTestbed(Testbed):
    """A short training in a temporary folder, with its curve and scores."""

    subjects = ("scores", "training", "baselines")

    def __init__(self, setup: TestbedSetup):
        super().__init__(setup)
        self.count = 0

    @cached_property
    def recipe(self) -> Recipe:
        own = self.setup.recipe
        evaluated = min(own.training.evaluate_tokens or EVALUATED, EVALUATED)
        splits = [split for split in self.setup.task.scored_splits if split != "train"]
        scored = [f"scoring.splits=[{', '.join(splits)}]"] if splits else []
        short = own.with_changes([*SHORT, f"training.evaluate_tokens={evaluated}", *scored])
        (self.setup.folder / "less").mkdir()
        return replace(self.setup.task, recipe=short).on_less_data(self.setup.folder / "less", SCORED)

    def _train(self, recipe: Recipe) -> Run:
        self.count += 1
        with without_audits():
            (run,) = train([recipe], [f"run-{self.count}"], self.setup.folder / "runs")
        if run.status.is_interrupted:  # the loop ends normally on Ctrl-C
            raise KeyboardInterrupt
        return run

    @cached_property
    def run(self) -> Run:
        return self._train(self.recipe)

    def look(self, fault: Fault, audits: Sequence[Audit] | None = None) -> Report:
        with self._made(fault) as run, torch.no_grad():
            task = tasks.load_for(run)
            # With much data, audits of real runs only have time to score parts of it.
            seconds = 1e3 if self.recipe.data == self.setup.recipe.data else 0.0
            population = scored_population([run], task, [run.checkpoint("auto")])
            (scored,) = replace(population, seconds=seconds).members
            return audit_scores(scored) + task.evidence.audit(run, scored.unaided) + task.evidence.data

    @contextmanager
    def _made(self, fault: Fault) -> Iterator[Run]:
        """The run with this fault; trained again if it is a fault of the training."""
        changed = self.recipe.with_changes(fault.recipe) if fault.recipe else self.recipe
        clean = None if fault.trains else self.run
        with planted(fault):
            if clean is None:
                yield self._train(changed)
            else:
                self.count += 1
                run = open_run(str(shutil.copytree(clean.folder, self.setup.folder / "runs" / f"copy-{self.count}")))
                score_splits_again(run)
                yield run

    def trace(self, fault: Fault) -> list[Any]:
        with self._made(fault) as run:
            weights = run.checkpoint("auto").weights
            numbers = [line.get("loss") for line in run.metrics()]
            return [*(score.value for score in run.scores()), *numbers, *(weights[name] for name in sorted(weights))]


TESTBEDS: Sequence[type[Testbed]] = (ModelTestbed, PopulationTestbed, DataTestbed, RunTestbed)


@contextmanager
def without_audits() -> Iterator[None]:
    """Skip the audits at the end of short trainings; the self-test runs those that it needs."""
    patches = Patches()
    try:
        patches.setattr(training, "audit_runs", lambda runs, task: [Report()] * len(runs))
        yield
    finally:
        patches.undo()


def report_or_reason(meant: Audit, look: Callable[[], Report]) -> Report | str:
    """The report; or why the audit, or one that it depends on, no longer runs."""
    try:
        found = look()
    except UserError as problem:
        return str(problem)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or ['no further details'])[0]}"
    names = {meant.name} if found.finding(meant.name) else {f.audit for f in found.findings}
    broken = (f.sentence for f in found.findings if f.audit in names and f.sentence.startswith(NOT_CARRIED_OUT))
    return next((sentence.partition(": ")[2] for sentence in broken), found)


def _with_dependencies(wanted: Sequence[Audit], all_: Sequence[Audit]) -> list[Audit]:
    """These audits, and those that they depend on."""
    names = {one.name for one in wanted}
    for one in reversed(all_):
        if one.name in names:
            names |= set(one.rests_on)
    return [one for one in all_ if one.name in names]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = (x.detach().double().nan_to_num(7e7) for x in (one, other))
        return one.shape == other.shape and bool((one - other).abs().max() <= ROUNDING * other.abs().max())
    return bool(one == other or (one != one and other != other))
