"""Handling of Ctrl-C."""

import os
import signal
import threading

import pytest

from headway.training.interrupts import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_the_second_interrupts(number: int, capsys):
    with pytest.raises(KeyboardInterrupt), interruptible() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        assert "finishing this step" in capsys.readouterr().err
        os.kill(os.getpid(), number)


def test_signal_handlers_are_restored():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_no_handler_is_installed():
    answers = []

    def work() -> None:
        with interruptible() as asked:
            answers.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
