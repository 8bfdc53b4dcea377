"""What PostgreSQL is asked: few round trips, and every query by an index, whatever the tables hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from shredsaver.db import postgres as driver
from shredsaver.db.pg_session import Query
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend, PostgresServer
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config, put

CALL = Caller("sync")
THREADS, PER_THREAD = 3_000, 10
# Rows of many customers, as many as make a scan of a table dearer than its index.
FILLING = (
    "INSERT INTO customers SELECT sha256(i::text::bytea), 1, 'live', 0, '', '', NULL FROM generate_series(1, {t}) i",
    "INSERT INTO counters SELECT sha256(i::text::bytea), 1, 0, 16 FROM generate_series(1, {t}) i",
    (
        "INSERT INTO threads (thread, customer, generation, scope, next_record, next_part, epoch, uses_delta,"
        " touched_at) SELECT sha256(('t' || i)::bytea), sha256(i::text::bytea), 1, 16, 16, 16, i, 0, 0"
        " FROM generate_series(1, {t}) i"
    ),
    (
        "INSERT INTO checkpoints SELECT sha256(('t' || i)::bytea), '', 'id-' || j, 1, '', '', 'loop', '1', 16, j,"
        " '\\x01' FROM generate_series(1, {t}) i, generate_series(1, {n}) j"
    ),
    (
        "INSERT INTO parts SELECT sha256(('t' || i)::bytea), 1, 17, j, '\\x01'"
        " FROM generate_series(1, {t}) i, generate_series(1, {n}) j"
    ),
    (
        "INSERT INTO writes SELECT sha256(('t' || i)::bytea), '', 'id-' || j, 'task', 0, 1, '', 'x', 16, j, '\\x01'"
        " FROM generate_series(1, {t}) i, generate_series(1, {n}) j"
    ),
    "INSERT INTO runs SELECT sha256(('r' || i)::bytea), sha256(('t' || i)::bytea) FROM generate_series(1, {t}) i",
)


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresBackend]:
    database = postgres.database()
    try:
        yield database
    finally:
        postgres.recycle(database)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """Every statement that is sent from now on."""
    found: list[Query] = []
    original = driver.pg_connect.send

    def send(connection: Any, queries: Any) -> Any:
        found.extend(queries)
        return original(connection, queries)

    monkeypatch.setattr(driver.pg_connect, "send", send)
    return found


def scans(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for below in plan.get("Plans", ()):
        yield from scans(below)


def numbered(text: str) -> str:
    pieces = text.split("%s")
    return "".join(f"{piece}${n}" for n, piece in enumerate(pieces[:-1], 1)) + pieces[-1]


def test_every_query_uses_an_index(server: PostgresBackend, keys: str, asked: list[Query], make_server: Any) -> None:
    with make_server(server.url) as shredder:
        for statement in FILLING:
            server.execute(statement.format(t=THREADS, n=PER_THREAD))
        server.execute("ANALYZE")
        asked.clear()
        saver = shredder.saver
        configs = chain(CALL, saver, config("mine"), [{"x": ["text " * 100] * n} for n in range(3)])
        saver.put_writes(configs[-1], [("x", "text " * 100), ("__error__", "e")], "task")
        with make_server(server.url) as cold:
            cold.saver.get_tuple(config("mine"))
            cold.saver.get_tuple(configs[1])
            assert len(list(cold.saver.list(config("mine"), limit=2))) == 2
            assert len(list(cold.saver.list(config("mine"), before=configs[-1]))) == 2
        saver.copy_thread("mine", "yours")
        saver.delete_for_runs(["run"])
        saver.delete_thread("yours")
        shredder.status("c-1")
        shredder.plan("c-1")
        shredder.shred("c-1")
    # Without a row of parameters nothing was sent.
    asked = [query for query in asked if query.params or not query.many]
    statements = {
        query.text: query for query in asked if query.text.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")
    }
    tables = ("customers", "counters", "threads", "checkpoints", "parts", "writes", "runs")
    hot = {text: q for text, q in statements.items() if any(f" {table}" in text for table in tables)}
    assert len(hot) > 25
    scanned = {}
    with psycopg.connect(server.url, autocommit=True, options="-c search_path=shredsaver") as connection:
        for text, query in hot.items():
            params = query.params[0] if query.many else query.params
            with_values = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", tuple(params) or None).fetchone()
            # A prepared statement's plan must do for any value.
            generic = psycopg.RawCursor(connection).execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered(text)}")
            for row in (with_values, generic.fetchone()):
                assert row is not None
                (plan,) = row[0] if isinstance(row[0], list) else json.loads(row[0])
                scanned.update(dict.fromkeys(scans(plan["Plan"]), text))
    assert scanned == {}


@pytest.fixture
def make_server(keys: str) -> Callable[..., Any]:
    from shredsaver import Shredder

    def make(url: str) -> Shredder:
        return Shredder.open(url, keys=keys)

    return make


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_calls_cost_two_round_trips(server: PostgresBackend, make_server: Any, mode: Any) -> None:
    call = Caller(mode)
    big, namespace = "text " * 100, ("users", "c-1")
    with PostgresProxy(server.url) as proxy:
        shredder = call.enter(make_server(proxy.url))
        saver, store = shredder.saver, shredder.store
        saver._core.keyring._max_age = math.inf  # the machine may take longer than a key is kept
        here, state = config("t-1"), {"x": [big] * 9}
        steps = iter(range(1000))

        def put_one() -> Any:
            step = next(steps)
            return put(call, saver, here, state, version=step, step=step)

        def trips(deed: Callable[[], Any]) -> float:
            """What a deed takes: a Sync each, all of them gone by when the put after them is answered."""
            for _ in range(4):  # whatever is looked up and prepared once
                deed()
                put_one()
            before = proxy.syncs
            for _ in range(3):
                deed()
            put_one()
            return (proxy.syncs - before - 2) / 3

        at = put_one()
        writes = [("x", [big]), ("__error__", "e")]
        assert trips(put_one) == 2
        assert trips(lambda: call(saver, "put_writes", at, writes, f"task {next(steps)}")) == 2
        assert trips(lambda: call(store, "put", namespace, f"key {next(steps)}", {"text": big})) == 2
        assert trips(lambda: call(store, "put", namespace, "key", {"n": next(steps)})) == 2
        # The last of these ends the transaction: it is sent, and not waited for.
        assert trips(lambda: call(store, "get", namespace, "key")) == 2
        assert trips(lambda: call(store, "search", namespace)) == 2
        assert trips(lambda: call(saver, "get_tuple", here)) <= 3
        call.exit(shredder)
        cold = call.enter(make_server(proxy.url))
        assert call(cold.saver, "get_tuple", here).checkpoint["channel_values"] == state
        call.exit(cold)
    call.close()
