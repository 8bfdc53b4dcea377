"""Graphs of every shape: each checkpoint and each event equals that of LangGraph's own InMemorySaver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.support.calls import Caller
from tests.support.graphs import ORDERED, UNORDERED, Run
from tests.support.views import name_checkpoints, plain, stored


def observe(name: str, call: Caller, saver: Any, durability: str) -> tuple[list[Any], list[Any]]:
    """What a scenario's caller saw, and all that it left in the saver, which is empty again afterwards."""
    run = Run(call, saver, durability)
    seen = (ORDERED | UNORDERED)[name](run)
    tuples = [t for thread in ("t-1", "t-2") for t in call(saver, "list", {"configurable": {"thread_id": thread}})]
    for thread in ("t-1", "t-2"):
        call(saver, "delete_thread", thread)
    names = name_checkpoints(tuples)
    views = [
        sorted((plain(item, names) for item in part), key=repr)
        if name in UNORDERED and isinstance(part, list)
        else plain(part, names)
        for part in seen
    ]
    return views, stored(tuples, names)


@pytest.mark.parametrize("name", ORDERED | UNORDERED)
def test_a_graph_runs_as_on_the_stock_saver(name: str, call: Caller, make_shredder: Callable[..., Any]) -> None:
    ours = make_shredder().saver
    for durability in ("sync", "async", "exit"):
        expected_seen, expected_stored = observe(name, call, InMemorySaver(), durability)
        assert expected_stored
        seen, kept = observe(name, call, ours, durability)
        assert kept == expected_stored, durability
        assert seen == expected_seen, durability


def test_the_comparison_notices_a_wrong_parent_value_or_write(call: Caller) -> None:
    seen, kept = observe("forks_and_time_travel", call, InMemorySaver(), "sync")
    assert (seen, kept) == observe("forks_and_time_travel", call, InMemorySaver(), "sync")
    parents = {repr(view["parent"]) for view in kept}
    assert len(parents) > 5
    other, _ = observe("messages", call, InMemorySaver(), "sync")
    assert other != seen
