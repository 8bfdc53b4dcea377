"""Work done in a process of its own, whose peak memory or death is what counts. Not for use by hand.

``probe NAME DIRECTORY DSN PROBE SIZE``: NAME is a contender's, DSN may be empty, PROBE one of `PROBES`, SIZE what it
counts: messages, bytes, turns, checkpoints, threads, conversations, items or records.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .contenders import BY_NAME, Place
from .machine import peak_memory
from .workload import Thread, message

KILLED_THREAD = "killed"


def main(arguments: list[str]) -> None:
    """Runs one probe and prints the bytes this process held at most."""
    name, directory, dsn, probe, size = arguments
    PROBES[probe](name, Place(Path(directory), dsn or None), int(size))
    print(peak_memory())


def _open(name: str, place: Place, _size: int) -> None:
    with BY_NAME[name].opened(place) as saver:
        saver.get_tuple({"configurable": {"thread_id": "none", "checkpoint_ns": ""}})


def _thread(name: str, place: Place, count: int) -> None:
    with BY_NAME[name].opened(place) as saver:
        thread = Thread(saver, "thread-1")
        thread.grow([message(number) for number in range(count)], at_once=50)
        thread.grow([message(number) for number in range(count, count + 20)])
        saver.get_tuple(thread.latest)


def _large(name: str, place: Place, size: int) -> None:
    with BY_NAME[name].opened(place) as saver:
        thread = Thread(saver, "thread-1", {"blob": b""})
        thread.change("blob", b"", b"")()
        for number in range(3):
            value = bytes([number]) * size
            thread.change("blob", value, value)()
        saver.get_tuple(thread.latest)


def _shape(shape: int) -> Callable[[str, Place, int], None]:
    def probe(name: str, place: Place, steps: int) -> None:
        from .shapes import SHAPES

        state, change = list(SHAPES.values())[shape]
        with BY_NAME[name].opened(place) as saver:
            thread = Thread(saver, "thread-1", state)
            for number in range(steps):
                thread.change(*change(thread, number))()
            saver.get_tuple(thread.latest)

    return probe


def _agent(name: str, place: Place, count: int) -> None:
    from .agents import create_agent_graph, speak, turns

    script = turns(count)
    with BY_NAME[name].opened(place) as saver:
        graph = create_agent_graph(script, saver)
        for turn in script:
            speak(graph, turn, "thread-1")


def _history(name: str, place: Place, count: int) -> None:
    from .agents import state_graph

    with BY_NAME[name].opened(place) as saver:
        thread = Thread(saver, "thread-1")
        thread.grow([message(number) for number in range(count)])
        list(state_graph([], saver).get_state_history(thread.latest))


def _crowd(name: str, place: Place, size: int) -> None:
    def run(number: int) -> None:
        thread = Thread(saver, f"thread-{number}")
        thread.grow([message(each) for each in range(100)], at_once=5)

    with BY_NAME[name].opened(place) as saver, ThreadPoolExecutor(size) as pool:
        list(pool.map(run, range(size)))


def _gathered(name: str, place: Place, size: int) -> None:
    from .agents import turns
    from .concurrency import converse
    from .contenders import ASYNC_BY_NAME

    async def all_of_them() -> None:
        async with ASYNC_BY_NAME[name].opened(place) as saver:
            await asyncio.gather(*(converse(saver, turns(2), f"thread-{number}") for number in range(size)))

    asyncio.run(all_of_them())


def _store(name: str, place: Place, size: int) -> None:
    from .stores import BY_NAME as STORES
    from .stores import NAMESPACE, filled

    with STORES[name](place) as store:
        filled(store, place, size)
        store.search(NAMESPACE, filter={"kind": "fact"}, limit=10)


def _shred(_name: str, place: Place, size: int) -> None:
    from .shredding import observed, write_records
    from .workload import CUSTOMER

    with observed(place) as (shredder, _):
        write_records(shredder.saver, CUSTOMER, size)
        shredder.audit(CUSTOMER)
        shredder.shred(CUSTOMER)


def _kill(name: str, place: Place, count: int) -> None:
    """Says which checkpoint `put` has returned for, and dies by SIGKILL before anything else can run."""
    with BY_NAME[name].opened(place) as saver:
        thread = Thread(saver, KILLED_THREAD)
        thread.grow([message(number) for number in range(count)])
        configurable: dict[str, Any] = thread.config["configurable"]
        os.write(sys.stdout.fileno(), configurable["checkpoint_id"].encode())
        os.kill(os.getpid(), signal.SIGKILL)


PROBES: dict[str, Callable[[str, Place, int], None]] = {
    "open": _open,
    "thread": _thread,
    "large": _large,
    "wide": _shape(0),
    "files": _shape(1),
    "agent": _agent,
    "history": _history,
    "crowd": _crowd,
    "gathered": _gathered,
    "store": _store,
    "shred": _shred,
    "kill": _kill,
}

if __name__ == "__main__":
    main(sys.argv[1:])
