"""Two hundred conversations on one event loop and ten connections, with a slow database and a slow key service."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from shredsaver import Shredder
from shredsaver.kms.local import LocalKeyService
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.checkpoints import config
from tests.support.graphs import line

CONVERSATIONS = 200
KEYS_TAKE, DATABASE_TAKES = 0.2, 0.01  # seconds


class SlowKeys(LocalKeyService):
    """A key service far away."""

    calls = 0
    on_the_loop = 0

    def _slow(self) -> None:
        SlowKeys.calls += 1
        SlowKeys.on_the_loop += threading.current_thread() is threading.main_thread()
        time.sleep(KEYS_TAKE)

    def create(self, customer: bytes, secret: bytes) -> Any:
        self._slow()
        return super().create(customer, secret)

    def load(self, customer: bytes, generation: int) -> Any:
        self._slow()
        return super().load(customer, generation)


async def lateness(until: asyncio.Event) -> list[float]:
    """By how much the loop came late to a task that wanted to go on after five milliseconds, each time."""
    found = []
    while not until.is_set():
        wanted = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        found.append(time.perf_counter() - wanted)
    return found


@pytest.mark.parametrize("turns", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_two_hundred_conversations(turns: int, backend: PostgresBackend, tmp_path: Path, record_property: Any) -> None:
    async def converse(graph: Any, number: int) -> float:
        started = time.perf_counter()
        for turn in range(turns):
            state = await graph.ainvoke({"items": [f"{number} {turn}"]}, config(f"t-{number}", f"c-{number}"))
            assert state["items"][-3] == f"{number} {turn}"
            assert len(state["items"]) == 3 * (turn + 1)
        return time.perf_counter() - started

    async def main() -> tuple[list[float], list[float], int]:
        highest = 0

        async def watch(until: asyncio.Event) -> None:
            nonlocal highest
            while not until.is_set():
                highest = max(highest, await asyncio.to_thread(connections))
                await asyncio.sleep(0.2)

        def connections() -> int:
            rows = backend.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name = 'shredsaver' AND datname = current_database()"
            )
            return int(rows[0][0])

        with PostgresProxy(backend.url, latency=DATABASE_TAKES) as proxy:
            async with Shredder.open(
                proxy.url + "&pool_size=10&timeout=300", keys=SlowKeys(tmp_path / "keys", slots=16)
            ) as shredder:
                graph = line("a", "b").compile(checkpointer=shredder.saver)
                done = asyncio.Event()
                watching = [asyncio.ensure_future(lateness(done)), asyncio.ensure_future(watch(done))]
                took = await asyncio.gather(*(converse(graph, number) for number in range(CONVERSATIONS)))
                done.set()
                late, _ = await asyncio.gather(*watching)
        return took, late, highest

    took, late, highest = asyncio.run(main())
    late.sort()
    figures = {
        "conversation, median s": statistics.median(took),
        "conversation, longest s": max(took),
        "loop late, median ms": statistics.median(late) * 1000,
        "loop late, 95 % ms": late[int(len(late) * 0.95)] * 1000,
        "loop late, 99 % ms": late[int(len(late) * 0.99)] * 1000,
        "loop late, longest ms": late[-1] * 1000,
        "connections": highest,
    }
    for name, value in figures.items():
        record_property(name, round(value, 1))
    print({name: round(value, 1) for name, value in figures.items()})
    assert SlowKeys.calls >= CONVERSATIONS
    assert SlowKeys.on_the_loop == 0
    assert highest <= 2 * 10  # one pool for the loop, one for the threads that call the key service
