"""Work done in a process of its own, whose peak memory or death is what counts. Not for use by hand.

``probe NAME DIRECTORY DSN memory-thread|memory-large|kill SIZE``: NAME is a contender's, DSN may be empty, SIZE is
the thread's messages or the value's bytes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from .contenders import BY_NAME, Place
from .machine import peak_memory
from .workload import Thread, message

KILLED_THREAD = "killed"


def main(arguments: list[str]) -> None:
    """Runs one probe and prints the bytes this process held at most."""
    name, directory, dsn, probe, size = arguments
    contender, place = BY_NAME[name], Place(Path(directory), dsn or None)
    {"memory-thread": _thread, "memory-large": _large, "kill": _kill}[probe](contender, place, int(size))
    print(peak_memory())


def _thread(contender: object, place: Place, count: int) -> None:
    with contender.opened(place) as saver:  # type: ignore[attr-defined]
        thread = Thread(saver, "thread-1")
        thread.grow([message(number) for number in range(count)], at_once=50)
        thread.grow([message(number) for number in range(count, count + 20)])
        saver.get_tuple(thread.latest)


def _large(contender: object, place: Place, size: int) -> None:
    with contender.opened(place) as saver:  # type: ignore[attr-defined]
        thread = Thread(saver, "thread-1", {"blob": b""})
        thread.change("blob", b"", b"")()
        for number in range(3):
            value = bytes([number]) * size
            thread.change("blob", value, value)()
        saver.get_tuple(thread.latest)


def _kill(contender: object, place: Place, count: int) -> None:
    """Says which checkpoint `put` has returned for, and dies by SIGKILL before anything else can run."""
    with contender.opened(place) as saver:  # type: ignore[attr-defined]
        thread = Thread(saver, KILLED_THREAD)
        thread.grow([message(number) for number in range(count)])
        os.write(sys.stdout.fileno(), thread.config["configurable"]["checkpoint_id"].encode())
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
