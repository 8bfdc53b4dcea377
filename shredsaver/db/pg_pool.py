"""Pools of connections: one for threads, one for each event loop.

They start no threads and no tasks of their own: a process may fork or end, and ``asyncio.run`` may return, without
anything being closed first, and what is wrong with the server reaches the caller that met it, at once and in full.
"""

from __future__ import annotations

import asyncio
import random
import select
import threading
import time
from typing import Final, Generic, TypeVar

import psycopg

from shredsaver.db import pg_connect
from shredsaver.db.pg_connect import AsyncConnection, Connection
from shredsaver.db.pg_errors import PoolBusyError, PoolClosedError
from shredsaver.db.pg_session import Query
from shredsaver.db.pg_url import Target

C = TypeVar("C", Connection, AsyncConnection)
_LIFETIME: Final = 3600.0  # seconds; then a connection is made anew, so that load spreads after a failover
_IDLE: Final = 600.0  # seconds
_PING: Final = Query("SELECT 1")


class _Idle(Generic[C]):
    """Connections that nobody uses: the one used last is taken first, so that those not needed grow old and close."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[tuple[float, C]] = []
        self._born: dict[int, float] = {}
        self.closed = False

    def register(self, connection: C) -> C:
        """Notes when a connection was made."""
        self._born[id(connection)] = time.monotonic() + random.uniform(0, _LIFETIME / 10)  # noqa: S311 - not secret
        return connection

    def take(self) -> C | None:
        """A connection that is idle and seems alive."""
        while True:
            with self._lock:
                if self.closed:
                    raise PoolClosedError("the pool was closed")
                if not self._connections:
                    return None
                _, connection = self._connections.pop()
            if _is_quiet(connection):
                return connection
            self.discard(connection)

    def keep(self, connection: C) -> None:
        """Takes back a connection that is outside any transaction."""
        now = time.monotonic()
        old = [connection]
        with self._lock:
            if not self.closed and now - self._born[id(connection)] < _LIFETIME:
                self._connections.append((now, connection))
                old = []
            while self._connections and now - self._connections[0][0] > _IDLE:
                old.append(self._connections.pop(0)[1])
        for each in old:
            self.discard(each)

    def discard(self, connection: C) -> None:
        """Closes a connection."""
        self._born.pop(id(connection), None)
        connection.pgconn.finish()  # what close() does, and the same for both kinds

    def close(self) -> None:
        """Closes what is idle, and what is in use when it comes back."""
        with self._lock:
            self.closed = True
            connections, self._connections = self._connections, []
        for _, connection in connections:
            self.discard(connection)


def _is_quiet(connection: Connection | AsyncConnection) -> bool:
    """Whether the server has said nothing since the last answer: a server that ended a connection has."""
    if connection.closed or connection.wire.owed:
        return not connection.closed  # an answer that nobody waited for may be there, and is read with the next
    poll = getattr(select, "poll", None)
    if poll is None:
        return not select.select([connection.pgconn.socket], [], [], 0)[0]
    poller = poll()
    poller.register(connection.pgconn.socket, select.POLLIN)
    return not poller.poll(0)


class BlockingPool:
    """At most ``target.pool_size`` connections for all threads."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._free = threading.BoundedSemaphore(target.pool_size)
        self._idle: _Idle[Connection] = _Idle()

    def acquire(self, *, check: bool) -> Connection:
        """A connection; with ``check`` one that answered just now.

        Raises:
            PoolBusyError: None became free within ``target.timeout``.
            PoolClosedError: The pool was closed.
            psycopg.OperationalError: The server cannot be reached.
        """
        if not self._free.acquire(timeout=self._target.timeout):
            raise PoolBusyError("no connection became free")
        try:
            while connection := self._idle.take():
                if not check or self._answers(connection):
                    return connection
            return self._idle.register(pg_connect.connect(self._target))
        except BaseException:
            self._free.release()
            raise

    def _answers(self, connection: Connection) -> bool:
        try:
            pg_connect.send(connection, [_PING])
        except psycopg.Error:
            self._idle.discard(connection)
            return False
        return True

    def release(self, connection: Connection, *, broken: bool) -> None:
        """Gives a connection back; a broken one is closed."""
        (self._idle.discard if broken else self._idle.keep)(connection)
        self._free.release()

    def close(self) -> None:
        """Closes what is idle, and what is in use when it comes back."""
        self._idle.close()


class AwaitingPool:
    """At most ``target.pool_size`` connections for the tasks of one event loop, who get them in turn."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._free = asyncio.BoundedSemaphore(target.pool_size)
        self._idle: _Idle[AsyncConnection] = _Idle()

    async def acquire(self, *, check: bool) -> AsyncConnection:
        """As `BlockingPool.acquire`, awaiting."""
        try:
            async with asyncio.timeout(self._target.timeout):
                await self._free.acquire()
        except TimeoutError:
            raise PoolBusyError("no connection became free") from None
        try:
            while connection := self._idle.take():
                if not check or await self._answers(connection):
                    return connection
            return self._idle.register(await pg_connect.aconnect(self._target))
        except BaseException:
            self._free.release()
            raise

    async def _answers(self, connection: AsyncConnection) -> bool:
        try:
            await pg_connect.asend(connection, [_PING])
        except BaseException as error:
            self._idle.discard(connection)
            if isinstance(error, psycopg.Error):
                return False
            raise
        return True

    def release(self, connection: AsyncConnection, *, broken: bool) -> None:
        """Gives a connection back, in the loop it belongs to; a broken one is closed."""
        (self._idle.discard if broken else self._idle.keep)(connection)
        self._free.release()

    def close(self) -> None:
        """Closes what is idle, and what is in use when it comes back. May be called from any thread."""
        self._idle.close()
