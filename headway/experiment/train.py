"""Trains recipes into finished runs: data → model → loop → run folders → scores.

`train` takes one recipe, or several that differ only in what replicas may differ in, and trains them as one population.
Each member gets its own run folder, the same as if it had been trained alone. The steps of `Training`, in order:
prepare, assemble, open, restore, run, finish.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headway import tasks
from headway.audit.audit import write_report
from headway.core.errors import UserError
from headway.core.events import Began, Ended, Listener, Noted, Trained
from headway.core.files import check_names, side_by_side
from headway.core.status import State, Status
from headway.experiment import assembly
from headway.experiment.announcer import Announcer
from headway.experiment.assembly import check_population, parameters_of, trained_parameters_of
from headway.experiment.audit import audit_runs
from headway.experiment.background_compile import assumed_for, compiler_for, kind_of_step
from headway.experiment.recorder import RunRecorder, writer_for
from headway.experiment.resume import check_reopened, checkpoint_from_writer, going_on, newest_checkpoints, restore
from headway.experiment.size import check_batch
from headway.nn.trainable import Trainable
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, check_new, create_together
from headway.scoring.cost import count_parameters
from headway.scoring.metrics import METRICS, parsed
from headway.scoring.score import Score
from headway.tasks.task import Task
from headway.training import setting as settings
from headway.training.auto_compile import AutoCompile
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Loop, ReplicaState
from headway.training.parallel import check_rows
from headway.training.population import Population
from headway.training.processes import Processes, started
from headway.training.update import Sampler, SamplerOfShapes


def train(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    runs: Path = Path("runs"),
    resume: bool = False,
    listeners: Sequence[Listener] = (),
) -> list[Run]:
    """Train these recipes as one population, to the end or to Ctrl-C, and score them. Returns their run folders.

    Under torchrun every process calls this. Only the first one writes, and the others read nothing until it is over.
    """
    with started() as processes, ExitStack() as held:
        train_first(recipes, listeners)
        return Training(recipes, names, runs, resume, listeners, processes, held).carry_out()


def train_first(recipes: Sequence[Recipe], listeners: Sequence[Listener] = ()) -> None:
    """Train the recipes that these start from, unless they were trained before; each is stored in the cache
    (`recipe/trained.py`). An interrupted one resumes."""
    ended = (State.FINISHED, State.STOPPED)
    starts = {start.folder: start for one in recipes if (start := one.model.trained_first) is not None}
    for folder, start in starts.items():
        begun = (folder / "run.json").exists()
        if begun and Run(folder).status.state in ended:
            continue
        with started() as processes, ExitStack() as held:
            where = folder.parent, begun, listeners, processes, held
            (run,) = Training([start.before], [folder.name], *where).carry_out()
        if run.status.is_interrupted:
            raise KeyboardInterrupt
        if run.status.state not in ended:
            raise UserError(f"{start.called}, which must be trained first, did not finish: {run.status}")


class Training:
    """The training of one population, from recipes to scores."""

    task: Task
    population: Population[Trainable]
    sampler: Sampler
    loop: Loop

    def __init__(
        self,
        recipes: Sequence[Recipe],
        names: Sequence[str],
        runs: Path,
        resume: bool,
        listeners: Sequence[Listener],
        processes: Processes,
        held: ExitStack,
    ):
        self.recipes, self.recipe, self.names, self.runs, self.resume = recipes, recipes[0], tuple(names), runs, resume
        self.processes, self.held = processes, held
        self.announce = Announcer(runs, names, listeners, processes)

    def carry_out(self) -> list[Run]:
        try:
            self.prepare()
            self.assemble()
            self.open()
            self.restore()
            self.run()
            self.finish()
        except BaseException as error:
            self.announce.abandon(error)
            raise
        return self.members

    def prepare(self) -> None:
        """Find everything that may be wrong before anything is created."""
        with self.processes.together():
            check_population(self.recipes)
            check_names(self.names)
            for warning in self.recipe.warnings():
                self.announce.warn(warning)
            self.setting = settings.choose(self.recipe.training, self.recipe.model.width, self.processes)
            if self.setting.device.index is not None:
                torch.cuda.set_device(self.setting.device)
            self.recipe.training.parallel.check(len(self.recipes))
            check_rows(self.recipe.training.batch, self.recipe.training.accumulate, self.processes)
            self.members = [Run(self.runs / name, r) for name, r in zip(self.names, self.recipes, strict=True)]
            self.written = self.members if self.processes.is_writer else []
            if self.resume:
                check_reopened(self.written)
            for run in () if self.resume else self.written:  # check all before the first is created
                check_new(run.folder)
        known_as = self.members[0].facts.get("corpus") if self.resume else None
        recipe = going_on(self.members[0]) if self.resume else self.recipe
        self.task = _load_task(recipe, self.processes, known_as)
        with self.processes.together():
            check_batch(self.recipe, self.task, len(self.recipes), self.setting.device, self.processes.world)
            for run in self.written:
                if run.folder.exists():
                    self.task.check_same_data(run)

    def assemble(self) -> None:
        self.population, self.sampler = assembly.assemble(self.recipes, self.task, self.setting, self.processes)

    def open(self) -> None:
        """Create or find the run folders, and lock them."""
        vocabularies = self.task.vocabularies
        with self.processes.together():
            found = [run for run in self.written if run.folder.exists()]
            if new := [run for run in self.written if run not in found]:
                where = _where(self.setting, self.processes)
                create_together(new, where, vocabularies, **self.task.facts, **self._facts())
            for run in self.written:
                self.held.enter_context(run.locked())
            for run in found:
                run.keep_tokenizers(vocabularies)  # restores lost ones
            self.announce.open()

    def _facts(self) -> dict[str, Any]:
        """Facts about the population, stored in every member's folder."""
        model, task = self.population.model, self.task
        cost = {**counts_of(model), "flops_per_step": task.flops_per_step, "counts": count_parameters(model).as_json()}
        seeds = {"population": [r.seed for r in self.recipes]} if len(self.recipes) > 1 else {}
        return {**cost, "tokens_per_step": task.tokens_per_step, **seeds}

    def restore(self) -> None:
        """Restore the last saved state when resuming, and set up the loop."""
        saved: list[Checkpoint] = []
        with self.processes.together():
            saved = newest_checkpoints(self.written, self.announce.warn) if self.resume else []
        step = restore(self.population, saved)
        for run, replica_state in zip(self.written, self.population.replica_states, strict=False):
            replica_state.lines = len(run.metrics())
        model = self.population.model
        self.writer = writer_for(self.setting, self.processes, len(self.members))
        self.held.callback(self.writer.close)  # before the locks are released
        self.loop = Loop(
            model,
            self.population.optimizer,
            self.sampler,
            self.recipe.training,
            self.setting,
            tokens_per_step=self.task.tokens_per_step,
            evaluate=lambda: self.task.evaluate(model),
            recorder=RunRecorder(self.population, self.members, self.announce, self.writer),
            replica_states=self.population.replica_states,
            step=step,
            parallel=self.population.parallel,
            carried=self.population.carried,
            averages=self.population.averages,
            lowest_is_best=METRICS[self.recipe.training.best_by].lower_is_better,
        )
        if self.setting.may_compile:
            self.loop.compiling = self.auto_compile()
        if self.loop.compiling is not None:
            self.held.callback(self.loop.compiling.stop)
        if self.loop.warmup >= self.loop.total:
            steps = f"{self.loop.warmup:,} steps"
            self.announce.warn(f"training ends during warm-up ({steps}): the full learning rate is never reached")

    def auto_compile(self) -> AutoCompile | None:
        """Set up compiling during training, and recording the step from which compiled code is used."""
        device = self.setting.device
        before = [run.facts for run in self.written] if self.resume else []
        noted = [tuple(facts["compiled_from"]) for facts in before if "compiled_from" in facts]
        at, way = max(noted, default=(None, "whole"))
        until = max((facts["compiled_until"] for facts in before if "compiled_until" in facts), default=None)

        def note(**facts: Any) -> None:
            for run in self.written:  # queued, so that it is stored before any later checkpoint
                self.writer(lambda run=run: run.note(**facts))

        def tell(text: str) -> None:
            self.announce(Noted(of=self.names, text=text))

        if isinstance(self.sampler, SamplerOfShapes) and at is None:  # there may be dozens of lengths
            return tell("not compiled: batches have several lengths, and each would have to be compiled separately")
        return AutoCompile(
            kind_of_step(self.recipe, self.population.model, self.sampler, self.task.tokens_per_step, self.setting),
            self.loop.total,
            compiler=lambda: compiler_for(self.recipes, device),
            note=note,
            tell=tell,
            swap_at=at,
            way=way,
            until=until,
            assumed=assumed_for(self.population.model, self.population.optimizer),
        )

    def run(self) -> None:
        step, total = self.loop.step, self.loop.total
        with self.processes.together():
            title = tuple(self._title(step))
            where = str(self.runs)
            self.announce(Began(of=self.names, folder=where, title=title, step=step, total=total, resumed=self.resume))
        self.loop.run()
        self.writer.finish()
        self.announce(Trained(of=self.names))

    def finish(self) -> None:
        """Score the stored weights, record how each run ended, and audit it, before any score is shown."""
        population, processes = self.population, self.processes
        if population.averages is not None:
            population.averages.take_over()
        if self.recipe.training.keep_best:
            for r, run in enumerate(self.members):
                kept = checkpoint_from_writer(processes, lambda run=run: run.checkpoint("auto"))
                population.load_weights(r, kept.weights)
        with processes.together():
            states = zip(self.written, population.replica_states, strict=False)
            side_by_side([partial(self._note_end, run, state) for run, state in states])
        all_scores: list[list[Score]] = []
        if population.parallel.takes_part:
            population.model.eval()  # in float32 whatever the training used, so `headway score` gives the same later
            all_scores = self.task.score(population.model, self.task.scored_splits)
        with processes.together():
            scored = zip(self.written, all_scores, strict=False)
            side_by_side([partial(self._note_scores, run, scores) for run, scores in scored])
        with processes.together():
            if processes.is_writer:
                reports = zip(self.members, audit_runs(self.members, self.task), strict=True)
                side_by_side([partial(write_report, run.folder, report) for run, report in reports])
            for run in self.written:
                self.announce(Ended(of=(run.name,), status=run.status))
            side_by_side([run.seal for run in self.written])

    def _note_end(self, run: Run, state: ReplicaState) -> None:
        ended = state.ended or Status(State.INTERRUPTED if self.loop.interrupted else State.FINISHED, self.loop.step)
        run.note(**ended.as_json(), steps=self.loop.total, seconds=round(state.seconds, 2))

    def _note_scores(self, run: Run, scores: list[Score]) -> None:
        run.note(weights=run.weights())
        run.save_scores(scores)
        if not self.loop.interrupted:
            # Evaluating on test during training counts as looking at it.
            watched = ({parsed(name).split for name in line["scores"]} for line in run.evaluations())
            run.count_looks_at_test(self.task.scored_splits, *watched, once_for="training")

    def _title(self, step: int) -> list[str]:
        members, model = self.members, self.population.model
        many = f", {len(members)} replicas trained as one population" if len(members) > 1 else ""
        return [
            f"{members[0].folder}{f' … {members[-1].name}' if len(members) > 1 else ''}"
            + (f": resuming at step {step}" if step else ""),
            *self.task.title(model),
            _counted(model) + many,
            *self.setting.reasons,
        ]


def _load_task(recipe: Recipe, processes: Processes, known_as: str | None) -> Task:
    """Load the task, the writer first, so that the others find its prepared data in the cache."""
    task: Task | None = None
    for turn in (True,) if processes.world == 1 else (True, False):
        with processes.together():
            if processes.is_writer == turn:
                task = tasks.load(recipe, known_as)
                task.check_splits()
    assert task is not None
    processes.check_same("recipe and text", f"{recipe.hash} {task.data.identity}")
    return task


def counts_of(model: Trainable) -> dict[str, int]:
    """The number of parameters, and of trained parameters if not all are trained."""
    whole, trained = parameters_of(model), trained_parameters_of(model)
    return {"parameters": whole} | ({"trained_parameters": trained} if trained < whole else {})


def _counted(model: Trainable) -> str:
    counts = counts_of(model)
    told = f"{counts['parameters']:,} parameters"
    return told + (f", {counts['trained_parameters']:,} of them trained" if "trained_parameters" in counts else "")


def _where(setting: settings.Setting, processes: Processes) -> str:
    return f"{setting.device}" + (f", the first of {processes.world} processes" if processes.world > 1 else "")
