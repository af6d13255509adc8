"""A process that compiles what a training will need, beside it: into the cache that both share.

    in   {"recipes": […], "plugins": {"my.py": "…"}, "way": "whole"}
    out  nothing; it ends with 0 when all is compiled

It builds the same replicas on the same device and takes a few steps with them, compiled and at a rate of 0; then it
ends. The training goes on meanwhile, and has none of the hazards of a compiler in a thread of its own (a graph that is
being recorded suffers nobody else in its process).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from headway.core import plugins
from headway.core.environment import own_python
from headway.recipe.recipe import Recipe


class CompileBeside:
    """The other process, as the training sees it."""

    def __init__(self, recipes: Sequence[Recipe], way: str):
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process may speak)
        files = {plugin.name: plugin.text for plugin in plugins.concerning(recipes[0])}
        order = {"recipes": [one.model_dump(mode="json") for one in recipes], "plugins": files, "way": way}
        python, variables = own_python()
        with tempfile.TemporaryFile() as asked:  # a pipe would keep the training waiting until the other has begun
            asked.write(json.dumps(order).encode())
            asked.seek(0)
            self.process = subprocess.Popen(
                [*python, "-m", "headway.experiment.beside"],
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


class CompileHere:
    """Where the device has no room for another process: the training waits for it."""

    def ended(self) -> str | None:
        return ""

    def stop(self) -> None:
        """There is nobody."""


def compile_beside(recipes: Sequence[Recipe], device: torch.device, way: str) -> "CompileBeside | CompileHere":
    """In another process, if the device can hold these replicas, and what evaluating them takes, twice."""
    free, _ = torch.cuda.mem_get_info(device)
    return CompileBeside(recipes, way) if free > 1.5 * torch.cuda.max_memory_reserved(device) else CompileHere()


def main() -> None:
    with suppress(OSError):
        os.nice(5)
    from headway import tasks
    from headway.experiment.assembly import assemble
    from headway.recipe.recipe import from_tree
    from headway.training import setting as settings
    from headway.training.update import Update

    order = json.load(sys.stdin)
    for file, text in order["plugins"].items():
        plugins.load_text(file, text)
    recipes = [from_tree(tree, f"recipe {n}") for n, tree in enumerate(order["recipes"])]
    training = recipes[0].training
    setting = replace(settings.choose(training, recipes[0].model.width), compiled=False, recorded=False)
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
