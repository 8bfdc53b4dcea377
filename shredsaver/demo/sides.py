"""The two sides of the demo: LangGraph's own SQLite saver and store, and this library's, behind one small interface."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import BaseStore
from langgraph.store.sqlite import SqliteStore

from shredsaver.shredder import Shredder


class Opened(NamedTuple):
    """One database in use."""

    saver: BaseCheckpointSaver[Any]
    store: BaseStore


class Side(Protocol):
    """What the experiment asks of a side."""

    @property
    def opened(self) -> Opened:
        """The database the conversations go to."""
        ...

    @property
    def refuses(self) -> bool:
        """Whether calls on an erased customer's thread are promised to be refused."""
        ...

    def erase(self, customer: str, thread: str, item: str) -> None:
        """Does the most this side can do to make one customer's data go away."""
        ...

    def raw(self) -> Iterable[bytes]:
        """Everything at rest, as someone without keys or library reads it."""
        ...

    def back_up(self, copy: Path) -> bool:
        """Copies the database to a file; False where that cannot be done from here."""
        ...

    def reopen(self, copy: Path) -> AbstractContextManager[Opened]:
        """Opens a copy of the database with all that is at hand at this moment, today's keys included."""
        ...


class StockSide:
    """`SqliteSaver` and `SqliteStore` on one file."""

    refuses: Final = False

    def __init__(self, path: Path, opened: Opened) -> None:
        self._path = path
        self.opened = opened

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[StockSide]:
        """Opens or makes the database at a path."""
        with SqliteSaver.from_conn_string(str(path)) as saver, SqliteStore.from_conn_string(str(path)) as store:
            saver.setup()
            store.setup()
            yield cls(path, Opened(saver, store))

    def erase(self, customer: str, thread: str, item: str) -> None:
        """Deletes the thread and the store item."""
        self.opened.saver.delete_thread(thread)
        self.opened.store.delete(("users", customer), item)

    def raw(self) -> Iterable[bytes]:
        """The bytes of the database's files."""
        return _files(self._path)

    def back_up(self, copy: Path) -> bool:
        """Copies the file through SQLite, so that the copy is whole."""
        return _back_up(self._path, copy)

    @contextmanager
    def reopen(self, copy: Path) -> Iterator[Opened]:
        """Opens a copy; nothing else is needed."""
        with StockSide.open(copy) as side:
            yield side.opened


class SealedSide:
    """This library: a `Shredder` and its saver and store."""

    refuses: Final = True

    def __init__(self, database: str, keys: str, shredder: Shredder) -> None:
        self._database = database
        self._keys = keys
        self._shredder = shredder
        self.opened = Opened(shredder.saver, shredder.store)

    @classmethod
    @contextmanager
    def open(cls, database: str, keys: str) -> Iterator[SealedSide]:
        """Opens or makes a database (a path or URL) with a key service (a URI)."""
        with Shredder.open(database, keys=keys) as shredder:
            yield cls(database, keys, shredder)

    def erase(self, customer: str, thread: str, item: str) -> None:  # noqa: ARG002
        """Shreds the customer; thread and item need no naming."""
        self._shredder.shred(customer)

    def raw(self) -> Iterable[bytes]:
        """The bytes of the database's files, or of every row of every table where it is a server."""
        path = _path_of(self._database)
        return _rows(self._database) if path is None else _files(path)

    def back_up(self, copy: Path) -> bool:
        """Copies the file through SQLite, so that the copy is whole; a server's database is not copied."""
        path = _path_of(self._database)
        return path is not None and _back_up(path, copy)

    @contextmanager
    def reopen(self, copy: Path) -> Iterator[Opened]:
        """Opens a copy with the key service as it is now."""
        with Shredder.open(str(copy), keys=self._keys) as shredder:
            yield Opened(shredder.saver, shredder.store)


def _path_of(database: str) -> Path | None:
    """The file of a database given by path or ``sqlite:///`` URL; None for a server."""
    if "://" not in database:
        return Path(database)
    url = urlsplit(database)
    return Path(unquote(database.removeprefix("sqlite:///"))) if url.scheme == "sqlite" else None


def _files(path: Path) -> Iterator[bytes]:
    """The database file and whatever SQLite keeps beside it: WAL, shared memory, journal."""
    for file in sorted(path.parent.glob(path.name + "*")):
        yield file.read_bytes()


def _rows(dsn: str) -> Iterator[bytes]:
    import psycopg
    from psycopg import sql

    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
            "AND table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for schema, table in tables:
            for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))):
                for value in row:
                    yield bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def _back_up(path: Path, copy: Path) -> bool:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return True
