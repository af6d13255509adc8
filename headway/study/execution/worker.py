"""A process that trains runs, one after the other, as the study tells it: a line of JSON per order and per answer.

    in   {"recipe": …, "plugins": {"my.py": "…"}, "name": "alibi.seed-3", "runs": "studies/x/runs", "measures": […]}
    out  {"event": "stepped", "step": 120, …}                 as it begins, and now and then
         {"ended": {"status": "finished", "step": 300, "reason": null}} or {"failed": "why", "details": "…"}

It ends when nobody can give it orders any more, in the middle of a run too: what was saved is whole, and the study that
takes the run up again must find nobody there.
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

from headway.core.events import Began, Event, Listener, Stepped
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
        if isinstance(event, Began) or (isinstance(event, Stepped) and now - self.last > SECONDS_BETWEEN_ANSWERS):
            self.last = now
            self.send(**event.as_json())


def train_one(order: dict[str, Any], listener: Listener) -> Status:
    """Train a run to its end, from where it stands, and measure what the study asks for beside its scores; gives how it
    ended."""
    from headway import tasks
    from headway.experiment.train import train
    from headway.recipe.recipe import from_tree
    from headway.study.design.measures import Chosen
    from headway.study.results.measuring import measure, measures_from

    folder, name = Path(order["runs"]), order["name"]
    for file, text in order["plugins"].items():
        load_text(file, text)
    recipe = from_tree(order["recipe"], name)
    (run,) = train([recipe], [name], folder, resume=(folder / name).exists(), listeners=[listener])
    status, measures = run.status, measures_from(order["measures"])
    # Which arms are chosen is known when all have ended: the study measures then, as it does whatever is missing.
    if status.state is State.FINISHED and measures and not any(isinstance(one, Chosen) for one in measures):
        with suppress(Exception):  # it says what is wrong, too
            measure(run.folder, recipe, tasks.load(recipe), measures, measures)
    return status


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
                answers.send(ended=train_one(order, answers).as_json())
            except Exception as error:
                answers.send(failed=reason_of(error), details=traceback.format_exc())


if __name__ == "__main__":
    main()
