"""Lost connections, silent networks, frozen processes, deadlocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from shredsaver.db.base import Begin, Commit, Plan, Sql, Statement, run
from shredsaver.errors import DatabaseUnavailableError
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.things import ADD, COUNT, INSERT, LOCK, UPSERT, Runner, read, rows, terminate, write
from tests.support.waiting import SECONDS, join, wait_until

# -- lost connections -------------------------------------------------------------------------------------------------


def test_the_call_after_killed_backends_works(server: PostgresBackend, opened: Any, runner: Runner) -> None:
    database = opened(pool_size=4)
    runner(database, lambda: write(Statement(INSERT, (1, b"", ""))))
    for number in range(2, 5):
        assert terminate(server) >= 1
        runner(database, lambda number=number: write(Statement(INSERT, (number, b"", ""))))
    assert [row[0] for row in rows(database)] == [1, 2, 3, 4]


def test_every_connection_of_a_pool_may_be_dead(proxy: PostgresProxy, opened: Any) -> None:
    database = opened(proxy.url, pool_size=6, timeout=SECONDS)
    barrier = threading.Barrier(6)

    def together() -> Plan[None]:
        yield Begin("read")
        yield from run(Statement(COUNT))
        barrier.wait(SECONDS)
        yield Commit()

    threads = [threading.Thread(target=database.run, args=(together,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    join(threads)
    assert wait_until(lambda: proxy.open == 6)  # the one that opening it took has ended
    assert proxy.cut() == 6
    assert database.run(lambda: read(Statement(COUNT)))[0].rows == [(0,)]


def test_a_backend_killed_within_a_transaction_repeats_the_plan(
    server: PostgresBackend, opened: Any, runner: Runner
) -> None:
    database = opened()
    attempts = []

    def plan() -> Plan[None]:
        attempts.append(1)
        yield Begin("write")
        yield from run(Statement(INSERT, (len(attempts), b"", "")))
        if len(attempts) == 1:
            terminate(server)
        yield from run(Statement(INSERT, (10, b"", "")), commit=True)

    runner(database, plan)
    assert len(attempts) == 2
    assert [row[0] for row in rows(database)] == [2, 10]


def test_a_commit_whose_answer_was_lost_is_repeated_by_an_idempotent_plan(
    proxy: PostgresProxy, opened: Any, runner: Runner
) -> None:
    database = opened(proxy.url, prepare=False)
    runner(database, lambda: read(Statement(COUNT)))
    attempts = []

    def plan() -> Plan[Any]:
        attempts.append(1)
        return write(Statement(UPSERT, (1, b"", f"attempt {len(attempts)}")))

    proxy.cut_answer_to(b"COMMIT")
    runner(database, plan)
    assert len(attempts) == 2
    assert rows(database) == [(1, b"", "attempt 2")]


def until_it_works(database: Any, runner: Runner) -> None:
    def works() -> bool:
        with suppress(DatabaseUnavailableError):
            return bool(runner(database, lambda: read(Statement(COUNT)))[0].rows == [(0,)])
        return False

    assert wait_until(works)


def test_a_server_that_stays_away_is_a_retryable_error_and_comes_back(
    proxy: PostgresProxy, opened: Any, runner: Runner
) -> None:
    database = opened(proxy.url, timeout=1.5)
    until_it_works(database, runner)
    proxy.refuse()
    proxy.cut()
    with pytest.raises(DatabaseUnavailableError) as caught:
        runner(database, lambda: read(Statement(COUNT)))
    assert caught.value.retryable
    proxy.refuse(False)
    until_it_works(database, runner)


def test_a_silent_network_is_given_up_and_the_next_call_works(
    proxy: PostgresProxy, opened: Any, runner: Runner
) -> None:
    database = opened(proxy.url, timeout=1.0, answer_timeout=1.0)
    until_it_works(database, runner)
    proxy.stall()
    with pytest.raises(DatabaseUnavailableError, match=r"answer|free") as caught:
        runner(database, lambda: read(Statement(COUNT)))
    assert caught.value.retryable
    proxy.resume()
    until_it_works(database, runner)


def test_a_frozen_process_does_not_hold_its_locks_for_ever(opened: Any) -> None:
    frozen, other = opened(timeout=1.0), opened(timeout=60.0)
    other.run(lambda: write(Statement(INSERT, (1, b"", ""))))
    thawed = threading.Event()
    locked = threading.Event()
    attempts = []

    def freezing() -> Plan[None]:
        attempts.append(1)
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        locked.set()
        assert thawed.wait(SECONDS)
        yield from run(Statement(ADD, ("late", 1)), commit=True)

    def goes_on() -> bool:
        with suppress(DatabaseUnavailableError):  # it stood still for longer than it is patient
            frozen.run(freezing)
            return True
        return False

    thread = threading.Thread(target=wait_until, args=(goes_on,))
    thread.start()
    try:
        assert locked.wait(SECONDS)
        other.run(lambda: write(Statement(LOCK, (1,)), Statement(ADD, ("first", 1))))
    finally:
        thawed.set()
        join([thread])
    assert rows(other)[0][2] == "firstlate"
    assert len(attempts) >= 2


# -- conflicts --------------------------------------------------------------------------------------------------------


def test_deadlocks_are_repeated_until_everyone_is_done(server: PostgresBackend, opened: Any, runner: Runner) -> None:
    server.execute(f"ALTER DATABASE \"{server.database}\" SET deadlock_timeout = '20ms'")
    database, other = opened(timeout=SECONDS), opened(timeout=SECONDS)
    database.run(lambda: write(Statement(INSERT, [(1, b"", ""), (2, b"", "")], many=True)))
    both = threading.Barrier(2)
    attempts = []

    def crossing(first: int, second: int) -> Callable[[], Plan[None]]:
        def plan() -> Plan[None]:
            again = first in attempts
            attempts.append(first)
            yield Begin("write")
            yield from run(Statement(ADD, (".", first)))
            if not again:
                both.wait(SECONDS)  # each has what the other goes for
            yield from run(Statement(ADD, (".", second)), commit=True)

        return plan

    thread = threading.Thread(target=other.run, args=(crossing(2, 1),))
    thread.start()
    runner(database, crossing(1, 2))
    join([thread])
    assert len(attempts) >= 3
    assert [row[2] for row in rows(database)] == ["..", ".."]


def test_conflicts_that_do_not_end_are_a_retryable_error(
    opened: Any, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shredsaver.db.pg_session._LONGEST_PAUSE", 0.01)
    database = opened(timeout=SECONDS)
    attempts = []
    fail = Sql("", "DO $$ BEGIN RAISE EXCEPTION 'never' USING ERRCODE = '40001'; END $$")

    def plan() -> Plan[Any]:
        attempts.append(1)
        return write(Statement(fail))

    with pytest.raises(DatabaseUnavailableError, match="40001") as caught:
        runner(database, plan)
    assert caught.value.retryable
    assert len(attempts) == 21


def test_a_lock_is_waited_for_with_a_bound(opened: Any, runner: Runner) -> None:
    holder, database = opened(timeout=SECONDS), opened(timeout=0.5)
    holder.run(lambda: write(Statement(INSERT, (1, b"", ""))))

    def holding() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        with pytest.raises(DatabaseUnavailableError, match="55P03") as caught:
            runner(database, lambda: write(Statement(LOCK, (1,))))
        assert caught.value.retryable
        yield Commit()

    holder.run(holding)
