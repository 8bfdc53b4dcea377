"""Real conversations, replayed turn by turn: every checkpoint equals what the stock savers give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.support.calls import Caller
from tests.support.conversations import conversations, generated, play
from tests.support.views import name_checkpoints, snapshot, stored


def observe(call: Caller, raw: list[dict[str, Any]], saver: Any, number: int) -> tuple[list[Any], list[Any]]:
    where = {"configurable": {"thread_id": f"t-{number}", "customer_id": f"c-{number % 3}"}}
    graph = play(call, raw, saver, where)
    tuples = call(saver, "list", where)
    names = name_checkpoints(tuples)
    return stored(tuples, names), [snapshot(s, names) for s in call(graph, "get_state_history", where)]


@pytest.mark.parametrize("raw", [*conversations(2), *generated(1)], ids=["recorded-0", "recorded-1", "generated"])
def test_a_conversation_reads_as_on_the_stock_saver(
    call: Caller, raw: list[dict[str, Any]], make_shredder: Callable[..., Any]
) -> None:
    expected = observe(call, raw, InMemorySaver(), 0)
    assert len(expected[1]) >= len(raw)
    assert observe(call, raw, make_shredder().saver, 0) == expected


def test_the_two_stock_savers_agree() -> None:
    call = Caller("sync")  # the stock SqliteSaver has no async methods
    raw = generated(1)[0]
    with SqliteSaver.from_conn_string(":memory:") as stock:
        expected = observe(call, raw, stock, 0)
    assert observe(call, raw, InMemorySaver(), 0) == expected


@pytest.mark.slow
def test_every_conversation_in_one_database(call: Caller, make_shredder: Callable[..., Any]) -> None:
    stock, ours = InMemorySaver(), make_shredder().saver
    for number, raw in enumerate(conversations(40)):
        assert observe(call, raw, ours, number) == observe(call, raw, stock, number), number
