"""`headway train`: from recipes to scored runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, Changes, RunsFolder, Trust, With, print_json, use_plugins


def train(
    recipe: Annotated[
        str, typer.Argument(help="A packaged recipe (see `headway recipes`) or a YAML file.", metavar="RECIPE")
    ],
    changes: Changes = None,
    name: Annotated[str | None, typer.Option(help="The run's name; default: the recipe's.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="Train one replica per value, all as one: seed=0..7, training.optimizer.learning_rate=1e-3,3e-3. "
            "Given twice: every combination.",
            metavar="KEY=VALUES",
        ),
    ] = None,
    together: Annotated[
        int | None, typer.Option(help="At most this many replicas at once; default: as many as fit.", min=1)
    ] = None,
    runs: RunsFolder = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Show the curves in tensorboard, trackio or mlflow too. May be repeated.", metavar="TRACKER"),
    ] = None,
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train a model, or a population of them, and score it."""
    from headway.answers.telling import runs_as_json
    from headway.cli import printing, progress
    from headway.experiment.population import train_in_turns
    from headway.experiment.trackers import Tracking
    from headway.recipe.recipe import load
    from headway.recipe.sweep import varied
    from headway.training.processes import started

    with started() as processes:  # several under torchrun, else just us
        with processes.together():
            use_plugins(with_, trust)
            base = load(recipe, changes or [])
            names, recipes = varied(base, name or Path(recipe).stem, vary or [])
            shown = progress.for_this_terminal()
            tracking = [Tracking(track, runs, [shown])] if track and processes.is_writer else []
        made = train_in_turns(recipes, names, runs, resume, [shown, *tracking], together)
    if not processes.is_writer:
        return
    if as_json:
        print_json("train", runs_as_json(made))
    else:
        printing.show_scores(made)
    interrupted = [run for run in made if run.status.is_interrupted]
    if interrupted:
        words = [*processes.command, *(w for w in sys.argv[1:] if w not in ("--resume", "--json")), "--resume"]
        again = shlex.join(words)
        print(f"stopped at step {interrupted[0].status.step:,} and saved; to go on: {again}", file=sys.stderr)
        raise typer.Exit(130)
