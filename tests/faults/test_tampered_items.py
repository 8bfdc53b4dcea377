"""Someone who can write to the database changes rows of the store: genuine items or a typed error, nothing else."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from shredsaver import FormatError, Shredder, ShredSaverError, UnsealError
from tests.support.backends import Backend

OPTIONS: dict[str, Any] = {
    "index": {"dims": 3, "embed": lambda texts: [[float(len(t)), 1.0, 2.0] for t in texts], "fields": ["text"]},
    "cross_customer_search": True,
}
REFUSALS = (UnsealError, FormatError)
PLACES = [(("users", who, *rest), key) for who in ("c-1", "c-2") for rest in ((), ("notes",)) for key in ("a", "b")]
BOUND = {
    "items": ["customer", "template", "labels", "key", "generation", "scope", "number", "created_at", "updated_at"],
    "namespaces": ["customer", "template", "labels", "generation", "scope", "number"],
}
SEALED = {"items": ["sealed", "vectors"], "namespaces": ["sealed"]}
UNBOUND = {"items": ["ttl", "expires_at"], "namespaces": []}
"""When an item goes by itself: changing it may hide an item, or show one that should have gone."""
HIDING = {"customer", "template", "labels", "generation"}
"""Where the row is looked for: one moved to where nothing is asked for is gone, as if it had been deleted."""
KEYS = {"items": ("customer", "template", "labels", "key"), "namespaces": ("customer", "template", "labels")}


@pytest.fixture
def data(backend: Backend, keys: str) -> dict[str, Any]:
    """Two customers' items, with vectors and without; what every reading call gives."""
    with Shredder.open(backend.url, keys=keys, **OPTIONS) as shredder:
        for number, (namespace, key) in enumerate(PLACES):
            said = f"{namespace[1]} {namespace[2:]} {key}"
            shredder.store.put(namespace, key, {"text": said, "n": number}, index=None if key == "a" else False)
        return answers(shredder)


def answers(shredder: Shredder) -> dict[str, Any]:
    """The answer to every reading call, the error where there is one."""
    store = shredder.store
    calls: dict[str, Callable[[], Any]] = {}
    for namespace, key in PLACES:
        calls[f"get {namespace} {key}"] = lambda namespace=namespace, key=key: store.get(namespace, key)
        calls[f"search {namespace}"] = lambda namespace=namespace: store.search(namespace)
        calls[f"ranked {namespace}"] = lambda namespace=namespace: store.search(namespace, query="text")
    calls["search everyone"] = lambda: store.search(("users",), limit=99)
    calls["list"] = lambda: store.list_namespaces(prefix=("users",))
    found = {}
    for label, call in calls.items():
        try:
            found[label] = call()
        except ShredSaverError as error:
            found[label] = error
    return found


Check = Callable[[], list[ShredSaverError]]


@pytest.fixture
def check(data: dict[str, Any], backend: Backend, keys: str) -> Check:
    """Reads with a Shredder that has nothing in its caches: every answer is true, or less, or one of the errors."""

    def read() -> list[ShredSaverError]:
        with Shredder.open(backend.url, keys=keys, **OPTIONS) as shredder:
            found = answers(shredder)
        errors = [answer for answer in found.values() if isinstance(answer, ShredSaverError)]
        for label, answer in found.items():
            if isinstance(answer, list):
                assert all(part in data[label] for part in answer), label
            elif answer is not None and not isinstance(answer, ShredSaverError):
                assert answer == data[label], label
        return errors

    return read


def some(backend: Backend, found: list[Any], most: int) -> list[Any]:
    """Some of them, spread evenly; fewer where opening takes longer."""
    most = most if backend.kind == "sqlite" else max(2, most // 4)
    return found[:: -(-len(found) // most)]


def where_of(table: str, row: dict[str, Any]) -> tuple[str, list[Any]]:
    return " AND ".join(f"{name} = ?" for name in KEYS[table]), [row[name] for name in KEYS[table]]


def edit(backend: Backend, table: str, row: dict[str, Any], **values: Any) -> dict[str, Any]:
    where, params = where_of(table, row)
    assignments = ", ".join(f"{name} = ?" for name in values)
    backend.execute(f"UPDATE {table} SET {assignments} WHERE {where}", [*values.values(), *params])
    changed = {**row, **values}
    assert changed in backend.rows(table)
    return changed


def insert(backend: Backend, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    backend.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def other(value: Any) -> Any:
    match value:
        case bytes() | memoryview():
            return bytes([bytes(value)[0] ^ 1]) + bytes(value)[1:] if value else b"x" * 16
        case int():
            return value + 1_000
    return value + "x"


def test_every_column_is_looked_at(backend: Backend, data: dict[str, Any]) -> None:
    for table, bound in BOUND.items():
        assert sorted(bound + SEALED[table] + UNBOUND[table]) == sorted(backend.columns(table))
    assert len(data["search everyone"]) == len(PLACES)
    assert len(data["list"]) == 4


@pytest.mark.parametrize("table", BOUND)
def test_an_edited_column_is_refused_or_hides_the_row(table: str, backend: Backend, check: Check) -> None:
    for column in BOUND[table]:
        noticed = 0
        for row in some(backend, backend.rows(table), 4):
            changed = edit(backend, table, row, **{column: other(row[column])})
            errors = check()
            noticed += bool(errors)
            assert all(isinstance(error, REFUSALS) for error in errors)
            edit(backend, table, changed, **{column: row[column]})
        assert noticed or column in HIDING
    assert check() == []


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, columns in SEALED.items() for c in columns])
def test_records_are_refused_in_any_other_row(table: str, column: str, backend: Backend, check: Check) -> None:
    """Between keys, namespaces and customers."""
    rows = [row for row in backend.rows(table) if row[column] is not None]
    for one, two in some(backend, list(itertools.combinations(rows, 2)), 8):
        changed = edit(backend, table, one, **{column: two[column]}), edit(backend, table, two, **{column: one[column]})
        errors = check()
        assert errors
        assert all(isinstance(error, UnsealError) for error in errors)
        for whole, now in zip((one, two), changed, strict=True):
            edit(backend, table, now, **{column: whole[column]})
    assert check() == []


@pytest.mark.parametrize("table", BOUND)
def test_a_row_moved_or_doubled_is_nobody_elses(table: str, backend: Backend, check: Check) -> None:
    rows = backend.rows(table)
    for one, two in some(backend, list(itertools.permutations(rows, 2)), 8):
        placed = {**one, **{name: two[name] for name in KEYS[table]}}
        where, params = where_of(table, two)
        backend.execute(f"DELETE FROM {table} WHERE {where}", params)
        insert(backend, table, placed)
        errors = check()
        assert errors
        assert all(isinstance(error, REFUSALS) for error in errors)
        backend.execute(f"DELETE FROM {table} WHERE {where}", params)
        insert(backend, table, two)
    assert check() == []


UNSEALED = {
    "json": json.dumps({"text": "planted"}).encode(),
    "msgpack": msgpack.packb(["c-1", [], "a", '{"text": "planted"}', 0]),
    "pickle": pickle.dumps({"text": "planted"}),
    "empty": b"",
    "version from the future": b"\x02" + bytes(80),
}


@pytest.mark.parametrize(("table", "column"), [("items", "sealed"), ("items", "vectors"), ("namespaces", "sealed")])
def test_what_is_not_sealed_is_no_record(table: str, column: str, backend: Backend, check: Check) -> None:
    row = next(row for row in backend.rows(table) if row[column] is not None)
    for payload in UNSEALED.values():
        row = edit(backend, table, row, **{column: payload})
        errors = check()
        assert errors
        assert all(isinstance(error, FormatError) for error in errors)


@pytest.mark.parametrize(("table", "column"), [("items", "sealed"), ("items", "vectors"), ("namespaces", "sealed")])
def test_a_changed_or_shortened_record_is_refused(table: str, column: str, backend: Backend, check: Check) -> None:
    row = next(row for row in backend.rows(table) if row[column] is not None)
    record = bytes(row[column])
    for broken in (
        *(record[:at] + bytes([record[at] ^ 0x80]) + record[at + 1 :] for at in (1, 13, len(record) - 1)),
        *(record[:length] for length in (1, 13, 29, len(record) - 1)),
        record + b"\x00",
    ):
        changed = edit(backend, table, row, **{column: broken})
        errors = check()
        assert errors
        assert all(isinstance(error, REFUSALS) for error in errors)
        edit(backend, table, changed, **{column: record})


@pytest.mark.parametrize("table", BOUND)
def test_a_deleted_row_is_less_and_nothing_else(table: str, backend: Backend, check: Check) -> None:
    for row in some(backend, backend.rows(table), 4):
        where, params = where_of(table, row)
        backend.execute(f"DELETE FROM {table} WHERE {where}", params)
        assert all(isinstance(error, REFUSALS) for error in check())
        insert(backend, table, row)
    assert check() == []


@pytest.mark.parametrize(
    ("column", "value", "shown"), [("ttl", 0, 0), ("ttl", 10**15, 4), ("expires_at", 1, 0), ("expires_at", 10**15, 4)]
)
def test_a_time_to_live_hides_or_shows_what_is_genuine(
    column: str, value: int, shown: int, backend: Backend, check: Check, keys: str, data: dict[str, Any]
) -> None:
    """The limit that is named: these two columns are not authenticated. A reading begins the time to live anew."""
    backend.execute(f"UPDATE items SET {column} = ?", (value,))
    assert check() == []
    with Shredder.open(backend.url, keys=keys, **OPTIONS) as shredder:
        assert len(shredder.store.search(("users", "c-1"))) == shown
        shredder.store.put(*PLACES[0], {"text": "later"})
        found = shredder.store.get(*PLACES[0])
        assert found is not None
        assert found.value == {"text": "later"}


def test_an_older_item_of_the_same_place_is_a_genuine_one(backend: Backend, keys: str, data: dict[str, Any]) -> None:
    """The limit that is named: such a replay opens, as what it once was."""
    (namespace, key), *_ = PLACES
    with Shredder.open(backend.url, keys=keys, **OPTIONS) as shredder:
        before = backend.rows("items")
        shredder.store.put(namespace, key, {"text": "new"})
        (now,) = [row for row in backend.rows("items") if row not in before]
        (old,) = [row for row in before if all(row[name] == now[name] for name in KEYS["items"])]
        edit(backend, "items", now, **{name: value for name, value in old.items() if name not in KEYS["items"]})
        assert shredder.store.get(namespace, key) == data[f"get {namespace} {key}"]
