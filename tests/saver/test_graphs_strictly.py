"""Graphs of every shape where only listed types are rebuilt, and against the stock savers that keep state on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph._internal import _serde
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.saver.test_graphs import observe
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.graphs import ORDERED, UNORDERED


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LANGGRAPH_STRICT_MSGPACK=true comes to."""
    for module in (_serde, _msgpack):
        monkeypatch.setattr(module, "STRICT_MSGPACK_ENABLED", True)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", ORDERED | UNORDERED)
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_graph_runs_as_on_the_stock_saver_in_strict_mode(
    name: str, call: Caller, make_shredder: Callable[..., Any]
) -> None:
    expected = observe(name, call, InMemorySaver(serde=JsonPlusSerializer()), "sync")
    assert observe(name, call, make_shredder(serde=JsonPlusSerializer()).saver, "sync") == expected


STORED_OTHERWISE = {
    "sqlite": {
        "interrupts_in_one_node",  # it keeps the first of two answers written by one task, not the last
        "delta_channels",  # it drops the snapshot from checkpoints that did not change it
    },
    "postgres": {"interrupts_in_one_node"},
}
NOT_AT_ALL = {"postgres": {"sequence"}}
"""A text with NUL in it is refused by the stock PostgresSaver."""


def test_graphs_run_as_on_the_stock_saver_of_the_same_database(
    backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    call = Caller("sync")  # the stock SqliteSaver has no async methods
    ours = make_shredder().saver
    stock = SqliteSaver.from_conn_string(":memory:")
    if backend.kind == "postgres":
        stock = PostgresSaver.from_conn_string(backend.url)
    with stock as theirs:
        theirs.setup()
        for name in sorted((ORDERED | UNORDERED).keys() - NOT_AT_ALL.get(backend.kind, set())):
            expected_seen, expected_stored = observe(name, call, theirs, "async")
            seen, stored = observe(name, call, ours, "async")
            assert seen == expected_seen, name
            assert (stored == expected_stored) == (name not in STORED_OTHERWISE[backend.kind]), name
