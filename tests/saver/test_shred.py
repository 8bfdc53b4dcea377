"""After a shred nothing of the customer is served, whichever way it is asked for, and everyone else goes on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateUpdate, interrupt

from shredsaver import CustomerShreddedError, ShredSaverError, ThreadOwnershipError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, checkpoint, config, metadata, put
from tests.support.graphs import Items, line
from tests.support.waiting import SECONDS, join


def graph_of(saver: Any) -> Any:
    """A subgraph that asks, and a step after it."""

    def ask(state: Items) -> dict[str, Any]:
        return {"items": [interrupt("sure?")]}

    inner = StateGraph(Items)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    builder = StateGraph(Items)
    builder.add_node("first", lambda s: {"items": ["first"]})
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "first")
    builder.add_edge("first", "inner")
    return builder.compile(checkpointer=saver)


def where(thread_id: str, customer_id: str | None) -> dict[str, Any]:
    configurable = {"thread_id": thread_id}
    return {"configurable": configurable if customer_id is None else {**configurable, "customer_id": customer_id}}


def talk(call: Caller, saver: Any, thread_id: str, customer_id: str) -> list[Any]:
    """A conversation that stands at an interrupt after an answered one; returns its history."""
    graph, here = graph_of(saver), where(thread_id, customer_id)
    call(graph, "invoke", {"items": ["hello"]}, here)
    call(graph, "invoke", Command(resume="yes"), here)
    call(graph, "invoke", {"items": ["again"]}, here)
    found: list[Any] = call(graph, "get_state_history", here)
    assert len(found) > 4
    return found


OPERATIONS: dict[str, Callable[[Caller, Any, dict[str, Any], dict[str, Any]], Any]] = {
    "get_state": lambda call, graph, here, old: call(graph, "get_state", here),
    "get_state with subgraphs": lambda call, graph, here, old: call(graph, "get_state", here, subgraphs=True),
    "get_state of an old checkpoint": lambda call, graph, here, old: call(graph, "get_state", old),
    "get_state_history": lambda call, graph, here, old: call(graph, "get_state_history", here),
    "update_state": lambda call, graph, here, old: call(graph, "update_state", here, {"items": ["x"]}, as_node="first"),
    "fork": lambda call, graph, here, old: call(graph, "update_state", old, {"items": ["x"]}, as_node="first"),
    "copying fork": lambda call, graph, here, old: call(graph, "update_state", old, None, as_node="__copy__"),
    "bulk_update_state": lambda call, graph, here, old: call(
        graph, "bulk_update_state", here, [[StateUpdate({"items": ["x"]}, "first")]]
    ),
    "invoke": lambda call, graph, here, old: call(graph, "invoke", {"items": ["x"]}, here),
    "invoke in the background": lambda call, graph, here, old: call(
        graph, "invoke", {"items": ["x"]}, here, durability="async"
    ),
    "stream": lambda call, graph, here, old: call(graph, "stream", {"items": ["x"]}, here),
    "resume": lambda call, graph, here, old: call(graph, "invoke", Command(resume="yes"), here),
    "time travel": lambda call, graph, here, old: call(graph, "invoke", None, old),
}


@pytest.mark.parametrize("purge", [True, False], ids=["purged", "not purged"])
@pytest.mark.parametrize("named", [True, False], ids=["customer given", "thread alone"])
def test_a_compiled_graph_is_refused_everything(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend, named: bool, purge: bool
) -> None:
    shredder = make_shredder()
    history = talk(call, shredder.saver, "t-1", "c-1")
    graph, here = graph_of(shredder.saver), where("t-1", "c-1" if named else None)
    old = {"configurable": {**history[-2].config["configurable"], **here["configurable"]}}
    for name in ("get_state", "get_state of an old checkpoint", "get_state_history"):
        assert OPERATIONS[name](call, graph, here, old), name
    call(shredder, "shred", "c-1", purge=purge)
    before = backend.contents()
    for name, operation in OPERATIONS.items():
        with pytest.raises(CustomerShreddedError) as caught:
            operation(call, graph, here, old)
        assert caught.value.shredded_at is not None, name
        assert caught.value.erasure_id, name
    assert backend.contents() == before


def test_a_shredder_opened_later_refuses_as_well(call: Caller, make_shredder: Callable[..., Any]) -> None:
    first = make_shredder()
    talk(call, first.saver, "t-1", "c-1")
    call(first, "shred", "c-1")
    graph = graph_of(make_shredder().saver)
    for here in (where("t-1", "c-1"), where("t-1", None), where("never seen", "c-1")):
        with pytest.raises(CustomerShreddedError):
            call(graph, "get_state", here)


def test_everyone_else_goes_on(call: Caller, make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    for number in range(4):
        talk(call, shredder.saver, f"t-{number}", f"c-{number % 2}")
    untouched = {
        thread: call(graph_of(shredder.saver), "get_state_history", where(thread, "c-0")) for thread in ("t-0", "t-2")
    }
    call(shredder, "shred", "c-1")
    for saver in (shredder.saver, make_shredder().saver):
        graph = graph_of(saver)
        for thread, expected in untouched.items():
            assert call(graph, "get_state_history", where(thread, "c-0")) == expected
        call(graph, "invoke", Command(resume="yes"), where("t-0", "c-0"))
        call(graph, "invoke", {"items": ["x"]}, where(f"new {id(saver)}", "c-0"))
        untouched["t-0"] = call(graph, "get_state_history", where("t-0", "c-0"))


def test_only_the_customers_own_rows_are_touched(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    for number in range(60):
        put(call, shredder.saver, config(f"t-{number}", f"c-{number % 20}"), {"x": ["text " * 50, number]})
    threads = {row["thread"]: bytes(row["customer"]) for row in backend.rows("threads")}
    # The row that changes its state tells which token the id has; nothing but a test may look that up like this.
    snapshot = {table: backend.rows(table) for table in ("threads", "checkpoints", "parts", "writes")}
    call(shredder, "shred", "c-7")
    dead = [bytes(row["customer"]) for row in backend.rows("customers") if row["state"] != "live"]
    assert len(dead) == 1
    for table, rows in snapshot.items():
        kept = [row for row in rows if threads[row["thread"]] != dead[0]]
        now = [row for row in backend.rows(table) if threads[row["thread"]] != dead[0]]
        assert sorted(map(repr, now)) == sorted(map(repr, kept)), table


def test_a_purge_leaves_only_who_owned_the_thread(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    for number in range(3):
        talk(call, shredder.saver, f"t-{number}", "c-1")
    put(call, shredder.saver, config("t-0"), {"x": 1}, run_id="run-1")
    assert min(backend.count(t) for t in ("checkpoints", "writes", "threads", "runs")) > 0
    call(shredder, "shred", "c-1")
    counts = backend.counts()
    assert {t: counts[t] for t in ("checkpoints", "parts", "writes", "runs")} == dict.fromkeys(
        ("checkpoints", "parts", "writes", "runs"), 0
    )
    assert counts["threads"] == 3
    assert all(row["name"] is None for row in backend.rows("threads"))
    with pytest.raises(ThreadOwnershipError):
        put(call, shredder.saver, config("t-0", "c-2"), {"x": 1})


def test_old_configs_are_refused_and_mint_no_key(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    saver = shredder.saver
    stored = chain(call, saver, config(), [{"x": 1}, {"x": 2}])
    call(shredder, "shred", "c-1")
    before = backend.contents()
    made = checkpoint({"x": 3})
    for here in (config(), config(customer_id=None), stored[0], stored[1], config("a new thread")):
        with pytest.raises(CustomerShreddedError):
            call(saver, "put", here, made, metadata(), made["channel_versions"])
        writing = {"configurable": {"checkpoint_id": made["id"], **here["configurable"]}}
        with pytest.raises(CustomerShreddedError):
            call(saver, "put_writes", writing, [("x", 1)], "task")
        with pytest.raises(CustomerShreddedError):
            call(saver, "get_tuple", here)
    with pytest.raises(CustomerShreddedError):
        call(saver, "get_delta_channel_history", config=stored[1], channels=["x"])
    with pytest.raises(CustomerShreddedError):
        call(saver, "list", config())
    with pytest.raises(CustomerShreddedError):
        call(saver, "copy_thread", "t-1", "t-2")
    with pytest.raises(CustomerShreddedError):
        put(call, saver, config("t-9"), {"x": 1})
    assert backend.contents() == before


def test_deleting_what_was_shredded_brings_nothing_back(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(call, shredder.saver, config(), {"x": 1}, run_id="run")
    call(shredder, "shred", "c-1")
    for name, argument in (("delete_thread", "t-1"), ("delete_for_runs", ["run"]), ("prune", ["t-1"])):
        try:
            call(shredder.saver, name, argument)
        except CustomerShreddedError:
            continue
    with pytest.raises(CustomerShreddedError):
        call(shredder.saver, "get_tuple", config(customer_id=None))
    with pytest.raises(CustomerShreddedError):
        put(call, shredder.saver, config(), {"x": 1})


def test_lists_give_the_living_and_never_abort(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    for number in range(12):
        put(call, shredder.saver, config(f"t-{number}", f"c-{number % 3}"), {"x": number}, step=number)
    call(shredder, "shred", "c-1", purge=False)
    call(shredder, "shred", "c-2")
    found = [t.metadata["step"] for t in call(shredder.saver, "list", None)]
    assert found == [9, 6, 3, 0]
    assert [t.metadata["step"] for t in call(shredder.saver, "list", None, limit=2)] == [9, 6]


class TestListing:
    def test_a_shred_under_an_open_iterator(self, make_shredder: Callable[..., Any]) -> None:
        call, shredder = Caller("sync"), make_shredder()
        chain(call, shredder.saver, config("t-1", "c-1"), [{"x": n} for n in range(600)])
        iterator = shredder.saver.list(config("t-1", "c-1"))
        next(iterator)
        shredder.shred("c-1")
        with pytest.raises(CustomerShreddedError):
            list(iterator)  # a page that was fetched before may still be given, the next one is not


class TestComingBack:
    @pytest.mark.parametrize("purge", [True, False], ids=["purged", "not purged"])
    @pytest.mark.parametrize("fresh", [True, False], ids=["fresh process", "same process"])
    def test_an_enrolled_customer_starts_empty(
        self, call: Caller, make_shredder: Callable[..., Any], purge: bool, fresh: bool
    ) -> None:
        shredder = make_shredder()
        history = talk(call, shredder.saver, "t-1", "c-1")
        call(shredder, "shred", "c-1", purge=purge)
        call(shredder, "enrol", "c-1")
        if fresh:
            shredder = make_shredder()
        graph, here = graph_of(shredder.saver), where("t-1", "c-1")
        assert call(graph, "get_state", here).values == {}
        assert call(graph, "get_state_history", here) == []
        call(graph, "invoke", {"items": ["new life"]}, here)
        assert call(graph, "get_state", here).values == {"items": ["new life", "first"]}
        new = call(graph, "get_state_history", here)
        assert not {s.config["configurable"]["checkpoint_id"] for s in new} & {
            s.config["configurable"]["checkpoint_id"] for s in history
        }

    def test_an_old_checkpoint_stays_dead(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        old = put(call, shredder.saver, config(), {"x": "old"})
        call(shredder, "shred", "c-1", purge=False)
        call(shredder, "enrol", "c-1")
        put(call, shredder.saver, config(), {"x": "new"})
        try:
            found = call(shredder.saver, "get_tuple", old)
        except CustomerShreddedError:
            found = None
        assert found is None
        assert [t.checkpoint["channel_values"] for t in call(shredder.saver, "list", config())] == [{"x": "new"}]

    def test_nobody_comes_back_without_being_enrolled(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        put(call, shredder.saver, config(), {"x": 1})
        call(shredder, "shred", "c-1")
        for attempt in (shredder, make_shredder()):
            with pytest.raises(CustomerShreddedError):
                put(call, attempt.saver, config("another thread"), {"x": 1})

    def test_it_can_be_shredded_again(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        seen = set()
        for _ in range(3):
            put(call, shredder.saver, config(), {"x": 1})
            seen.add(call(shredder, "shred", "c-1").erasure_id)
            with pytest.raises(CustomerShreddedError):
                call(shredder.saver, "get_tuple", config())
            call(shredder, "enrol", "c-1")
        assert len(seen) == 3


class TestResult:
    def test_a_second_shred_gives_the_first_result(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        put(call, shredder.saver, config(), {"x": 1})
        first = call(shredder, "shred", "c-1")
        again = call(shredder, "shred", "c-1")
        elsewhere = call(make_shredder(), "shred", "c-1")
        assert first.erasure_id == again.erasure_id == elsewhere.erasure_id

    def test_an_id_never_seen_leaves_a_tombstone(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        result = call(shredder, "shred", "never seen")
        assert result.known is False
        put(call, shredder.saver, config("t-1", "c-1"), {"x": 1})
        assert call(shredder, "shred", "c-1").known is True
        with pytest.raises(CustomerShreddedError):
            put(call, shredder.saver, config("t-2", "never seen"), {"x": 1})

    def test_many_at_once(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        for number in range(5):
            put(call, shredder.saver, config(f"t-{number}", f"c-{number}"), {"x": number})
        results = call(shredder, "shred_many", ["c-1", "c-3", "never seen"])
        assert len(results) == 3
        for number in range(5):
            here = config(f"t-{number}", f"c-{number}")
            if number in (1, 3):
                with pytest.raises(CustomerShreddedError):
                    call(shredder.saver, "get_tuple", here)
            else:
                assert call(shredder.saver, "get_tuple", here).checkpoint["channel_values"] == {"x": number}

    @pytest.mark.parametrize("wrong", ["", None, 7, b"c-1", ["c-1"]])
    def test_what_is_no_customer_id_is_refused(
        self, call: Caller, make_shredder: Callable[..., Any], backend: Backend, wrong: Any
    ) -> None:
        shredder = make_shredder()
        before = backend.contents()
        with pytest.raises(ShredSaverError):
            call(shredder, "shred", wrong)
        assert backend.contents() == before


class TestCopies:
    def test_a_copy_from_before_does_not_open_with_todays_keys(
        self, call: Caller, make_shredder: Callable[..., Any], backend: Backend
    ) -> None:
        shredder = make_shredder()
        talk(call, shredder.saver, "t-1", "c-1")
        talk(call, shredder.saver, "t-2", "c-2")
        copy = backend.copy()
        expected = call(graph_of(shredder.saver), "get_state_history", where("t-2", "c-2"))
        call(shredder, "shred", "c-1")
        graph = graph_of(make_shredder(copy.url).saver)
        for here in (where("t-1", "c-1"), where("t-1", None)):
            for name in ("get_state", "get_state_history"):
                with pytest.raises(CustomerShreddedError):
                    call(graph, name, here)
        assert call(graph, "get_state_history", where("t-2", "c-2")) == expected

    def test_a_copy_shows_what_was_there_as_long_as_the_customer_lives(
        self, call: Caller, make_shredder: Callable[..., Any], backend: Backend
    ) -> None:
        shredder = make_shredder()
        history = talk(call, shredder.saver, "t-1", "c-1")
        graph = graph_of(make_shredder(backend.copy().url).saver)
        assert call(graph, "get_state_history", where("t-1", "c-1")) == history


def test_writers_against_a_shred(make_shredder: Callable[..., Any], backend: Backend) -> None:
    """No write lands between what a shred counts and what it deletes, nor after it."""
    call = Caller("sync")
    for round_ in range(3):
        shredder, customer = make_shredder(), f"c-{round_}"
        put(call, shredder.saver, config(f"{customer}-first", customer), {"x": 1})
        refused: list[int] = []
        started = threading.Barrier(9)

        def write(
            number: int,
            shredder: Any = shredder,
            customer: str = customer,
            refused: list[int] = refused,
            started: threading.Barrier = started,
        ) -> None:
            started.wait(SECONDS)
            for step in itertools.count():
                try:
                    put(call, shredder.saver, config(f"{customer}-{number}", customer), {"x": ["y" * 300, step]})
                except CustomerShreddedError:
                    refused.append(number)
                    return

        writers = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(8)]
        for writer in writers:
            writer.start()
        started.wait(SECONDS)
        shredder.shred(customer)
        tables = ("checkpoints", "parts", "writes", "runs")
        left = {table: backend.count(table) for table in tables}
        join(writers)
        assert sorted(refused) == list(range(8))
        assert left == {table: backend.count(table) for table in tables} == dict.fromkeys(tables, 0)


def test_a_line_of_graphs_for_other_customers(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    graph = line("a", "b").compile(checkpointer=shredder.saver)
    for number in range(6):
        call(graph, "invoke", {"items": []}, where(f"t-{number}", f"c-{number}"))
        if number % 2:
            call(shredder, "shred", f"c-{number}")
    for number in (0, 2, 4):
        assert call(graph, "get_state", where(f"t-{number}", None)).values == {"items": ["a:0", "b:1"]}
