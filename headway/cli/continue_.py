"""`headway continue`: train finished runs for longer."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Strict, Trust, With, importing, run_argument, use_plugins
from headway.cli.train import tell
from headway.core.errors import UserError, did_you_mean
from headway.core.gpu_start import start_gpu_meanwhile

if TYPE_CHECKING:
    from headway.training.schedule import Duration

RATES = ("longer", "last")


def continue_(
    run: Annotated[
        list[str],
        run_argument("A finished run's name or folder. Several, if they fit in one population."),
    ],
    for_: Annotated[str, typer.Option("--for", help="How much longer: 500 steps, 2 epochs, 1M tokens.")],
    rate: Annotated[
        str,
        typer.Option(
            help="longer: follow the learning rate schedule of the longer training from here on. "
            "last: keep the final learning rate."
        ),
    ] = "longer",
    name: Annotated[str | None, typer.Option(help="The longer run's name; default: RUN-1500-steps.")] = None,
    runs: RunsFolder = Path("runs"),
    strict: Strict = False,
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train finished runs for longer, as new runs. The same command resumes one that was interrupted."""
    start_gpu_meanwhile()
    with importing():
        from headway.cli import progress
        from headway.core.files import check_names
        from headway.experiment.longer import begin, check_apart, longer_than
        from headway.experiment.population import train_in_turns
        from headway.run.folder import open_run

    use_plugins(with_, trust)
    by = _duration(for_)
    if rate not in RATES:
        raise UserError(f"--rate {rate}: expected longer or last{did_you_mean(rate, RATES)}")
    if name is not None:
        check_names([name])
        if len(run) > 1:
            raise UserError(f"--name {name} names one run, but {len(run)} runs are given: leave it out")
    longer = [longer_than(open_run(one, runs), by, rate, name) for one in run]
    check_apart(longer)
    for one in longer:
        print(f"{one.name} continues {one.before.folder} from step {one.step:,}", file=sys.stderr)
    for said in dict.fromkeys(one.rate for one in longer):
        print(f"learning rate: {said}", file=sys.stderr)
    for one in longer:
        begin(one, runs)
    names = [one.name for one in longer]
    made = train_in_turns([one.recipe for one in longer], names, runs, True, [progress.for_this_terminal()])
    tell("continue", made, ["headway", *(word for word in sys.argv[1:] if word != "--json")], strict, as_json)


def _duration(text: str) -> "Duration":
    from pydantic_core import PydanticCustomError

    from headway.training.schedule import Duration

    try:
        return Duration.parse(text)
    except PydanticCustomError as error:
        raise UserError(f"--for {text}: {error.message()}") from None
