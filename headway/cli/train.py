"""`headway train`: train recipes and score the runs."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import (
    A_RECIPE,
    AsJson,
    Changes,
    RunsFolder,
    Strict,
    Trust,
    With,
    importing,
    print_json,
    use_plugins,
)
from headway.core.errors import UserError
from headway.core.gpu_start import start_gpu_meanwhile

if TYPE_CHECKING:
    from headway.recipe.recipe import Recipe
    from headway.run.folder import Run


def train(
    recipe: Annotated[str, A_RECIPE],
    changes: Changes = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; default: the recipe and its changes, such as demo-alibi.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Train one replica per value, as one population: seed=0..7, "
            "training.optimizer.learning_rate=1e-3,3e-3. If given twice: every combination.",
            metavar="KEY=VALUES",
        ),
    ] = None,
    together: Annotated[
        int | None, typer.Option(help="Train at most this many replicas at once; default: as many as fit.", min=1)
    ] = None,
    runs: RunsFolder = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Log to tensorboard, trackio or mlflow as well. May be repeated.", metavar="TRACKER"),
    ] = None,
    strict: Strict = False,
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train a model, or a population of models, and score it."""
    start_gpu_meanwhile()
    with importing():
        from headway.cli import progress
        from headway.experiment.population import train_in_turns
        from headway.experiment.trackers import Tracking
        from headway.recipe.recipe import load
        from headway.recipe.sweep import varied
        from headway.training.processes import started

    with started() as processes:  # several under torchrun, otherwise only this one
        with processes.together():
            use_plugins(with_, trust)
            try:
                base = load(recipe, changes or [])
            except UserError as problem:
                folder = runs / (name or Path(recipe).stem)
                if not resume or vary or not (folder / "run.json").exists():
                    raise
                again = f"headway train {folder} --resume"
                raise UserError(f"{problem}\nto resume with the recipe in the run folder: {again}") from None
            names, recipes = varied(base, name, vary or []) if name else _named(recipe, changes or [], base, vary, runs)
            shown = progress.for_this_terminal()
            tracking = [Tracking(track, runs, [shown])] if track and processes.is_writer else []
        words = [*processes.command, *(w for w in sys.argv[1:] if w not in ("--resume", "--json")), "--resume"]
        try:
            made = train_in_turns(recipes, names, runs, resume, [shown, *tracking], together)
        except KeyboardInterrupt:  # outside the training loop, which handles Ctrl-C itself between two steps
            if processes.is_writer and any((runs / one / "run.json").exists() for one in names):
                print(f"stopped; what was trained is saved; to resume: {shlex.join(words)}", file=sys.stderr)
            raise
    if processes.is_writer:
        tell("train", made, words, strict, as_json)


def tell(verb: str, made: "list[Run]", again: list[str], strict: bool, as_json: bool) -> None:
    """Report a training and set the exit code: 130 after Ctrl-C, with the command that resumes; 1 if a run diverged,
    or with `strict` if an audit failed."""
    from headway.answers.run_summaries import kept, runs_as_json
    from headway.cli import printing

    if as_json:
        print_json(verb, runs_as_json(made))
    else:
        printing.show_scores(made)
    if interrupted := [run for run in made if run.status.is_interrupted]:
        step = interrupted[0].status.step
        print(f"stopped at step {step:,} and saved; to resume: {shlex.join(again)}", file=sys.stderr)
        raise typer.Exit(130)
    if any(run.status.is_diverged for run in made) or (strict and any(kept(run).failures for run in made)):
        raise typer.Exit(1)


def _named(
    recipe: str, changes: list[str], base: "Recipe", vary: list[str] | None, runs: Path
) -> tuple[list[str], list["Recipe"]]:
    """The runs of a recipe when no --name was given: named after the recipe and its changes."""
    from headway.recipe.naming import name_of_changed
    from headway.recipe.sweep import varied
    from headway.run.record import is_of_another

    plain = Path(recipe).stem
    if not changes or _is_as_written(recipe, base):
        return varied(base, plain, vary or [])
    own = name_of_changed(recipe, changes, base.hash)
    names, recipes = varied(base, own, vary or [])
    if any(is_of_another(runs / name, made.hash) for name, made in zip(names, recipes, strict=True)):
        names, recipes = varied(base, f"{own}-{base.hash[:6]}", vary or [])
    # Older versions named these runs after the recipe alone; such runs can still be resumed.
    before, _ = varied(base, plain, vary or [])
    made = [(runs / name, one.hash) for name, one in zip(before, recipes, strict=True)]
    if all(folder.exists() and not is_of_another(folder, digest) for folder, digest in made):
        names = before
    return names, recipes


def _is_as_written(recipe: str, base: "Recipe") -> bool:
    """Whether the changes leave the recipe as it is."""
    from headway.recipe.recipe import load

    try:
        return load(recipe).hash == base.hash
    except UserError:  # the recipe is incomplete without the changes
        return False
