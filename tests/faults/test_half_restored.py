"""A backup that was loaded in part: each table missing, or there without its rows. Typed errors, and no wrong value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import Shredder, ShredSaverError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

CALL = Caller("sync")
VALUES = {"x": ["kept " * 60]}
DEEDS: dict[str, Callable[[Shredder], Any]] = {
    "read": lambda shredder: shredder.saver.get_tuple(config()),
    "dead": lambda shredder: shredder.saver.get_tuple(config("t-2", "c-2")),
    "item": lambda shredder: shredder.store.get(("users", "c-1"), "key"),
    "write": lambda shredder: put(CALL, shredder.saver, config("t-3"), VALUES),
    "put item": lambda shredder: shredder.store.put(("users", "c-1"), "other", {}),
    "shred": lambda shredder: shredder.shred("c-1"),
    "export": lambda shredder: list(shredder.export("c-1")),
    "audit": lambda shredder: shredder.audit("c-1"),
}


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_each_table(how: str, backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    at = put(CALL, shredder.saver, config(), VALUES)
    shredder.saver.put_writes(at, [("x", "pending")], "task")
    shredder.store.put(("users", "c-1"), "key", {"said": "kept"})
    put(CALL, shredder.saver, config("t-2", "c-2"), VALUES)
    shredder.shred("c-2", purge=False)
    copy = backend.copy()
    for table in copy.tables():
        copy.execute(f"ALTER TABLE {table} RENAME TO away")
        if how == "empty":
            copy.execute(f"CREATE TABLE {table} AS SELECT * FROM away WHERE 1 = 0")
        found: dict[str, Any] = {}
        for name, deed in DEEDS.items():
            try:
                with Shredder.open(copy.url, keys=keys) as opened:
                    found[name] = deed(opened)
            except ShredSaverError as error:
                found[name] = error
        for name, wanted in (("read", VALUES), ("item", {"said": "kept"})):
            given = found[name]
            if given is not None and not isinstance(given, ShredSaverError):
                assert (given.value if name == "item" else given.checkpoint["channel_values"]) == wanted, table
        assert isinstance(found["dead"], ShredSaverError), (table, found["dead"])
        assert isinstance(found["shred"], ShredSaverError), table  # a copy destroys no keys
        if how == "empty":
            copy.execute(f"DROP TABLE {table}")
        copy.execute(f"ALTER TABLE away RENAME TO {table}")
    assert shredder.saver.get_tuple(config()).checkpoint["channel_values"] == VALUES
    assert shredder.check_keys().ok
    assert shredder.shred("c-1").state == "purged"
