"""Someone who can write to the database goes beyond rows: replays, counters, receipts, the schema itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import (
    ConfigurationError,
    CustomerShreddedError,
    DatabaseUnavailableError,
    ReceiptError,
    RevocationLogDamagedError,
    Shredder,
    receipts,
)
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import checkpoint_id, config, put
from tests.support.graphs import Run, delta_channels

CALL = Caller("sync")
VALUES = {"x": ["genuine " * 60], "y": "short"}


def values(shredder: Shredder, *here: Any) -> Any:
    found = shredder.saver.get_tuple(config(*here))
    return found and found.checkpoint["channel_values"]


@pytest.fixture
def filled(make_shredder: Callable[..., Any]) -> Any:
    """Two customers with a thread and an item each; a third is shredded."""
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-2"), ("t-3", "c-3")):
        at = put(CALL, shredder.saver, config(thread, customer), VALUES, run_id="run")
        shredder.saver.put_writes(at, [("x", "pending " * 60)], "task")
        shredder.store.put(("users", customer), "key", {"said": customer})
    shredder.shred("c-3")
    return shredder


def test_an_older_row_of_the_same_place_is_a_genuine_one(filled: Any, backend: Backend) -> None:
    """The limit that is named: such a replay opens, as what it once was."""
    here, key = config(), "1f000000-0000-6000-8000-000000000000"
    put(CALL, filled.saver, here, {"y": "old"}, id=key)
    (old,) = [row for row in backend.rows("checkpoints") if row["checkpoint_id"] == key]
    at = put(CALL, filled.saver, here, {"y": "new"}, id=key)
    backend.execute(
        "UPDATE checkpoints SET number = ?, sealed = ? WHERE checkpoint_id = ?", (old["number"], old["sealed"], key)
    )
    assert filled.saver.get_tuple(at).checkpoint["channel_values"] == {"y": "old"}
    assert checkpoint_id(at) == key


@pytest.mark.parametrize("table", ["threads", "counters"])
def test_numbers_handed_out_again_overwrite_nothing(
    table: str, filled: Any, backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    """The limit that is named: a counter set back costs writes to what it counts, never what is there."""
    column = "next_record = 16, next_part" if table == "threads" else "next"
    backend.execute(f"UPDATE {table} SET {column} = 16")
    for shredder in (filled, make_shredder()):
        for thread in ("t-1", "a new one"):
            try:
                put(CALL, shredder.saver, config(thread), {"x": ["later " * 60]})
            except DatabaseUnavailableError:
                continue
        stored = [found.checkpoint["channel_values"] for found in shredder.saver.list(config("t-1"))]
        assert stored[-1] == VALUES
        assert all(one in (VALUES, {"x": ["later " * 60]}) for one in stored)
        assert values(shredder, "t-2", "c-2") == VALUES
        assert shredder.store.get(("users", "c-2"), "key").value == {"said": "c-2"}


def test_a_thread_said_to_have_no_delta_channels_can_be_pruned_and_no_more(filled: Any, backend: Backend) -> None:
    """The limit that is named: the mark is not authenticated, and all it keeps from is a pruning that is asked for."""
    delta_channels(Run(CALL, filled.saver, "sync", "t-delta"))
    before = {checkpoint_id(found.config): found for found in filled.saver.list(config("t-delta"))}
    with pytest.raises(ConfigurationError):
        filled.saver.prune(["t-delta"])
    backend.execute("UPDATE threads SET uses_delta = 0")
    assert {found.config["configurable"]["checkpoint_id"] for found in filled.saver.list(config("t-delta"))} == {
        *before
    }
    filled.saver.prune(["t-delta"])
    (left,) = filled.saver.list(config("t-delta"))
    assert left.checkpoint == before[checkpoint_id(left.config)].checkpoint
    assert values(filled) == VALUES
    assert values(filled, "t-2", "c-2") == VALUES


@pytest.mark.parametrize("forged", ["", "é", "a.b.c", "x" * 5_000])
def test_edited_receipts_stop_no_erasure_and_do_not_verify(forged: str, filled: Any, backend: Backend) -> None:
    backend.execute("UPDATE receipts SET jws = ?", (forged,))
    result = filled.shred("c-2")
    assert result.state == "purged"
    receipts.verify(result.receipt, filled.public_key())
    with pytest.raises(ReceiptError):
        receipts.verify_chain(list(filled.receipts()), [filled.public_key()])


def test_all_records_of_erasures_deleted(filled: Any, backend: Backend, make_shredder: Callable[..., Any]) -> None:
    for table in ("erasures", "receipts", "events"):
        backend.execute(f"DELETE FROM {table}")
    backend.execute("DELETE FROM counters WHERE generation = 0")
    shredder = make_shredder()
    assert shredder.reconciliation.recorded == 1
    assert shredder.check_log() == 1
    with pytest.raises(CustomerShreddedError):
        values(shredder, "t-3", "c-3")
    assert values(shredder) == VALUES


def test_an_undone_revocation_lasts_no_longer_than_a_key_is_kept(
    filled: Any, backend: Backend, make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the promise against someone who writes to the database: a warm process asks again."""
    warm = make_shredder()
    assert values(warm) == VALUES
    kept = {table: backend.rows(table) for table in ("customers", "threads", "checkpoints", "parts", "writes")}
    filled.shred("c-1")
    for table, rows in kept.items():
        backend.execute(f"DELETE FROM {table}")
        for row in rows:
            marks = ", ".join("?" * len(row))
            backend.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
    keyring = warm._start().core.keyring
    clock = keyring._clock
    monkeypatch.setattr(keyring, "_clock", lambda: clock() + 61)
    for shredder in (warm, filled, make_shredder()):
        with pytest.raises(CustomerShreddedError):
            values(shredder)
    assert values(warm, "t-2", "c-2") == VALUES


# -- the schema ------------------------------------------------------------------------------------------------------

ODD = [None, 10**12, "text", b""]
TABLES = ["customers", "checkpoints", "parts", "items", "erasures"]


def everything(shredder: Shredder) -> list[Any]:
    """What every reading call gives, and what writes come to; where they raise, nothing."""
    calls: list[Callable[[], Any]] = [
        lambda: values(shredder),
        lambda: [found.checkpoint["channel_values"] for found in shredder.saver.list(None)],
        lambda: shredder.store.get(("users", "c-1"), "key").value,
        lambda: [item.value for item in shredder.store.search(("users", "c-1"))],
        lambda: list(shredder.export("c-1")) and None,
        lambda: shredder.audit("c-1") and None,
        lambda: list(shredder.customers()) and None,
        lambda: shredder.check_log() and None,
        lambda: shredder.resume() and None,
        lambda: put(CALL, shredder.saver, config(), VALUES) and None,
        lambda: shredder.store.put(("users", "c-1"), "key", {"said": "c-1"}),
    ]
    given = []
    for call in calls:
        try:
            given.append(call())
        except Exception:  # noqa: BLE001 - in a schema that was altered not every error is one of ours
            continue
    return given


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_columns_that_hold_anything(
    table: str, filled: Any, backend: SqliteBackend, make_shredder: Callable[..., Any]
) -> None:
    filled.close()
    whole = backend.path.read_bytes()
    for column in backend.columns(table):
        for odd in ODD:
            for file in backend.files():
                file.unlink()
            backend.path.write_bytes(whole)
            with sqlite3.connect(backend.path) as connection:
                # The same rows in a table without types, keys and constraints.
                connection.execute(f"CREATE TABLE copied AS SELECT * FROM {table}")
                connection.execute(f"DROP TABLE {table}")
                connection.execute(f"ALTER TABLE copied RENAME TO {table}")
                connection.execute(f"UPDATE {table} SET {column} = ?", (odd,))
            connection.close()
            try:
                shredder = make_shredder()
            except Exception:  # noqa: BLE001 - as above
                continue
            for given in everything(shredder):
                assert given in (None, [], VALUES, {"said": "c-1"}, [{"said": "c-1"}], [VALUES], [VALUES] * 2), given
            shredder.close()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", ["dropped", "a view", "a trigger"])
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_tables_that_are_none(
    table: str, how: str, filled: Any, backend: SqliteBackend, make_shredder: Callable[..., Any]
) -> None:
    column = backend.columns(table)[-1]
    if how == "a trigger":
        backend.execute(f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN UPDATE {table} SET {column} = x'00'; END")
    else:
        backend.execute(f"ALTER TABLE {table} RENAME TO away")
        if how == "a view":
            backend.execute(f"CREATE VIEW {table} AS SELECT * FROM away")
    try:
        shredders = [filled, make_shredder()]
    except Exception:  # noqa: BLE001 - as above
        shredders = [filled]
    for shredder in shredders:
        for given in everything(shredder):
            assert given in (None, [], VALUES, {"said": "c-1"}, [{"said": "c-1"}]) or VALUES in given, given


@pytest.mark.parametrize(
    "edit", ["UPDATE erasures SET chain = mac WHERE seq = 1", "DELETE FROM erasures WHERE seq = 1"]
)
def test_an_edited_chain_of_erasures_is_noticed_while_serving(edit: str, filled: Any, backend: Backend) -> None:
    filled.shred("c-2")
    assert filled.check_log() == 2
    backend.execute(edit)
    with pytest.raises(RevocationLogDamagedError):
        filled.check_log()


def test_a_key_that_was_on_its_way_when_its_customer_was_shredded_is_not_kept(filled: Any) -> None:
    core = filled._start().core
    customer = core.token("customer", "c-1")
    record = core.keys.load(customer, 1)
    core.keyring.revoke(customer, 1)
    with pytest.raises(CustomerShreddedError):
        core.keyring._keep(record)
    assert core.keyring.cached(customer, 1, 0) is None
