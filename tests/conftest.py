"""Fixtures: a database per test on every backend, keys of its own, a Shredder opened and closed in the call style."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.backends import Backend, PostgresServer, SqliteBackend, postgres_server
from tests.support.calls import Caller

if TYPE_CHECKING:
    from shredsaver import Shredder

BACKENDS = ["sqlite", "postgres"]

ROOM = 2**30
"""Bytes that must be free in memory: containers often have 64 MB there, and several workers share them."""

# The same examples on every run, however slow the machine: a change is judged by what it changed. New examples are
# looked for by hand, with `--hypothesis-profile=explore`.
settings.register_profile("explore", deadline=None, print_blob=True)
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started when a test first asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for database and keys: in memory where there is room, as every commit is an fsync."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM
    with tempfile.TemporaryDirectory(prefix="shredsaver-", dir=memory if roomy else None) as made:
        yield Path(made)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, home: Path) -> Iterator[Backend]:
    """An empty database."""
    if request.param == "sqlite":
        directory = home / "database"
        directory.mkdir()
        yield SqliteBackend(directory / "atlas.sqlite")
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    database = postgres.database()
    try:
        yield database
    finally:
        postgres.recycle(database)


@pytest.fixture
def keys(home: Path) -> str:
    """URI of a key directory that nobody has made yet."""
    return f"file:{home / 'keys'}"


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Calls methods, or their async twins."""
    caller = Caller(request.param)
    try:
        yield caller
    finally:
        caller.close()


@pytest.fixture
def shredder_options() -> dict[str, Any]:
    """Options every Shredder of a test opens with, unless it gives its own; a module overrides this fixture."""
    return {}


@pytest.fixture
def make_shredder(
    request: pytest.FixtureRequest, backend: Backend, keys: str, shredder_options: dict[str, Any]
) -> Iterator[Callable[..., Shredder]]:
    """Opens Shredders on the test's database, and closes them after the test in the reverse order."""
    caller = request.getfixturevalue("call") if "call" in request.fixturenames else Caller("sync")
    opened: list[Shredder] = []

    def make(database: str | None = None, **options: Any) -> Shredder:
        from shredsaver import Shredder

        options = {"keys": keys, **shredder_options, **options}
        shredder: Shredder = caller.enter(Shredder.open(database or backend.url, **options))
        opened.append(shredder)
        return shredder

    try:
        yield make
    finally:
        while opened:
            caller.exit(opened.pop())


@pytest.fixture
def shredder(make_shredder: Callable[..., Shredder]) -> Shredder:
    """A Shredder with every option at its default."""
    return make_shredder()
