"""Connections to PostgreSQL and their pools: how they are set up, and how one pipeline is sent on each kind.

The blocking and the awaiting half of this module are the only twins of the driver; both are as thin as they can be.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from shredsaver.db.pg_errors import ServerSilentError
from shredsaver.db.pg_session import Query, Reply
from shredsaver.db.pg_url import Target

R = TypeVar("R")
_PREPARE_AFTER: Final = 2  # uses of a statement on a connection, before it is prepared
_MAX_PREPARED: Final = 500  # statements a connection


def _bounded(steps: Generator[Any, Any, R], connection: Any) -> Generator[Any, Any, R]:
    """Waits for the server as ``steps`` ask, but not for ever: a cut network can leave a socket silent for hours."""
    deadline = time.monotonic() + connection.answer_timeout
    try:
        wanted = next(steps)
        while True:
            try:
                ready = yield wanted
            except BaseException as error:  # noqa: BLE001 - psycopg's own business, passed through
                wanted = steps.throw(error)
                continue
            if not ready and time.monotonic() > deadline:
                connection.pgconn.finish()
                raise ServerSilentError(f"the server did not answer for {connection.answer_timeout:g} seconds")
            wanted = steps.send(ready)
    except StopIteration as stop:
        result: R = stop.value
        return result


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A blocking connection that gives up on a silent server."""

    answer_timeout = 60.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """See `psycopg.Connection.wait`; raises `ServerSilentError` after ``answer_timeout`` seconds."""
        return super().wait(_bounded(gen, self), *args, **kwargs)


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """An awaiting connection that gives up on a silent server."""

    answer_timeout = 60.0

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """See `psycopg.AsyncConnection.wait`; raises `ServerSilentError` after ``answer_timeout`` seconds."""
        return await super().wait(_bounded(gen, self), *args, **kwargs)


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    # By default the type of a parameter follows the size of the number, and each mix of types would be prepared apart.
    adapters.register_dumper(int, Int8BinaryDumper)
    return adapters


def _options(target: Target) -> dict[str, Any]:
    return {
        "kwargs": {
            "autocommit": True,  # transactions begin and end where plans say
            "prepare_threshold": _PREPARE_AFTER if target.prepare else None,
            "context": _adapters(),
        },
        "min_size": min(1, target.pool_size),
        "max_size": target.pool_size,
        "timeout": target.timeout,
        "open": False,
    }


def _configure(target: Target, connection: Any) -> None:
    connection.answer_timeout = target.answer_timeout
    connection.prepared_max = _MAX_PREPARED


def blocking_pool(target: Target) -> ConnectionPool[Connection]:
    """A pool for threads, opened."""

    def configure(connection: Connection) -> None:
        _configure(target, connection)

    pool = ConnectionPool(target.conninfo, connection_class=Connection, configure=configure, **_options(target))
    pool.open()
    return pool


def awaiting_pool(target: Target) -> AsyncConnectionPool[AsyncConnection]:
    """A pool for the running event loop, to be opened in it."""

    async def configure(connection: AsyncConnection) -> None:
        _configure(target, connection)

    return AsyncConnectionPool(
        target.conninfo, connection_class=AsyncConnection, configure=configure, **_options(target)
    )


def connect_once(target: Target) -> Connection:
    """A connection outside any pool: it fails at once, and says why."""
    connection = Connection.connect(target.conninfo, **_options(target)["kwargs"])
    _configure(target, connection)
    return connection


def send(connection: Connection, queries: Sequence[Query]) -> list[Reply]:
    """Sends all in one pipeline and waits for all answers: one round trip."""
    cursors = []
    with connection.pipeline():
        for text, params, many in queries:
            cursor = connection.cursor(binary=True)
            if many:
                cursor.executemany(text, params)
            else:
                cursor.execute(text, params or None)
            cursors.append(cursor)
    return [Reply(cursor.fetchall() if _has_rows(cursor) else [], *_outcome(cursor)) for cursor in cursors]


async def asend(connection: AsyncConnection, queries: Sequence[Query]) -> list[Reply]:
    """As `send`, awaiting."""
    cursors = []
    async with connection.pipeline():
        for text, params, many in queries:
            cursor = connection.cursor(binary=True)
            if many:
                await cursor.executemany(text, params)
            else:
                await cursor.execute(text, params or None)
            cursors.append(cursor)
    return [Reply(await cursor.fetchall() if _has_rows(cursor) else [], *_outcome(cursor)) for cursor in cursors]


class _Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    @property
    def statusmessage(self) -> str | None: ...


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _outcome(cursor: _Cursor) -> tuple[int, str]:
    return max(cursor.rowcount, 0), cursor.statusmessage or ""


def acquire(pool: ConnectionPool[Connection], *, check: bool) -> Connection:
    """A connection; with ``check`` one that answered just now."""
    while True:
        connection = pool.getconn()
        if not check:
            return connection
        try:
            pool.check_connection(connection)
        except psycopg.Error:
            release(pool, connection, broken=True)
        else:
            return connection


async def aacquire(pool: AsyncConnectionPool[AsyncConnection], *, check: bool) -> AsyncConnection:
    """As `acquire`, awaiting."""
    while True:
        connection = await pool.getconn()
        if not check:
            return connection
        try:
            await pool.check_connection(connection)
        except psycopg.Error:
            await arelease(pool, connection, broken=True)
        else:
            return connection


def release(pool: ConnectionPool[Connection], connection: Connection, *, broken: bool) -> None:
    """Gives a connection back; the pool makes a new one for a broken one."""
    if broken:
        connection.close()
    pool.putconn(connection)


async def arelease(pool: AsyncConnectionPool[AsyncConnection], connection: AsyncConnection, *, broken: bool) -> None:
    """As `release`, awaiting."""
    if broken:
        await connection.close()
    await pool.putconn(connection)
