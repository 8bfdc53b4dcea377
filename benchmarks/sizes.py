"""Bytes on disk, counted when every log has been folded into its database."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from . import postgres
from .contenders import KEYS, Place


def data_bytes(place: Place) -> int:
    """Bytes of the database: SQLite's file after its write-ahead log was emptied, or PostgreSQL's relations.

    Raises:
        RuntimeError: A reader keeps the log from being emptied, so the file would not show everything.
    """
    if place.dsn is not None:
        return postgres.relation_bytes(place.dsn)
    with closing(sqlite3.connect(place.file)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise RuntimeError(f"{place.file.name}: a reader keeps the write-ahead log from being emptied")
    log = place.file.with_name(place.file.name + "-wal")
    return place.file.stat().st_size + (log.stat().st_size if log.exists() else 0)


def key_bytes(place: Place) -> int:
    """Bytes of the local key store."""
    return sum(file.stat().st_size for file in (place.directory / KEYS).rglob("*") if file.is_file())
