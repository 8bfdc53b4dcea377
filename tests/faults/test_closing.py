"""A database that is closed while a call is at work: what the call had is closed as well, and nothing else fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import DatabaseUnavailableError


class Meanwhile(list[Any]):
    """A list to which something happens just before it is first changed."""

    def __init__(self, values: list[Any], happens: Callable[[], Any]) -> None:
        super().__init__(values)
        self._due = [happens]

    def _happen(self) -> None:
        due, self._due = self._due, []
        for happens in due:
            happens()

    def append(self, value: Any) -> None:
        self._happen()
        super().append(value)

    def pop(self, *at: Any) -> Any:
        self._happen()
        return super().pop(*at)


def test_a_connection_that_is_given_back_while_its_database_closes_is_closed(home: Path) -> None:
    database = SqliteDatabase(home / "atlas.sqlite")
    reader = database.take_reader()
    database._readers = Meanwhile(database._readers, database.close)
    database.give_reader(reader)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")
    with pytest.raises(DatabaseUnavailableError, match="open it again"):
        database.take_reader()


def test_a_connection_that_is_taken_while_its_database_closes_is_closed_when_it_comes_back(home: Path) -> None:
    database = SqliteDatabase(home / "atlas.sqlite")
    (reader,) = database._readers

    def another_takes_it() -> None:
        del database._readers[:]

    database._readers = Meanwhile([reader], another_takes_it)
    database.close()
    database.give_reader(reader)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")
