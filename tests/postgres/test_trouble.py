"""Lost connections, silent networks, frozen processes, deadlocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver.db.base import Begin, Commit, Plan, Sql, Statement, run
from shredsaver.errors import DatabaseUnavailableError
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.things import ADD, COUNT, INSERT, LOCK, UPSERT, Runner, read, rows, terminate, write

# -- lost connections -------------------------------------------------------------------------------------------------


def test_the_call_after_killed_backends_works(server: PostgresBackend, opened: Any, runner: Runner) -> None:
    database = opened(pool_size=4)
    runner(database, lambda: write(Statement(INSERT, (1, b"", ""))))
    for number in range(2, 5):
        assert terminate(server) >= 1
        runner(database, lambda number=number: write(Statement(INSERT, (number, b"", ""))))
    assert [row[0] for row in rows(database)] == [1, 2, 3, 4]


def test_every_connection_of_a_pool_may_be_dead(proxy: PostgresProxy, opened: Any) -> None:
    database = opened(proxy.url, pool_size=6)
    barrier = threading.Barrier(6)

    def together() -> Plan[None]:
        yield Begin("read")
        yield from run(Statement(COUNT))
        barrier.wait(10)
        yield Commit()

    threads = [threading.Thread(target=database.run, args=(together,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
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


def test_a_server_that_stays_away_is_a_retryable_error_and_comes_back(
    proxy: PostgresProxy, opened: Any, runner: Runner
) -> None:
    database = opened(proxy.url, timeout=1.5)
    runner(database, lambda: read(Statement(COUNT)))
    proxy.refuse()
    proxy.cut()
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailableError) as caught:
        runner(database, lambda: read(Statement(COUNT)))
    assert caught.value.retryable
    assert time.monotonic() - started < 5
    proxy.refuse(False)
    deadline = time.monotonic() + 20
    while True:
        try:
            assert runner(database, lambda: read(Statement(COUNT)))[0].rows == [(0,)]
            break
        except DatabaseUnavailableError:
            assert time.monotonic() < deadline


def test_a_silent_network_is_given_up_and_the_next_call_works(
    proxy: PostgresProxy, opened: Any, runner: Runner
) -> None:
    database = opened(proxy.url, timeout=1.0, answer_timeout=1.0)
    runner(database, lambda: read(Statement(COUNT)))
    proxy.stall()
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailableError, match=r"answer|free") as caught:
        runner(database, lambda: read(Statement(COUNT)))
    assert caught.value.retryable
    assert time.monotonic() - started < 6
    proxy.resume()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert runner(database, lambda: read(Statement(COUNT)))[0].rows == [(0,)]
            break
        except DatabaseUnavailableError:
            assert time.monotonic() < deadline


def test_a_frozen_process_does_not_hold_its_locks_for_ever(opened: Any) -> None:
    frozen, other = opened(timeout=1.0), opened(timeout=5.0)
    other.run(lambda: write(Statement(INSERT, (1, b"", ""))))
    thawed = threading.Event()
    locked = threading.Event()
    attempts = []

    def freezing() -> Plan[None]:
        attempts.append(1)
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        locked.set()
        if len(attempts) == 1:
            thawed.wait(20)
        yield from run(Statement(ADD, ("late", 1)), commit=True)

    thread = threading.Thread(target=frozen.run, args=(freezing,))
    thread.start()
    try:
        assert locked.wait(10)
        other.run(lambda: write(Statement(LOCK, (1,)), Statement(ADD, ("first", 1))))
    finally:
        thawed.set()
        thread.join(20)
    assert rows(other)[0][2] == "firstlate"
    assert len(attempts) == 2


# -- conflicts --------------------------------------------------------------------------------------------------------


def test_deadlocks_are_repeated_until_everyone_is_done(server: PostgresBackend, opened: Any, runner: Runner) -> None:
    server.execute(f"ALTER DATABASE \"{server.database}\" SET deadlock_timeout = '20ms'")
    database, other = opened(), opened()
    database.run(lambda: write(Statement(INSERT, [(1, b"", ""), (2, b"", "")], many=True)))
    attempts = []

    def crossing(first: int, second: int) -> Callable[[], Plan[None]]:
        def plan() -> Plan[None]:
            attempts.append(first)
            yield Begin("write")
            yield from run(Statement(ADD, (".", first)))
            if len(attempts) < 3:
                time.sleep(0.2)
            yield from run(Statement(ADD, (".", second)), commit=True)

        return plan

    thread = threading.Thread(target=other.run, args=(crossing(2, 1),))
    thread.start()
    runner(database, crossing(1, 2))
    thread.join(20)
    assert len(attempts) >= 3
    assert [row[2] for row in rows(database)] == ["..", ".."]


def test_conflicts_that_do_not_end_are_a_retryable_error(opened: Any, runner: Runner) -> None:
    database = opened(timeout=2.0)
    attempts = []
    fail = Sql("", "DO $$ BEGIN RAISE EXCEPTION 'never' USING ERRCODE = '40001'; END $$")

    def plan() -> Plan[Any]:
        attempts.append(1)
        return write(Statement(fail))

    with pytest.raises(DatabaseUnavailableError, match="40001") as caught:
        runner(database, plan)
    assert caught.value.retryable
    assert 4 <= len(attempts) <= 21


def test_a_lock_is_waited_for_with_a_bound(opened: Any, runner: Runner) -> None:
    holder, database = opened(), opened(timeout=0.5)
    holder.run(lambda: write(Statement(INSERT, (1, b"", ""))))

    def holding() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        with pytest.raises(DatabaseUnavailableError, match="55P03") as caught:
            runner(database, lambda: write(Statement(LOCK, (1,))))
        assert caught.value.retryable
        yield Commit()

    holder.run(holding)
