"""The web application: the API's routers, the static pages, and the access control in front of them."""

import contextlib
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from headway import __version__
from headway.core.errors import UserError
from headway.workbench import run_api, solving, study_api
from headway.workbench.bench import Bench
from headway.workbench.changing import api as change_api
from headway.workbench.guard import Guard
from headway.workbench.looking import api as look_api
from headway.workbench.paths import NotThereError

STATIC = Path(str(files("headway.workbench") / "static"))
ROUTERS = (run_api.router, study_api.router, look_api.router, change_api.router, solving.router)


def create_app(bench: Bench, token: str, hosts: set[str]) -> Guard:
    """The whole application, for clients that have the token and use one of these host names."""
    app = FastAPI(
        title="Headway's workbench",
        version=__version__,
        summary="Runs, studies, cases and models of one folder. Answers are those of `--json` (headway schema).",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_lifespan,
    )
    app.state.bench = bench
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", _Static(directory=STATIC))
    app.add_api_route("/{path:path}", _shell, include_in_schema=False)
    app.add_exception_handler(UserError, _mistake)
    app.add_exception_handler(RequestValidationError, _mistake)
    app.add_exception_handler(HTTPException, _mistake)
    app.add_exception_handler(OSError, _mistake)
    return Guard(app, token, bench.cookie, hosts, bench.read_only)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    bench: Bench = app.state.bench
    for worker in (bench.models, bench.readers, bench.planners):
        worker.stop()


class _Static(StaticFiles):
    """Static files that browsers cache, and revalidate each time."""

    def file_response(self, *given, **settings) -> Response:
        answer = super().file_response(*given, **settings)
        answer.headers["cache-control"] = "no-cache"
        return answer


async def _shell(path: str) -> Response:
    """The page for any address: its script chooses the view."""
    if path.startswith("api/"):
        return JSONResponse({"error": f"there is no /{path}; /api/openapi.json lists the API"}, 404)
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})


async def _mistake(request: Request, error: Exception) -> Response:
    """Answer errors with the same messages as the command line."""
    if isinstance(error, RequestValidationError):
        words = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
        return JSONResponse({"error": words}, 422)
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code)
    if isinstance(error, OSError):
        place = f" ({error.filename})" if error.filename else ""
        return JSONResponse({"error": f"{error.strerror or error}{place}"}, 500)
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, NotThereError) else 422)
