"""Train on a Ray cluster, started here or at an address (https://docs.ray.io; the extra `cluster`).

The machines of a cluster need only Headway and the data in common. A population is trained in a local folder of its
machine, and its run folders are sent back when it has ended. Until then they exist nowhere else, so if a machine dies,
its runs start again on another one. (Sending checkpoints back would transfer the weights and optimizer state of every
replica at every checkpoint, just for the rare machine that dies.)
"""

import io
import os
import socket
import tarfile
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway import __version__
from headway.core.errors import UserError
from headway.core.events import Event, Warned
from headway.core.files import write_folder_whole
from headway.core.plugins import load_text, reason_of
from headway.experiment.population import train_in_turns
from headway.recipe.recipe import from_tree
from headway.run.record import read_status
from headway.study.design.study import PlannedRun
from headway.study.execution.executor import Log, order_for
from headway.study.execution.populations import populations_for
from headway.study.results.results import ending
from headway.training.checkpoint import saved_steps, step_folder
from headway.training.interrupts import interruptible

RETRIES = 3
"""How often a population is started again if its machine dies."""
SECONDS_TO_ANSWER = 10
"""Timeout for connecting to an address."""
SECONDS_TO_START = 120
"""Timeout for asking the cluster for its version of Headway; it may have to start a process first."""


@dataclass(frozen=True)
class Ray:
    address: str | None = None
    """ray://host:port; None = a cluster on this machine only, for as long as the study runs."""
    workers: int | None = None
    """For a cluster on this machine: how many runs at once; None = as many as there are cores."""

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        with self._connected() as ray, interruptible(aloud=False) as stop_asked:
            gpus = int(ray.cluster_resources().get("GPU", 0))
            log.say(self._words(ray, gpus))
            pending: dict[Any, tuple[list[PlannedRun], list[Any]]] = {}
            home = None if self.address else str(Path.cwd())  # what `data.path: text.txt` is relative to
            for members in populations_for(runs, gpus):
                parts = _sent(ray, members, on_gpu=gpus > 0, home=home)
                pending[parts[0]] = (members, parts)
            while pending:
                ready, _ = ray.wait(list(pending), timeout=0.5)
                for first in ready:
                    members, parts = pending.pop(first)
                    for run, part in zip(members, parts, strict=True):
                        _arrived(ray, run, part, log)
                if stop_asked():
                    log.say("stopping: unfinished runs on the cluster will start from the beginning next time")
                    for _, parts in pending.values():
                        ray.cancel(parts[0], force=True)
                    return True
        return False

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        ray = _imported()
        if self.address is not None:
            _check_reachable(self.address)
        local = {"num_cpus": self.workers, "include_dashboard": False} if self.address is None else {}
        with tempfile.TemporaryDirectory(prefix="headway-") as nowhere:
            try:
                # Ray puts the current folder first on the import path of its workers, where a stray yaml.py could
                # shadow a package. So start it in an empty temporary folder that nobody else can write to.
                with chdir(nowhere):
                    ray.init(address=self.address or "local", log_to_driver=False, logging_level="error", **local)
            except (OSError, RuntimeError, ValueError, AssertionError) as error:
                said = str(error).strip().splitlines() or [type(error).__name__]  # the last line of a traceback
                raise UserError(f"{self.address or 'ray'} cannot be used: {said[-1]}") from None
            try:
                self._check_version(ray)
                yield ray
            finally:
                ray.shutdown()

    def _check_version(self, ray: Any) -> None:
        where = self.address or "the local cluster"
        try:
            there = ray.get(ray.remote(num_cpus=0)(_version).remote(), timeout=SECONDS_TO_START)
        except ray.exceptions.RayError as error:
            raise UserError(f"{where} cannot run Headway: {reason_of(error)}; install it on its machines") from None
        if there != __version__:
            raise UserError(f"{where} has Headway {there}, but this is {__version__}: install the same on all machines")

    def _words(self, ray: Any, gpus: int) -> str:
        alive = [node for node in ray.nodes() if node["Alive"]]
        cpus = int(ray.cluster_resources().get("CPU", 0))
        return f"ray: {len(alive)} machine{'s' * (len(alive) > 1)}, {cpus} cores" + (f", {gpus} GPUs" if gpus else "")


def _sent(ray: Any, members: list[PlannedRun], on_gpu: bool, home: str | None) -> list[Any]:
    orders = [order_for(run) for run in members]
    task = ray.remote(
        num_returns=len(members),
        max_retries=RETRIES,
        num_cpus=1,
        num_gpus=1 if on_gpu else 0,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": {} if on_gpu else {"OMP_NUM_THREADS": "1"}},
    )(train_there)
    found = task.remote(orders, home)
    return found if isinstance(found, list) else [found]


def _arrived(ray: Any, run: PlannedRun, part: Any, log: Log) -> None:
    try:
        found = ray.get(part)
    except ray.exceptions.RayError as error:
        log.failed(run.name, f"lost on the cluster, after {RETRIES} more attempts: {reason_of(error)}", str(error))
        return
    for warning in found.get("warnings", ()):
        log.warn([run.name], warning)
    if "failed" in found:
        log.failed(run.name, found["failed"], found["details"])
        return
    folder = log.folder.runs / run.name
    write_folder_whole(folder, lambda partial: unpack(found["folder"], partial))
    log.ended(run.name, read_status(folder))


# --- on a machine of the cluster -------------------------------------------------------------------------------------


def train_there(orders: list[dict[str, Any]], home: str | None = None) -> Any:
    """Train one population; returns for each run its packed folder, or why there is none. Relative data paths refer to
    `home` if it is given; modules are not imported from there."""
    with chdir(home) if home else nullcontext():
        return _trained(orders)


def _trained(orders: list[dict[str, Any]]) -> Any:
    with tempfile.TemporaryDirectory(prefix="headway-") as home:
        names = [order["name"] for order in orders]
        why, details, warnings = "it was stopped", "", []
        for file, text in orders[0]["plugins"].items():
            load_text(file, text)

        def listener(event: Event) -> None:
            if isinstance(event, Warned):
                warnings.append(event.text)

        recipes = [from_tree(order["recipe"], order["name"]) for order in orders]
        try:
            train_in_turns(recipes, names, Path(home), listeners=[listener])
        except Exception as error:
            why, details = reason_of(error), traceback.format_exc()
        folders = [Path(home) / name for name in names]
        found: list[dict[str, Any]] = [
            {"folder": pack(f)} if ending(f) else {"failed": why, "details": details} for f in folders
        ]
        found[0]["warnings"] = warnings
    return found if len(found) > 1 else found[0]


def pack(run: Path) -> bytes:
    """Pack a run folder into bytes, without the lock and without checkpoints that only a resumed run would need."""
    old = {step_folder(run / "checkpoints", step).name for step in saved_steps(run / "checkpoints")[1:]}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(run.rglob("*")):
            inside = path.relative_to(run)
            if path.is_file() and inside.name != "lock" and not old.intersection(inside.parts):
                tar.add(path, str(inside))
    return packed.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")


def _version() -> str:
    return __version__


# --- on this machine -------------------------------------------------------------------------------------------------


def _imported() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # tasks without a GPU keep the CUDA environment
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("Ray is not installed; install it with pip install 'headway[cluster]'") from None
    return ray


def _check_reachable(address: str) -> None:
    """Check the address first: Ray itself would try for minutes and then report a misleading error."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
        if not host or not port:
            raise ValueError
    except ValueError:
        raise UserError(f"'{address}' is no cluster address; expected ray://HOST:PORT, e.g. ray://head:10001") from None
    try:
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"there is no cluster at {address}: {reason}; is `ray start --head` running there?") from None
