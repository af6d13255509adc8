"""`headway runs`: what there is, and how it ended."""

import sys
from pathlib import Path

from headway.cli.options import AsJson, RunsFolder, Trust, With, print_json, use_plugins


def runs(
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, with how they ended and what they scored."""
    from headway.answers.telling import listed_as_json
    from headway.cli import printing
    from headway.run.record import all_runs

    use_plugins(with_, trust)
    found = all_runs(runs)
    if as_json:
        told = [listed_as_json(run) for run in found]
        print_json("runs", {"runs": told})
    elif not found:
        print(f"there are no runs in {runs} yet; headway train RECIPE makes one", file=sys.stderr)
    else:
        printing.show_runs(found)
