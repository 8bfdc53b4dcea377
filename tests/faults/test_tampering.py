"""Someone who can write to the database changes rows: what comes back is genuine or a typed error, nothing else."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shredsaver import (
    CustomerShreddedError,
    FormatError,
    RevocationLogDamagedError,
    Shredder,
    ShredSaverError,
    ThreadOwnershipError,
    UnsealError,
)
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, checkpoint_id, config, put
from tests.support.types import Runs

CALL = Caller("sync")
REFUSALS = (UnsealError, FormatError, RevocationLogDamagedError)
SEALED = [("threads", "name"), ("checkpoints", "sealed"), ("parts", "sealed"), ("writes", "sealed")]
CLEAR = {
    "customers": ["customer", "generation", "state", "key_version", "held_until", "mac"],
    "threads": ["thread", "customer", "generation", "scope"],
    "checkpoints": [
        "thread", "ns", "checkpoint_id", "generation", "parent_id", "run", "source", "step", "scope", "number",
    ],
    "parts": ["thread", "generation", "scope", "number"],
    "writes": [
        "thread", "ns", "checkpoint_id", "task_id", "idx", "generation", "task_path", "channel", "scope", "number",
    ],
}  # fmt: skip
HIDING = {
    ("threads", "thread"),
    *(("checkpoints", column) for column in ("thread", "generation")),
    *(("writes", column) for column in ("thread", "ns", "checkpoint_id", "generation")),
}
"""Where the row is looked for: one moved to where nothing is asked for is gone, as if it had been deleted."""
UNBOUND = {
    "threads": {"next_record", "next_part", "epoch", "uses_delta", "touched_at", "expires_at"},
    "counters": {"customer", "generation", "scope", "next"},
    "runs": {"run", "thread"},
    "meta": {"key", "value"},
}
"""Counters, times and lookups: changing them may hide rows or cost a retry, but it changes nothing that is returned."""


@pytest.fixture
def data(make_shredder: Callable[..., Any]) -> dict[str, Any]:
    """Two customers' threads with everything in them; what they hold, call by call."""
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-1"), ("t-3", "c-2")):
        states = [{"x": [f"{thread} {n} " * 50 for n in range(m)], "y": f"{thread} {m}"} for m in range(1, 4)]
        stored = chain(CALL, shredder.saver, config(thread, customer), states)
        put(CALL, shredder.saver, config(thread, customer, checkpoint_ns="child:1"), {"z": thread}, run_id="run")
        for task in ("a", "b"):
            writes = [("x", f"{thread} {task} " * 50), ("y", task), ("__error__", task)]
            shredder.saver.put_writes(stored[-1], writes, task, f"path {task}")
    return read_all(shredder)


def read_all(shredder: Any) -> dict[str, Any]:
    """The answer to every reading call, the error where there is one."""
    answers: dict[str, Any] = {}

    def note(label: str, read: Callable[[], Any]) -> None:
        try:
            answers[label] = read()
        except ShredSaverError as error:
            answers[label] = error

    for thread in ("t-1", "t-2", "t-3"):
        for ns in ("", "child:1"):
            here = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
            note(f"get {thread} {ns}", lambda here=here: shredder.saver.get_tuple(here))  # type: ignore[misc]
            note(f"list {thread} {ns}", lambda here=here: list(shredder.saver.list(here)))  # type: ignore[misc]
    note("list", lambda: list(shredder.saver.list(None)))
    return answers


def less(one: Any, whole: Any) -> bool:
    """Whether two tuples are equal, but for pending writes that the first may lack."""
    writes = whole.pending_writes
    return one._replace(pending_writes=writes) == whole and all(write in writes for write in one.pending_writes)


Check = Callable[[], list[ShredSaverError]]


@pytest.fixture
def check(data: dict[str, Any], backend: Backend, keys: str) -> Check:
    """Reads everything with a Shredder that has nothing in its caches."""

    def read() -> list[ShredSaverError]:
        with Shredder.open(backend.url, keys=keys) as shredder:
            return verdict(read_all(shredder), data)

    return read


def some(backend: Backend, items: list[Any], most: int) -> list[Any]:
    """All of them on SQLite; where opening takes longer, some, spread evenly."""
    most = most if backend.kind == "sqlite" else max(3, most // 10)
    return items[:: -(-len(items) // most)]


def verdict(found: dict[str, Any], data: dict[str, Any]) -> list[ShredSaverError]:
    """Every answer is the true one, or less than it, or an error; the errors."""
    for label, answer in found.items():
        if not isinstance(answer, ShredSaverError):
            # Where the latest is gone, an older one is the latest.
            true = data["list" if label == "list" else label.replace("get", "list", 1)]
            given = answer if isinstance(answer, list) else [answer] if answer else []
            assert all(any(less(one, whole) for whole in true) for one in given), label
    return [answer for answer in found.values() if isinstance(answer, ShredSaverError)]


def changed(value: Any) -> Any:
    match value:
        case bytes() | memoryview():
            raw = bytes(value)
            return bytes([raw[0] ^ 1]) + raw[1:] if raw else b"x"
        case int():
            return value + 1_000
        case str():
            return {"live": "restricted"}.get(value, value + "x")
    raise TypeError(type(value).__name__)


def key_of(backend: Backend, table: str, row: dict[str, Any]) -> tuple[str, list[Any]]:
    """A WHERE clause that names this row only."""
    names = [n for n in row if row[n] is not None]
    return " AND ".join(f"{n} = ?" for n in names), [row[n] for n in names]


def edit(backend: Backend, table: str, row: dict[str, Any], column: str, value: Any) -> None:
    where, params = key_of(backend, table, row)
    backend.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *params))
    assert {**row, column: value} in [{**r} for r in backend.rows(table)]


def test_every_column_is_looked_at(backend: Backend, make_shredder: Callable[..., Any]) -> None:
    make_shredder()
    sealed = {(t, c) for t, c in SEALED} | {("customers", "name")}
    for table in {*CLEAR, *UNBOUND}:
        columns = set(backend.columns(table)) - {c for t, c in sealed if t == table}
        assert columns - UNBOUND.get(table, set()) == set(CLEAR.get(table, [])), table


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, columns in CLEAR.items() for c in columns])
def test_an_edited_column_is_refused(table: str, column: str, backend: Backend, check: Check) -> None:
    rows = backend.rows(table)
    assert rows
    noticed = 0
    for row in some(backend, rows, 100):
        edit(backend, table, row, column, changed(row[column]))
        errors = check()
        noticed += bool(errors)
        assert all(isinstance(error, REFUSALS) for error in errors)
        edit(backend, table, {**row, column: changed(row[column])}, column, row[column])
    assert noticed == len(some(backend, rows, 100)) or (table, column) in HIDING
    assert check() == []


@pytest.mark.parametrize(
    ("table", "column"), [(t, c) for t, columns in UNBOUND.items() for c in sorted(columns) if t != "meta"]
)
def test_what_is_not_bound_changes_nothing_that_is_returned(
    table: str, column: str, backend: Backend, check: Check, make_shredder: Callable[..., Any]
) -> None:
    for row in backend.rows(table):
        edit(backend, table, row, column, changed(row[column] if row[column] is not None else 1))
    assert check() == []
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-3", "c-2")):
        try:
            put(CALL, shredder.saver, config(thread, customer), {"x": ["new " * 60]})
        except ShredSaverError:
            continue
        assert shredder.saver.get_tuple(config(thread, customer)).checkpoint["channel_values"] == {"x": ["new " * 60]}


@pytest.mark.parametrize(("table", "column"), SEALED)
def test_sealed_records_are_refused_anywhere_else(table: str, column: str, backend: Backend, check: Check) -> None:
    """Between threads, checkpoints, channels, customers: every pair of rows swaps its records."""
    rows = [row for row in backend.rows(table) if row[column] is not None]
    pairs = list(itertools.combinations(rows, 2))
    for one, two in some(backend, pairs, 40):
        edit(backend, table, one, column, two[column])
        edit(backend, table, two, column, one[column])
        errors = check()
        assert errors
        assert all(isinstance(error, UnsealError) for error in errors)
        edit(backend, table, {**one, column: two[column]}, column, one[column])
        edit(backend, table, {**two, column: one[column]}, column, two[column])
    assert check() == []


@pytest.mark.parametrize(("table", "column"), SEALED)
def test_one_byte_changed_is_refused(table: str, column: str, backend: Backend, check: Check) -> None:
    for row in some(backend, [r for r in backend.rows(table) if r[column] is not None], 6):
        record = bytes(row[column])
        for position in {1, 12, 13, len(record) // 2, len(record) - 17, len(record) - 1}:
            broken = record[:position] + bytes([record[position] ^ 0x80]) + record[position + 1 :]
            edit(backend, table, row, column, broken)
            errors = check()
            assert errors
            assert all(isinstance(error, UnsealError) for error in errors)
            edit(backend, table, {**row, column: broken}, column, record)


UNSEALED = {
    "json": json.dumps({"x": "planted"}).encode(),
    "msgpack": msgpack.packb({"x": ["planted"]}),
    "pickle": pickle.dumps({"x": "planted"}),
    "text": b"planted",
    "empty": b"",
    "version from the future": b"\x02" + bytes(80),
    "version zero": bytes(80),
}


@pytest.mark.parametrize(("table", "column"), SEALED)
@pytest.mark.parametrize("payload", UNSEALED)
def test_an_unsealed_payload_is_no_record(
    table: str, column: str, payload: str, backend: Backend, check: Check
) -> None:
    row = next(r for r in backend.rows(table) if r[column] is not None)
    edit(backend, table, row, column, UNSEALED[payload])
    errors = check()
    assert errors
    assert all(isinstance(error, FormatError) for error in errors)


def test_the_error_names_customer_and_row_and_tells_nothing(backend: Backend, check: Check) -> None:
    threads = {bytes(r["thread"]): bytes(r["customer"]) for r in backend.rows("threads")}
    row = next(r for r in backend.rows("checkpoints") if not r["ns"])
    record = bytes(row["sealed"])
    edit(backend, "checkpoints", row, "sealed", record[:-1] + bytes([record[-1] ^ 1]))
    errors = check()
    assert errors
    for error in errors:
        thread = bytes(row["thread"])
        for part in ("checkpoints", thread.hex(), row["checkpoint_id"], threads[thread].hex()):
            assert part in str(error)
        rest = str(error).replace(row["checkpoint_id"], "")
        assert not [name for name in ("t-1", "t-2", "t-3", "c-1", "c-2") if name in rest]
        assert error.__cause__ is None or not str(error.__cause__)


def test_a_row_moved_to_another_customer_or_thread(backend: Backend, check: Check) -> None:
    """Rows with all that belongs to them, put where they would be read as somebody else's."""
    threads = backend.rows("threads")
    for table in ("checkpoints", "parts", "writes"):
        for source, target in some(backend, list(itertools.permutations(threads, 2)), 10):
            row = next(r for r in backend.rows(table) if r["thread"] == source["thread"])
            placed = {**row, "thread": target["thread"]}
            if table != "parts":
                placed["checkpoint_id"] = row["checkpoint_id"][:-1] + "~"
            displaced = [r for r in backend.rows(table) if keys_of(table, r) == keys_of(table, placed)]
            for one in displaced:
                delete(backend, table, one)
            insert(backend, table, placed)
            errors = check()
            if table != "parts":  # a part that nothing names is never read
                assert errors or table == "writes"
            delete(backend, table, placed)
            for one in displaced:
                insert(backend, table, one)
    first = threads[0]
    stranger = next(t for t in threads if t["customer"] != first["customer"])
    edit(backend, "threads", first, "customer", stranger["customer"])
    errors = check()
    assert errors
    assert all(isinstance(error, (*REFUSALS, ThreadOwnershipError)) for error in errors)


def keys_of(table: str, row: dict[str, Any]) -> list[Any]:
    """The values of a row's primary key."""
    names = {
        "parts": ("thread", "generation", "scope", "number"),
        "checkpoints": ("thread", "ns", "checkpoint_id"),
        "writes": ("thread", "ns", "checkpoint_id", "task_id", "idx"),
    }[table]
    return [bytes(row[n]) if n == "thread" else row[n] for n in names]


def delete(backend: Backend, table: str, row: dict[str, Any]) -> None:
    where, params = key_of(backend, table, row)
    backend.execute(f"DELETE FROM {table} WHERE {where}", params)


def insert(backend: Backend, table: str, row: dict[str, Any]) -> None:
    backend.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


@pytest.mark.parametrize("table", ["parts", "checkpoints", "writes", "customers"])
def test_a_deleted_row_never_gives_a_wrong_value(table: str, backend: Backend, check: Check) -> None:
    for row in some(backend, backend.rows(table), 20):
        delete(backend, table, row)
        errors = check()
        if table in ("parts", "customers"):
            assert errors
            assert all(isinstance(error, REFUSALS) for error in errors)
        insert(backend, table, row)
    assert check() == []


def test_nothing_is_rebuilt_before_it_is_authenticated(
    backend: Backend, tmp_path: Path, make_shredder: Callable[..., Any]
) -> None:
    ran = tmp_path / "ran"
    shredder = make_shredder()
    shredder.saver.serde = JsonPlusSerializer(pickle_fallback=True)
    trap = put(CALL, shredder.saver, config("t-1"), {"x": Runs(ran)})
    shredder.saver.put_writes(trap, [("x", Runs(ran))], "task")
    harmless = put(CALL, shredder.saver, config("t-2"), {"x": 1})
    shredder.saver.put_writes(harmless, [("x", 1)], "task")
    for table in ("checkpoints", "writes"):
        rows = {r["checkpoint_id"]: r for r in backend.rows(table)}
        source, target = rows[checkpoint_id(trap)], rows[checkpoint_id(harmless)]
        for planted in (bytes(source["sealed"]), Runs(ran).pickled(), b"\x01" + Runs(ran).pickled()):
            edit(backend, table, target, "sealed", planted)
            fresh = make_shredder()
            fresh.saver.serde = JsonPlusSerializer(pickle_fallback=True)
            with pytest.raises((UnsealError, FormatError)):
                fresh.saver.get_tuple(harmless)
            with pytest.raises((UnsealError, FormatError)):
                list(fresh.saver.list(config("t-2")))
            edit(backend, table, {**target, "sealed": planted}, "sealed", bytes(target["sealed"]))
    assert not ran.exists()
    shredder.saver.get_tuple(trap)
    assert ran.exists()


class TestTheRecordOfTheDead:
    @pytest.fixture
    def dead(self, data: dict[str, Any], backend: Backend, make_shredder: Callable[..., Any]) -> list[dict[str, Any]]:
        """Customer c-1, shredded; the customers rows as they were before."""
        before = backend.rows("customers")
        make_shredder().shred("c-1", purge=False)
        return before

    def refused(self, shredder: Any) -> None:
        for here in (config("t-1"), config("t-1", None), config("t-2"), config("never seen")):
            if here["configurable"]["thread_id"] != "never seen":
                with pytest.raises((CustomerShreddedError, RevocationLogDamagedError, UnsealError)):
                    shredder.saver.get_tuple(here)
            with pytest.raises((CustomerShreddedError, RevocationLogDamagedError, UnsealError)):
                put(CALL, shredder.saver, here, {"x": 1})

    def test_a_state_set_back_is_noticed(
        self, dead: list[dict[str, Any]], backend: Backend, make_shredder: Callable[..., Any]
    ) -> None:
        backend.execute("UPDATE customers SET state = 'live'")
        self.refused(make_shredder())

    def test_the_whole_old_row_put_back_opens_nothing(
        self, dead: list[dict[str, Any]], backend: Backend, make_shredder: Callable[..., Any]
    ) -> None:
        for row in dead:
            backend.execute(
                "UPDATE customers SET generation = ?, state = ?, key_version = ?, held_until = ?, mac = ?, name = ?"
                " WHERE customer = ?",
                [row[n] for n in ("generation", "state", "key_version", "held_until", "mac", "name", "customer")],
            )
        backend.execute("DELETE FROM erasures")
        self.refused(make_shredder())

    def test_the_row_removed_lets_nobody_in(
        self, dead: list[dict[str, Any]], backend: Backend, make_shredder: Callable[..., Any]
    ) -> None:
        living = {row["customer"] for row in backend.rows("customers") if row["state"] == "live"}
        for row in backend.rows("customers"):
            if row["customer"] not in living:
                backend.execute("DELETE FROM customers WHERE customer = ?", (row["customer"],))
        backend.execute("DELETE FROM erasures")
        self.refused(make_shredder())

    @pytest.mark.parametrize("column", ["erasure_id", "customer", "generation", "state", "record", "mac", "seq"])
    def test_an_edited_erasure_serves_nothing(
        self,
        column: str,
        dead: list[dict[str, Any]],
        data: dict[str, Any],
        backend: Backend,
        make_shredder: Callable[..., Any],
    ) -> None:
        (row,) = backend.rows("erasures")
        edit(backend, "erasures", row, column, changed(row[column]))
        shredder = make_shredder()
        self.refused(shredder)
        assert shredder.saver.get_tuple(config("t-3", "c-2")) == data["get t-3 "]
