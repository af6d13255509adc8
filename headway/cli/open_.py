"""`headway open`: runs, studies and cases in a browser."""

from pathlib import Path
from typing import Annotated

import typer


def open_(
    folder: Annotated[Path, typer.Argument(help="What is below it is shown.", metavar="FOLDER")] = Path(),
    port: Annotated[int | None, typer.Option(help="Default: the one of last time, or one that is free.")] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Nothing can be started or stopped there.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open nothing.")] = False,
    new_token: Annotated[bool, typer.Option("--new-token", help="Addresses given before are of no use then.")] = False,
) -> None:
    """Show the runs and studies below a folder in a browser, live; look inside, change one thing, run it."""
    from headway.core.errors import UserError

    try:
        from headway.workbench.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise UserError(f"the workbench needs {error.name}: pip install 'headway[workbench]'") from None
    serve(folder, host, port, read_only, not no_browser, new_token)
