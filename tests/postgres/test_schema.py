"""Migrations, roles, and what tells a database from its copies."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shredsaver.db.base import Statement
from shredsaver.db.migrations import migrate
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.localroots import LocalRoots
from tests.support.backends import PostgresBackend
from tests.support.things import CREATE, write
from tests.support.waiting import SECONDS, join

# -- migrations -------------------------------------------------------------------------------------------------------


def test_processes_that_migrate_at_once_make_one_schema(server: PostgresBackend) -> None:
    databases = [PostgresDatabase(server.url, schema="odd, \"schema'", pool_size=1, timeout=SECONDS) for _ in range(6)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(6)

    def setting_up(database: PostgresDatabase) -> None:
        barrier.wait(SECONDS)
        try:
            database.run(lambda: migrate(database.location, auto_setup=True))
        except BaseException as error:  # noqa: BLE001 - seen below
            failures.append(error)

    threads = [threading.Thread(target=setting_up, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    join(threads)
    for database in databases:
        database.run(lambda: migrate("here", auto_setup=False))
        database.close()
    assert failures == []
    made = server.execute(
        "SELECT count(*), min(schemaname), max(schemaname) FROM pg_tables WHERE tablename = 'threads'"
    )
    assert made == [(1, "odd, \"schema'", "odd, \"schema'")]


def test_one_role_owns_the_schema_and_another_without_ddl_serves(server: PostgresBackend) -> None:
    owner, app = f"owner_{os.getpid()}", f"app_{os.getpid()}"
    server.execute(f"CREATE ROLE {owner} LOGIN")
    server.execute(f"CREATE ROLE {app} LOGIN")
    try:
        server.execute(f'GRANT CREATE ON DATABASE "{server.database}" TO {owner}')
        serving = PostgresDatabase(server.url.replace("postgres@", f"{app}@"))
        with pytest.raises(SchemaVersionError, match="shredsaver init"):
            serving.run(lambda: migrate(serving.location, auto_setup=False))
        with pytest.raises(DatabaseUnavailableError, match=r"42501.*GRANT"):
            serving.run(lambda: migrate(serving.location, auto_setup=True))
        owning = PostgresDatabase(server.url.replace("postgres@", f"{owner}@"))
        owning.run(lambda: migrate(owning.location, auto_setup=True))
        with pytest.raises(DatabaseUnavailableError, match=r"42P01.*GRANT"):
            serving.run(lambda: migrate(serving.location, auto_setup=False))
        for grant in (
            f"GRANT USAGE ON SCHEMA shredsaver TO {app}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shredsaver TO {app}",
        ):
            server.execute(grant)
        for auto_setup in (True, False):
            serving.run(lambda auto_setup=auto_setup: migrate(serving.location, auto_setup=auto_setup))
        with pytest.raises(DatabaseUnavailableError, match="42501"):
            serving.run(lambda: write(Statement(CREATE)))
        assert serving.fingerprint() == owning.fingerprint()
        serving.close()
        owning.close()
    finally:
        for role in (app, owner):
            server.execute(f"DROP OWNED BY {role} CASCADE")
            server.execute(f"DROP ROLE {role}")


def test_another_programs_tables_are_left_alone(server: PostgresBackend) -> None:
    server.execute("CREATE SCHEMA shredsaver")
    server.execute("CREATE TABLE shredsaver.checkpoints (id int)")
    database = PostgresDatabase(server.url)
    with pytest.raises(ConfigurationError, match="checkpoints"):
        database.run(lambda: migrate(database.location, auto_setup=True))
    database.close()
    beside = PostgresDatabase(server.url, schema="beside")
    beside.run(lambda: migrate(beside.location, auto_setup=True))
    beside.close()


# -- identity ---------------------------------------------------------------------------------------------------------


def test_the_fingerprint_tells_copies_apart_and_stays(server: PostgresBackend, opened: Any) -> None:
    database = opened()
    fingerprint = database.fingerprint()
    assert opened().fingerprint() == fingerprint
    (identifier,) = server.execute("SELECT system_identifier FROM pg_control_system()")[0]
    assert fingerprint.startswith(f"postgresql:{identifier}:0000")
    copy = server.copy()
    other = opened(copy.url)
    assert other.fingerprint() != fingerprint
    server.execute("ALTER SCHEMA shredsaver RENAME TO old")
    server.execute("CREATE SCHEMA shredsaver")
    assert database.fingerprint() != fingerprint


def test_a_role_that_may_not_ask_for_the_system_identifier_still_gets_a_fingerprint(server: PostgresBackend) -> None:
    role = f"plain_{os.getpid()}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    server.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        database = PostgresDatabase(server.url.replace("postgres@", f"{role}@"))
        assert database.fingerprint().startswith("postgresql:-:0000")
        database.close()
    finally:
        server.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        server.execute(f"DROP ROLE {role}")


def test_roots_of_one_host_do_not_serve_a_key_store_of_many(server: PostgresBackend, tmp_path: Path) -> None:
    roots = LocalRoots(tmp_path / "lock", [tmp_path / "roots"], slots=4)
    database = PostgresDatabase(server.url, schema="keys")
    try:
        with pytest.raises(ConfigurationError, match="any host"):
            StoredKeyService(database, roots)
        assert server.execute("SELECT count(*) FROM pg_tables WHERE tablename ~ '^key_'") == [(0,)]
    finally:
        database.close()
        roots.close()
