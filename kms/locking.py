"""One rotation at a time in a key directory: among threads, openers and processes of one host."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shredsaver.errors import KeyServiceUnavailableError
from shredsaver.kms.outages import reaching

_TIMEOUT: Final = 60.0
_POLL: Final = 0.002

# By inode, so that openers who name one directory differently still meet.
_threads: dict[tuple[int, int], threading.Lock] = {}
_registry = threading.Lock()


@contextmanager
def locked(path: Path, timeout: float = _TIMEOUT) -> Iterator[None]:
    """Holds the lock of a key directory. Not re-entrant.

    The file is opened anew each time: an flock belongs to the open file, so neither fork() nor another opener in this
    process can share it unseen. It is never the key store's own file, whose locks closing a descriptor would drop.

    Raises:
        KeyServiceUnavailableError: Another process holds it for longer than ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    with reaching(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(file)
        with _registry:
            mutex = _threads.setdefault((found.st_dev, found.st_ino), threading.Lock())
        if not mutex.acquire(timeout=timeout):
            raise _busy(path, timeout)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise _busy(path, timeout) from None
                    time.sleep(_POLL)
            yield
        finally:
            mutex.release()
    finally:
        os.close(file)


def _forget() -> None:
    # A lock that another thread held at fork() would stay locked in the child for ever.
    global _registry  # noqa: PLW0603
    _registry = threading.Lock()
    _threads.clear()


os.register_at_fork(after_in_child=_forget)


def _busy(path: Path, timeout: float) -> KeyServiceUnavailableError:
    return KeyServiceUnavailableError(
        f"{path} has been locked by another rotation for {timeout:.0f} seconds; call again, and look for a process "
        "that hangs if it stays so"
    )
