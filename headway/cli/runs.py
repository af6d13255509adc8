"""`headway runs`: list runs, and how they ended."""

import sys
from pathlib import Path

from headway.cli.options import AsJson, RunsFolder, Trust, With, print_json, use_plugins


def runs(
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, with their status and scores."""
    from headway.answers.run_summaries import listed_as_json
    from headway.cli import printing
    from headway.core.errors import UserError
    from headway.run.index import list_runs
    from headway.run.record import RunRecord

    use_plugins(with_, trust)
    rows = list_runs(runs)
    whole, damaged = [row for row in rows if not row.damage], {row.name: row.damage for row in rows if row.damage}
    if as_json:
        told = []
        for row in whole:
            try:
                told.append(listed_as_json(RunRecord(row.folder)))
            except (UserError, OSError) as error:  # removed or damaged since it was listed
                damaged[row.name] = str(error)
        print_json("runs", {"runs": told, "damaged": damaged})
    elif whole:
        printing.show_runs(whole)
    elif not damaged:
        print(f"there are no runs in {runs} yet; train one with headway train RECIPE", file=sys.stderr)
    for name, why in damaged.items():
        print(f"skipping {name}: {why}", file=sys.stderr)
    if unsealed := [row.name for row in whole if not row.sealed]:
        some = ", ".join(unsealed[:3]) + (" …" if len(unsealed) > 3 else "")
        of = f"{len(unsealed)} of {len(whole)} runs are" if len(whole) > 1 else "this run is"
        print(f"{of} not sealed; changes to their files would go unnoticed: {some}", file=sys.stderr)
