"""Which driver opens a database."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import unquote, urlsplit

from shredsaver.db.base import Database
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import ConfigurationError

_POSTGRES: Final = ("postgresql", "postgres")


def open_database(database: str | os.PathLike[str] | Database) -> Database:
    """Opens a database by its address.

    Args:
        database: A path, ``sqlite:///relative`` or ``sqlite:////absolute``, ``postgresql://…``, or an open `Database`,
            which is given back as it is.

    Raises:
        ConfigurationError: The address names no driver.
        DatabaseUnavailableError: The database cannot be opened.
        MissingDependencyError: PostgreSQL needs the extra ``postgres``.
    """
    if isinstance(database, os.PathLike):
        return SqliteDatabase(database)
    if not isinstance(database, str):
        return database
    scheme, separator, _ = database.partition("://")
    if not separator:
        return SqliteDatabase(database)
    if scheme == "sqlite":
        parts = urlsplit(database)
        if parts.netloc or parts.query or not parts.path.strip("/"):
            raise ConfigurationError("an SQLite address is sqlite:///relative/path or sqlite:////absolute/path")
        return SqliteDatabase(unquote(parts.path[1:]))
    if scheme in _POSTGRES:
        from shredsaver.db.postgres import PostgresDatabase  # an optional driver, which says what it needs

        return PostgresDatabase(database)
    raise ConfigurationError(f"no database driver for {scheme}://; give a path, sqlite:///… or postgresql://…")
