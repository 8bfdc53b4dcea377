"""Behind a pooler that hands each transaction to another server process, with prepared statements off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shredsaver import CustomerShreddedError, DatabaseUnavailableError, Shredder
from tests.support.backends import PostgresBackend
from tests.support.calls import Caller, Mode
from tests.support.checkpoints import chain, config
from tests.support.pooler import TransactionPooler

NS = ("users", "c-1")


@pytest.fixture
def pooler(server: PostgresBackend) -> Iterator[TransactionPooler]:
    with TransactionPooler(server.url) as pooler:
        yield pooler


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_round_of_everything_keeps_nothing_in_a_session(pooler: TransactionPooler, keys: str, mode: Mode) -> None:
    call = Caller(mode)
    shredder = call.enter(Shredder.open(f"{pooler.url}&prepare=off", keys=keys))
    saver, store = shredder.saver, shredder.store
    states = [{"x": ["text " * 100] * number} for number in range(4)]
    configs = chain(call, saver, config("t-1"), states)
    call(saver, "put_writes", configs[-1], [("x", "y")], "task")
    assert call(saver, "get_tuple", config("t-1")).checkpoint["channel_values"] == states[-1]
    assert len(call(saver, "list", config("t-1"), limit=3)) == 3
    call(store, "put", NS, "a", {"n": 1})
    call(store, "put", NS, "b", {"n": 2})
    call(store, "delete", NS, "a")
    assert call(store, "get", NS, "b").value == {"n": 2}
    assert [item.key for item in call(store, "search", NS, filter={"n": 2})] == ["b"]
    assert call(shredder, "audit", "c-1").opens > 0
    assert call(shredder, "shred", "c-1").state == "purged"
    with pytest.raises(CustomerShreddedError):
        call(saver, "get_tuple", config("t-1"))
    with pytest.raises(CustomerShreddedError):
        call(store, "get", NS, "b")
    call.exit(shredder)
    call.close()
    assert pooler.kept() == []
    assert len(pooler.served) > 1


def test_more_clients_than_server_processes(pooler: TransactionPooler, keys: str) -> None:
    call = Caller("sync")
    with Shredder.open(f"{pooler.url}&prepare=off", keys=keys) as shredder:

        def one(number: int) -> int:
            here = config(f"t-{number}", f"c-{number}")
            chain(call, shredder.saver, here, [{"x": step} for step in range(3)])
            return int(call(shredder.saver, "get_tuple", here).checkpoint["channel_values"]["x"])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(8))) == [2] * 8

    async def many() -> list[int]:
        async with Shredder.open(f"{pooler.url}&prepare=off", keys=keys) as shredder:
            tuples = await asyncio.gather(*(shredder.saver.aget_tuple(config(f"t-{n}", f"c-{n}")) for n in range(8)))
            return [found.checkpoint["channel_values"]["x"] for found in tuples if found is not None]

    assert asyncio.run(many()) == [2] * 8
    assert pooler.kept() == []


def test_prepared_statements_do_not_work_there_and_the_error_says_what_does(
    pooler: TransactionPooler, keys: str
) -> None:
    call = Caller("sync")

    def use() -> None:
        with Shredder.open(pooler.url, keys=keys) as shredder:
            chain(call, shredder.saver, config("t-1"), [{"x": step} for step in range(20)])

    with pytest.raises(DatabaseUnavailableError, match="prepare=off"):
        use()
    assert pooler.kept()  # and the pooler noticed
