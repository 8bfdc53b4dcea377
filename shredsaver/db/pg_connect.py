"""Connections to PostgreSQL, blocking and awaiting: the only twins of the driver, as thin as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from shredsaver.db.pg_session import Query, Reply
from shredsaver.db.pg_url import Target
from shredsaver.db.pg_wire import Wire, adapters


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A blocking connection."""

    wire: Wire

    def __del__(self, *_: Any) -> None:
        """Says nothing: a pooled connection may end with its process, and closes by itself."""


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """An awaiting connection."""

    wire: Wire

    def __del__(self, *_: Any) -> None:
        """Says nothing: a pooled connection may end with its event loop, and closes by itself."""


def connect(target: Target) -> Connection:
    """A new connection, blocking."""
    connection = Connection.connect(target.conninfo, autocommit=True, context=adapters())
    connection.wire = Wire(connection, target)
    return connection


async def aconnect(target: Target) -> AsyncConnection:
    """A new connection for the running event loop."""
    connection = await AsyncConnection.connect(target.conninfo, autocommit=True, context=adapters())
    connection.wire = Wire(connection, target)
    return connection


def send(connection: Connection, queries: Sequence[Query]) -> list[Reply]:
    """Sends all in one pipeline and waits for all answers. See `Wire.exchange`."""
    return connection.wait(connection.wire.exchange(queries))


async def asend(connection: AsyncConnection, queries: Sequence[Query]) -> list[Reply]:
    """As `send`, awaiting."""
    return await connection.wait(connection.wire.exchange(queries))


def post(connection: Connection, query: Query) -> None:
    """Sends without waiting for the answer. See `Wire.post`."""
    connection.wait(connection.wire.post(query))


async def apost(connection: AsyncConnection, query: Query) -> None:
    """As `post`, awaiting that it is sent."""
    await connection.wait(connection.wire.post(query))
