"""Who is compared: ours and LangGraph's own savers, opened with the same durability."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

Backend = Literal["sqlite", "postgres"]
Saver = BaseCheckpointSaver[Any]

DATABASE = "data.sqlite"
KEYS = "keys"
POOL_SIZE = 16
_ENCRYPTION_KEY = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Place:
    """Where one contender keeps its data, alone.

    Attributes:
        directory: An empty directory: for the SQLite file and for the local keys.
        dsn: A PostgreSQL database of its own, or None for SQLite.
    """

    directory: Path
    dsn: str | None

    @property
    def file(self) -> Path:
        """The SQLite database."""
        return self.directory / DATABASE


class Contender(NamedTuple):
    """A saver by name, and how to open it at a place; opening it again there finds what was written."""

    name: str
    opened: Callable[[Place], AbstractContextManager[Saver]]


class AsyncContender(NamedTuple):
    """As `Contender`, within a running event loop."""

    name: str
    opened: Callable[[Place], AbstractAsyncContextManager[Saver]]


def durable(connection: sqlite3.Connection) -> None:
    """Makes a stock connection as durable as ours, and reads back that it is."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    settings = sqlite_settings(connection)
    if settings["journal_mode"] != "wal" or settings["synchronous"] != 2:
        raise RuntimeError(f"SQLite did not take the durability settings: {settings}")


def sqlite_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """The settings of a connection that decide what a commit costs and promises (``synchronous`` 2 is FULL)."""
    names = ("journal_mode", "synchronous", "wal_autocheckpoint", "page_size", "fullfsync")
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


# -- ours ----------------------------------------------------------------------------------------------------------


def shredder_at(place: Place, **options: Any) -> Any:
    """Ours, at a place; its keys stand in files beside the database unless ``keys`` says otherwise."""
    from shredsaver import Shredder  # the baselines can be measured without it

    options.setdefault("keys", f"file:{place.directory / KEYS}")
    return Shredder.open(place.dsn or str(place.file), **options)


@contextmanager
def _ours(place: Place) -> Iterator[Saver]:
    with shredder_at(place) as shredder:
        yield shredder.saver


@asynccontextmanager
async def _ours_async(place: Place) -> AsyncIterator[Saver]:
    async with shredder_at(place) as shredder:
        yield shredder.saver


OURS = Contender("shredsaver", _ours)
OURS_ASYNC = AsyncContender("shredsaver", _ours_async)

# -- SQLite --------------------------------------------------------------------------------------------------------


@contextmanager
def _sqlite(place: Place, serde: Any = None) -> Iterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(sqlite3.connect(place.file, check_same_thread=False)) as connection:
        durable(connection)
        saver = SqliteSaver(connection, serde=serde)
        saver.setup()
        yield saver


@contextmanager
def _sqlite_encrypted(place: Place) -> Iterator[Saver]:
    with _sqlite(place, encrypted_serializer()) as saver:
        yield saver


def encrypted_serializer() -> Any:
    """LangGraph's own encryption of checkpoints: AES-256 in EAX mode, one key for everything."""
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    return EncryptedSerializer.from_pycryptodome_aes(key=_ENCRYPTION_KEY)


@asynccontextmanager
async def _sqlite_async(place: Place) -> AsyncIterator[Saver]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with aiosqlite.connect(place.file) as connection:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            await connection.execute(f"PRAGMA {pragma}")
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        yield saver


SQLITE = Contender("SqliteSaver", _sqlite)
SQLITE_ENCRYPTED = Contender("SqliteSaver with EncryptedSerializer", _sqlite_encrypted)
SQLITE_ASYNC = AsyncContender("AsyncSqliteSaver", _sqlite_async)

# -- PostgreSQL ----------------------------------------------------------------------------------------------------


@contextmanager
def _postgres(place: Place, serde: Any = None) -> Iterator[Saver]:
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = ConnectionPool(place.dsn or "", min_size=1, max_size=POOL_SIZE, kwargs=options, open=True)
    with pool:
        saver = PostgresSaver(pool, serde=serde)
        saver.setup()
        yield saver


@contextmanager
def _postgres_encrypted(place: Place) -> Iterator[Saver]:
    with _postgres(place, encrypted_serializer()) as saver:
        yield saver


@asynccontextmanager
async def _postgres_async(place: Place) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = AsyncConnectionPool(place.dsn or "", min_size=1, max_size=POOL_SIZE, kwargs=options, open=False)
    async with pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


POSTGRES = Contender("PostgresSaver", _postgres)
POSTGRES_ENCRYPTED = Contender("PostgresSaver with EncryptedSerializer", _postgres_encrypted)
POSTGRES_ASYNC = AsyncContender("AsyncPostgresSaver", _postgres_async)

# -- choosing ------------------------------------------------------------------------------------------------------

PLAIN: dict[Backend, Contender] = {"sqlite": SQLITE, "postgres": POSTGRES}
ENCRYPTED: dict[Backend, Contender] = {"sqlite": SQLITE_ENCRYPTED, "postgres": POSTGRES_ENCRYPTED}
PLAIN_ASYNC: dict[Backend, AsyncContender] = {"sqlite": SQLITE_ASYNC, "postgres": POSTGRES_ASYNC}
BY_NAME = {one.name: one for one in (OURS, *PLAIN.values(), *ENCRYPTED.values())}
ASYNC_BY_NAME = {one.name: one for one in (OURS_ASYNC, *PLAIN_ASYNC.values())}
