"""A table of things, plans over it, and who runs them: for tests of the PostgreSQL driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shredsaver.db.base import Begin, Plan, Statement, run, sql
from shredsaver.db.postgres import PostgresDatabase
from tests.support.backends import PostgresBackend
from tests.support.calls import Mode
from tests.support.waiting import SECONDS

CREATE = sql("CREATE TABLE things (id {int} NOT NULL PRIMARY KEY, data {bytes}, note {text}) {strict}")
INSERT = sql("INSERT INTO things (id, data, note) VALUES (?, ?, ?)")
UPSERT = sql("INSERT INTO things (id, data, note) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET note = excluded.note")
LOCK = sql("SELECT id FROM things WHERE id = ? {update}")
SELECT = sql("SELECT id, data, note FROM things WHERE id >= ? ORDER BY id")
COUNT = sql("SELECT count(*) FROM things")
ADD = sql("UPDATE things SET note = note || ? WHERE id = ?")


class Runner:
    """Runs plans blocking, or on one event loop."""

    def __init__(self, mode: Mode) -> None:
        self.loop = asyncio.Runner() if mode == "async" else None

    def __call__(self, database: PostgresDatabase, factory: Callable[[], Plan[Any]]) -> Any:
        if self.loop is None:
            return database.run(factory)
        return self.loop.run(database.arun(factory))

    def close(self, *databases: PostgresDatabase) -> None:
        if self.loop is not None:
            for database in databases:
                self.loop.run(database.aclose())
            self.loop.close()


def write(*statements: Statement) -> Plan[Any]:
    yield Begin("write")
    return (yield from run(*statements, commit=True))


def read(*statements: Statement) -> Plan[Any]:
    yield Begin("read")
    return (yield from run(*statements, commit=True))


def rows(database: PostgresDatabase, first: int = 0) -> list[tuple[Any, ...]]:
    return database.run(lambda: read(Statement(SELECT, (first,))))[0].rows


def terminate(server: PostgresBackend) -> int:
    """Ends every server process of a database's clients, and waits until they are gone. Gives how many there were."""
    killed = server.execute(
        "SELECT count(pg_terminate_backend(pid, ?)) FROM pg_stat_activity WHERE application_name = 'shredsaver' "
        "AND datname = current_database()",
        (SECONDS * 1000,),
    )
    return int(killed[0][0])
