"""Serving on PostgreSQL: without rights to create anything, in a schema of one's own, over killed backends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shredsaver import CustomerShreddedError, Shredder
from shredsaver.errors import DatabaseUnavailableError, SchemaVersionError
from tests.support.backends import PostgresBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

pytestmark = pytest.mark.parametrize("backend", ["postgres"], indirect=True)
GRANTS = (
    "GRANT USAGE ON SCHEMA agents TO {app}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA agents TO {app}",
)


@pytest.fixture
def roles(backend: PostgresBackend) -> Iterator[tuple[str, str]]:
    """A role that may make a schema, and one that may do nothing yet."""
    owner, app = f"owner_{os.getpid()}", f"app_{os.getpid()}"
    for role in (owner, app):
        backend.execute(f"CREATE ROLE {role} LOGIN")
    backend.execute(f'GRANT CREATE ON DATABASE "{backend.database}" TO {owner}')
    try:
        yield owner, app
    finally:
        for role in (app, owner):
            backend.execute(f"DROP OWNED BY {role} CASCADE")
            backend.execute(f"DROP ROLE {role}")


def url(backend: PostgresBackend, role: str) -> str:
    mark = "&" if "?" in backend.url else "?"
    return backend.url.replace("postgres@", f"{role}@") + f"{mark}schema=agents"


def test_a_role_without_ddl_serves_what_another_set_up(
    backend: PostgresBackend, roles: tuple[str, str], keys: str, call: Caller
) -> None:
    owner, app = roles
    with pytest.raises(SchemaVersionError, match="shredsaver init"):
        Shredder.open(url(backend, app), keys=keys, auto_setup=False)
    with pytest.raises(DatabaseUnavailableError, match="42501"):
        Shredder.open(url(backend, app), keys=keys)
    Shredder.open(url(backend, owner), keys=keys).close()
    for grant in GRANTS:
        backend.execute(grant.format(app=app))
    for number, auto_setup in enumerate((False, True)):
        shredder = call.enter(Shredder.open(url(backend, app), keys=keys, auto_setup=auto_setup))
        here, customer = config(f"t-{number}", f"c-{number}"), f"c-{number}"
        at = put(call, shredder.saver, here, {"x": ["text " * 100]})
        call(shredder.saver, "put_writes", at, [("x", "pending")], "task")
        assert call(shredder.saver, "get_tuple", here).checkpoint["channel_values"] == {"x": ["text " * 100]}
        call(shredder.store, "put", ("users", customer), "pets", {"text": "has a dog"})
        assert call(shredder.store, "get", ("users", customer), "pets").value == {"text": "has a dog"}
        assert call(shredder, "shred", customer).state == "purged"
        with pytest.raises(CustomerShreddedError):
            call(shredder.saver, "get_tuple", here)
        call.exit(shredder)
    schemas = "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname !~ '^pg_|^information_schema'"
    assert backend.execute(schemas) == [("agents",)]


def test_the_call_after_a_killed_backend_works(backend: PostgresBackend, keys: str, call: Caller) -> None:
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'shredsaver' AND datname = current_database()"
    )
    shredder = call.enter(Shredder.open(backend.url, keys=keys))
    here, saver = config(), shredder.saver
    for step in range(3):
        put(call, saver, here, {"x": step}, version=step + 1, step=step)
        assert backend.execute(kill)[0][0] >= 1
        assert call(saver, "get_tuple", here).checkpoint["channel_values"] == {"x": step}
        assert backend.execute(kill)[0][0] >= 1
    assert call(shredder, "shred", "c-1").state == "purged"
    call.exit(shredder)


def test_a_blocking_call_within_a_loop_works(backend: PostgresBackend, keys: str, call: Caller) -> None:
    def both(shredder: Any) -> Any:
        put(Caller("sync"), shredder.saver, config(), {"x": 1})
        return shredder.saver.get_tuple(config()).checkpoint["channel_values"]

    shredder = call.enter(Shredder.open(backend.url, keys=keys))
    assert call.run(lambda: both(shredder)) == {"x": 1}
    assert call(shredder.saver, "get_tuple", config()).checkpoint["channel_values"] == {"x": 1}
    call.exit(shredder)
