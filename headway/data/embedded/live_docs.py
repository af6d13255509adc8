"""A script that prints, as JSON, the docstrings of the parts of Python that are written in C.

They have no source to parse and must be imported, so `python_docs` runs this file in a fresh interpreter. In a running
process, `sys.excepthook`, `input` or `time.sleep` may have been replaced (by pytest, a notebook, a debugger), and the
corpus would depend on the caller. Uses only the standard library.
"""

import importlib
import inspect
import json
import warnings
from collections.abc import Iterator
from types import ModuleType

# Modules without side effects on import. Those that this platform lacks are skipped. fmt: off
WRITTEN_IN_C = (
    "_bisect",
    "_bz2",
    "_codecs",
    "_collections",
    "_csv",
    "_ctypes",
    "_curses",
    "_datetime",
    "_elementtree",
    "_functools",
    "_hashlib",
    "_heapq",
    "_io",
    "_json",
    "_locale",
    "_lsprof",
    "_lzma",
    "_operator",
    "_pickle",
    "_random",
    "_socket",
    "_sqlite3",
    "_sre",
    "_ssl",
    "_struct",
    "_thread",
    "_tracemalloc",
    "_weakref",
    "array",
    "atexit",
    "binascii",
    "builtins",
    "cmath",
    "errno",
    "fcntl",
    "gc",
    "grp",
    "itertools",
    "marshal",
    "math",
    "mmap",
    "nt",
    "posix",
    "pwd",
    "pyexpat",
    "resource",
    "select",
    "sys",
    "syslog",
    "termios",
    "time",
    "unicodedata",
    "zlib",
)
# fmt: on


def docstrings(module: ModuleType) -> Iterator[str]:
    """Docstrings of a module, its functions and types, and the types' methods, by name."""
    members = [value for name, value in sorted(vars(module).items()) if not name.startswith("__")]
    for member in [module, *members]:
        inside = [value for _, value in sorted(vars(member).items())] if isinstance(member, type) else []
        for value in (member, *inside):
            # Any other value (a table, a number) shows its type's docstring, which is about something else.
            if isinstance(value, ModuleType) or callable(value):
                docstring = getattr(value, "__doc__", None)
                if isinstance(docstring, str):
                    yield inspect.cleandoc(docstring)


def main() -> None:
    by_module: dict[str, list[str]] = {}
    warnings.simplefilter("ignore")  # some are deprecated, which does not matter here
    for name in WRITTEN_IN_C:
        try:
            by_module[name] = list(docstrings(importlib.import_module(name)))
        except ImportError:
            continue
    print(json.dumps(by_module))


if __name__ == "__main__":
    main()
