"""What a purge counts, deletes and leaves: it is about the generations that were erased, of one customer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shredsaver.core import Erasure
from shredsaver.db.base import Begin, Commit, Plan
from shredsaver.erasures import latest
from shredsaver.purging import count, purge
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

CALL = Caller("sync")
COUNTED = ("threads", "checkpoints", "writes", "parts", "items")


def fill(shredder: Any, customer: str, *threads: str, text: str = "text ") -> None:
    for thread in threads:
        at = put(CALL, shredder.saver, config(thread, customer), {"x": [text * 100]})
        shredder.saver.put_writes(at, [("x", 1)], "task")
        shredder.store.put(("users", customer, thread), "key", {"said": text})


def counted(shredder: Any, customer: str, generation: int) -> tuple[int, ...]:
    core = shredder._start().core

    def plan() -> Plan[dict[str, int]]:
        yield Begin("read")
        found = yield from count(core.token("customer", customer), generation)
        yield Commit()
        return found

    found = core.database.run(plan)
    return tuple(found[route] for route in COUNTED)


def purged(shredder: Any, customer: str, generation: int) -> None:
    """Purges an erasure as it is found in the log."""
    core = shredder._start().core

    def plan() -> Plan[Erasure]:
        yield Begin("read")
        one = yield from latest(core, core.token("customer", customer), generation)
        yield Commit()
        assert one is not None
        return (yield from purge(core, one))

    core.database.run(plan)


def test_of_a_thread_it_stays_whose_it_was(make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    fill(shredder, "c-1", "t-1")
    fill(shredder, "c-2", "t-2")
    backend.execute("UPDATE threads SET uses_delta = 1, expires_at = 5")
    core = shredder._start().core
    mine, other = core.token("thread", "t-1"), core.token("thread", "t-2")
    before = {row["thread"]: row for row in backend.rows("threads")}
    shredder.shred("c-1")
    after = {row["thread"]: row for row in backend.rows("threads")}
    assert after[other] == before[other]
    left = {name: value for name, value in after[mine].items() if name not in ("thread", "customer", "generation")}
    assert left.pop("epoch") != before[mine]["epoch"], "a writer that knows the thread notices"
    zeros = dict.fromkeys(("scope", "next_record", "next_part", "uses_delta", "touched_at"), 0)
    assert left == {**zeros, "name": None, "expires_at": None}
    assert [row["name"] for row in backend.rows("customers") if row["customer"] == core.token("customer", "c-1")] == [
        None
    ]


@pytest.mark.parametrize("came_back", [False, True])
def test_a_purge_is_of_the_generations_that_were_erased(
    came_back: bool, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """The keys are gone and the rows still there, and the customer may have come back meanwhile."""
    shredder = make_shredder()
    fill(shredder, "c-2", "t-4", "t-5", "t-6")
    fill(shredder, "c-3", "t-7")
    shredder.shred("c-3", purge=False)  # its rows were left where they are, and so they stay
    shredder.enrol("c-3")
    fill(shredder, "c-3", "t-7")
    fill(shredder, "c-1", "t-1", "t-2")
    shredder.shred("c-1", purge=False)
    assert counted(shredder, "c-1", 1) == (2, 2, 2, 2, 2)
    assert counted(shredder, "c-1", 0) == (0, 0, 0, 0, 0)
    if came_back:
        shredder.enrol("c-1")
        fill(shredder, "c-1", "t-1", "t-3")  # takes the first thread over
        assert counted(shredder, "c-1", 1) == (1, 2, 2, 2, 2)
        assert counted(shredder, "c-1", 2) == (3, 4, 4, 4, 4)
    other = counted(shredder, "c-2", 1)
    assert other == (3, 3, 3, 3, 3)
    core = shredder._start().core
    mine = core.token("customer", "c-1")
    counters = [row for row in backend.rows("counters") if row["customer"] != mine or row["generation"] != 1]
    purged(shredder, "c-1", 1)
    assert counted(shredder, "c-1", 1) == (0, 0, 0, 0, 0)
    assert counted(shredder, "c-1", 2) == ((2, 2, 2, 2, 2) if came_back else (0, 0, 0, 0, 0))
    assert counted(shredder, "c-2", 1) == other
    assert (counted(shredder, "c-3", 1), counted(shredder, "c-3", 2)) == ((0, 1, 1, 1, 1), (1, 2, 2, 2, 2))
    assert sorted(map(repr, backend.rows("counters"))) == sorted(map(repr, counters))
    assert {row["generation"] for row in counters if row["customer"] == mine} == ({2} if came_back else set())
    names = [row["generation"] for row in backend.rows("namespaces") if row["customer"] == mine]
    assert names == ([2, 2] if came_back else [])
    if came_back:
        for thread in ("t-1", "t-3"):
            assert shredder.saver.get_tuple(config(thread)).checkpoint["channel_values"] == {"x": ["text " * 100]}
            assert shredder.store.get(("users", "c-1", thread), "key").value == {"said": "text "}
