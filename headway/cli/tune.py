"""`headway tune`: search for good hyperparameters."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import A_RECIPE, AsJson, Trust, With, print_json, use_plugins
from headway.core.errors import UserError, did_you_mean
from headway.core.format import number


def tune(
    recipe: Annotated[str, A_RECIPE],
    changes: Annotated[list[str] | None, typer.Argument(help="Changes to all trials.", metavar="KEY=VALUE")] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(help="What to search: KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C. May be repeated."),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            help="The search space as a YAML file, one line per key: "
            "learning_rate: {key: training.optimizer.learning_rate, low: 1e-4, high: 1e-1, log: true}",
            metavar="FILE",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="How many trials in total; with a larger number, a search continues.", min=1)
    ] = 20,
    grid: Annotated[bool, typer.Option("--grid", help="Try every combination.")] = False,
    on: Annotated[
        str | None,
        typer.Option(help="The score to optimize; default: perplexity, accuracy … on valid."),
    ] = None,
    prune: Annotated[str, typer.Option(help="Stop bad trials early: none, median, halving.")] = "median",
    together: Annotated[
        int | None, typer.Option(help="Trials run at the same time; default: 1 on a CPU, 8 on a GPU.", min=1)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The search's name; default: the recipe's.")] = None,
    searches: Annotated[Path, typer.Option(help="The folder that contains the searches.", metavar="DIR")] = Path(
        "searches"
    ),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Search hyperparameters on the validation split; score the best trial on test once. The same command resumes."""
    import torch

    from headway import tasks
    from headway.cli import printing, progress
    from headway.core.files import check_names
    from headway.recipe.naming import name_of_changed
    from headway.recipe.recipe import load
    from headway.scoring.metrics import parsed
    from headway.tuning.pruning import PRUNERS
    from headway.tuning.search import Search
    from headway.tuning.space import over as searched_over
    from headway.tuning.space import read_space
    from headway.tuning.tune import Interrupted
    from headway.tuning.tune import tune as run_search

    if prune not in PRUNERS:
        raise UserError(f"--prune {prune}: expected none, median or halving{did_you_mean(prune, PRUNERS)}")
    use_plugins(with_, trust)
    base = load(recipe, changes or [])
    where = {**(read_space(space) if space else {}), **searched_over(over or [])}
    decides = on or f"valid.{tasks.of(base).headline_of(base).name}"
    search = Search(base, where, decides, prune, grid)  # pyright: ignore[reportArgumentType]
    at_once = together or (8 if torch.cuda.is_available() else 1)
    name = name or name_of_changed(recipe, changes or [], base.hash)
    check_names([name], "a search")
    folder = searches / name
    try:
        found = run_search(search, folder, trials, at_once, [progress.for_this_terminal()])
    except Interrupted:
        print(f"stopped and saved; to resume: {shlex.join(['headway', *sys.argv[1:]])}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print_json("tune", found.as_json())
        return
    rows = [
        [
            key,
            f"{value:.4g}" if isinstance(value, float) else str(value),
            f"{found.importance[key]:.2f}" if key in found.importance else "–",
        ]
        for key, value in found.suggested.items()
    ]
    from headway.tuning.report import MIN_TRIALS

    printing.show_table(["searched", "best", "importance"], rows)
    share = "importance: the share of the score's variance over all trials that a key explains alone"
    printing.show_note(share if found.importance else f"{share}; estimated from {MIN_TRIALS} finished trials on")
    counts = ", ".join(f"{count} {state}" for state, count in found.trials.items())
    print(f"\n{decides} {number(found.value)} ({found.best.name}; trials: {counts})")
    tested = decides.replace(parsed(decides).split, "test", 1)
    if tested in found.test:
        print(f"{tested} {number(found.test[tested])} (test was scored {found.test_scored} ×)")
    for note in found.notes:
        print(note)
    print(f"{folder}/: best.yaml, importance.png, trials.csv, result.json")
