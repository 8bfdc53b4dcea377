"""What a user of the store sees: batches, time to live, search by meaning, customers, and bad input."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp, SearchOp

from shredsaver import (
    CUSTOMER,
    SHARED,
    ConfigurationError,
    CustomerShreddedError,
    CustomerUnresolvedError,
    LegalHoldError,
    NamespaceUnmatchedError,
    PayloadError,
    Shredder,
    UnsealError,
    id_of,
    label_of,
)
from tests.support.calls import Caller
from tests.support.waiting import SECONDS, wait_until

NS = ("users", "c-1")


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abc"] + [1.0] for text in texts]


INDEX = {"dims": 4, "embed": embed, "fields": ["text"]}


def _cosine(text: str) -> float:
    (one,), (other,) = embed(["aab"]), embed([text])
    return sum(x * y for x, y in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


class TestBatches:
    def test_reads_see_the_state_before_the_puts_and_the_last_put_wins(self, shredder: Shredder, call: Caller) -> None:
        call(shredder.store, "put", NS, "k", {"n": 1})
        ops = [PutOp(NS, "k", {"n": 2}), GetOp(NS, "k"), PutOp(NS, "k", {"n": 3}), SearchOp(NS)]
        answers = call(shredder.store, "batch", ops)
        assert answers[1].value == {"n": 1}
        assert [item.value for item in answers[3]] == [{"n": 1}]
        assert call(shredder.store, "get", NS, "k").value == {"n": 3}

    def test_a_batch_that_fails_stores_nothing(self, shredder: Shredder, call: Caller) -> None:
        with pytest.raises(PayloadError):
            call(shredder.store, "batch", [PutOp(NS, "good", {"n": 1}), PutOp(NS, "bad", {"n": object()})])
        assert call(shredder.store, "get", NS, "good") is None
        call(shredder.store, "put", ("users", "gone"), "k", {})
        call(shredder, "shred", "gone")
        with pytest.raises(CustomerShreddedError):
            call(shredder.store, "batch", [PutOp(NS, "good", {"n": 1}), PutOp(("users", "gone"), "k", {"n": 1})])
        assert call(shredder.store, "get", NS, "good") is None

    def test_times_are_kept_and_renewed(self, shredder: Shredder) -> None:
        time = itertools.count(1_800_000_000)
        shredder._start().core.clock = lambda: next(time)
        shredder.store.put(NS, "k", {"n": 1})
        first = shredder.store.get(NS, "k")
        shredder.store.put(NS, "k", {"n": 2})
        second = shredder.store.get(NS, "k")
        assert first is not None
        assert second is not None
        assert second.created_at == first.created_at
        assert second.updated_at > first.updated_at

    def test_values_come_back_exactly(self, shredder: Shredder) -> None:
        value = {"x": "a\x00b", "big": 2**200, "float": 1e-300, "deep": [{"é": [None, True, -0.0]}], "\ud800": "\udfff"}
        shredder.store.put(NS, "k\x00" + "k" * 10_000, value)
        found = shredder.store.get(NS, "k\x00" + "k" * 10_000)
        assert found is not None
        assert found.value == value


class TestTimeToLive:
    @pytest.fixture
    def now(self, shredder: Shredder) -> list[float]:
        time = [1_800_000_000.0]
        shredder._start().core.clock = lambda: time[0]
        return time

    def test_expired_items_are_never_returned_swept_or_not(self, shredder: Shredder, now: list[float]) -> None:
        store = shredder.store
        store.put((*NS, "deep"), "k", {"n": 1}, ttl=10)
        store.put(NS, "stays", {"n": 2})
        now[0] += 599
        assert store.get((*NS, "deep"), "k", refresh_ttl=False) is not None
        now[0] += 2
        assert store.get((*NS, "deep"), "k") is None
        assert [item.key for item in store.search(NS)] == ["stays"]
        assert store.list_namespaces(prefix=NS) == [NS]
        assert shredder.plan("c-1").counts["items"] == 2
        assert store.sweep_ttl() == 1
        assert shredder.plan("c-1").counts["items"] == 1

    def test_reading_renews_unless_told_not_to(self, shredder: Shredder, now: list[float]) -> None:
        store = shredder.store
        store.put(NS, "read", {}, ttl=10)
        store.put(NS, "left", {}, ttl=10)
        now[0] += 400
        ops = [GetOp(NS, "read", refresh_ttl=True), GetOp(NS, "left", refresh_ttl=False), PutOp(NS, "other", {})]
        store.batch(ops)
        now[0] += 400
        assert store.get(NS, "read", refresh_ttl=True) is not None
        assert store.get(NS, "left") is None
        now[0] += 400
        assert [item.key for item in store.search(NS)] == ["other", "read"]

    def test_what_is_held_is_not_deleted(self, shredder: Shredder, now: list[float], call: Caller) -> None:
        store = shredder.store
        call(store, "put", NS, "held", {}, ttl=10)
        call(store, "put", ("users", "c-2"), "free", {}, ttl=10)
        call(shredder, "hold", "c-1", reason="litigation", until=datetime.fromtimestamp(now[0] + 3600, UTC))
        with pytest.raises(LegalHoldError):
            call(store, "batch", [PutOp(NS, "new", {}), PutOp(NS, "held", None)])
        assert call(store, "get", NS, "new") is None
        call(store, "put", NS, "new", {})
        now[0] += 700
        assert call(store, "sweep_ttl") == 1
        assert call(store, "get", NS, "held") is None
        assert call(shredder, "plan", "c-1").counts["items"] == 2
        now[0] += 3600
        assert call(store, "sweep_ttl") == 1
        call(store, "delete", NS, "new")
        assert call(shredder, "plan", "c-1").counts["items"] == 0

    def test_the_sweeper_sweeps_and_stops(self, make_shredder: Callable[..., Shredder]) -> None:
        store = make_shredder(ttl={"default_ttl": 0.0001, "refresh_on_read": False}).store
        store.put(NS, "k", {})
        future = store.start_ttl_sweeper(0.0005)
        assert store.start_ttl_sweeper(0.0005) is future
        assert wait_until(lambda: future.done() or store.shredder.plan("c-1").counts["items"] == 0)
        assert not future.done()
        assert store.stop_ttl_sweeper(SECONDS)
        assert future.done()


class TestMeaning:
    def test_best_vector_counts_and_items_without_fill_the_page(self, make_shredder: Callable[..., Shredder]) -> None:
        store = make_shredder(index={**INDEX, "fields": ["text", "more[*]"]}).store
        store.put(NS, "a", {"text": "aaaa", "more": ["bb", "cc"]})
        store.put(NS, "b", {"text": "bbbb"})
        store.put(NS, "none", {"text": "aaaa"}, index=False)
        store.put(NS, "other", {"text": "aaaa", "title": "cccc"}, index=["title"])
        found = store.search(NS, query="cccc", limit=4)
        assert [item.key for item in found] == ["other", "a", "b", "none"]
        assert found[0].score == pytest.approx(1.0)
        assert found[3].score is None
        assert [item.key for item in store.search(NS, query="bbbb", limit=1)] == ["b"]
        assert [item.key for item in store.search(NS, query="bbbb", limit=1, offset=1)] == ["a"]

    def test_scores_are_those_of_the_memory_store(self, make_shredder: Callable[..., Shredder], call: Caller) -> None:
        from langgraph.store.memory import InMemoryStore

        store, model = make_shredder(index=INDEX).store, InMemoryStore(index=INDEX)
        texts = ["abc", "aabbb", "cccab", "x", "bca", "aaac", "bbbbc"]
        for number, text in enumerate(texts):
            for one in (store, model):
                one.put(NS, str(number), {"text": text, "even": number % 2 == 0})
        for filter_ in (None, {"even": True}):
            ours = call(store, "search", NS, query="abcc", filter=filter_, limit=5)
            theirs = model.search(NS, query="abcc", filter=filter_, limit=5)
            assert [item.score for item in ours] == pytest.approx([item.score for item in theirs], abs=1e-6)
            assert {item.key for item in ours} == {item.key for item in theirs}

    def test_a_put_renews_the_vectors(self, make_shredder: Callable[..., Shredder]) -> None:
        store = make_shredder(index=INDEX).store
        store.put(NS, "k", {"text": "aaaa"})
        store.put(NS, "l", {"text": "bbbb"})
        assert store.search(NS, query="aaaa")[0].key == "k"
        store.put(NS, "k", {"text": "cccc"})
        assert store.search(NS, query="aaaa", limit=2)[0].key != "k" or store.search(NS, query="cccc")[0].key == "k"
        assert store.search(NS, query="cccc")[0].key == "k"

    def test_what_is_kept_in_memory_follows_the_database(self, make_shredder: Callable[..., Shredder]) -> None:
        """Two that have searched before, and one that never has, agree with a third that computes everything anew."""
        one, two = (make_shredder(index=INDEX).store for _ in range(2))
        draw = random.Random(7)
        model: dict[tuple[tuple[str, ...], str], str | None] = {}
        spaces = [NS, (*NS, "x"), (*NS, "x", "y"), (*NS, "z")]
        for step in range(12):
            ops = []
            for _ in range(60 if step == 0 else 9):
                place = (draw.choice(spaces), f"k{draw.randrange(40)}")
                text = None if draw.random() < 0.3 else "".join(draw.choices("abcd", k=draw.randrange(1, 7)))
                value = None if text is None and draw.random() < 0.6 else {"text": text}
                ops.append(PutOp(*place, value))
                model.pop(place, None)
                if value is not None:
                    model[place] = text
            draw.choice((one, two)).batch(ops)
            for store in (one, two, make_shredder(index=INDEX).store if step % 4 == 3 else one):
                for prefix in spaces:
                    found = store.search(prefix, query="aab", limit=100)
                    held = {place: text for place, text in model.items() if place[0][: len(prefix)] == prefix}
                    assert {(item.namespace, item.key): item.value["text"] for item in found} == held
                    scores = [_cosine(text) for text in held.values() if text is not None]
                    assert [item.score for item in found if item.score is not None] == pytest.approx(
                        sorted(scores, reverse=True), abs=1e-6
                    )
                    assert all(
                        item.score == pytest.approx(_cosine(item.value["text"]), abs=1e-6)
                        for item in found
                        if item.score is not None
                    )

    def test_a_shred_elsewhere_drops_what_is_kept_in_memory(self, make_shredder: Callable[..., Shredder]) -> None:
        here, elsewhere = make_shredder(index=INDEX), make_shredder(index=INDEX)
        for who in ("c-1", "c-2"):
            here.store.put(("users", who), "k", {"text": "aaa"})
            here.store.search(("users", who), query="a")
        kept = here.store._storing._vectors._shelves
        assert len(kept) == 2
        elsewhere.shred("c-1")
        with pytest.raises(CustomerShreddedError):
            here.store.search(NS, query="a")
        assert len(kept) == 1

    def test_a_query_of_another_size_is_refused(self, make_shredder: Callable[..., Shredder]) -> None:
        store = make_shredder(index={**INDEX, "embed": lambda texts: [[1.0] * (4 if texts[0] != "odd" else 3)]}).store
        store.put(NS, "k", {"text": "a"})
        with pytest.raises(ConfigurationError, match="4 dimensions"):
            store.search(NS, query="odd")

    def test_an_index_of_other_dimensions_is_refused(self, make_shredder: Callable[..., Shredder]) -> None:
        make_shredder(index=INDEX).store.put(NS, "k", {"text": "a"})
        other = make_shredder(index={"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}).store
        with pytest.raises(ConfigurationError, match="dimensions"):
            other.search(NS, query="a")

    def test_async_embeddings_are_awaited(self, make_shredder: Callable[..., Shredder], home: Any) -> None:
        async def aembed(texts: Sequence[str]) -> list[list[float]]:
            await asyncio.sleep(0)
            return embed(texts)

        async def main() -> None:
            async with Shredder.open(
                str(home / "b.sqlite"), keys=f"file:{home / 'bkeys'}", index={"dims": 4, "embed": aembed}
            ) as shredder:
                await shredder.store.aput(NS, "k", {"text": "aaaa"})
                assert (await shredder.store.asearch(NS, query="aaaa"))[0].key == "k"

        asyncio.run(main())


class TestCustomers:
    TEMPLATES = (("users", CUSTOMER, "prefs"), ("users", CUSTOMER), ("policies", SHARED), (CUSTOMER, "memories"))

    def test_the_first_template_that_fits_decides_and_a_prefix_finds_all(
        self, make_shredder: Callable[..., Shredder]
    ) -> None:
        shredder = make_shredder(namespaces=self.TEMPLATES)
        store = shredder.store
        for namespace in (("users", "c-1"), ("users", "c-1", "prefs"), ("users", "c-1", "deep", "er")):
            store.put(namespace, "k", {"at": list(namespace)})
        store.put(("c-1", "memories"), "k", {})
        store.put(("policies", "eu"), "k", {})
        assert len(store.search(("users", "c-1"))) == 3
        assert [item.namespace for item in store.search(("users", "c-1", "prefs"))] == [("users", "c-1", "prefs")]
        assert store.list_namespaces(prefix=("users", "c-1")) == [
            ("users", "c-1"), ("users", "c-1", "deep", "er"), ("users", "c-1", "prefs"),
        ]  # fmt: skip
        shredder.shred("c-1")
        for prefix in (("users", "c-1"), ("c-1", "memories")):
            with pytest.raises(CustomerShreddedError):
                store.search(prefix)
        assert store.get(("policies", "eu"), "k") is not None

    def test_a_prefix_without_the_customer_is_refused_or_walks_the_living(
        self, make_shredder: Callable[..., Shredder], call: Caller
    ) -> None:
        store = make_shredder().store
        for prefix in (("users",), ()):
            with pytest.raises(ConfigurationError, match="cross_customer_search"):
                call(store, "search", prefix)
            with pytest.raises(ConfigurationError, match="cross_customer_search"):
                call(store, "list_namespaces", prefix=prefix)
        shredder = make_shredder(cross_customer_search=True)
        time = itertools.count(1_800_000_000)
        shredder._start().core.clock = lambda: next(time)  # one customer's newest is known from another's by the time
        for number in range(70):
            call(shredder.store, "put", ("users", f"c-{number}"), "k", {"n": number})
        call(shredder, "shred", "c-3")
        found = call(shredder.store, "search", ("users",), limit=100)
        assert sorted(item.value["n"] for item in found) == [number for number in range(70) if number != 3]
        assert [item.value["n"] for item in call(shredder.store, "search", ("users",), limit=2, offset=1)] == [68, 67]
        assert len(call(shredder.store, "list_namespaces", prefix=("users",), limit=100)) == 69

    def test_ids_that_are_no_labels(self, make_shredder: Callable[..., Shredder]) -> None:
        who = "jane.doe@example.org"
        shredder = make_shredder(namespaces=(("users", CUSTOMER.decoded_by(id_of)),))
        shredder.store.put(("users", label_of(who)), "k", {"n": 1})
        assert shredder.plan(who).counts["items"] == 1
        with pytest.raises(CustomerUnresolvedError):
            shredder.store.put(("users", "not an encoded id"), "k", {})
        shredder.shred(who)
        with pytest.raises(CustomerShreddedError):
            shredder.store.get(("users", label_of(who)), "k")

    def test_labels_match_exactly(self, shredder: Shredder) -> None:
        labels = ["john_doe", "john-doe", "foo", "foobar", "%", "_", "FOO"]
        for label in labels:
            shredder.store.put((*NS, label), "k", {"label": label})
        for label in labels:
            assert [item.value["label"] for item in shredder.store.search((*NS, label))] == [label]

    def test_a_shred_reaches_more_than_any_page_and_every_nesting(self, shredder: Shredder) -> None:
        for number in range(0, 1100, 100):
            shredder.store.batch(
                [
                    PutOp((*NS, *(["deep"] * (n % 4)), f"n{n % 11}"), str(n), {"n": n})
                    for n in range(number, number + 100)
                ]
            )
        assert shredder.plan("c-1").counts["items"] == 1100
        assert shredder.audit("c-1").routes["items"].opens == 1100
        result = shredder.shred("c-1")
        assert (result.before["items"], result.after["items"]) == (1100, 0)
        assert shredder.audit("c-1").routes["items"].rows == 0

    def test_who_comes_back_finds_nothing(self, shredder: Shredder) -> None:
        shredder.store.put(NS, "k", {"n": 1})
        shredder.shred("c-1", purge=False)
        shredder.enrol("c-1")
        assert shredder.store.get(NS, "k") is None
        assert shredder.store.search(NS) == []
        assert shredder.store.list_namespaces(prefix=NS) == []
        shredder.store.put(NS, "k", {"n": 2})
        assert [item.value for item in shredder.store.search(NS)] == [{"n": 2}]


class TestBadInput:
    @pytest.mark.parametrize(
        ("namespace", "error"),
        [
            ((), InvalidNamespaceError),
            (("users", ""), InvalidNamespaceError),
            (("users", "a.b"), InvalidNamespaceError),
            (("users", "a\x00"), InvalidNamespaceError),
            (("users", 7), InvalidNamespaceError),
            (("langgraph", "c"), InvalidNamespaceError),
            (("nobody", "knows"), NamespaceUnmatchedError),
            (("users",), NamespaceUnmatchedError),
        ],
    )
    def test_namespaces(self, shredder: Shredder, namespace: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            shredder.store.put(namespace, "k", {"n": 1})
        with pytest.raises(error):
            shredder.store.batch([PutOp(namespace, "k", {"n": 1}), PutOp(NS, "k", {})])
        assert shredder.store.get(NS, "k") is None

    @pytest.mark.parametrize("value", [{1: 2}, {"a": {1: 2}}, {"a": {1, 2}}, {"a": b"bytes"}, {"a": 1j}, 7])
    def test_values(self, shredder: Shredder, value: Any) -> None:
        with pytest.raises(PayloadError) as raised:
            shredder.store.put(NS, "k", value)
        assert "bytes" not in str(raised.value)
        assert shredder.store.get(NS, "k") is None

    def test_operators_and_limits(self, shredder: Shredder) -> None:
        with pytest.raises(ConfigurationError, match="regex"):
            shredder.store.search(NS, filter={"a": {"$regex": "x"}})
        with pytest.raises(ConfigurationError):
            shredder.store.search(NS, limit=-1)
        with pytest.raises(ConfigurationError):
            shredder.store.put(NS, "k", {}, ttl=-1)
        with pytest.raises(ConfigurationError):
            shredder.store.put(NS, "k", {}, ttl=1e18)

    @pytest.mark.parametrize(
        "templates",
        [(("users",),), ((CUSTOMER, CUSTOMER),), ((SHARED, "x"),), (("a.b", CUSTOMER),), ((CUSTOMER,),) * 2],
    )
    def test_templates(self, home: Any, templates: Any) -> None:
        with pytest.raises(ConfigurationError):
            Shredder.open(str(home / "x.sqlite"), keys=f"file:{home / 'x'}", namespaces=templates)

    def test_vectors_of_another_size(self, make_shredder: Callable[..., Shredder]) -> None:
        store = make_shredder(index={**INDEX, "dims": 7}).store
        with pytest.raises(PayloadError):
            store.put(NS, "k", {"text": "a"})
        assert store.get(NS, "k") is None


class TestTampering:
    """An attacker with the database file moves and edits rows of items."""

    EDITS = (
        "UPDATE items SET created_at = created_at + 1",
        "UPDATE items SET updated_at = updated_at - 1",
        "UPDATE items SET vectors = NULL",
        "UPDATE items SET number = number + 3",
    )

    @pytest.mark.parametrize("edit", EDITS)
    def test_an_edited_row_does_not_open(self, home: Any, edit: str) -> None:
        path = home / "t.sqlite"
        with Shredder.open(str(path), keys=f"file:{home / 't'}", index=INDEX) as shredder:
            shredder.store.put(NS, "one", {"text": "a"})
            shredder.store.put(NS, "two", {"text": "b"})
            connection = sqlite3.connect(path)
            connection.execute(edit)
            connection.commit()
            connection.close()
            with pytest.raises(UnsealError):
                shredder.store.get(NS, "one")
            with pytest.raises(UnsealError):
                shredder.store.search(NS)

    def test_swapped_rows_do_not_open(self, home: Any) -> None:
        path = home / "t.sqlite"
        with Shredder.open(str(path), keys=f"file:{home / 't'}", index=INDEX) as shredder:
            for namespace in (NS, (*NS, "deep"), ("users", "c-2")):
                for key in ("one", "two"):
                    shredder.store.put(namespace, key, {"text": "abc"})
            connection = sqlite3.connect(path)
            rows = connection.execute("SELECT rowid, sealed, vectors FROM items ORDER BY rowid").fetchall()
            turned = [*rows[1:], rows[0]]
            for (rowid, _, _), (_, sealed, vectors) in zip(rows, turned, strict=True):
                connection.execute("UPDATE items SET sealed = ?, vectors = ? WHERE rowid = ?", (sealed, vectors, rowid))
            connection.commit()
            connection.close()
            for namespace in (NS, (*NS, "deep"), ("users", "c-2")):
                for key in ("one", "two"):
                    with pytest.raises(UnsealError):
                        shredder.store.get(namespace, key)

    def test_swapped_vectors_do_not_rank(self, home: Any) -> None:
        path = home / "t.sqlite"
        with Shredder.open(str(path), keys=f"file:{home / 't'}", index=INDEX) as shredder:
            shredder.store.put(NS, "one", {"text": "aaaa"})
            shredder.store.put(NS, "two", {"text": "bbbb"})
        connection = sqlite3.connect(path)
        (one, vector_one), (two, vector_two) = connection.execute("SELECT rowid, vectors FROM items").fetchall()
        connection.execute("UPDATE items SET vectors = ? WHERE rowid = ?", (vector_two, one))
        connection.execute("UPDATE items SET vectors = ? WHERE rowid = ?", (vector_one, two))
        connection.commit()
        connection.close()
        with Shredder.open(str(path), keys=f"file:{home / 't'}", index=INDEX) as shredder, pytest.raises(UnsealError):
            shredder.store.search(NS, query="aaaa")
