"""A base backup taken before a shred, started as a server, as a standby, and as a standby that was promoted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shredsaver import CustomerShreddedError, DatabaseForkedError, Shredder
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.errors import DatabaseUnavailableError
from tests.support.backends import PostgresServer, base_backup, wheel_server, with_database
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.waiting import wait_until

CALL = Caller("sync")
Start = Callable[[], Any]


@pytest.fixture
def backup(keys: str) -> Iterator[tuple[Path, str, str]]:
    """A data directory from before the shred of ``dead``, its database, and the fingerprint of the original."""
    with wheel_server() as (dsn, binaries):
        server = PostgresServer(dsn, binaries)
        database = server.database()
        with Shredder.open(database.url, keys=keys) as shredder:
            for customer in ("dead", "alive"):
                put(CALL, shredder.saver, config(f"t-{customer}", customer), {"x": [customer, "text " * 100]})
            directory = base_backup(dsn, binaries)
            assert shredder.shred("dead").state == "purged"
        opened = PostgresDatabase(database.url)
        fingerprint = opened.fingerprint()
        opened.close()
        yield directory, database.database, fingerprint


def check(shredder: Shredder) -> None:
    for here in (config("t-dead", "dead"), config("t-dead", None)):
        with pytest.raises(CustomerShreddedError):
            shredder.saver.get_tuple(here)
    with pytest.raises(CustomerShreddedError):
        put(CALL, shredder.saver, config("t-dead", "dead"), {"x": 1})
    assert shredder.audit("dead").opens == 0
    found = shredder.saver.get_tuple(config("t-alive", "alive"))
    assert found is not None
    assert found.checkpoint["channel_values"]["x"][0] in ("alive", "alive still")
    put(CALL, shredder.saver, config("t-alive", "alive"), {"x": ["alive still"]})


def test_a_base_backup_serves_nothing_of_a_customer_shredded_since(backup: tuple[Path, str, str], keys: str) -> None:
    directory, name, fingerprint = backup
    with wheel_server(directory) as (dsn, _):
        url = with_database(dsn, name)
        with psycopg.connect(url) as connection:
            (rows,) = connection.execute("SELECT count(*) FROM shredsaver.checkpoints").fetchone() or (0,)
        assert rows == 2
        # Nothing in the copy tells it from the original: its tombstones do, compared with those of the key store.
        opened = PostgresDatabase(url)
        assert opened.fingerprint() == fingerprint
        opened.close()
        with Shredder.open(url, keys=keys) as shredder:
            assert shredder.reconciliation.revoked == 1
            check(shredder)
            shredder.resume()
            check(shredder)


def test_a_standby_is_refused_and_a_promoted_one_is_a_fork(backup: tuple[Path, str, str], keys: str) -> None:
    directory, name, fingerprint = backup
    (directory / "standby.signal").touch()
    with wheel_server(directory) as (dsn, _):
        url = with_database(dsn, name)
        for attempt in (url, f"{url}&target_session_attrs=any"):
            with pytest.raises(DatabaseUnavailableError, match="standby") as caught:
                PostgresDatabase(attempt)
            assert caught.value.retryable  # after a failover it may be the primary
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 300)")
        opened = PostgresDatabase(url)
        assert wait_until(lambda: opened.fingerprint() != fingerprint)
        opened.close()
        with Shredder.open(url, keys=keys) as shredder:
            assert shredder.reconciliation.forked
            check(shredder)
            with pytest.raises(DatabaseForkedError):
                shredder.shred("alive")
            shredder.reconcile(adopt="restore")
            assert shredder.shred("alive").pending == ()
