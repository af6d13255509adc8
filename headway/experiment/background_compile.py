"""A background process that compiles what a training will need, into the cache that both share.

    in   {"recipes": […], "plugins": {"my.py": "…"}, "way": "whole", "training": 4711}
    out  nothing; it ends with 0 when all is compiled

It builds the same replicas on the same device and takes a few steps with them, compiled and at a rate of 0; then it
ends. The training goes on meanwhile, and has none of the hazards of a compiler in a thread of its own (a graph that is
being recorded suffers nobody else in its process). It ends with the training, too, however that does.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from headway import __version__
from headway.core import plugins
from headway.core.environment import own_python
from headway.nn.trainable import Trainable
from headway.recipe.recipe import Recipe
from headway.training.auto_compile import CompileJob, Compiler, InBackground, InPlace
from headway.training.setting import Setting
from headway.training.update import Sampler, Update


def compiler_for(recipes: Sequence[Recipe], device: torch.device) -> Compiler:
    """Another process, if the device can hold these replicas, and what evaluating them takes, twice."""
    free, _ = torch.cuda.mem_get_info(device)
    roomy = free > 1.5 * torch.cuda.max_memory_reserved(device)
    return InBackground(lambda way: begun(recipes, way)) if roomy else InPlace()


def kind_of_step(recipe: Recipe, model: Trainable, sampler: Sampler, tokens: int, setting: Setting) -> str:
    """All that a step's time hangs on, with compiling and without: what is computed, in which sizes, and where."""
    parts = {"batch", "accumulate", "optimizer", "clip", "tuning", "averaging"}
    rate = {"optimizer": {"learning_rate"}}  # a number alone
    trained = recipe.training.model_dump(mode="json", include=parts, exclude=rate)
    sizes = [tuple(p.shape) for p in model.parameters()]  # of so many words, classes and replicas
    read = type(sampler).__name__, tokens, str(setting.precision)
    gpu = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "cpu"
    return repr((recipe.model.model_dump_json(), trained, sizes, *read, gpu, torch.__version__, __version__))


def begun(recipes: Sequence[Recipe], way: str) -> CompileJob:
    """A machine on which no process can be started (no room on the disk, or in the memory) trains all the same."""
    try:
        return CompilingProcess(order_for(recipes, way))
    except OSError as error:
        return FailedToStart(f"no process to compile in could be started: {plugins.reason_of(error)}")


def order_for(recipes: Sequence[Recipe], way: str) -> bytes:
    told = {"recipes": [one.model_dump(mode="json") for one in recipes], "plugins": plugins.texts_for(recipes[0])}
    return json.dumps({**told, "way": way, "training": os.getpid()}).encode()


class CompilingProcess:
    """As the training sees it."""

    def __init__(self, order: bytes):
        python, variables = own_python()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process may speak)
        with tempfile.TemporaryFile() as asked:  # a pipe would keep the training waiting until the other has begun
            asked.write(order)
            asked.seek(0)
            self.process = subprocess.Popen(
                [*python, "-m", "headway.experiment.background_compile"],
                stdin=asked,
                stdout=self.said,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # Ctrl-C is for the training, which then stops this
            )

    def ended(self) -> str | None:
        code = self.process.poll()
        if code is None or code == 0:
            return None if code is None else ""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return f"the process that was to compile ended with {code}: {lines[-1][:300] if lines else 'no word'}"

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
        """There is nobody."""


def end_with(training: int, look_every: float = 1.0) -> None:
    """From now on this process ends when the training is gone that started it: killed, it can stop nobody."""

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
    if setting.device.index is not None:  # kernels are launched there, and not on the first GPU
        torch.cuda.set_device(setting.device)
    task = tasks.load(recipes[0])
    population, sampler = assemble(recipes, task, setting)
    alive = torch.ones(len(recipes), dtype=torch.bool, device=setting.device)
    update = Update(population.model, population.optimizer, sampler, training, setting, alive)
    update.compile(whole=order["way"] == "whole")
    for step in range(2):  # the second goes on from a state, where one is carried
        update(step, 0.0)
    if setting.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
