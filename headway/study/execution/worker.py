"""A process that trains populations, one after the other, as the study tells it: a line of JSON per order and answer.

    in   {"members": [{"recipe": …, "plugins": {"my.py": "…"}, "name": "alibi.seed-3"}], "runs": "studies/x/runs",
          "measures": […]}
    out  {"event": "stepped", "step": 120, …}                 as it begins, and now and then
         {"ended": {"alibi.seed-3": {"status": "finished", "step": 300, "reason": null}}}
         {"failed": "why", "details": "…", "memory": false, "leaving": false}

On a CPU a population is one run. A process that had an error on a GPU leaves: after some of them nothing works there,
and another process begins anew. It also ends when nobody can give it orders any more, in the middle of a run too: what
was saved is whole, and the study that takes the run up again must find nobody there.
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
from headway.core.plugins import load_text, reason_of
from headway.core.status import State, Status

SECONDS_BETWEEN_ANSWERS = 0.5


class Answers:
    """Listens to a training, and sends the study what it wants to know."""

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
    """Train a population to its end, from where it stands, and measure what the study asks for beside its scores; gives
    how each run ended."""
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
    # Which arms are chosen is known when all have ended: the study measures then, as it does whatever is missing.
    for run in runs if measures and not any(isinstance(one, Chosen) for one in measures) else ():
        if run.status.state is State.FINISHED:
            with suppress(Exception):  # it says what is wrong, too
                measure(run.folder, run.recipe, tasks.load(run.recipe), measures, measures)
    return {run.name: run.status for run in runs}


def what_failed(error: Exception) -> dict[str, Any]:
    import torch

    from headway.training.capacity import free_memory, is_out_of_memory

    memory = is_out_of_memory(error)
    told = {"failed": reason_of(error), "details": traceback.format_exc(), "memory": memory}
    free_memory()
    return {**told, "leaving": torch.cuda.is_initialized() and not isinstance(error, UserError)}


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's affair; it asks us by SIGTERM
    sys.argv = json.loads(os.environ.get("HEADWAY_STUDY_COMMAND", '["headway"]'))  # what the run's environment tells
    orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    answers = Answers(out)
    from headway.experiment.audit import one_close_look_each

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
