"""Driver for PostgreSQL 14 and later: a pool of connections for threads, and one for each running event loop.

The way of a plan: `PostgresDatabase.run` or `arun` takes the steps that `pg_session.drive` makes of the plan's effects;
`pg_connect` sends them.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from shredsaver.errors import DatabaseUnavailableError, MissingDependencyError

try:
    import psycopg
except ImportError as error:
    raise MissingDependencyError(f"PostgreSQL needs psycopg ({error}): pip install 'shredsaver[postgres]'") from None

from shredsaver.db import pg_connect, pg_url
from shredsaver.db.base import Begin, Call, Plan, PlanFactory, Sql, Statement, T, run
from shredsaver.db.pg_errors import StandbyError, translate
from shredsaver.db.pg_pool import AwaitingPool, BlockingPool
from shredsaver.db.pg_session import Acquire, Post, Query, Release, Send, Step, drive

_CALL_THREADS: Final = 32
_IN_RECOVERY: Final = Query("SELECT pg_is_in_recovery()")
# The timeline of the WAL written now: pg_control_checkpoint() still tells the old one right after a promotion.
_IDENTITY: Final = (
    "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), "
    "(SELECT oid FROM pg_database WHERE datname = current_database())::bigint, "
    "coalesce((SELECT oid FROM pg_namespace WHERE nspname = (parse_ident(current_setting('search_path'), false))[1])"
    "::bigint, 0)"
)
_FINGERPRINT: Final = Sql("", f"SELECT system_identifier::text, {_IDENTITY} FROM pg_control_system()")
_FINGERPRINT_WITHOUT_SYSTEM: Final = Sql("", f"SELECT '-', {_IDENTITY}")


class PostgresDatabase:
    """One schema of one PostgreSQL database.

    The server must be a primary: a standby is refused, because it can be behind with who was shredded. Nothing is kept
    in a session, so a pooler in transaction mode may stand in between.

    Args:
        dsn: A URL or connection string as libpq reads it; of a URL, options with the names of the arguments below count
            and win over them.
        schema: The schema of the tables; `migrate` makes it.
        pool_size: Most connections, once for all threads and once for each event loop.
        timeout: Seconds to wait for a connection, for a lock, and to go on repeating after conflicts and lost
            connections. A transaction whose process stands still for half of it is ended by the server.
        answer_timeout: Seconds that one round trip may take before the connection counts as dead.
        prepare: Prepare statements on the server. Turn it off behind a pooler in transaction mode that does not know
            prepared statements (PgBouncer before 1.21).

    Raises:
        MissingDependencyError: psycopg is not installed (raised on importing this module).
        ConfigurationError: The URL or an option cannot be used.
        DatabaseUnavailableError: The server cannot be reached, refuses, or is a standby.
    """

    _pool: BlockingPool | None
    _loops: dict[asyncio.AbstractEventLoop, AwaitingPool]
    _executor: ThreadPoolExecutor | None

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "shredsaver",
        pool_size: int = 10,
        timeout: float = 30.0,
        answer_timeout: float = 60.0,
        prepare: bool = True,
    ) -> None:
        options = {
            "schema": schema,
            "pool_size": pool_size,
            "timeout": timeout,
            "answer_timeout": answer_timeout,
            "prepare": prepare,
        }
        self._target = pg_url.parse(dsn, options)
        self._closed = False
        self._forget()
        self._try()

    def __repr__(self) -> str:
        return f"<PostgresDatabase {self.location}>"

    @property
    def location(self) -> str:
        """The URL without password and options."""
        return self._target.location

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self._target.schema

    def fingerprint(self) -> str:
        """System identifier, timeline, OID of the database and OID of the schema.

        A restore to a point in time and a promoted standby have another timeline, a dump that was read in another OID.
        A copy of the data directory that was started as it is has the same of everything: the tombstones tell it apart.
        Where the role may not call ``pg_control_system()``, the system identifier is left out.
        """
        try:
            rows = self.run(lambda: _one_query(_FINGERPRINT))
        except DatabaseUnavailableError as error:
            if error.retryable:
                raise
            rows = self.run(lambda: _one_query(_FINGERPRINT_WITHOUT_SYSTEM))
        return "postgresql:" + ":".join(str(value) for value in rows[0])

    # -- running plans ----------------------------------------------------------------------------------------------

    def run(self, factory: PlanFactory[T]) -> T:
        """Runs a plan on this thread. See `Database.run` and `drive`."""
        pool = self._blocking_pool()
        steps = drive(factory, self._target)
        try:
            step = next(steps)
            while True:
                try:
                    answer = _take(pool, step)
                except BaseException as error:  # noqa: BLE001 - the plan's to see; it comes back out
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def arun(self, factory: PlanFactory[T]) -> T:
        """Runs a plan in the running event loop. A cancelled task's transaction is rolled back."""
        pool = self._awaiting_pool()
        steps = drive(factory, self._target)
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._atake(pool, step)
                except BaseException as error:  # noqa: BLE001 - the plan's to see; it comes back out
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _atake(self, pool: AwaitingPool, step: Step) -> Any:
        if isinstance(step, Send):
            return await pg_connect.asend(step.connection, step.queries)
        if isinstance(step, Post):
            return await pg_connect.apost(step.connection, step.query)
        if isinstance(step, Acquire):
            return await pool.acquire(check=step.check)
        if isinstance(step, Release):
            return pool.release(step.connection, broken=step.broken)
        if isinstance(step, Call):
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._threads(), context.run, step.function)
        return await asyncio.sleep(step.seconds)

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes every connection that is not in use and refuses new ones; one in use closes when it is given back."""
        self._after_fork()
        with self._lock:
            self._closed = True
            pools: list[AwaitingPool | BlockingPool] = [*self._loops.values()]
            if self._pool is not None:
                pools.append(self._pool)
            self._loops, self._pool = {}, None
            executor, self._executor = self._executor, None
        for pool in pools:
            pool.close()
        if executor is not None:
            executor.shutdown(wait=False)

    async def aclose(self) -> None:
        """As `close`, which waits for nothing."""
        self.close()

    # -- pools ------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool = None
        self._loops = {}
        self._executor = None

    def _after_fork(self) -> None:
        # A connection must not be used, nor even closed, by two processes: the parent's are left alone.
        if os.getpid() != self._pid:
            _left_to_the_parent.append((self._pool, self._loops))
            self._forget()

    def _try(self) -> None:
        """Connects once, so that what is wrong is said now and in full."""
        problem: psycopg.Error | None = None
        try:
            connection = pg_connect.connect(self._target)
            (reply,) = pg_connect.send(connection, [_IN_RECOVERY])
            connection.pgconn.finish()
            if reply.rows[0][0]:
                problem = StandbyError("the server is a standby")
        except psycopg.Error as error:
            problem = error
        if problem is not None:
            raise translate(self.location, problem) from None

    def _check_open(self) -> None:
        if self._closed:
            raise DatabaseUnavailableError(f"the database {self.location} was closed: open it again")

    def _blocking_pool(self) -> BlockingPool:
        self._after_fork()
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = BlockingPool(self._target)
            return self._pool

    def _awaiting_pool(self) -> AwaitingPool:
        self._after_fork()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            pool = self._loops.get(loop)
            if pool is None:
                for ended in [known for known in self._loops if known.is_closed()]:
                    self._loops.pop(ended).close()
                pool = self._loops[loop] = AwaitingPool(self._target)
            return pool

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            self._check_open()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_CALL_THREADS, "shredsaver-call")
            return self._executor


_left_to_the_parent: Final[list[Any]] = []


def _take(pool: BlockingPool, step: Step) -> Any:
    if isinstance(step, Send):
        return pg_connect.send(step.connection, step.queries)
    if isinstance(step, Post):
        return pg_connect.post(step.connection, step.query)
    if isinstance(step, Acquire):
        return pool.acquire(check=step.check)
    if isinstance(step, Release):
        return pool.release(step.connection, broken=step.broken)
    if isinstance(step, Call):
        return step.function()
    return time.sleep(step.seconds)


def _one_query(statement: Sql) -> Plan[list[tuple[Any, ...]]]:
    yield Begin("read")
    (answer,) = yield from run(Statement(statement), commit=True)
    return answer.rows
