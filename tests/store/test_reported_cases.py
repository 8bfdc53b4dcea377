"""Faults that others met with stores like this one, each as a test: labels, filters, expiry, and batches that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from shredsaver import (
    ConfigurationError,
    CustomerShreddedError,
    NamespaceUnmatchedError,
    PayloadError,
    Shredder,
)
from shredsaver.putting import Putter
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.waiting import SECONDS

NS = ("users", "c-1")
LABELS = ["john_doe", "john-doe", "foo", "foobar", "foo_", "%", "_", "FOO", "é", "e\u0301"]


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "ab"] for text in texts]


class TestLabels:
    def test_a_label_matches_itself_alone(self, shredder: Shredder, call: Caller) -> None:
        """As the customer's label, below it, and below another; in searches, filters, listings and reads."""
        shapes: list[Callable[[str], tuple[str, ...]]] = [
            lambda label: ("users", label),
            lambda label: (*NS, label),
            lambda label: (*NS, "deep", label),
        ]
        store = shredder.store
        puts = [PutOp(shape(label), label, {"label": label}) for shape in shapes for label in LABELS]
        call(store, "batch", puts)
        for shape in shapes:
            for label in LABELS:
                found = call(store, "search", shape(label), limit=100)
                assert [(item.namespace, item.key) for item in found] == [(shape(label), label)]
                found = call(store, "search", shape(label), filter={"label": {"$ne": "?"}}, limit=100)
                assert [item.namespace for item in found] == [shape(label)]
                assert call(store, "list_namespaces", prefix=shape(label), limit=100) == [shape(label)]
                assert call(store, "get", shape(label), label).value == {"label": label}
                assert call(store, "get", shape(label), label + "_") is None

    def test_a_prefix_ends_with_a_label(self, shredder: Shredder, call: Caller) -> None:
        store = shredder.store
        call(store, "batch", [PutOp((*NS, "foo", label), "k", {}) for label in LABELS])
        call(store, "put", (*NS, "foobar"), "k", {})
        assert len(call(store, "search", (*NS, "foo"), limit=100)) == len(LABELS)
        assert len(call(store, "list_namespaces", prefix=(*NS, "foo"), limit=100)) == len(LABELS)
        assert call(store, "list_namespaces", prefix=NS, suffix=("foo", "%")) == [(*NS, "foo", "%")]


VALUES: dict[str, dict[str, Any]] = {
    "one": {"n": 1, "tags": ["a"]},
    "two": {"n": 2, "deep": {"p": 1, "q": {"r": [1]}}, "tags": ["a", "b"]},
    "null": {"n": None, "deep": {}},
    "text": {"n": "2", "tags": "a"},
    "true": {"n": True},
    "nothing": {},
}


class TestFilters:
    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"n": {"$ne": 1}}, ["two", "null", "text", "nothing"]),
            ({"absent": {"$ne": 1}}, list(VALUES)),
            ({"absent": {"$ne": None}}, []),
            ({"n": {"$eq": None}}, ["null", "nothing"]),
            ({"n": None}, ["null", "nothing"]),
            ({"deep": {"p": 1}}, ["two"]),
            ({"deep": {"q": {"r": [1]}}}, ["two"]),
            ({"deep": {"p": 1, "absent": None}}, ["two"]),
            ({"deep": {}}, ["two", "null"]),
            ({"tags": ["a"]}, ["one"]),
            ({"tags": ["b", "a"]}, []),
            ({"tags": "a"}, ["text"]),
            ({"n": 1, "tags": {"$ne": "a"}}, ["one", "true"]),
        ],
    )
    def test_one_answer_that_of_the_memory_store(
        self, shredder: Shredder, call: Caller, wanted: dict[str, Any], expected: list[str]
    ) -> None:
        model = InMemoryStore()
        puts = [PutOp(NS, key, value) for key, value in VALUES.items()]
        model.batch(puts)
        call(shredder.store, "batch", puts)
        found = call(shredder.store, "search", NS, filter=wanted, limit=100)
        assert sorted(item.key for item in found) == sorted(expected)
        assert sorted(item.key for item in model.search(NS, filter=wanted, limit=100)) == sorted(expected)


class TestExpiry:
    @pytest.fixture
    def shredder_options(self) -> dict[str, Any]:
        return {
            "index": {"dims": 2, "embed": embed, "fields": ["text"]},
            "ttl": {"default_ttl": 10, "refresh_on_read": False},
        }

    @pytest.fixture
    def now(self, shredder: Shredder) -> list[float]:
        time = [1_800_000_000.0]
        shredder._start().core.clock = lambda: time[0]
        return time

    def test_no_operation_returns_what_has_expired(self, shredder: Shredder, call: Caller, now: list[float]) -> None:
        store = shredder.store
        call(store, "put", (*NS, "gone"), "k", {"text": "a"})
        call(store, "put", NS, "stays", {"text": "b"}, ttl=20)
        assert call(store, "search", NS, query="a")[0].key == "k"  # its vector is kept in memory
        now[0] += 601
        ops = [
            GetOp((*NS, "gone"), "k"),
            SearchOp(NS),
            SearchOp(NS, filter={"text": "a"}),
            SearchOp(NS, query="a"),
            SearchOp((*NS, "gone"), query="a"),
            ListNamespacesOp((MatchCondition("prefix", NS),)),
        ]
        gone, plain, filtered, similar, nested, names = call(store, "batch", ops)
        assert gone is None
        assert [item.key for item in plain] == ["stays"]
        assert filtered == nested == []
        assert [item.key for item in similar] == ["stays"]
        assert names == [NS]
        call(store, "put", (*NS, "gone"), "k", {"text": "a"})
        assert call(store, "get", (*NS, "gone"), "k").created_at.timestamp() == now[0]

    def test_each_operation_of_a_batch_refreshes_as_it_says(
        self, shredder: Shredder, call: Caller, now: list[float]
    ) -> None:
        store = shredder.store
        kept, left = ("get", "search", "both"), ("get-not", "search-not")
        call(store, "batch", [PutOp((*NS, key), key, {"text": key}, ttl=10) for key in (*kept, *left)])
        now[0] += 500
        answers = call(
            store,
            "batch",
            [
                GetOp((*NS, "get"), "get", refresh_ttl=True),
                GetOp((*NS, "get-not"), "get-not", refresh_ttl=False),
                SearchOp((*NS, "search"), refresh_ttl=True),
                SearchOp((*NS, "search-not"), refresh_ttl=False),
                GetOp((*NS, "both"), "both", refresh_ttl=False),
                SearchOp((*NS, "both"), query="a", refresh_ttl=True),
            ],
        )
        assert all(answers)
        now[0] += 500
        found = {item.key for item in call(store, "search", NS, refresh_ttl=False)}
        assert found == set(kept)

    def test_a_sweep_leaves_what_was_renewed_since(self, shredder: Shredder, now: list[float]) -> None:
        """Between finding an item and deleting it, another writer may have put it anew."""
        from shredsaver import storing

        store = shredder.store
        store.put(NS, "k", {"text": "a"})
        now[0] += 601
        core = shredder._start().core
        with pytest.MonkeyPatch.context() as patch:
            original = storing.run

            def late(*statements: Any, commit: bool = False) -> Any:
                for statement in statements:
                    if statement.sql is not storing.DELETE_EXPIRED:
                        continue
                    key = statement.params[0]
                    renewed = storing.sql(
                        "UPDATE items SET expires_at = ? WHERE customer = ? AND template = ? AND labels = ? AND key = ?"
                    )
                    yield from original(storing.Statement(renewed, (int(now[0] * 1000) + 9000, *key[:4])))
                    now[0] += 1  # the sweep then looks for more
                return (yield from original(*statements, commit=commit))

            patch.setattr(storing, "run", late)
            store.sweep_ttl()
        assert core.clock() == now[0]
        assert store.get(NS, "k") is not None


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_namespace_stays_listed_if_its_last_item_goes_while_another_comes(
    backend: Backend, shredder: Shredder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shredder.store
    store.put(NS, "old", {})
    asked, may_write = threading.Event(), threading.Event()
    original = Putter._stored

    def paused(self: Putter, job: Any) -> Any:
        asked.set()
        assert may_write.wait(SECONDS)
        return original(self, job)

    monkeypatch.setattr(Putter, "_stored", paused)
    with ThreadPoolExecutor(2) as pool:
        coming = pool.submit(store.put, NS, "new", {})
        assert asked.wait(SECONDS)
        going = pool.submit(store.delete, NS, "old")
        while not going.done() and backend.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
            time.sleep(0.01)
        may_write.set()
        coming.result(SECONDS)
        going.result(SECONDS)
    assert [item.key for item in store.search(NS)] == ["new"]
    assert store.list_namespaces(prefix=NS) == [NS]


class TestBatchesThatFail:
    @pytest.mark.parametrize(
        ("last", "error"),
        [
            (PutOp(NS, "bad", {"n": object()}), PayloadError),
            (PutOp(NS, "bad", {"n": {1: 2}}), PayloadError),
            (PutOp(("users", "gone"), "k", {"n": 1}), CustomerShreddedError),
            (PutOp(("users", "gone"), "k", None), CustomerShreddedError),
            (GetOp(("users", "gone"), "k"), CustomerShreddedError),
            (SearchOp(("users", "gone")), CustomerShreddedError),
            (PutOp(("nobody", "knows"), "k", {"n": 1}), NamespaceUnmatchedError),
            (SearchOp(NS, filter={"n": {"$in": [1]}}), ConfigurationError),
        ],
    )
    def test_nothing_of_it_is_stored(
        self, shredder: Shredder, call: Caller, backend: Backend, last: Any, error: type[Exception]
    ) -> None:
        store = shredder.store
        call(store, "put", NS, "old", {"n": 0})
        call(store, "put", ("users", "gone"), "k", {"n": 0})
        call(shredder, "shred", "gone")
        before = backend.contents()
        batch = [
            PutOp(NS, "new", {"n": 1}),
            PutOp(NS, "old", {"n": 1}),
            PutOp(("users", "stranger"), "k", {"n": 1}),
            PutOp(NS, "old", None),
            last,
        ]
        with pytest.raises(error):
            call(store, "batch", batch)
        assert backend.contents() == before
        assert call(store, "get", NS, "old").value == {"n": 0}
