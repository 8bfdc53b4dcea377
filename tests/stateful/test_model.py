"""A deployment under everything that can happen to it, compared with plain dicts after every step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import Deployment
from tests.support.backends import PostgresServer, SqliteBackend

PLAIN = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
)
QUICK = settings(PLAIN, max_examples=8, stateful_step_count=20)
LONG = settings(PLAIN, max_examples=300, stateful_step_count=60)


def run_on_sqlite(home: Path, limits: settings) -> None:
    class OnSqlite(Deployment):
        def __init__(self) -> None:
            self.home = home / "run"
            self.home.mkdir()
            directory = self.home / "database"
            directory.mkdir()
            self.backend = SqliteBackend(directory / "atlas.sqlite")
            super().__init__()

        def teardown(self) -> None:
            super().teardown()
            shutil.rmtree(self.home)

    run_state_machine_as_test(OnSqlite, settings=limits)


def run_on_postgres(home: Path, postgres: PostgresServer, limits: settings) -> None:
    class OnPostgres(Deployment):
        copies_allowed = False  # a dump and a restore take seconds: tests/erasure has those

        def __init__(self) -> None:
            self.home = home / "run"
            self.home.mkdir()
            self.backend: Any = postgres.database()
            super().__init__()

        def teardown(self) -> None:
            super().teardown()
            postgres.recycle(self.backend)
            shutil.rmtree(self.home)

    run_state_machine_as_test(OnPostgres, settings=limits)


def test_on_sqlite(home: Path) -> None:
    run_on_sqlite(home, QUICK)


def test_on_postgres(home: Path, postgres: PostgresServer) -> None:
    run_on_postgres(home, postgres, settings(QUICK, max_examples=3))


@pytest.mark.slow
def test_on_sqlite_for_long(home: Path) -> None:
    run_on_sqlite(home, LONG)


@pytest.mark.slow
def test_on_postgres_for_long(home: Path, postgres: PostgresServer) -> None:
    run_on_postgres(home, postgres, settings(LONG, max_examples=50))
