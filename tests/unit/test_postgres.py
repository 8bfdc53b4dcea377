"""The PostgreSQL driver: plans in few round trips, pools, lost connections, conflicts, cancellation, loops, forks."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shredsaver.db.base import Begin, Call, Commit, Plan, Rollback, Run, Sql, Statement, call, run, sql
from shredsaver.db.migrations import migrate
from shredsaver.db.pg_connect import send
from shredsaver.db.pg_session import Query
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.localroots import LocalRoots
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend, PostgresServer
from tests.support.calls import Mode

CREATE = sql("CREATE TABLE things (id {int} NOT NULL PRIMARY KEY, data {bytes}, note {text}) {strict}")
INSERT = sql("INSERT INTO things (id, data, note) VALUES (?, ?, ?)")
UPSERT = sql("INSERT INTO things (id, data, note) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET note = excluded.note")
LOCK = sql("SELECT id FROM things WHERE id = ? {update}")
SELECT = sql("SELECT id, data, note FROM things WHERE id >= ? ORDER BY id")
COUNT = sql("SELECT count(*) FROM things")
ADD = sql("UPDATE things SET note = note || ? WHERE id = ?")


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresBackend]:
    database = postgres.database()
    try:
        yield database
    finally:
        postgres.recycle(database)


@pytest.fixture
def proxy(server: PostgresBackend) -> Iterator[PostgresProxy]:
    with PostgresProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def opened(server: PostgresBackend) -> Iterator[Callable[..., PostgresDatabase]]:
    """Opens databases with a table of things, and closes them."""
    databases = []
    server.execute("CREATE SCHEMA shredsaver")

    def opening(url: str = server.url, **options: Any) -> PostgresDatabase:
        database = PostgresDatabase(url, **options)
        databases.append(database)
        return database

    first = opening()
    first.run(lambda: write(Statement(CREATE)))
    yield opening
    for database in databases:
        database.close()


class Runner:
    """Runs plans blocking, or on one event loop."""

    def __init__(self, mode: Mode) -> None:
        self.loop = asyncio.Runner() if mode == "async" else None

    def __call__(self, database: PostgresDatabase, factory: Callable[[], Plan[Any]]) -> Any:
        if self.loop is None:
            return database.run(factory)
        return self.loop.run(database.arun(factory))

    def close(self, *databases: PostgresDatabase) -> None:
        if self.loop is not None:
            for database in databases:
                self.loop.run(database.aclose())
            self.loop.close()


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = Runner(request.param)
    yield runner
    runner.close()


def write(*statements: Statement) -> Plan[Any]:
    yield Begin("write")
    return (yield from run(*statements, commit=True))


def read(*statements: Statement) -> Plan[Any]:
    yield Begin("read")
    return (yield from run(*statements, commit=True))


def rows(database: PostgresDatabase, first: int = 0) -> list[tuple[Any, ...]]:
    return database.run(lambda: read(Statement(SELECT, (first,))))[0].rows


def terminate(server: PostgresBackend) -> int:
    killed = server.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'shredsaver' "
        "AND datname = current_database()"
    )
    return int(killed[0][0])


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


def test_a_writing_plan_sees_what_the_winner_of_a_lock_committed(opened: Any, runner: Runner) -> None:
    database, other = opened(), opened()
    database.run(lambda: write(Statement(INSERT, (1, b"", "a"))))
    locked = threading.Event()

    def winner() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(LOCK, (1,)))
        locked.set()
        time.sleep(0.2)
        yield from run(Statement(ADD, ("b", 1)), commit=True)

    def loser() -> Plan[str]:
        yield Begin("write")
        _, found = yield from run(Statement(LOCK, (1,)), Statement(SELECT, (1,)), commit=True)
        return str(found.rows[0][2])

    thread = threading.Thread(target=other.run, args=(winner,))
    thread.start()
    assert locked.wait(10)
    assert runner(database, loser) == "ab"
    thread.join(10)


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

    before = proxy.round_trips
    assert runner(database, idle) == "done"
    assert runner(database, idle) == "done"
    assert proxy.round_trips - before <= 1  # the pool's first connection


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

    def plan() -> Plan[tuple[str, int]]:
        yield Begin("read")
        yield from run(Statement(COUNT), commit=True)
        return (yield from call(lambda: (time.sleep(0.3), variable.get(), threading.get_ident())[1:]))

    async def main() -> tuple[Any, int]:
        variable.set("kept")
        ticks = 0
        task = asyncio.ensure_future(database.arun(plan))
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await database.aclose()
        return task.result(), ticks

    (value, thread), ticks = asyncio.run(main())
    assert value == "kept"
    assert thread != threading.get_ident()
    assert ticks > 10


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [True, False])
def test_a_run_is_one_round_trip_whatever_it_holds(
    proxy: PostgresProxy, opened: Any, runner: Runner, prepare: bool
) -> None:
    database = opened(proxy.url, prepare=prepare)
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

    for plan, trips in ((single, 1), (double, 2), (refused, 2)):
        for _ in range(4):  # warm, then with statements being prepared, then prepared
            runner(database, plan)
        before = proxy.round_trips
        runner(database, plan)
        assert proxy.round_trips - before == trips


def test_the_end_of_a_reading_plan_is_not_waited_for(proxy: PostgresProxy, opened: Any, runner: Runner) -> None:
    database = opened(proxy.url, pool_size=1)

    def ending(effect: Any) -> Callable[[], Plan[Any]]:
        def plan() -> Plan[Any]:
            yield Begin("read")
            (answer,) = yield from run(Statement(COUNT))
            yield effect
            return answer.rows

        return plan

    runner(database, ending(Commit()))
    proxy.latency = 0.15
    for effect in (Commit(), Rollback()):
        started = time.monotonic()
        assert runner(database, ending(effect)) == [(0,)]
        assert time.monotonic() - started < 0.45  # its own round trip, and what is left of the one before
    proxy.latency = 0
    assert runner(database, lambda: write(Statement(INSERT, (1, b"", ""))))[0].changed == 1
    assert proxy.cut() == 1
    assert runner(database, ending(Commit())) == [(1,)]


def test_statements_are_prepared_once_whatever_the_size_of_numbers(server: PostgresBackend, opened: Any) -> None:
    database = opened(pool_size=1)

    for number in (1, 2, 3, 70_000, 70_001, 70_002, 2**40, 2**40 + 1, 2**40 + 2):
        database.run(lambda number=number: write(Statement(INSERT, (number, b"", ""))))
    statement = Sql("", "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO things%'")
    assert database.run(lambda: read(Statement(statement)))[0].rows == [(1,)]
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


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_quote_no_row(opened: Any, runner: Runner) -> None:
    database = opened()
    canary = "canary-0451"
    with pytest.raises(DatabaseUnavailableError, match=r"23505.*") as caught:
        runner(database, lambda: write(Statement(sql("CREATE UNIQUE INDEX notes ON things (note)")), *twice(canary)))
    failures = [caught.value]
    for statement in (Sql("", f"SELECT '{canary}'::bigint"), Sql("", f"SELECT '\"{canary}'::jsonb")):
        with pytest.raises(DatabaseUnavailableError) as caught:
            runner(database, lambda statement=statement: write(Statement(statement)))
        failures.append(caught.value)
    import traceback

    for failure in failures:
        assert not failure.retryable
        assert canary not in str(failure)
        assert canary not in "".join(traceback.format_exception(failure))


def twice(note: str) -> list[Statement]:
    return [Statement(INSERT, (number, b"", note)) for number in (1, 2)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr@et@host/db",
        "postgresql://u:s3cret%zz@host/db",
        "postgresql://u:s3cret@host:port/db",
        "postgresql://u:s3cret@host/db?nosuchoption=1",
        "postgresql://u:s3cret@host/db?schema=",
        "postgresql://u:s3cret@host/db?schema=pg_things",
        "postgresql://u:s3cret@host/db?pool_size=none",
        "postgresql://u:s3cret@host/db?pool_size=0",
        "postgresql://u:s3cret@host/db?prepare=perhaps",
        "postgresql://u:s3cret@host/db?timeout=-1",
        "host=db password=s3cret nosuch=1",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_quoted(url: str) -> None:
    import traceback

    with pytest.raises(ConfigurationError) as caught:
        PostgresDatabase(url)
    shown = str(caught.value) + "".join(traceback.format_exception(caught.value)[-1:])
    assert "s3cr" not in shown


def test_no_message_and_no_log_shows_the_password(
    server: PostgresBackend, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    url = proxy.url.replace("postgres@", "postgres:s3cret-password@")
    with PostgresProxy(server.url) as refusing:
        refusing.refuse()
        with pytest.raises(DatabaseUnavailableError) as caught:
            PostgresDatabase(refusing.url.replace("postgres@", "postgres:s3cret-password@"))
    database = PostgresDatabase(url, timeout=1.0)
    try:
        database.run(lambda: read(Statement(Sql("", "SELECT 1"))))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(DatabaseUnavailableError):
            database.run(lambda: read(Statement(Sql("", "SELECT 1"))))
        shown = [str(caught.value), database.location, repr(database), repr(database._target), caplog.text]
    finally:
        database.close()
    assert "s3cret" not in " ".join(shown)
    assert database.location.startswith("postgresql://postgres@127.0.0.1:")
    assert server.database in database.location


def test_options_of_libpq_and_of_ours_count_in_the_url(server: PostgresBackend) -> None:
    mark = "&" if "?" in server.url else "?"
    url = (
        f"{server.url}{mark}schema=Odd%20%22name%22&application_name=atlas&options=-c%20work_mem%3D7MB&pool_size=3"
        "&prepare=off"
    )
    database = PostgresDatabase(url, schema="ignored")
    try:
        settings = Sql("", "SELECT current_setting('application_name'), current_setting('work_mem')")
        assert database.run(lambda: read(Statement(settings)))[0].rows == [("atlas", "7MB")]
        assert database.schema == 'Odd "name"'
        assert database._target.pool_size == 3
    finally:
        database.close()


def test_a_server_that_refuses_is_named_at_once(server: PostgresBackend) -> None:
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailableError, match="no-such-database"):
        PostgresDatabase(server.url.replace(server.database, "no-such-database"))
    assert time.monotonic() - started < 5


# -- migrations -------------------------------------------------------------------------------------------------------


def test_processes_that_migrate_at_once_make_one_schema(server: PostgresBackend) -> None:
    databases = [PostgresDatabase(server.url, schema="odd, \"schema'", pool_size=1) for _ in range(6)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(6)

    def setting_up(database: PostgresDatabase) -> None:
        barrier.wait(10)
        try:
            database.run(lambda: migrate(database.location, auto_setup=True))
        except BaseException as error:  # noqa: BLE001 - seen below
            failures.append(error)

    threads = [threading.Thread(target=setting_up, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for database in databases:
        database.run(lambda: migrate("here", auto_setup=False))
        database.close()
    assert failures == []
    made = server.execute(
        "SELECT count(*), min(schemaname), max(schemaname) FROM pg_tables WHERE tablename = 'threads'"
    )
    assert made == [(1, "odd, \"schema'", "odd, \"schema'")]


def test_one_role_owns_the_schema_and_another_without_ddl_serves(server: PostgresBackend) -> None:
    owner, app = f"owner_{os.getpid()}", f"app_{os.getpid()}"
    server.execute(f"CREATE ROLE {owner} LOGIN")
    server.execute(f"CREATE ROLE {app} LOGIN")
    try:
        server.execute(f'GRANT CREATE ON DATABASE "{server.database}" TO {owner}')
        serving = PostgresDatabase(server.url.replace("postgres@", f"{app}@"))
        with pytest.raises(SchemaVersionError, match="shredsaver init"):
            serving.run(lambda: migrate(serving.location, auto_setup=False))
        with pytest.raises(DatabaseUnavailableError, match=r"42501.*GRANT"):
            serving.run(lambda: migrate(serving.location, auto_setup=True))
        owning = PostgresDatabase(server.url.replace("postgres@", f"{owner}@"))
        owning.run(lambda: migrate(owning.location, auto_setup=True))
        with pytest.raises(DatabaseUnavailableError, match=r"42P01.*GRANT"):
            serving.run(lambda: migrate(serving.location, auto_setup=False))
        for grant in (
            f"GRANT USAGE ON SCHEMA shredsaver TO {app}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shredsaver TO {app}",
        ):
            server.execute(grant)
        for auto_setup in (True, False):
            serving.run(lambda auto_setup=auto_setup: migrate(serving.location, auto_setup=auto_setup))
        with pytest.raises(DatabaseUnavailableError, match="42501"):
            serving.run(lambda: write(Statement(CREATE)))
        assert serving.fingerprint() == owning.fingerprint()
        serving.close()
        owning.close()
    finally:
        for role in (app, owner):
            server.execute(f"DROP OWNED BY {role} CASCADE")
            server.execute(f"DROP ROLE {role}")


def test_another_programs_tables_are_left_alone(server: PostgresBackend) -> None:
    server.execute("CREATE SCHEMA shredsaver")
    server.execute("CREATE TABLE shredsaver.checkpoints (id int)")
    database = PostgresDatabase(server.url)
    with pytest.raises(ConfigurationError, match="checkpoints"):
        database.run(lambda: migrate(database.location, auto_setup=True))
    database.close()
    beside = PostgresDatabase(server.url, schema="beside")
    beside.run(lambda: migrate(beside.location, auto_setup=True))
    beside.close()


# -- identity ---------------------------------------------------------------------------------------------------------


def test_the_fingerprint_tells_copies_apart_and_stays(server: PostgresBackend, opened: Any) -> None:
    database = opened()
    fingerprint = database.fingerprint()
    assert opened().fingerprint() == fingerprint
    (identifier,) = server.execute("SELECT system_identifier FROM pg_control_system()")[0]
    assert fingerprint.startswith(f"postgresql:{identifier}:0000")
    copy = server.copy()
    other = opened(copy.url)
    assert other.fingerprint() != fingerprint
    server.execute("ALTER SCHEMA shredsaver RENAME TO old")
    server.execute("CREATE SCHEMA shredsaver")
    assert database.fingerprint() != fingerprint


def test_a_role_that_may_not_ask_for_the_system_identifier_still_gets_a_fingerprint(server: PostgresBackend) -> None:
    role = f"plain_{os.getpid()}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    server.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        database = PostgresDatabase(server.url.replace("postgres@", f"{role}@"))
        assert database.fingerprint().startswith("postgresql:-:0000")
        database.close()
    finally:
        server.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        server.execute(f"DROP ROLE {role}")


def test_roots_of_one_host_do_not_serve_a_key_store_of_many(server: PostgresBackend, tmp_path: Path) -> None:
    roots = LocalRoots(tmp_path / "lock", [tmp_path / "roots"], slots=4)
    database = PostgresDatabase(server.url, schema="keys")
    try:
        with pytest.raises(ConfigurationError, match="any host"):
            StoredKeyService(database, roots)
        assert server.execute("SELECT count(*) FROM pg_tables WHERE tablename ~ '^key_'") == [(0,)]
    finally:
        database.close()
        roots.close()


# -- pools, loops, cancellation, forks --------------------------------------------------------------------------------


def test_more_callers_than_connections_take_turns(server: PostgresBackend, opened: Any) -> None:
    database = opened(pool_size=3)

    def plan() -> Plan[None]:
        yield Begin("read")
        yield from run(Statement(Sql("", "SELECT pg_sleep(0.005)")))
        yield from run(Statement(COUNT), commit=True)

    async def main() -> None:
        await asyncio.gather(*(database.arun(plan) for _ in range(60)))
        await database.aclose()

    def connections() -> int:
        counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shredsaver' AND datname = ?"
        return int(server.execute(counted, (server.database,))[0][0])

    highest = 0
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    while thread.is_alive():
        highest = max(highest, connections())
    thread.join()
    assert 1 <= highest <= 3 + 1  # and the fixture's own


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
    for thread in threads:
        thread.join(20)
    asyncio.run(main())
    assert len(database._loops) == 1  # ended loops are forgotten
    gc.collect()
    database.close()
    assert database._loops == {}


def test_a_cancelled_task_rolls_back_and_gives_its_connection_back(
    server: PostgresBackend, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    database = opened(pool_size=1)
    thrown: list[type[BaseException]] = []

    def waiting() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(INSERT, (1, b"", "")))
        try:
            yield from run(Statement(Sql("", "SELECT pg_sleep(30)")), commit=True)
        except BaseException as error:
            thrown.append(type(error))
            raise

    async def main() -> Any:
        task = asyncio.ensure_future(database.arun(waiting))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await database.arun(lambda: read(Statement(COUNT)))
        await database.aclose()
        return answer[0].rows

    assert asyncio.run(main()) == [(0,)]
    assert caplog.text == ""  # the server was told, and answered
    running = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.30' AND pid <> pg_backend_pid()"
    assert server.execute(f"{running} AND state = 'active'") == [(0,)]
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


def _in_child(database: PostgresDatabase, results: Any) -> None:
    results.put(database.run(lambda: write(Statement(INSERT, (os.getpid(), b"", ""))))[0].changed)
    results.put(asyncio.run(database.arun(lambda: read(Statement(COUNT))))[0].rows)
    database.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(server: PostgresBackend, opened: Any) -> None:
    database = opened()
    rows(database)
    backends = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shredsaver' AND datname = current_database()"
    before = set(server.execute(backends))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(database, results))
    child.start()
    assert results.get() == 1
    assert results.get() == [(1,)]
    child.join(20)
    assert child.exitcode == 0
    assert before <= set(server.execute(backends))  # the child ended none of the parent's
    assert len(rows(database)) == 1


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
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[(1,)] [(1,)]"
    assert done.stderr == ""
    assert time.monotonic() - started < 15


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
        "    time.sleep(60)\n"
        "PostgresDatabase(sys.argv[1]).run(plan)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    database = opened(timeout=5)
    database.run(lambda: write(Statement(INSERT, (1, b"", "mine"))))
    assert rows(database) == [(1, b"", "mine")]
