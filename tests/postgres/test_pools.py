"""Pools, event loops, cancellation, forks, and processes that end."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from shredsaver.db.base import Begin, Plan, Sql, Statement, run
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.errors import DatabaseUnavailableError
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.things import COUNT, INSERT, Runner, read, rows, write
from tests.support.waiting import SECONDS, join, wait_until


def test_more_callers_than_connections_take_turns(proxy: PostgresProxy, opened: Any) -> None:
    database = opened(proxy.url, pool_size=3)

    def plan() -> Plan[None]:
        yield Begin("read")
        yield from run(Statement(Sql("", "SELECT pg_sleep(0.005)")))
        yield from run(Statement(COUNT), commit=True)

    async def main() -> None:
        await asyncio.gather(*(database.arun(plan) for _ in range(60)))
        await database.aclose()

    before = proxy.connections
    asyncio.run(main())
    assert proxy.connections - before == 3


def test_a_pool_that_stays_busy_is_a_retryable_error(opened: Any, runner: Runner) -> None:
    database = opened(pool_size=1, timeout=0.3)

    async def occupied() -> None:
        pool = database._awaiting_pool()
        connection = await pool.acquire(check=False)
        try:
            await database.arun(lambda: read(Statement(COUNT)))
        finally:
            pool.release(connection, broken=False)

    def blocked() -> None:
        database._blocking_pool().acquire(check=False)
        database.run(lambda: read(Statement(COUNT)))

    with pytest.raises(DatabaseUnavailableError, match="pool_size") as caught:
        runner.loop.run(occupied()) if runner.loop is not None else blocked()
    assert caught.value.retryable


def test_loops_that_come_and_go_have_pools_of_their_own(server: PostgresBackend, opened: Any) -> None:
    database = opened(pool_size=2)

    async def main() -> Any:
        answers = await asyncio.gather(*(database.arun(lambda: read(Statement(COUNT))) for _ in range(4)))
        blocking = database.run(lambda: read(Statement(COUNT)))  # a blocking call on the loop's thread
        return [answer[0].rows for answer in (*answers, blocking)]

    for _ in range(3):
        assert asyncio.run(main()) == [[(0,)]] * 5
    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    join(threads)
    asyncio.run(main())
    assert len(database._loops) == 1  # ended loops are forgotten
    gc.collect()
    database.close()
    assert database._loops == {}


def test_a_cancelled_task_rolls_back_and_gives_its_connection_back(server: PostgresBackend, opened: Any) -> None:
    database = opened(pool_size=1)
    thrown: list[type[BaseException]] = []
    running = (
        "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.600' AND state = 'active'"
        " AND pid <> pg_backend_pid() AND datname = current_database()"
    )

    def waiting() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(INSERT, (1, b"", "")))
        try:
            yield from run(Statement(Sql("", "SELECT pg_sleep(600)")), commit=True)
        except BaseException as error:
            thrown.append(type(error))
            raise

    async def main() -> Any:
        task = asyncio.ensure_future(database.arun(waiting))
        assert await asyncio.to_thread(wait_until, lambda: server.execute(running) == [(1,)])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await database.arun(lambda: read(Statement(COUNT)))
        await database.aclose()
        return answer[0].rows

    assert asyncio.run(main()) == [(0,)]
    assert wait_until(lambda: server.execute(running) == [(0,)], 60)  # the server was told
    assert thrown == [asyncio.CancelledError]


def test_cancelling_at_any_moment_loses_no_connection(opened: Any) -> None:
    database = opened(pool_size=2)

    def plan() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(COUNT))
        yield from run(Statement(COUNT), commit=True)

    async def main() -> Any:
        for delay in range(40):
            tasks = [asyncio.ensure_future(database.arun(plan)) for _ in range(4)]
            await asyncio.sleep(delay * 0.0003)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = await asyncio.gather(*(database.arun(lambda: read(Statement(COUNT))) for _ in range(8)))
        await database.aclose()
        return [answer[0].rows for answer in answers]

    assert asyncio.run(main()) == [[(0,)]] * 8


def test_closing_twice_does_nothing_and_a_closed_database_says_so(opened: Any, runner: Runner) -> None:
    database = opened()
    runner(database, lambda: read(Statement(COUNT)))
    runner.close(database)
    database.close()
    database.close()
    runner.loop = asyncio.Runner() if runner.loop else None
    with pytest.raises(DatabaseUnavailableError, match="open it again"):
        runner(database, lambda: read(Statement(COUNT)))


def test_a_call_in_flight_when_the_database_closes_ends_well(opened: Any) -> None:
    database = opened()

    def plan() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(INSERT, (1, b"", "")))
        database.close()
        yield from run(Statement(COUNT), commit=True)

    database.run(plan)
    assert [row[0] for row in rows(opened())] == [1]


def _in_child(database: PostgresDatabase, pipe: Any) -> None:
    pipe.send(database.run(lambda: write(Statement(INSERT, (os.getpid(), b"", ""))))[0].changed)
    pipe.send(asyncio.run(database.arun(lambda: read(Statement(COUNT))))[0].rows)
    database.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(opened: Any) -> None:
    database = opened(pool_size=1)

    def process() -> int:
        return int(database.run(lambda: read(Statement(Sql("", "SELECT pg_backend_pid()"))))[0].rows[0][0])

    before = process()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(database, theirs))
    child.start()
    theirs.close()
    for answer in (1, [(1,)]):
        assert ours.poll(SECONDS)
        assert ours.recv() == answer
    child.join(SECONDS)
    assert child.exitcode == 0
    assert process() == before  # the child did not end the parent's
    assert len(rows(database)) == 1
    ours.close()


def test_a_process_may_end_without_closing(server: PostgresBackend) -> None:
    script = (
        "import asyncio, sys\n"
        "from shredsaver.db.postgres import PostgresDatabase\n"
        "from shredsaver.db.base import Begin, Run, Statement, Sql\n"
        "def plan():\n"
        "    yield Begin('read')\n"
        "    return (yield Run((Statement(Sql('', 'SELECT 1')),), True))[0].rows\n"
        "database = PostgresDatabase(sys.argv[1])\n"
        "print(database.run(plan), asyncio.run(database.arun(plan)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, server.url],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.strip() == "[(1,)] [(1,)]"
    assert done.stderr == ""


def test_a_writer_killed_in_its_transaction_leaves_nothing(server: PostgresBackend, opened: Any) -> None:
    opened()
    script = (
        "import sys, time\n"
        "from shredsaver.db.postgres import PostgresDatabase\n"
        "from shredsaver.db.base import Begin, Run, Statement, Sql\n"
        "def plan():\n"
        "    yield Begin('write')\n"
        "    yield Run((Statement(Sql('', 'INSERT INTO things VALUES (1)')),))\n"
        "    print('written', flush=True)\n"
        "    time.sleep(3600)\n"
        "PostgresDatabase(sys.argv[1]).run(plan)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    database = opened(timeout=SECONDS)
    database.run(lambda: write(Statement(INSERT, (1, b"", "mine"))))
    assert rows(database) == [(1, b"", "mine")]
