"""What the store asks of a database: every query by an index, on both, however many items there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp

from shredsaver import Shredder
from shredsaver.db import postgres, sqlite
from shredsaver.db.base import Statement
from tests.support.backends import Backend

NS = ("users", "c-1")
CUSTOMERS, PER_CUSTOMER = 3_000, 8
TABLES = (" items ", " namespaces ", " counters ", " customers ")
# Items of many customers, as many as make a scan of a table dearer than its index.
FILLING = (
    "INSERT INTO customers SELECT sha256(i::text::bytea), 1, 'live', 0, '', '', NULL FROM generate_series(1, {c}) i",
    "INSERT INTO counters SELECT sha256(i::text::bytea), 1, 1, 16 FROM generate_series(1, {c}) i",
    (
        "INSERT INTO namespaces SELECT sha256(i::text::bytea), 'users/CUSTOMER', sha256(j::text::bytea), 1, 1, j, ''"
        " FROM generate_series(1, {c}) i, generate_series(1, {n}) j"
    ),
    (
        "INSERT INTO items SELECT sha256(i::text::bytea), 'users/CUSTOMER', sha256(j::text::bytea),"
        " sha256(j::text::bytea), 1, 1, j, sha256(j::text::bytea), NULL, j, j, 600, 9 * 10^12 + j"
        " FROM generate_series(1, {c}) i, generate_series(1, {n}) j"
    ),
)


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Every statement that is run from now on, with the parameters that it was first given."""
    found: dict[str, tuple[Any, ...]] = {}
    execute, send = sqlite._execute, postgres.pg_connect.send

    def note(text: str, params: Sequence[Any], *, many: bool) -> None:
        if not many or params:
            found.setdefault(text, tuple(params[0] if many else params))

    def on_sqlite(connection: Any, statement: Statement) -> Any:
        note(statement.sql.sqlite, statement.params, many=statement.many)
        return execute(connection, statement)

    def on_postgres(connection: Any, queries: Any) -> Any:
        for query in queries:
            note(query.text, query.params, many=query.many)
        return send(connection, queries)

    monkeypatch.setattr(sqlite, "_execute", on_sqlite)
    monkeypatch.setattr(postgres.pg_connect, "send", on_postgres)
    return found


def use(shredder: Shredder) -> None:
    """Each way of the store to its database."""
    store = shredder.store
    store.batch([PutOp((*NS, f"n{n % 3}"), str(n), {"n": n, "text": "x" * n}, ttl=60) for n in range(600)])
    store.put((*NS, "n1"), "1", {"n": 1, "text": "one"})
    store.delete((*NS, "n2"), "2")
    assert store.get((*NS, "n1"), "1") is not None
    for prefix in (NS, (*NS, "n1")):
        assert len(store.search(prefix, limit=3)) == 3
        assert store.search(prefix, filter={"n": -1}) == []
        assert store.search(prefix, query="xx", filter={"n": 1})[0].key == "1"
    assert len(store.list_namespaces(prefix=NS)) == 3
    store.sweep_ttl()


def plans_on_sqlite(backend: Backend, text: str, params: Sequence[Any]) -> str:
    return "\n".join(row[3] for row in backend.execute(f"EXPLAIN QUERY PLAN {text}", params))


def scanned_by_postgres(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for below in plan.get("Plans", ()):
        yield from scanned_by_postgres(below)


def numbered(text: str) -> str:
    pieces = text.split("%s")
    return "".join(f"{piece}${n}" for n, piece in enumerate(pieces[:-1], 1)) + pieces[-1]


def test_every_query_uses_an_index(
    backend: Backend, make_shredder: Callable[..., Shredder], asked: dict[str, tuple[Any, ...]]
) -> None:
    shredder = make_shredder(index={"dims": 2, "embed": embed, "fields": ["text"]})
    shredder.store.put((*NS, "n1"), "k", {"text": "x"})
    if backend.kind == "postgres":
        for statement in FILLING:
            backend.execute(statement.format(c=CUSTOMERS, n=PER_CUSTOMER))
        backend.execute("ANALYZE")
    asked.clear()
    use(shredder)
    hot = {
        text: params
        for text, params in asked.items()
        if text.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE") and any(table in text for table in TABLES)
    }
    assert len(hot) > 17
    scanned = {}
    if backend.kind == "sqlite":
        for text, params in hot.items():
            plan = plans_on_sqlite(backend, text, params)
            if "SCAN" in plan:
                scanned[text] = plan
            if "number IN" in text:
                assert "items_by_number (customer=? AND number=?)" in plan
    else:
        with psycopg.connect(backend.url, autocommit=True, options="-c search_path=shredsaver") as connection:
            for text, params in hot.items():
                values = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", params or None).fetchone()
                # A prepared statement's plan must do for any value.
                cursor = psycopg.RawCursor(connection)
                generic = cursor.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered(text)}").fetchone()
                for row in (values, generic):
                    assert row is not None
                    (plan,) = row[0] if isinstance(row[0], list) else json.loads(row[0])
                    scanned.update(dict.fromkeys(scanned_by_postgres(plan["Plan"]), text))
    assert scanned == {}


def indexes(plan: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in plan:
        yield plan["Index Name"]
    for below in plan.get("Plans", ()):
        yield from indexes(below)


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_postgres_finds_single_items_by_their_key_or_number_before_it_has_any_statistics(
    backend: Backend, make_shredder: Callable[..., Shredder], asked: dict[str, tuple[Any, ...]]
) -> None:
    make_shredder().store.put((*NS, "n0"), "0", {"n": 0})
    backend.execute("ALTER TABLE items SET (autovacuum_enabled = off)")
    asked.clear()
    use(make_shredder(index={"dims": 2, "embed": embed, "fields": ["text"]}))
    taken: dict[str, set[str]] = {"i.key = ": set(), "i.number = v.value": set()}
    with psycopg.connect(backend.url, autocommit=True, options="-c search_path=shredsaver") as connection:
        for text, params in asked.items():
            for mark, found in taken.items():
                if mark in text:
                    (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", params).fetchone()[0]  # type: ignore[index]
                    found.update(indexes(plan["Plan"]))
    assert taken == {"i.key = ": {"items_pkey"}, "i.number = v.value": {"items_by_number", "items_by_place"}}


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_what_a_search_asks_first_reads_no_row_and_sorts_none(
    backend: Backend, shredder: Shredder, asked: dict[str, tuple[Any, ...]]
) -> None:
    store = shredder.store
    store.put((*NS, "n1"), "k", {"n": 1})

    def first(*args: Any, **options: Any) -> list[str]:
        asked.clear()
        store.search(*args, **options)
        (plan,) = (plans_on_sqlite(backend, text, params) for text, params in asked.items() if " items " in text)
        return plan.splitlines()

    assert first(NS) == ["SEARCH i USING INDEX items_by_age (customer=? AND template=?)"]
    nested = first((*NS, "n1"))
    assert any("COVERING INDEX items_by_place (customer=? AND template=? AND labels>?" in line for line in nested)
    assert any("items_by_number (customer=? AND number=?)" in line for line in nested)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that came back from the database, one number a statement."""
    found: list[int] = []
    execute, send = sqlite._execute, postgres.pg_connect.send

    def on_sqlite(connection: Any, statement: Statement) -> Any:
        result = execute(connection, statement)
        found.append(len(result.rows))
        return result

    def on_postgres(connection: Any, queries: Any) -> Any:
        replies = send(connection, queries)
        found.extend(len(reply.rows) for reply in replies)
        return replies

    monkeypatch.setattr(sqlite, "_execute", on_sqlite)
    monkeypatch.setattr(postgres.pg_connect, "send", on_postgres)
    return found


def test_a_search_fetches_each_item_once_at_most(
    make_shredder: Callable[..., Shredder], fetched: list[int], backend: Backend, keys: str
) -> None:
    def fetches(search: Callable[[], Any]) -> tuple[int, int]:
        fetched.clear()
        search()
        return sum(fetched), len(fetched)

    options = {"index": {"dims": 2, "embed": embed, "fields": ["text"]}}
    store, held = make_shredder(**options).store, 1000
    store.batch([PutOp((*NS, f"n{n % 3}"), str(n), {"n": n, "text": "x" * n}) for n in range(held)])
    for prefix, below in ((NS, held), ((*NS, "n1"), held // 3)):
        # Its number and its row; the customer and the transaction besides; 64 rows a statement.
        rows, statements = fetches(lambda: store.search(prefix, filter={"n": -1}))  # noqa: B023
        assert 2 * below - 256 <= rows <= 2 * below + 10
        assert statements < below / 64 + 12
    with Shredder.open(backend.url, keys=keys, **options) as cold:
        cold.store.get(NS, "k")
        rows, _ = fetches(lambda: cold.store.search(NS, query="x"))
        assert rows <= 2 * held + 20
        rows, statements = fetches(lambda: cold.store.search(NS, query="x"))
        assert rows <= held + 20
        assert statements < 12
