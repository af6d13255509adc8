"""Verbs that make runs, and list what there is."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.verbs.options import AsJson, Changes, RunsFolder, print_json


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
    as_json: AsJson = False,
) -> None:
    """Train a model, or a population of them, and score it."""
    from headway import printing, progress
    from headway.packing import train_in_turns
    from headway.recipe import load
    from headway.run import is_interrupted
    from headway.trackers import Tracking
    from headway.training.processes import started
    from headway.variation import varied

    with started() as processes:  # several under torchrun, else just us
        with processes.together():
            base = load(recipe, changes or [])
            names, recipes = varied(base, name or Path(recipe).stem, vary or [])
            observers = [Tracking(track, runs)] if track and processes.is_writer else []
        made = train_in_turns(recipes, names, runs, resume, progress.for_this_terminal(), together, observers)
    if not processes.is_writer:
        return
    if as_json:
        print_json(printing.runs_as_json(made))
    else:
        printing.show_scores(made)
    interrupted = [run for run in made if is_interrupted(run.facts["status"])]
    if interrupted:
        words = [*processes.command, *(w for w in sys.argv[1:] if w not in ("--resume", "--json")), "--resume"]
        again = shlex.join(words)
        print(f"stopped at step {interrupted[0].facts['step']:,} and saved; to go on: {again}", file=sys.stderr)
        raise typer.Exit(130)


def recipe(
    name: Annotated[str, typer.Argument(help="A packaged recipe or a YAML file.", metavar="RECIPE")],
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Print a whole recipe, annotated key by key. The output is itself a recipe."""
    from headway.recipe import load, read_text
    from headway.recipe_text import annotated, head_comment

    made = load(name, changes or [])
    if as_json:
        print_json({"name": name, "hash": made.hash, "recipe": made.model_dump(mode="json")})
    else:
        print(head_comment(read_text(name)[0]) + f"# hash: {made.hash}\n\n" + annotated(made), end="")


def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with Headway."""
    from headway import printing
    from headway.recipe import packaged
    from headway.recipe_text import first_sentence

    lines = {name: first_sentence(text) for name, text in sorted(packaged().items())}
    if as_json:
        print_json({"recipes": lines})
    else:
        printing.show_table(["recipe", "what it is"], [[name, line] for name, line in lines.items()])


def runs(runs: RunsFolder = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs in a folder, with how they ended and what they scored."""
    from headway import printing
    from headway.run import all_runs

    found = all_runs(runs)
    if as_json:
        told = [printing.run_as_json(run, run.scores(), printing.kept(run)) | {"facts": run.facts} for run in found]
        print_json({"runs": told})
    elif not found:
        print(f"there are no runs in {runs} yet; headway train RECIPE makes one", file=sys.stderr)
    else:
        printing.show_runs(found)


def bench(
    size: Annotated[list[str] | None, typer.Option(help="tiny, small, medium, gpt2; default: what suits.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each figure.", min=0.1)] = 1.5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure this machine: training speed and memory, alone and for populations."""
    from headway.bench import bars
    from headway.bench import bench as measure_all

    figures: list[dict[str, Any]] = []
    for figure in measure_all(size, seconds, device):
        print(f"measuring {figure['size']}, R = {figure['replicas']} …", file=sys.stderr)
        figures.append(figure)
    if as_json:
        print_json({"figures": figures})
    else:
        for name in dict.fromkeys(f["size"] for f in figures):
            print("\n".join([name, *bars([f for f in figures if f["size"] == name])]))
