"""Warnings, and the progress of long work such as reading data.

Sentences are warnings of the logger "headway", each of them once. Progress goes to whoever listens (`listening`): on
the command line a bar, and nobody at all in a program that does not ask.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Progress = Callable[[str, int, int], object]
"""What is being done, how much of it is done, and how much there is."""
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
    """The same things, and after each it is told how far this is."""
    done = 0
    for thing in things:
        yield thing
        done += size(thing)
        progress(what, done, of)
