"""Waiting for another thread, process or server: for what it does, and never for the time that it should take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

SECONDS: Final = 300
"""Until something is taken to hang: starting a process has been seen to take a minute on a crowded machine."""


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def join(threads: Iterable[threading.Thread]) -> None:
    """Waits for threads to end."""
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread hangs"
