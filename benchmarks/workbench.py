"""The responsiveness of the workbench: 5,000 runs, the first page, the delay of a new step, the cost of 20 watchers.

    python -m benchmarks.workbench [list] [first] [step] [watch] [maps] [drag]

Needs playwright and a chromium. `list`: a folder of 5,000 runs (copies of one small run), listed by a server that has
never seen them, again, and by the next server; then in a browser, until the rows are displayed, and scrolled. `first`:
bytes and seconds of the first page. `step`: from the line in metrics.jsonl to the number on the screen. `watch`: a
small training run on one core, alternately alone and with 20 watchers (each reads all events, as a browser does); CPU
seconds per step, and those of the server meanwhile, so that other processes do not count. `maps`: from a text to the
displayed maps of all heads, and the CPU seconds that takes: for a small model, and for 12 layers × 12 heads × 512
tokens of width 144 and 768. `drag`: from a moved key to the answer in the drawing. One JSON line each; `load` is the
system load when it was measured.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.core.files import locked

RUNS, WATCHERS = 5000, 20
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def opened(folder: Path) -> Iterator[tuple[str, str, int]]:
    """`headway open FOLDER`: its address, its token and its process."""
    command = [sys.executable, "-m", "headway.cli", "open", str(folder), "--no-browser"]
    environment = {**os.environ, "XDG_STATE_HOME": f"{folder}/.state", "HEADWAY_CACHE": f"{folder}/.cache"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    said = "".join(process.stdout.readline() for _ in range(3))
    address, _, token = said.split()[-1].partition("/?token=")
    try:
        yield address, token, process.pid
    finally:
        process.terminate()
        process.wait()


def ask(address: str, token: str, path: str) -> bytes:
    request = urllib.request.Request(f"{address}{path}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def trained(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    words = [
        "train",
        "demo",
        "--name",
        "watched",
        f"training.duration={steps} steps",
        "training.evaluate_every=100000 steps",
    ]
    home = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "headway.cli", *words], cwd=folder, env=home, **quiet)


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        made = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


def timed(made: Any) -> float:
    began = time.perf_counter()
    made()
    return time.perf_counter() - began


def listing(folder: Path) -> dict[str, Any]:
    trained(folder, 20).wait()
    for k in range(RUNS):
        made = shutil.ignore_patterns("checkpoints", "tokenizer.json")
        shutil.copytree(folder / "runs" / "watched", folder / "runs" / f"run-{k:04d}", ignore=made)
    return listed(folder)


def listed(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"what": "list", "runs": RUNS}
    with opened(folder) as (address, token, pid):
        found["never seen: answered"] = timed(lambda: ask(address, token, "/api/table"))
        began = time.perf_counter()
        while json.loads(ask(address, token, "/api/table"))["unread"]:
            time.sleep(0.5)
        found["never seen: all read"] = time.perf_counter() - began
        core = _cpu(pid)
        found["again"] = statistics.median(timed(lambda: ask(address, token, "/api/table")) for _ in range(5))
        found["again, of a core"] = (_cpu(pid) - core) / 5
    with opened(folder) as (address, token, _), browser() as chromium:
        found["next server"] = timed(lambda: ask(address, token, "/api/table"))
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{address}/studies?token={token}")
        page.wait_for_selector("h1")
        found["on the screen"] = timed(
            lambda: (page.click("nav a[data-path=runs]"), page.wait_for_selector(".row canvas"))
        )
        frames = page.evaluate(
            """async () => {
                const times = [];
                for (let k = 0; k < 120; k += 1) {
                    scrollBy(0, 400);
                    await new Promise((done) => requestAnimationFrame((now) => { times.push(now); done(); }));
                }
                return times.slice(1).map((now, k) => now - times[k]);
            }"""
        )
        found["frame while scrolling, median ms"] = statistics.median(frames)
        found["slowest of 119"] = max(frames)
    return found


def first_page(folder: Path) -> dict[str, Any]:
    trained(folder, 20).wait()
    with opened(folder) as (address, token, _), browser() as chromium:
        sizes, times = [], []
        for _ in range(5):
            context = chromium.new_context()
            page, asked = context.new_page(), []
            page.on("response", lambda answer, asked=asked: asked.append(answer))
            began = time.perf_counter()
            page.goto(f"{address}/?token={token}")
            page.wait_for_selector(".row canvas")
            times.append(time.perf_counter() - began)
            whole = [one for one in asked if one.status == 200 and "events" not in one.url]
            sizes.append(sum(len(one.body()) for one in whole))
            context.close()
    return {"what": "first", "bytes": sizes[0], "seconds, median of 5": statistics.median(times), "least": min(times)}


def step_on_screen(folder: Path) -> dict[str, Any]:
    trained(folder, 20).wait()
    run = folder / "runs" / "watched"
    with opened(folder) as (address, token, _), browser() as chromium:
        page = chromium.new_page()
        page.goto(f"{address}/run/runs/watched?token={token}")
        page.wait_for_selector(".legend li")
        with locked(run):  # like a training process
            page.wait_for_selector("h1:has-text('running')")
            times = []
            for step in range(1000, 1030):
                began = time.perf_counter()
                with (run / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"step": step, "loss": 2.0}) + "\n")
                page.wait_for_selector(f".facts dd:has-text('{step:,}')")
                times.append(time.perf_counter() - began)
                time.sleep(0.05)
    return {"what": "step", "seconds, median of 30": statistics.median(times), "most": max(times)}


def watching(folder: Path, turns: int = 6, seconds: float = 6.0) -> dict[str, Any]:
    training = trained(folder, 10**6)
    file = folder / "runs" / "watched" / "metrics.jsonl"
    while not file.exists() or file.stat().st_size < 20_000:
        time.sleep(0.1)
    cost: dict[bool, list[float]] = {False: [], True: []}
    taken: list[float] = []
    try:
        with opened(folder) as (address, token, pid):
            for turn in range(2 * turns):
                watched = turn % 2 == 1
                with crowd(address, token) if watched else contextless():
                    time.sleep(1.0)
                    steps, core, served = _steps(file), _cpu(training.pid), _cpu(pid)
                    time.sleep(seconds)
                    cost[watched].append((_cpu(training.pid) - core) / (_steps(file) - steps))
                    if watched:
                        taken.append((_cpu(pid) - served) / seconds)
    finally:
        training.kill()
        training.wait()
    alone, with_them = (statistics.median(cost[watched]) for watched in (False, True))
    return {
        "what": "watch",
        "watchers": WATCHERS,
        "core seconds per step alone": alone,
        "watched": with_them,
        "more": with_them / alone - 1,
        "of a core, by the server": statistics.median(taken),
    }


UNTRAINED = """
import sys
from headway.audit.audit import Report
from headway.experiment import train as trains
from headway.recipe.recipe import load
trains.audit_runs = lambda runs, task: [Report()] * len(runs)
trains.train([load("demo", sys.argv[2:])], [sys.argv[1]], __import__("pathlib").Path("runs"))
"""
TWELVE = ["model.layers=12", "model.mixer.heads=12", "model.context=512", "training.batch=1"]
MODELS = {"small": [], "narrow": [*TWELVE, "model.width=144"], "wide": [*TWELVE, "model.width=768"]}


def maps_on_screen(folder: Path) -> dict[str, Any]:
    """Measure maps of models after a single step; training does not change their cost."""
    short = ["training.duration=1 steps", "training.evaluate_on=[]", "scoring.splits=[]"]
    for name, changes in MODELS.items():
        words = [sys.executable, "-c", UNTRAINED, name, *changes, *short]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    found: dict[str, Any] = {"what": "maps"}
    with opened(folder) as (address, token, pid), browser() as chromium:
        page = chromium.new_page()
        page.goto(f"{address}/?token={token}")
        for name in MODELS:
            tokens = 32 if name == "small" else 512
            page.goto(f"{address}/look/runs/{name}?text=a")
            page.wait_for_selector(".lost-on:has-text('nats')", timeout=120_000)
            lookers = [child for child in _children(pid) if b"torch" in Path(f"/proc/{child}/maps").read_bytes()]
            seconds, cores = [], []
            for k in range(5):
                text = (f"The size of the file, number {k}. " * 20)[:tokens]
                page.evaluate("document.querySelector('.side').dataset.milliseconds = ''")
                core = sum(map(_cpu, lookers))
                page.get_by_label("Sentence", exact=True).fill(text)
                page.wait_for_selector(".side:not([data-milliseconds=''])", timeout=120_000)
                cores.append(sum(map(_cpu, lookers)) - core)
                seconds.append(int(page.locator(".side").get_attribute("data-milliseconds") or 0) / 1000)
                page.wait_for_selector(".lost-on:has-text('nats')", timeout=120_000)
                page.wait_for_timeout(1500)  # numbers and losses are requested afterwards
            heads = page.locator(".head").count()
            found[name] = {
                "heads": heads,
                "tokens": tokens,
                "seconds, median of 5": statistics.median(seconds),
                "least": min(seconds),
                "core seconds, least": round(min(cores), 2),
            }
    return found


def dragged(folder: Path) -> dict[str, Any]:
    keys = {4: "1,0;0,1;-1,-1;0.1,0.1", 24: ";".join(f"{(k * 7) % 5 - 2},{(k * 11) % 5 - 2}.{k}" for k in range(24))}
    found: dict[str, Any] = {"what": "drag"}
    with opened(folder) as (address, token, _), browser() as chromium:
        page = chromium.new_page()
        page.goto(f"{address}/?token={token}")
        for count, given in keys.items():
            page.goto(f"{address}/solve?keys={given}")
            page.wait_for_selector("svg.plane[data-milliseconds]")
            times = []
            for _ in range(60):
                page.evaluate("delete document.querySelector('svg.plane').dataset.milliseconds")
                page.locator(".key").nth(0).press("ArrowUp")
                page.wait_for_selector("svg.plane[data-milliseconds]")
                times.append(float(page.locator("svg.plane").get_attribute("data-milliseconds") or 0))
            found[f"{count} keys, median ms of 60"] = statistics.median(times)
            found[f"{count} keys, least"] = min(times)
    return found


def _children(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(path.parent.name))
        except OSError:  # the process has ended
            continue
    return found


@contextmanager
def contextless() -> Iterator[None]:
    yield


@contextmanager
def crowd(address: str, token: str) -> Iterator[None]:
    """Watchers that read all events of the run, in a separate process like browsers."""
    code = f"""
import threading, urllib.request
def read():
    request = urllib.request.Request("{address}/api/events?topic=runs&topic=run:runs/watched",
        headers={{"authorization": "Bearer {token}"}})
    with urllib.request.urlopen(request) as answer:
        while answer.readline(): pass
for _ in range({WATCHERS}): threading.Thread(target=read).start()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _steps(file: Path) -> int:
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - 4000))
        return json.loads(lines.read().splitlines()[-2])["step"]


def _cpu(process: int) -> float:
    """The CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


PARTS = {
    "list": listing,
    "first": first_page,
    "step": step_on_screen,
    "watch": watching,
    "maps": maps_on_screen,
    "drag": dragged,
}


def main(names: list[str]) -> None:
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({**PARTS[name](Path(folder)), "load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
