"""A worker process that trains populations one after the other; orders and answers are one line of JSON each.

    in   {"environment": {"CUDA_VISIBLE_DEVICES": "0"}, "log": "studies/x/log.txt"}                      once, at first
    in   {"members": [{"recipe": …, "plugins": {"my.py": "…"}, "name": "alibi.seed-3"}], "runs": "studies/x/runs",
          "measures": […]}
    out  {"event": "stepped", "step": 120, …}                 at the beginning, then from time to time
         {"ended": {"alibi.seed-3": {"status": "finished", "step": 300, "reason": null}}}
         {"failed": "why", "details": "…", "memory": false, "leaving": false}

On a CPU a population is a single run. After an error on a GPU the process exits, because some errors leave the CUDA
context unusable; another process replaces it. It also exits when its input closes, even in the middle of a run: saved
checkpoints are complete, and when the study is resumed no old process may still be writing to the run.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from headway.core.errors import UserError
from headway.core.events import Began, Event, Listener, Stepped, Warned
from headway.core.gpu_start import DRIVER, load_kernel_compiler
from headway.core.plugins import load_text, reason_of
from headway.core.reading import opened_to_append
from headway.core.status import State, Status

SECONDS_BETWEEN_ANSWERS = 0.5


class Answers:
    """Listens to training and sends the study the events it needs."""

    def __init__(self, out: TextIO):
        self.out, self.last = out, 0.0

    def send(self, **answer: Any) -> None:
        self.out.write(json.dumps(answer) + "\n")
        self.out.flush()

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Began | Warned) or (
            isinstance(event, Stepped) and now - self.last > SECONDS_BETWEEN_ANSWERS
        ):
            self.last = now
            self.send(**event.as_json())


def train_members(order: dict[str, Any], listener: Listener) -> dict[str, Status]:
    """Train a population to its end, resuming if it was begun, and take the study's further measurements; returns how
    each run ended."""
    from headway import tasks
    from headway.experiment.population import train_in_turns
    from headway.recipe.recipe import from_tree
    from headway.study.design.measures import Chosen
    from headway.study.results.measuring import measure, measures_from

    folder, members = Path(order["runs"]), order["members"]
    for file, text in (plugin for one in members for plugin in one["plugins"].items()):
        load_text(file, text)
    names, recipes = [one["name"] for one in members], [from_tree(one["recipe"], one["name"]) for one in members]
    begun = any((folder / name).exists() for name in names)
    runs = train_in_turns(recipes, names, folder, begun, [listener])
    measures = measures_from(order["measures"])
    # Which arms are chosen is only known when all runs have ended; then the study takes the missing measurements.
    for run in runs if measures and not any(isinstance(one, Chosen) for one in measures) else ():
        if run.status.state is State.FINISHED:
            with suppress(Exception):  # the study measures again and reports the error
                measure(run.folder, run.recipe, tasks.load(run.recipe), measures, measures)
    return {run.name: run.status for run in runs}


def what_failed(error: Exception) -> dict[str, Any]:
    import torch

    from headway.training.capacity import free_memory, is_out_of_memory

    memory = is_out_of_memory(error)
    told = {"failed": reason_of(error), "details": traceback.format_exc(), "memory": memory}
    free_memory()
    return {**told, "leaving": torch.cuda.is_initialized() and not isinstance(error, UserError)}


def set_up(first: dict[str, Any]) -> None:
    """Take over the environment of the slot, and write further messages to the study's log. torch is told its number of
    threads, since a spare worker has imported it with another one."""
    import torch

    os.environ |= first["environment"]
    with opened_to_append(Path(first["log"])) as log:
        os.dup2(log.fileno(), 2)
        os.dup2(log.fileno(), 1)  # other output must not be mistaken for an answer
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output must not be mistaken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study handles Ctrl-C and stops us by SIGTERM
    sys.argv = json.loads(os.environ.get("HEADWAY_STUDY_COMMAND", '["headway"]'))  # recorded in the run's environment
    orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    answers = Answers(out)
    # Imported now because a spare worker has to wait for its orders anyway. CUDA must not be initialised yet:
    # which GPU to use is not known before the first order.
    from headway.experiment.audit import one_close_look_each
    from headway.experiment.population import train_in_turns  # noqa: F401
    from headway.study.results.measuring import measure  # noqa: F401

    if DRIVER.exists():
        load_kernel_compiler()
    set_up(orders.get())
    with one_close_look_each():
        while True:
            order = orders.get()
            try:
                ended = train_members(order, answers)
                answers.send(ended={name: status.as_json() for name, status in ended.items()})
            except Exception as error:
                why = what_failed(error)
                answers.send(**why)
                if why["leaving"]:
                    os._exit(0)


if __name__ == "__main__":
    main()
