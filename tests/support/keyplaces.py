"""Where the keys of a drill are: local files, or AWS KMS with its key store in a file or in PostgreSQL."""

from __future__ import annotations

import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.fakes.kms_server import KmsServer
from tests.support.backends import PostgresBackend, SqliteBackend


class KeyPlace(ABC):
    """A key service as its administrator sees it: copied, put back, and looked into.

    Attributes:
        uri: What opens it.
        roots_travel: Whether a copy of everything brings the roots along, as it does for files and not for AWS KMS.
    """

    uri: str
    roots_travel: bool

    @abstractmethod
    def copy(self) -> str:
        """Copies all that can be copied, as a backup would. Gives the URI that opens the copy."""

    @abstractmethod
    def forget_copy(self) -> None:
        """Makes room for another copy."""

    @abstractmethod
    def put_back(self) -> None:
        """Puts the key store as it was when it was copied last in the place of the present one; roots stay."""

    @abstractmethod
    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one statement (``?`` for parameters) on the key store past the library, and commits."""

    def counts(self) -> dict[str, int]:
        """Rows of the tables that only a change of keys changes."""
        tables = ("key_wraps", "key_trees", "key_tombstones", "key_holds", "key_epochs")
        return {table: int(self.execute(f"SELECT count(*) FROM {table}")[0][0]) for table in tables}


class LocalPlace(KeyPlace):
    roots_travel = True

    def __init__(self, home: Path) -> None:
        self.directory, self.older = home / "keys", home / "old-keys"
        self.uri = f"file:{self.directory}?slots=2"

    def copy(self) -> str:
        shutil.copytree(self.directory, self.older)
        return f"file:{self.older}?slots=2"

    def forget_copy(self) -> None:
        shutil.rmtree(self.older)

    def put_back(self) -> None:
        shutil.copy(self.older / "keys.db", self.directory / "keys.db")

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return SqliteBackend(self.directory / "keys.db").execute(statement, params)


class AwsPlace(KeyPlace):
    roots_travel = False

    def __init__(self, kms: KmsServer, home: Path) -> None:
        self.kms = kms
        self.store, self.older = home / "keys.db", home / "old-keys.db"
        self.uri = self._uri(str(self.store))

    def _uri(self, store: str) -> str:
        return f"awskms:?region={self.kms.region}&store={quote(store, safe='')}&slots=2&spares=0"

    def copy(self) -> str:
        source, target = sqlite3.connect(self.store), sqlite3.connect(self.older)
        with source, target:
            source.backup(target)
        source.close()
        target.close()
        shutil.copymode(self.store, self.older)
        return self._uri(str(self.older))

    def forget_copy(self) -> None:
        self.older.unlink()

    def put_back(self) -> None:
        shutil.copy(self.older, self.store)

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return SqliteBackend(self.store).execute(statement, params)


class AwsPostgresPlace(AwsPlace):
    """The key store in a PostgreSQL database of its own."""

    def __init__(self, kms: KmsServer, database: PostgresBackend) -> None:
        self.kms, self.database = kms, database
        self.uri = self._uri(database.url)
        self._older: PostgresBackend | None = None

    def copy(self) -> str:
        self._older = self.database.copy()
        return self._uri(self._older.url)

    def forget_copy(self) -> None:
        self.database.drop_copies()

    def put_back(self) -> None:
        """Fills the tables with the copy's rows, as restoring a dump of the data alone does."""
        assert self._older is not None
        names = [name for (name,) in self.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema")]
        for name in names:
            rows = self._run(self._older.url, f"SELECT * FROM {name}")
            self.execute(f"DELETE FROM {name}")
            for row in rows:
                self.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._run(self.database.url, statement, params)

    @staticmethod
    def _run(url: str, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True, options="-c search_path=shredsaver_keys") as connection:
            cursor = connection.execute(statement.replace("?", "%s"), tuple(params))  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []


LOCAL = [("sqlite", "local"), ("postgres", "local")]
AWS = [("sqlite", "aws"), ("postgres", "aws")]
SHARED = [*AWS, ("postgres", "aws-postgres")]
"""Pairs of a database and a key service: the fixtures ``backend`` and ``place``."""


def places(combinations: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Runs a drill on these pairs of a database and a key service."""
    names = ["-".join(pair) for pair in combinations]
    return pytest.mark.parametrize(("backend", "place"), combinations, indirect=True, ids=names)
