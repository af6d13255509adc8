"""Warnings, and the progress of long tasks such as reading data.

`say_once` logs each warning once, by the logger "headway". Progress is reported to listeners (`listening`): the command
line shows a bar; a program that registers no listener sees nothing.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Progress = Callable[[str, int, int], object]
"""What is being done, how much of it is done, and the total."""
Thing = TypeVar("Thing")

_LOG = logging.getLogger("headway")
_listeners: list[Progress] = []


@functools.cache
def say_once(sentence: str) -> None:
    _LOG.warning(sentence)


def progress(what: str, done: int, of: int) -> None:
    for listener in _listeners:
        listener(what, done, of)


@contextmanager
def listening(listener: Progress) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def following(what: str, things: Iterable[Thing], size: Callable[[Thing], int], of: int) -> Iterator[Thing]:
    """Yield the same items, and report the progress after each."""
    done = 0
    for thing in things:
        yield thing
        done += size(thing)
        progress(what, done, of)
