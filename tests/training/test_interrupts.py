"""Ctrl-C, politely."""

import os
import signal
import threading

import pytest

from headway.training.interrupts import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_means_it(number: int, capsys):
    with pytest.raises(KeyboardInterrupt), interruptible() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        assert "finishing this step" in capsys.readouterr().err
        os.kill(os.getpid(), number)


def test_afterwards_signals_are_what_they_were():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_nothing_is_caught():
    answers = []

    def work() -> None:
        with interruptible() as asked:
            answers.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
