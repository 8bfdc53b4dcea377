"""Deleting, copying and pruning threads: what goes, what stays, and whose it is."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.types import Command

from shredsaver import (
    ConfigurationError,
    CustomerShreddedError,
    LegalHoldError,
    ShredSaverError,
    ThreadOwnershipError,
)
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, checkpoint_id, config, put
from tests.support.graphs import (
    Run,
    delta_channels,
    interrupts_in_one_node,
    subgraph_inherited,
    subgraph_nested_with_interrupt,
    subgraph_with_memory,
)
from tests.support.views import name_checkpoints, stored

LONG = ["element " * 40 + str(n) for n in range(8)]
STATES: list[dict[str, Any]] = [{"x": LONG[:n], "y": n} for n in range(1, 6)]
ROWS = ("checkpoints", "parts", "writes", "runs")


@pytest.fixture
def saver(make_shredder: Callable[..., Any]) -> Any:
    return make_shredder().saver


def fill(call: Caller, saver: Any, thread: str, customer: str = "c-1") -> list[Any]:
    """A thread with two namespaces, pending writes and a run."""
    stored_configs = chain(call, saver, config(thread, customer), STATES)
    call(saver, "put_writes", stored_configs[-1], [("x", LONG), ("y", 9), ("__interrupt__", "ask")], "task", "path")
    put(call, saver, config(thread, customer, checkpoint_ns="child:1"), {"z": LONG}, run_id=f"run of {thread}")
    return stored_configs


def everything(call: Caller, saver: Any, thread: str) -> list[Any]:
    return [
        (t.config["configurable"]["checkpoint_ns"], t.checkpoint, t.metadata, t.pending_writes)
        for t in call(saver, "list", {"configurable": {"thread_id": thread}})
    ]


class TestDeleting:
    def test_a_deleted_thread_leaves_no_row(self, call: Caller, saver: Any, backend: Backend) -> None:
        fill(call, saver, "t-2", "c-2")
        before = {table: backend.count(table) for table in (*ROWS, "threads")}
        fill(call, saver, "t-1", "c-1")
        call(saver, "put_writes", config("t-1", checkpoint_id=str(uuid.uuid4())), [("x", LONG)], "no checkpoint yet")
        call(saver, "delete_thread", "t-1")
        assert {table: backend.count(table) for table in (*ROWS, "threads")} == before
        assert call(saver, "get_tuple", config("t-1")) is None
        assert len(everything(call, saver, "t-2")) == 6

    @pytest.mark.parametrize("scenario", [subgraph_nested_with_interrupt, subgraph_with_memory, delta_channels])
    def test_graphs_with_subgraphs_and_interrupts_leave_no_row(
        self, scenario: Callable[[Run], Any], call: Caller, saver: Any, backend: Backend
    ) -> None:
        scenario(Run(call, saver, "sync"))
        assert backend.count("checkpoints")
        call(saver, "delete_thread", "t-1")
        assert {table: backend.count(table) for table in (*ROWS, "threads")} == dict.fromkeys((*ROWS, "threads"), 0)

    def test_a_deleted_thread_can_be_had_by_anyone(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t-1", "c-1")
        call(saver, "delete_thread", "t-1")
        put(call, saver, config("t-1", "c-2"), {"x": 1})
        assert call(saver, "get_tuple", config("t-1", None)).checkpoint["channel_values"] == {"x": 1}
        with pytest.raises(ThreadOwnershipError):
            call(saver, "get_tuple", config("t-1", "c-1"))

    def test_deleting_what_is_not_there(self, call: Caller, saver: Any, backend: Backend) -> None:
        before = backend.contents()
        call(saver, "delete_thread", "never seen")
        call(saver, "delete_for_runs", ["never seen"])
        call(saver, "prune", ["never seen"])
        call(saver, "copy_thread", "never seen", "elsewhere")
        assert backend.contents() == before

    def test_runs_are_deleted_in_every_thread_and_namespace(self, call: Caller, saver: Any, backend: Backend) -> None:
        run = uuid.uuid4()
        for thread, customer in (("t-1", "c-1"), ("t-2", "c-2")):
            kept = put(call, saver, config(thread, customer), {"x": LONG[:2]}, run_id="another")
            for ns in ("", "child:1"):
                here = config(thread, customer, checkpoint_ns=ns, checkpoint_id=checkpoint_id(kept))
                at = put(call, saver, here, {"x": LONG}, version=2, run_id=run)
                call(saver, "put_writes", at, [("x", 1)], "task")
        call(saver, "delete_for_runs", [str(run)])
        for thread in ("t-1", "t-2"):
            assert [(c["channel_values"], w) for _, c, _, w in everything(call, saver, thread)] == [
                ({"x": LONG[:2]}, [])
            ]
        assert backend.count("writes") == 0
        assert backend.count("parts") == 4  # of the checkpoints that stay
        assert {row["thread"] for row in backend.rows("runs")} == {row["thread"] for row in backend.rows("threads")}

    def test_a_list_is_wanted(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t")
        for name in ("prune", "delete_for_runs"):
            with pytest.raises((ConfigurationError, TypeError)):
                call(saver, name, "t")
        assert len(everything(call, saver, "t")) == 6


class TestCopying:
    def test_a_copy_is_complete_and_independent(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t-1")
        call(saver, "copy_thread", "t-1", "t-2")
        assert everything(call, saver, "t-2") == everything(call, saver, "t-1")
        parents = [t.parent_config for t in call(saver, "list", config("t-2"))]
        assert {p["configurable"]["thread_id"] for p in parents if p} == {"t-2"}
        call(saver, "delete_thread", "t-1")
        assert len(everything(call, saver, "t-2")) == 6
        put(call, saver, config("t-2"), {"x": [*LONG, "more"]}, version=9)
        assert call(saver, "get_tuple", config("t-2")).checkpoint["channel_values"] == {"x": [*LONG, "more"]}

    def test_a_copy_goes_on_as_the_original_would(self, call: Caller, saver: Any) -> None:
        run = Run(call, saver, "sync")
        interrupts_in_one_node(run)
        call(saver, "copy_thread", "t-1", "t-2")
        views = []
        for thread in ("t-1", "t-2"):
            copy = Run(call, saver, "sync", thread)
            subgraph_inherited(copy)
            tuples = call(saver, "list", {"configurable": {"thread_id": thread}})
            views.append(repr(stored(tuples, name_checkpoints(tuples))).replace(thread, "the thread"))
        assert views[0] == views[1]

    def test_a_copy_onto_a_thread_that_is_there(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t-1")
        own = put(call, saver, config("t-2"), {"own": LONG})
        call(saver, "copy_thread", "t-1", "t-2")
        assert len(everything(call, saver, "t-2")) == 7
        assert call(saver, "get_tuple", own).checkpoint["channel_values"] == {"own": LONG}
        put(call, saver, config("t-2"), {"x": LONG}, version=7)
        assert call(saver, "get_tuple", config("t-2")).checkpoint["channel_values"] == {"x": LONG}

    def test_a_copy_stays_with_its_customer(self, call: Caller, saver: Any, backend: Backend) -> None:
        fill(call, saver, "t-1", "c-1")
        fill(call, saver, "t-2", "c-2")
        before = backend.contents()
        with pytest.raises(ThreadOwnershipError):
            call(saver, "copy_thread", "t-1", "t-2")
        assert {t: backend.contents()[t] for t in ROWS} == {t: before[t] for t in ROWS}

    def test_a_copy_dies_with_its_customer(self, call: Caller, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        fill(call, shredder.saver, "t-1")
        call(shredder.saver, "copy_thread", "t-1", "t-2")
        call(shredder, "shred", "c-1")
        with pytest.raises(CustomerShreddedError):
            call(shredder.saver, "get_tuple", config("t-2", None))

    def test_a_copy_onto_itself_loses_nothing(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t-1")
        before = everything(call, saver, "t-1")
        with contextlib.suppress(ConfigurationError):
            call(saver, "copy_thread", "t-1", "t-1")
        assert everything(call, saver, "t-1") == before


class TestPruning:
    def test_the_latest_of_each_namespace_is_kept_with_its_writes(
        self, call: Caller, saver: Any, backend: Backend
    ) -> None:
        fill(call, saver, "t-1")
        fill(call, saver, "t-2")
        latest = [t for t in everything(call, saver, "t-1") if t[0] or t[3]]
        call(saver, "prune", ["t-1"])
        assert everything(call, saver, "t-1") == latest
        assert all(t.parent_config is None for t in call(saver, "list", config("t-1")))
        assert len(everything(call, saver, "t-2")) == 6
        put(call, saver, config("t-1"), {"x": LONG[:6], "y": 6}, version=6)
        assert call(saver, "get_tuple", config("t-1")).checkpoint["channel_values"] == {"x": LONG[:6], "y": 6}

    def test_parts_that_nothing_uses_go(self, call: Caller, saver: Any, backend: Backend) -> None:
        chain(call, saver, config(), [{"x": LONG}, {"x": ["other " * 60]}])
        assert backend.count("parts") > len(LONG)
        call(saver, "prune", ["t-1"])
        assert backend.count("parts") == 1
        assert call(saver, "get_tuple", config()).checkpoint["channel_values"] == {"x": ["other " * 60]}

    @pytest.mark.parametrize("strategy", ["delete", "delete_all"])
    def test_deleting_leaves_nothing(self, strategy: str, call: Caller, saver: Any, backend: Backend) -> None:
        fill(call, saver, "t-1")
        fill(call, saver, "t-2")
        call(saver, "prune", ["t-1", "t-2"], strategy=strategy)
        assert {table: backend.count(table) for table in ROWS} == dict.fromkeys(ROWS, 0)

    def test_an_unknown_strategy_is_refused(self, call: Caller, saver: Any) -> None:
        fill(call, saver, "t-1")
        with pytest.raises((ConfigurationError, ValueError)):
            call(saver, "prune", ["t-1"], strategy="keep_everything")
        assert len(everything(call, saver, "t-1")) == 6

    def test_threads_with_delta_channels_are_refused(self, call: Caller, saver: Any) -> None:
        run = Run(call, saver, "sync")
        delta_channels(run)
        before = everything(call, saver, "t-1")
        with pytest.raises((ConfigurationError, NotImplementedError)):
            call(saver, "prune", ["t-1"])
        assert everything(call, saver, "t-1") == before
        call(saver, "copy_thread", "t-1", "t-2")
        with pytest.raises((ConfigurationError, NotImplementedError)):
            call(saver, "prune", ["t-2"])

    def test_calls_of_subgraphs_go_with_the_checkpoint_they_started_from(self, call: Caller, saver: Any) -> None:
        subgraph_inherited(Run(call, saver, "sync"))
        subgraph_with_memory(Run(call, saver, "sync", "t-2"))
        for thread, namespaces in (("t-1", {""}), ("t-2", {"", "inner"})):
            before = {ns for ns, *_ in everything(call, saver, thread)}
            assert len(before) > 1
            call(saver, "prune", [thread])
            assert {ns for ns, *_ in everything(call, saver, thread)} == namespaces, before

    def test_a_chain_of_interrupts_stays_resumable(self, call: Caller, saver: Any) -> None:
        from langgraph.graph import START, StateGraph
        from langgraph.types import interrupt

        from tests.support.graphs import Items

        builder = StateGraph(Items)
        builder.add_node("ask", lambda s: {"items": [interrupt("one"), interrupt("two"), interrupt("three")]})
        builder.add_edge(START, "ask")
        graph = builder.compile(checkpointer=saver)
        here = {"configurable": {"thread_id": "t-1", "customer_id": "c-1"}}
        call(graph, "invoke", {"items": ["begin"]}, here)
        for answer, question in (("a", "two"), ("b", "three")):
            call(saver, "prune", ["t-1"])
            call(graph, "invoke", Command(resume=answer), here)
            assert call(graph, "get_state", here).interrupts[0].value == question
        call(saver, "prune", ["t-1"])
        assert call(graph, "invoke", Command(resume="c"), here)["items"] == ["begin", "a", "b", "c"]

    @pytest.mark.parametrize("deed", ["prune", "delete_for_runs"])
    def test_parts_that_went_elsewhere_are_not_built_upon(
        self, deed: str, call: Caller, saver: Any, make_shredder: Callable[..., Any]
    ) -> None:
        """This saver remembers a pending write's parts; another deletes them; the same text is written again."""
        first = put(call, saver, config(), {"x": []}, run_id="run")
        call(saver, "put_writes", first, [("x", LONG)], "task")
        second = put(call, saver, config(checkpoint_id=checkpoint_id(first)), {"x": []}, version=2)
        other = make_shredder().saver
        call(other, deed, ["t-1"] if deed == "prune" else ["run"])
        third = put(call, saver, second, {"x": LONG}, version=3)
        for reader in (saver, other, make_shredder().saver):
            assert call(reader, "get_tuple", third).checkpoint["channel_values"] == {"x": LONG}


class TestDeltaHistory:
    """`DeltaChannel` values are made of the writes of ancestors: all of them, in order, on the path only."""

    @pytest.mark.parametrize("count", [3, 1_100])
    def test_long_histories(self, count: int, call: Caller, saver: Any) -> None:
        where = config()
        for number in range(count):
            where = put(call, saver, where, {"seed": "start"} if number == 0 else {}, step=number)
            if number + 1 < count:
                call(saver, "put_writes", where, [("log", [number]), ("other", number)], f"task {number}")
        found = call(saver, "get_delta_channel_history", config=where, channels=["log", "seed", "absent"])
        assert [value for _, _, value in found["log"]["writes"]] == [[n] for n in range(count - 1)]
        assert "seed" not in found["log"]
        assert found["seed"] == {"writes": [], "seed": "start"}
        assert found["absent"] == {"writes": []}

    def test_ids_that_are_not_monotonic(self, call: Caller, saver: Any) -> None:
        where = config()
        names = ["m", "z", "a", "q", "b"]
        for name in names:
            where = put(call, saver, where, {}, id=name * 8)
            call(saver, "put_writes", where, [("log", [name])], f"task {name}")
        found = call(saver, "get_delta_channel_history", config=where, channels=["log"])
        assert [value for _, _, value in found["log"]["writes"]] == [[n] for n in names[:-1]]

    def test_only_the_path_counts(self, call: Caller, saver: Any) -> None:
        root = put(call, saver, config(), {})
        call(saver, "put_writes", root, [("log", ["root"])], "task")
        left = put(call, saver, root, {})
        call(saver, "put_writes", left, [("log", ["left"])], "task")
        right = put(call, saver, root, {})
        call(saver, "put_writes", right, [("log", ["right"])], "task")
        leaf = put(call, saver, left, {})
        found = call(saver, "get_delta_channel_history", config=leaf, channels=["log"])
        assert [value for _, _, value in found["log"]["writes"]] == [["root"], ["left"]]

    def test_a_circle_of_parents_ends(self, call: Caller, saver: Any) -> None:
        one, two = "1" * 8, "2" * 8
        put(call, saver, config(checkpoint_id=two), {}, id=one)
        put(call, saver, config(checkpoint_id=one), {}, id=two)
        with pytest.raises(ShredSaverError):
            call(saver, "get_delta_channel_history", config=config(checkpoint_id=one), channels=["log"])


def test_a_hold_forbids_no_copy_but_that_onto_a_thread_that_is_there(call: Caller, shredder: Any) -> None:
    saver = shredder.saver
    put(call, saver, config("t", "c-1"), {"x": "kept"})
    shredder.hold("c-1", "a case")
    call(saver, "copy_thread", "t", "u")
    (copied,) = call(saver, "list", {"configurable": {"thread_id": "u"}})
    assert copied.checkpoint["channel_values"] == {"x": "kept"}
    put(call, saver, config("u", "c-1"), {"x": "more"})
    with pytest.raises(LegalHoldError):
        call(saver, "copy_thread", "t", "u")
    assert len(call(saver, "list", {"configurable": {"thread_id": "u"}})) == 2
