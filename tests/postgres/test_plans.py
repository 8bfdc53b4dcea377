"""Plans: answers, snapshots, locks, and few round trips."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver.db.base import Begin, Call, Commit, Plan, Rollback, Run, Sql, Statement, call, run, sql
from shredsaver.db.pg_connect import send
from shredsaver.db.pg_session import Query
from shredsaver.errors import DatabaseUnavailableError
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.things import ADD, COUNT, INSERT, LOCK, SELECT, Runner, read, rows, write
from tests.support.waiting import SECONDS, join, wait_until

# -- plans ------------------------------------------------------------------------------------------------------------


def test_answers_have_the_types_and_counts_of_the_contract(opened: Any, runner: Runner) -> None:
    database = opened()
    results = runner(
        database,
        lambda: write(
            Statement(INSERT, [(1, b"\x00\xff", "é"), (2, None, "b"), (2**40, b"", "")], many=True),
            Statement(sql("UPDATE things SET note = ? WHERE id > ?"), ("new", 1)),
            Statement(sql("DELETE FROM things WHERE id = ? RETURNING note"), (2,)),
            Statement(SELECT, (0,)),
        ),
    )
    assert [result.changed for result in results[:2]] == [3, 2]
    assert results[2].rows == [("new",)]
    assert results[3].rows == [(1, b"\x00\xff", "é"), (2**40, b"", "new")]
    assert all(type(row[1]) is bytes for row in results[3].rows)


def test_a_reading_plan_keeps_one_snapshot_and_cannot_write(opened: Any, runner: Runner) -> None:
    database, other = opened(), opened()

    def plan() -> Plan[tuple[int, int, str]]:
        yield Begin("read")
        (first,) = yield from run(Statement(COUNT))
        other.run(lambda: write(Statement(INSERT, (1, b"", ""))))
        second, level = yield from run(Statement(COUNT), Statement(Sql("", "SHOW transaction_isolation")))
        yield Rollback()
        return first.rows[0][0], second.rows[0][0], level.rows[0][0]

    assert runner(database, plan) == (0, 0, "repeatable read")
    with pytest.raises(DatabaseUnavailableError, match="25006"):
        runner(database, lambda: read(Statement(INSERT, (2, b"", ""))))
    assert [row[0] for row in rows(database)] == [1]


def test_a_writing_plan_sees_what_the_winner_of_a_lock_committed(
    server: PostgresBackend, opened: Any, runner: Runner
) -> None:
    database, other = opened(timeout=SECONDS), opened(timeout=SECONDS)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    database.run(lambda: write(Statement(INSERT, (1, b"", "a"))))
    locked = threading.Event()

    def winner() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        locked.set()
        assert wait_until(lambda: server.execute(waiting) == [(1,)])
        yield from run(Statement(ADD, ("b", 1)), commit=True)

    def loser() -> Plan[str]:
        yield Begin("write")
        _, found = yield from run(Statement(LOCK, (1,)), Statement(SELECT, (1,)), commit=True)
        return str(found.rows[0][2])

    thread = threading.Thread(target=other.run, args=(winner,))
    thread.start()
    assert locked.wait(SECONDS)
    assert runner(database, loser) == "ab"
    join([thread])


def test_rollbacks_and_errors_of_the_plan_leave_nothing(opened: Any, runner: Runner) -> None:
    database = opened()

    def undone() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(INSERT, (1, b"", "")))
        yield Rollback()

    def failing() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(INSERT, (2, b"", "")))
        raise LookupError("the plan's own")

    runner(database, undone)
    with pytest.raises(LookupError, match="the plan's own"):
        runner(database, failing)
    assert rows(database) == []


def test_a_plan_may_end_without_having_asked_for_anything(proxy: PostgresProxy, opened: Any, runner: Runner) -> None:
    database = opened(proxy.url)

    def idle() -> Plan[str]:
        yield Begin("write")
        yield Commit()
        yield Begin("read")
        yield Rollback()
        return "done"

    before = proxy.syncs, proxy.connections
    assert runner(database, idle) == "done"
    assert runner(database, idle) == "done"
    assert (proxy.syncs, proxy.connections) == before


@pytest.mark.parametrize(
    "plan",
    [
        lambda: iter_effects(Run(())),
        lambda: iter_effects(Commit()),
        lambda: iter_effects(Begin("read"), Begin("read")),
        lambda: iter_effects(Begin("read"), Call(lambda: None)),
        lambda: iter_effects(Begin("read")),
        lambda: iter_effects(Begin("write"), Run((Statement(COUNT),))),
    ],
)
def test_a_plan_that_breaks_the_contract_is_told_and_leaves_the_connection_usable(
    opened: Any, runner: Runner, plan: Any
) -> None:
    database = opened(pool_size=1)
    with pytest.raises(RuntimeError, match="a plan"):
        runner(database, plan)
    assert runner(database, lambda: read(Statement(COUNT)))[0].rows == [(0,)]


def iter_effects(*effects: Any) -> Plan[None]:
    for effect in effects:  # noqa: UP028 - a plan is sent answers, and a tuple cannot be
        yield effect


def test_a_call_of_an_async_plan_leaves_the_loop_free_and_keeps_its_context(opened: Any) -> None:
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    database = opened()
    begun, go_on = threading.Event(), threading.Event()

    def called() -> tuple[bool, str, int]:
        begun.set()
        return go_on.wait(SECONDS), variable.get(), threading.get_ident()

    def plan() -> Plan[tuple[bool, str, int]]:
        yield Begin("read")
        yield from run(Statement(COUNT), commit=True)
        return (yield from call(called))

    async def main() -> Any:
        variable.set("kept")
        task = asyncio.ensure_future(database.arun(plan))
        assert await asyncio.to_thread(begun.wait, SECONDS)
        go_on.set()  # the loop comes here although the call has not returned
        answer = await task
        await database.aclose()
        return answer

    free, value, thread = asyncio.run(main())
    assert free
    assert value == "kept"
    assert thread != threading.get_ident()


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [True, False])
def test_a_run_is_one_round_trip_whatever_it_holds(
    proxy: PostgresProxy, opened: Any, runner: Runner, prepare: bool
) -> None:
    database = opened(proxy.url, prepare=prepare, pool_size=1)
    numbers = iter(range(10_000))

    def single() -> Plan[Any]:
        batch = [(next(numbers), b"x" * 3000, "n") for _ in range(50)]
        return write(Statement(INSERT, batch, many=True), Statement(SELECT, (0,)), Statement(COUNT))

    def double() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(COUNT), Statement(COUNT))
        yield from run(Statement(INSERT, (next(numbers), b"", "")), commit=True)

    def refused() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(COUNT))
        yield Rollback()

    def last() -> Plan[Any]:
        return write(Statement(COUNT))

    for plan, trips in ((single, 1), (double, 2), (refused, 2)):
        for _ in range(4):  # warm, then with statements being prepared, then prepared
            runner(database, plan)
        runner(database, last)
        before, times = proxy.syncs, 3
        for _ in range(times):
            runner(database, plan)
        runner(database, last)  # its answer comes when all that was sent before has gone by
        assert proxy.syncs - before == times * trips + 1


def test_the_end_of_a_reading_plan_is_not_waited_for(proxy: PostgresProxy, opened: Any, runner: Runner) -> None:
    database = opened(proxy.url, pool_size=1)

    def ending(effect: Any, before: Callable[[], None] = lambda: None) -> Callable[[], Plan[Any]]:
        def plan() -> Plan[Any]:
            yield Begin("read")
            (answer,) = yield from run(Statement(COUNT))
            before()
            yield effect
            return answer.rows

        return plan

    for effect in (Commit(), Rollback()):
        assert runner(database, ending(effect, proxy.stall)) == [(0,)]  # no answer to the end can come
        proxy.resume()
    assert runner(database, lambda: write(Statement(INSERT, (1, b"", ""))))[0].changed == 1
    assert wait_until(lambda: proxy.open == 1)
    assert proxy.cut() == 1
    assert runner(database, ending(Commit())) == [(1,)]


def test_statements_are_prepared_once_whatever_the_size_of_numbers(server: PostgresBackend, opened: Any) -> None:
    database = opened(pool_size=1)

    for number in (1, 2, 3, 70_000, 70_001, 70_002, 2**40, 2**40 + 1, 2**40 + 2):
        database.run(lambda number=number: write(Statement(INSERT, (number, b"", ""))))
    statement = Sql("", "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO things%'")
    assert database.run(lambda: read(Statement(statement)))[0].rows == [(1,)]
    batch = [(number, b"", "") for number in range(100, 150)]
    at_once = opened(pool_size=1)
    at_once.run(lambda: write(Statement(INSERT, batch, many=True)))
    assert at_once.run(lambda: read(Statement(statement)))[0].rows == [(1,)]
    unprepared = opened(pool_size=1, prepare=False)
    for number in range(10, 15):
        unprepared.run(lambda number=number: write(Statement(INSERT, (number, b"", ""))))
    everything = Sql("", "SELECT count(*) FROM pg_prepared_statements")
    assert unprepared.run(lambda: read(Statement(everything)))[0].rows == [(0,)]


def test_nothing_stays_in_the_session(opened: Any) -> None:
    database = opened(pool_size=1)
    database.run(lambda: write(Statement(COUNT)))
    pool = database._blocking_pool()
    connection = pool.acquire(check=False)
    names = ("search_path", "lock_timeout", "idle_in_transaction_session_timeout")
    settings = [reply.rows[0] for reply in send(connection, [Query(f"SHOW {name}") for name in names])]
    pool.release(connection, broken=False)
    assert settings == [('"$user", public',), ("0",), ("0",)]


def test_commits_are_durable_even_where_the_role_says_otherwise(server: PostgresBackend, opened: Any) -> None:
    shown = Sql("", "SHOW synchronous_commit")
    for given, wanted in (("off", "on"), ("remote_apply", "remote_apply"), ("local", "local")):
        server.execute(f'ALTER DATABASE "{server.database}" SET synchronous_commit = {given}')
        assert opened().run(lambda: write(Statement(shown)))[0].rows == [(wanted,)]
