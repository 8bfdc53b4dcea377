"""Records of another deployment, which holds the same under the same names, put in the place of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver import RevocationLogDamagedError, Shredder, UnsealError
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

CALL = Caller("sync")
VALUES = {"x": ["said " * 60, "and more " * 60], "y": 1}
ID = "1f000000-0000-6000-8000-000000000000"
COLUMNS = {
    "customers": ["name", "mac"],
    "threads": ["name"],
    "checkpoints": ["sealed"],
    "parts": ["sealed"],
    "writes": ["sealed"],
    "items": ["sealed"],
    "namespaces": ["sealed"],
    "erasures": ["record", "mac", "chain"],
}


def fill(shredder: Shredder) -> None:
    at = put(CALL, shredder.saver, config(), VALUES, id=ID)
    shredder.saver.put_writes(at, [("x", "pending " * 60)], "task")
    shredder.store.put(("users", "c-1"), "key", {"said": "something"})
    put(CALL, shredder.saver, config("t-2", "c-2"), VALUES)
    shredder.shred("c-2")


def reading(shredder: Shredder) -> list[Any]:
    """Everything that is sealed or chained, read; the errors."""
    calls: list[Callable[[], Any]] = [
        lambda: shredder.saver.get_tuple(config()),
        lambda: list(shredder.saver.list(None)),
        lambda: shredder.store.get(("users", "c-1"), "key"),
        lambda: shredder.store.list_namespaces(prefix=("users", "c-1")),
        lambda: list(shredder.customers()),
        lambda: list(shredder.export("c-1")),
        shredder.check_log,
    ]
    errors = []
    for call in calls:
        try:
            call()
        except (UnsealError, RevocationLogDamagedError) as error:
            errors.append(error)
    return errors


@pytest.mark.parametrize("table", COLUMNS)
def test_records_of_another_deployment_do_not_open(
    table: str, backend: Backend, home: Path, make_shredder: Callable[..., Any]
) -> None:
    shredder = make_shredder()
    fill(shredder)
    (home / "other").mkdir()
    other = SqliteBackend(home / "other" / "atlas.sqlite")
    with Shredder.open(other.url, keys=f"file:{home / 'other keys'}") as stranger:
        fill(stranger)
    assert reading(shredder) == []
    ours, theirs = backend.rows(table), other.rows(table)
    assert len(ours) == len(theirs) > 0
    where = next(name for name in ("seq", "number", "scope", "customer") if name in ours[0])
    for column in COLUMNS[table]:
        # Rows are told apart by what both deployments count alike; tokens differ.
        for row in ours:
            same = [one for one in theirs if one[where] == row[where] or where == "customer"]
            sealed = next((one[column] for one in same if one[column] is not None), None)
            if sealed is None or row[column] is None:
                continue
            backend.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (sealed, row[where]))
            # Opening repairs the record of erasures from the key store's: whoever serves must notice.
            assert reading(shredder if table == "erasures" else make_shredder()), (table, column)
            backend.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (row[column], row[where]))
    assert reading(make_shredder()) == []
