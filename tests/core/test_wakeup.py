"""The wait between two turns of the engine: it ends when somebody calls, and always when its time is over."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rollouts.engine.wakeup import Wakeup


def test_a_call_that_came_before_ends_the_wait_at_once_and_is_used_up() -> None:
    wakeup = Wakeup()
    wakeup.call()
    wakeup.call()
    began = time.monotonic()
    assert wakeup.wait(60.0)
    assert time.monotonic() - began < 30.0
    assert not wakeup.wait(0.0)
    assert not wakeup.wait(-1.0)


def test_a_call_is_forgotten() -> None:
    wakeup = Wakeup()
    wakeup.forget()
    wakeup.call()
    wakeup.forget()
    assert not wakeup.wait(0.001)


def test_another_thread_ends_the_wait() -> None:
    wakeup = Wakeup()
    threading.Timer(0.05, wakeup.call).start()
    assert wakeup.wait(60.0)


def test_a_signal_handler_ends_the_wait_that_it_interrupts() -> None:
    wakeup = Wakeup()
    before = signal.signal(signal.SIGUSR2, lambda *_: wakeup.call())
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        assert wakeup.wait(60.0)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.slow  # hundreds of waits
def test_no_wait_outlasts_its_time_however_short_that_is() -> None:
    """Calls and waits without a pause, so that time runs out at every place in the wait that there is."""

    def hammer() -> None:
        wakeup = Wakeup()
        for _ in range(30_000):
            wakeup.call()
            wakeup.wait(1e-6)
            wakeup.wait(1e-6)

    thread = threading.Thread(target=hammer, daemon=True)
    thread.start()
    thread.join(150.0)
    assert not thread.is_alive(), "a wait of a microsecond did not end"
