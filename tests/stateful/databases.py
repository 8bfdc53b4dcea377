"""Databases that are backed up and put back, in the place of the one in use or as another one."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from shredsaver.db.opening import open_database
from shredsaver.db.setup import set_up
from tests.support.backends import Backend, PostgresBackend, PostgresServer, SqliteBackend


class Record(NamedTuple):
    """A sealed record of whatever table, with the place of its key."""

    customer: bytes
    generation: int
    scope: int
    number: int
    sealed: bytes


def records(backend: Backend) -> list[Record]:
    """Every sealed record of a database, read past the library."""
    found: list[Record] = []
    for table in ("checkpoints", "parts", "writes"):
        statement = (
            f"SELECT t.customer, r.generation, r.scope, r.number, r.sealed FROM {table} r"
            " JOIN threads t ON t.thread = r.thread"
        )
        found += map(_record, backend.execute(statement))
    for table in ("items", "namespaces"):
        found += map(_record, backend.execute(f"SELECT customer, generation, scope, number, sealed FROM {table}"))
    return found


def _record(row: tuple[Any, ...]) -> Record:
    customer, generation, scope, number, sealed = row
    return Record(bytes(customer), generation, scope, number, bytes(sealed))


class DatabasePlace(ABC):
    """The database in use, and backups of it."""

    backend: Backend

    @abstractmethod
    def copy(self) -> Any:
        """A backup, taken while the library has the database open."""

    @abstractmethod
    def records(self, copied: Any) -> list[Record]:
        """The sealed records of a backup."""

    @abstractmethod
    def put_back(self, copied: Any, *, same: bool) -> None:
        """A backup in the place of the database, which nobody has open; with ``same`` it cannot be told from it."""

    @abstractmethod
    def opened(self, copied: Any) -> Any:
        """A context manager that gives the backend of a database beside the one in use, made from a backup."""

    @abstractmethod
    def close(self) -> None:
        """Removes everything."""


class SqlitePlace(DatabasePlace):
    """A file."""

    def __init__(self, home: Path) -> None:
        self._home = home / "database"
        self._home.mkdir()
        self._copies = 0
        self.backend = SqliteBackend(self._home / "atlas.sqlite")

    def copy(self) -> Path:
        self._copies += 1
        target = self._home / f"copy {self._copies}"
        target.mkdir()
        subprocess.run(["cp", "-p", *self.backend.files(), target], check=True)  # type: ignore[attr-defined]
        return target

    def records(self, copied: Path) -> list[Record]:
        with self.opened(copied) as backend:
            return records(backend)

    def put_back(self, copied: Path, *, same: bool) -> None:
        for file in self.backend.files():  # type: ignore[attr-defined]
            if not (same and file.name == "atlas.sqlite"):
                file.unlink()
        for file in copied.iterdir():
            target = self._home / file.name
            if same:  # the bytes of the file change, the file stays
                shutil.copyfile(file, target)
                os.chmod(target, 0o600)
            else:
                fresh = self._home / f"{file.name} fresh"
                shutil.copy(file, fresh)
                fresh.replace(target)

    def opened(self, copied: Path) -> Any:
        return _SqliteCopy(self._home / "beside", copied)

    def close(self) -> None:
        shutil.rmtree(self._home)


class _SqliteCopy:
    def __init__(self, directory: Path, copied: Path) -> None:
        self._directory, self._copied = directory, copied

    def __enter__(self) -> SqliteBackend:
        shutil.copytree(self._copied, self._directory)
        return SqliteBackend(self._directory / "atlas.sqlite")

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._directory)


Tables = dict[str, tuple[list[str], list[tuple[Any, ...]]]]


class PostgresPlace(DatabasePlace):
    """A database of a server. Backups are of one snapshot, as those of ``pg_dump``."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made: list[PostgresBackend] = []
        self._spare: PostgresBackend | None = None
        self.backend = self._another()

    def copy(self) -> Tables:
        found: Tables = {}
        tables = self.backend.tables()
        with psycopg.connect(self.backend.url, options="-c search_path=shredsaver") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for table in tables:
                cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
                found[table] = ([column.name for column in cursor.description or ()], cursor.fetchall())
        return found

    def records(self, copied: Tables) -> list[Record]:
        def rows(table: str) -> Iterator[dict[str, Any]]:
            names, found = copied[table]
            return (dict(zip(names, row, strict=True)) for row in found)

        owners = {row["thread"]: row["customer"] for row in rows("threads")}
        found = []
        for table in ("checkpoints", "parts", "writes", "items", "namespaces"):
            for row in rows(table):
                customer = row["customer"] if "customer" in row else owners[row["thread"]]
                found.append(_record((customer, *(row[name] for name in Record._fields[1:]))))
        return found

    def put_back(self, copied: Tables, *, same: bool) -> None:
        if not same:
            self.backend = self._another()
        _fill(self.backend, copied)

    def _another(self) -> PostgresBackend:
        made = self._server.database()
        self._made.append(made)
        return made

    def opened(self, copied: Tables) -> Any:
        if self._spare is None:
            self._spare = self._another()
        return _PostgresCopy(self._spare, copied)

    def close(self) -> None:
        while self._made:
            self._server.recycle(self._made.pop())


def _fill(backend: PostgresBackend, copied: Tables) -> None:
    database = open_database(backend.url)
    try:
        database.run(partial(set_up, database.location, auto_setup=True))
    finally:
        database.close()
    with psycopg.connect(backend.url, options="-c search_path=shredsaver") as connection:
        names = sql.SQL(", ").join(map(sql.Identifier, copied))
        connection.execute(sql.SQL("TRUNCATE {}").format(names))
        for table, (columns, rows) in copied.items():
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
                sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
            )
            with connection.cursor().copy(statement) as copy:
                for row in rows:
                    copy.write_row(row)


class _PostgresCopy:
    def __init__(self, spare: PostgresBackend, copied: Tables) -> None:
        self._spare, self._copied = spare, copied

    def __enter__(self) -> PostgresBackend:
        _fill(self._spare, self._copied)
        return self._spare

    def __exit__(self, *_: object) -> None:
        """The database stays for the next one."""
