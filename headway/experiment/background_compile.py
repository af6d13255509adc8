"""A background process that compiles a training's kernels into the shared compile cache.

    in   {"recipes": […], "plugins": {"my.py": "…"}, "way": "whole", "training": 4711}
    out  nothing; it exits with 0 when everything is compiled

It builds the same replicas on the same device and takes a few compiled steps at a learning rate of 0. Meanwhile the
training continues. Compiling in a thread would be risky, because nothing else in the process may run while a CUDA graph
is recorded. This process ends with the training, however that ends.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from headway import __version__
from headway.core import plugins
from headway.core.environment import own_python
from headway.nn.kernels import launching
from headway.nn.trainable import Trainable, is_built_in
from headway.recipe.plugins import texts_for
from headway.recipe.recipe import Recipe
from headway.training.adam import MomentsOptimizer
from headway.training.auto_compile import (
    WITH_KERNELS,
    WITHOUT_KERNELS,
    CompileJob,
    Compiler,
    Costs,
    InBackground,
    InPlace,
)
from headway.training.optimizers import Optimizer
from headway.training.setting import Setting
from headway.training.update import Sampler, Update


def compiler_for(recipes: Sequence[Recipe], device: torch.device) -> Compiler:
    """Compile in another process if the device can hold these replicas, with their evaluation, twice."""
    free, _ = torch.cuda.mem_get_info(device)
    roomy = free > 1.5 * torch.cuda.max_memory_reserved(device)
    return InBackground(lambda way: start_compiling(recipes, way)) if roomy else InPlace()


def kind_of_step(recipe: Recipe, model: Trainable, sampler: Sampler, tokens: int, setting: Setting) -> str:
    """Everything that determines a step's time, compiled or not: the computation, its sizes, and the device."""
    parts = {"batch", "accumulate", "optimizer", "clip", "tuning", "averaging"}
    rate = {"optimizer": {"learning_rate"}}  # its value does not affect the time
    trained = recipe.training.model_dump(mode="json", include=parts, exclude=rate)
    sizes = [tuple(p.shape) for p in model.parameters()]  # depend on vocabulary, classes and replicas
    read = type(sampler).__name__, tokens, str(setting.precision)
    gpu = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "cpu"
    return repr((recipe.model.model_dump_json(), trained, sizes, *read, gpu, torch.__version__, __version__))


def assumed_for(model: Trainable, optimizer: Optimizer) -> Mapping[str, Costs]:
    """What to assume of compiling, by whether there are kernels for what a step does."""
    one_step = len(optimizer.base_rates) == 1 or isinstance(optimizer, MomentsOptimizer)
    served = launching.kernels() is not None and one_step and is_built_in(model)
    return WITH_KERNELS if served else WITHOUT_KERNELS


def start_compiling(recipes: Sequence[Recipe], way: str) -> CompileJob:
    """Start the process. If it cannot start (no room on the disk or in memory), training continues without it."""
    try:
        return CompilingProcess(order_for(recipes, way))
    except OSError as error:
        return FailedToStart(f"the process that compiles could not be started: {plugins.reason_of(error)}")


def order_for(recipes: Sequence[Recipe], way: str) -> bytes:
    told = {"recipes": [one.model_dump(mode="json") for one in recipes], "plugins": texts_for(recipes[0])}
    return json.dumps({**told, "way": way, "training": os.getpid()}).encode()


class CompilingProcess:
    """The compiling process, from the training's side."""

    def __init__(self, order: bytes):
        python, variables = own_python()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (needed as long as the process runs)
        with tempfile.TemporaryFile() as asked:  # with a pipe, the training would wait until the process reads it
            asked.write(order)
            asked.seek(0)
            self.process = subprocess.Popen(
                [*python, "-m", "headway.experiment.background_compile"],
                stdin=asked,
                stdout=self.said,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # Ctrl-C goes to the training, which then stops this process
            )

    def ended(self) -> str | None:
        code = self.process.poll()
        if code is None or code == 0:
            return None if code is None else ""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return f"the process that compiles exited with {code}: {lines[-1][:300] if lines else 'no output'}"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.said.close()


@dataclass(frozen=True)
class FailedToStart:
    why: str

    def ended(self) -> str:
        return self.why

    def stop(self) -> None:
        """Nothing to stop."""


def end_with(training: int, look_every: float = 1.0) -> None:
    """End this process when the training that started it is gone; a killed training cannot stop it."""

    def watch() -> None:
        while os.getppid() == training:
            time.sleep(look_every)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    order = json.load(sys.stdin)
    end_with(order["training"])
    with suppress(OSError):
        os.nice(5)
    from headway import tasks
    from headway.experiment.assembly import assemble
    from headway.recipe.recipe import from_tree
    from headway.training import setting as settings

    for file, text in order["plugins"].items():
        plugins.load_text(file, text)
    recipes = [from_tree(tree, f"recipe {n}") for n, tree in enumerate(order["recipes"])]
    training = recipes[0].training
    setting = replace(settings.choose(training, recipes[0].model.width), compiled=False, recorded=False)
    if setting.device.index is not None:  # otherwise kernels would be launched on the first GPU
        torch.cuda.set_device(setting.device)
    task = tasks.load(recipes[0])
    population, sampler = assemble(recipes, task, setting)
    alive = torch.ones(len(recipes), dtype=torch.bool, device=setting.device)
    update = Update(population.model, population.optimizer, sampler, training, setting, alive)
    update.compile(whole=order["way"] == "whole")
    for step in range(2):  # the second step uses the carried state, if any
        update(step, 0.0)
    if setting.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
