"""`headway open`: the workbench, a browser view of runs, studies and cases."""

from pathlib import Path
from typing import Annotated

import typer


def open_(
    folder: Annotated[Path, typer.Argument(help="Show everything below this folder.", metavar="FOLDER")] = Path(),
    port: Annotated[int | None, typer.Option(help="Default: the port of last time, or a free one.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 is this machine only.")] = "127.0.0.1",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Disable starting and stopping anything in the browser.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address without opening it.")] = False,
    new_token: Annotated[bool, typer.Option("--new-token", help="Make earlier addresses invalid.")] = False,
) -> None:
    """Show the runs and studies below a folder in a browser, live: look inside, change something, train it."""
    from headway.core.errors import UserError

    try:
        from headway.workbench.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise UserError(f"the workbench needs {error.name}: pip install 'headway[workbench]'") from None
    serve(folder, host, port, read_only, not no_browser, new_token)
