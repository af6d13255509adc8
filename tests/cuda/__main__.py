"""`python tests/cuda` runs every test of this folder and prints a line per case. It needs neither the fixtures nor the
shape checks of the other tests, whose packages a machine with a GPU may lack. `python tests/cuda recurrence` runs those
whose name contains this word."""

import importlib
import inspect
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def tests() -> Iterator[Callable[..., None]]:
    for file in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(file.stem)
        yield from (found for name, found in vars(module).items() if name.startswith("test_"))


def cases(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments of each case, read from pytest's marks."""
    marks = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    every = [[_named(names, values) for values in several] for names, several in marks]
    for choice in itertools.product(*every):
        given = {name: value for one in choice for name, value in one.items()}
        if "tmp_path" in inspect.signature(test).parameters:
            given["tmp_path"] = Path(tempfile.mkdtemp())
        yield given


def _named(names: str | tuple[str, ...], values: Any) -> dict[str, Any]:
    return {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))


def main(wanted: list[str]) -> None:
    lost = 0
    for test in tests():
        if wanted and not any(word in test.__name__ or word in test.__module__ for word in wanted):
            continue
        for given in cases(test):
            began, told = time.perf_counter(), "passed"
            try:
                test(**given)
            except Exception as error:
                told = f"FAILED {type(error).__name__} {str(error).strip()[:300]}"
                lost += 1
            shown = " ".join(f"{name}={value}" for name, value in given.items() if name != "tmp_path")
            print(f"{test.__name__} {shown}: {told} ({time.perf_counter() - began:.1f} s)", flush=True)
    sys.exit(lost > 0)


if __name__ == "__main__":
    main(sys.argv[1:])
