"""Fixtures of the PostgreSQL driver's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shredsaver.db.base import Statement
from shredsaver.db.postgres import PostgresDatabase
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend, PostgresServer
from tests.support.things import CREATE, Runner, write


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresBackend]:
    database = postgres.database()
    try:
        yield database
    finally:
        postgres.recycle(database)


@pytest.fixture
def proxy(server: PostgresBackend) -> Iterator[PostgresProxy]:
    with PostgresProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def opened(server: PostgresBackend) -> Iterator[Callable[..., PostgresDatabase]]:
    """Opens databases with a table of things, and closes them."""
    databases = []
    server.execute("CREATE SCHEMA shredsaver")

    def opening(url: str = server.url, **options: Any) -> PostgresDatabase:
        database = PostgresDatabase(url, **options)
        databases.append(database)
        return database

    first = opening()
    first.run(lambda: write(Statement(CREATE)))
    yield opening
    for database in databases:
        database.close()


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = Runner(request.param)
    yield runner
    runner.close()
