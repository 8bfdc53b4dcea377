"""Connections to PostgreSQL: how they are set up, and how one pipeline is sent on each kind.

A connection stays in pipeline mode. Leaving it, psycopg sends a Flush behind the Sync, and a server that gets one then
does not start its ``idle_in_transaction_session_timeout``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus
from psycopg.types.numeric import Int8BinaryDumper

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
    """A blocking connection, in pipeline mode for good, that gives up on a silent server."""

    answer_timeout = 60.0
    stream: psycopg.Pipeline

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """See `psycopg.Connection.wait`; raises `ServerSilentError` after ``answer_timeout`` seconds."""
        return super().wait(_bounded(gen, self), *args, **kwargs)

    def __del__(self, *_: Any) -> None:
        """Says nothing: a pooled connection may end with its process, and closes by itself."""


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """An awaiting connection, in pipeline mode for good, that gives up on a silent server."""

    answer_timeout = 60.0
    stream: psycopg.AsyncPipeline

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """See `psycopg.AsyncConnection.wait`; raises `ServerSilentError` after ``answer_timeout`` seconds."""
        return await super().wait(_bounded(gen, self), *args, **kwargs)

    def __del__(self, *_: Any) -> None:
        """Says nothing: a pooled connection may end with its event loop, and closes by itself."""


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    # By default the type of a parameter follows the size of the number, and each mix of types would be prepared apart.
    adapters.register_dumper(int, Int8BinaryDumper)
    return adapters


def _options(target: Target) -> dict[str, Any]:
    return {
        "autocommit": True,  # transactions begin and end where plans say
        "prepare_threshold": _PREPARE_AFTER if target.prepare else None,
        "context": _adapters(),
    }


def connect(target: Target) -> Connection:
    """A new connection, blocking."""
    connection = Connection.connect(target.conninfo, **_options(target))
    connection.answer_timeout = target.answer_timeout
    connection.prepared_max = _MAX_PREPARED
    connection.stream = connection._pipeline = psycopg.Pipeline(connection)
    connection.stream.__enter__()
    return connection


async def aconnect(target: Target) -> AsyncConnection:
    """A new connection for the running event loop."""
    connection = await AsyncConnection.connect(target.conninfo, **_options(target))
    connection.answer_timeout = target.answer_timeout
    connection.prepared_max = _MAX_PREPARED
    connection.stream = connection._pipeline = psycopg.AsyncPipeline(connection)
    await connection.stream.__aenter__()
    return connection


def send(connection: Connection, queries: Sequence[Query]) -> list[Reply]:
    """Sends all in one pipeline and waits for all answers: one round trip.

    Raises:
        psycopg.Error: What the first statement that failed met; none behind it was run.
    """
    cursors = []
    failure: psycopg.Error | None = None
    try:
        for text, params, many in queries:
            cursor = connection.cursor(binary=True)
            cursors.append(cursor)
            if many:
                cursor.executemany(text, params)
            else:
                cursor.execute(text, params or None)
    except psycopg.Error as error:
        failure = error
    while True:
        try:
            connection.stream.sync()
        except psycopg.Error as error:
            failure = failure or error
        if connection.closed or not connection.stream.result_queue:
            break
    if failure is not None:
        raise failure
    return [Reply(cursor.fetchall() if _has_rows(cursor) else [], *_outcome(cursor)) for cursor in cursors]


def post(connection: Connection, query: Query) -> None:
    """Sends without waiting: `send` takes the answer in before its own."""
    connection.cursor().execute(query.text)
    connection.stream._enqueue_sync()
    connection.wait(connection.stream._communicate_gen())


async def apost(connection: AsyncConnection, query: Query) -> None:
    """As `post`, awaiting that it is sent."""
    await connection.cursor().execute(query.text)
    connection.stream._enqueue_sync()
    await connection.wait(connection.stream._communicate_gen())


async def asend(connection: AsyncConnection, queries: Sequence[Query]) -> list[Reply]:
    """As `send`, awaiting."""
    cursors = []
    failure: psycopg.Error | None = None
    try:
        for text, params, many in queries:
            cursor = connection.cursor(binary=True)
            cursors.append(cursor)
            if many:
                await cursor.executemany(text, params)
            else:
                await cursor.execute(text, params or None)
    except psycopg.Error as error:
        failure = error
    while True:
        try:
            await connection.stream.sync()
        except psycopg.Error as error:
            failure = failure or error
        if connection.closed or not connection.stream.result_queue:
            break
    if failure is not None:
        raise failure
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
