"""The store gives the answers of LangGraph's own `InMemoryStore`, on every backend.

Hypothesis makes histories of batches; both stores run them and must answer alike. Permitted differences, each taken out
of the comparison and none more:

- the order of items that a search gives: ours is newest first, the other's is by insertion, so sets are compared and
  paging is compared by size;
- ``created_at``: kept on overwrite by ours, reset by the other;
- namespaces that hold nothing: never listed by ours, listed for ever by the other;
- odd comparisons (``$gt`` on text or on nothing): match nothing in ours, raise in the other, so they are not generated;
- time to live: the other has none, so expired items are deleted from it by the test's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from shredsaver import CUSTOMER, SHARED, Shredder, ShredStore

TEMPLATES = (("users", CUSTOMER), ("docs", SHARED), (CUSTOMER, "memories"))
LABELS = ["a", "b", "john_doe", "john-doe", "foo", "foobar", "%", "_"]
CUSTOMERS = ["c1", "c2", "c%"]

namespaces = st.one_of(
    st.tuples(st.just("users"), st.sampled_from(CUSTOMERS)).flatmap(
        lambda head: st.lists(st.sampled_from(LABELS), max_size=2).map(lambda tail: (*head, *tail))
    ),
    st.lists(st.sampled_from(LABELS), max_size=2).map(lambda tail: ("docs", *tail)),
    st.sampled_from(CUSTOMERS).map(lambda customer: (customer, "memories")),
)
keys = st.sampled_from(["k", "K", "k k", "%", "é", "x" * 300])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, width=64), st.text(max_size=8)
)
values = st.dictionaries(
    st.sampled_from(["n", "tag", "deep", "list", "x\x00y"]),
    st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text(max_size=4), scalars, max_size=3)),
    max_size=4,
)
filters = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(["n", "tag", "deep", "list", "absent"]),
        st.one_of(
            scalars,
            st.builds(lambda value: {"$ne": value}, scalars),
            st.builds(lambda value: {"$eq": value}, scalars),
            st.lists(scalars, max_size=2),
            st.just({}),
            st.dictionaries(st.sampled_from(["p", "q"]), scalars, min_size=1, max_size=2),
        ),
        min_size=1,
        max_size=2,
    ),
)
puts = st.tuples(namespaces, keys, st.one_of(st.none(), values)).map(lambda what: PutOp(*what))
gets = st.tuples(namespaces, keys).map(lambda what: GetOp(*what))
searches = st.builds(
    lambda prefix, cut, filter_, limit, offset: SearchOp(prefix[: max(cut, 2)], filter_, limit, offset),
    namespaces,
    st.integers(2, 4),
    filters,
    st.integers(0, 5),
    st.integers(0, 3),
)
listings = st.builds(
    lambda prefix, suffix, depth: ListNamespacesOp(
        (
            MatchCondition("prefix", prefix[:2]),
            *([MatchCondition("suffix", suffix)] if suffix else []),
        ),
        max_depth=depth,
    ),
    namespaces,
    st.one_of(st.none(), st.tuples(st.sampled_from([*LABELS, "*"]))),
    st.one_of(st.none(), st.integers(1, 4)),
)
batches = st.lists(st.lists(st.one_of(puts, puts, gets, searches, listings), min_size=1, max_size=5), max_size=5)


def plain(answer: Any) -> Any:
    return None if answer is None else (answer.namespace, answer.key, answer.value)


def same(op: Op, ours: Any, theirs: Any, whole: Callable[[SearchOp], list[SearchItem]]) -> None:
    if isinstance(op, SearchOp):
        assert len(ours) == len(theirs)
        everything = [plain(item) for item in whole(op)]
        assert all(plain(item) in everything for item in ours)
        assert len({(item.namespace, item.key) for item in ours}) == len(ours)
    elif isinstance(op, ListNamespacesOp):
        assert ours == theirs
    else:
        assert plain(ours) == plain(theirs)


@pytest.fixture
def store(make_shredder: Callable[..., Shredder]) -> ShredStore:
    return make_shredder(namespaces=TEMPLATES).store


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(history=batches)
def test_answers_are_those_of_the_memory_store(store: ShredStore, history: list[list[Op]]) -> None:
    for item in _everything(store):
        store.delete(item.namespace, item.key)
    model = InMemoryStore()
    for batch in history:
        asked = [op for op in batch if not isinstance(op, ListNamespacesOp)]
        for op, ours, theirs in zip(asked, store.batch(asked), model.batch(asked), strict=True):
            if not isinstance(op, PutOp):
                same(op, ours, theirs, lambda op: model.search(op.namespace_prefix, filter=op.filter, limit=10_000))
        _forget_empty(model)
        for op in batch:
            if isinstance(op, ListNamespacesOp):
                same(op, store.batch([op])[0], model.batch([op])[0], lambda _: [])
    ours = sorted((item.namespace, item.key) for item in _everything(store))
    assert ours == sorted((item.namespace, item.key) for item in model.search((), limit=10_000))


def _everything(store: Any) -> list[SearchItem]:
    prefixes = [*(("users", one) for one in CUSTOMERS), ("docs",), *((one, "memories") for one in CUSTOMERS)]
    return [item for prefix in prefixes for item in store.search(prefix, limit=10_000)]


def _forget_empty(model: InMemoryStore) -> None:
    for namespace in [namespace for namespace, items in model._data.items() if not items]:
        del model._data[namespace]


def test_a_search_is_newest_first_and_pages_without_gaps(shredder: Shredder) -> None:
    store = shredder.store
    for number in range(600):
        store.put(("users", "c", f"n{number % 7}"), str(number), {"number": number, "even": number % 2 == 0})
    found = [item.value["number"] for item in store.search(("users", "c"), limit=1000)]
    assert found == list(reversed(range(600)))
    paged = [
        item.value["number"]
        for offset in range(0, 600, 70)
        for item in store.search(("users", "c"), limit=70, offset=offset)
    ]
    assert paged == found
    even = [item.value["number"] for item in store.search(("users", "c"), filter={"even": True}, limit=20, offset=280)]
    assert even == list(range(38, -2, -2))


@pytest.mark.parametrize(
    ("filter_", "matching"),
    [
        ({"n": {"$gt": 1}}, ["two", "three"]),
        ({"n": {"$gte": 2, "$lt": 3}}, ["two"]),
        ({"n": {"$lte": 1}}, ["one"]),
        ({"n": {"$ne": 2}}, ["one", "three", "text", "none"]),
        ({"absent": None}, ["one", "two", "three", "text", "none"]),
        ({"deep": {"p": 1}}, ["two"]),
        ({"deep": {}}, ["two"]),
        ({"list": [1, 2]}, ["three"]),
        ({"list": [2, 1]}, []),
    ],
)
def test_filters_on_missing_nested_and_odd_values(shredder: Shredder, filter_: Any, matching: list[str]) -> None:
    store = shredder.store
    store.put(("users", "c"), "one", {"n": 1})
    store.put(("users", "c"), "two", {"n": 2, "deep": {"p": 1, "q": 2}})
    store.put(("users", "c"), "three", {"n": 3.5, "list": [1, 2]})
    store.put(("users", "c"), "text", {"n": "no number"})
    store.put(("users", "c"), "none", {})
    assert sorted(item.key for item in store.search(("users", "c"), filter=filter_)) == sorted(matching)
