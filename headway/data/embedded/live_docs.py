"""A program, not a module: prints, as JSON, the docstrings of the parts of Python that are written in C.

They have no source to parse and must be imported, so `python_docs` runs this file in an interpreter of its own. In a
process that has been at work, `sys.excepthook`, `input` or `time.sleep` may long have been replaced by something else
(by pytest, a notebook, a debugger), and the corpus would depend on who asked for it. Uses the standard library alone.
"""

import importlib
import inspect
import json
import warnings
from collections.abc import Iterator
from types import ModuleType

# Modules that do nothing when they are imported. Those which this platform lacks are passed over.
# fmt: off
WRITTEN_IN_C = (
    "_bisect", "_bz2", "_codecs", "_collections", "_csv", "_ctypes", "_curses", "_datetime", "_elementtree",
    "_functools", "_hashlib", "_heapq", "_io", "_json", "_locale", "_lsprof", "_lzma", "_operator", "_pickle",
    "_random", "_socket", "_sqlite3", "_sre", "_ssl", "_struct", "_thread", "_tracemalloc", "_weakref", "array",
    "atexit", "binascii", "builtins", "cmath", "errno", "fcntl", "gc", "grp", "itertools", "marshal", "math", "mmap",
    "nt", "posix", "pwd", "pyexpat", "resource", "select", "sys", "syslog", "termios", "time", "unicodedata", "zlib",
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
    warnings.simplefilter("ignore")  # some of these are deprecated, which is not the reader's concern
    for name in WRITTEN_IN_C:
        try:
            by_module[name] = list(docstrings(importlib.import_module(name)))
        except ImportError:
            continue
    print(json.dumps(by_module))


if __name__ == "__main__":
    main()
