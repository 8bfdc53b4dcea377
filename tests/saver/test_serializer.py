"""Sealing as a serializer of another saver."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from shredsaver import CustomerShreddedError, FormatError, PayloadError, Shredder, UnsealError
from tests.support.canaries import word

SECRET = word("said to another saver")


def test_an_agent_on_another_saver_is_shredded_with_its_customer(shredder: Shredder) -> None:
    saver = InMemorySaver(serde=shredder.serializer_for("c-1"))
    graph = StateGraph(MessagesState).add_node("n", lambda _: {"messages": [HumanMessage(SECRET)]})
    agent = graph.add_edge(START, "n").compile(checkpointer=saver)
    here: Any = {"configurable": {"thread_id": "t"}}
    agent.invoke({"messages": ["hello"]}, here)
    agent.invoke({"messages": ["hello"]}, here)
    assert [message.content for message in agent.get_state(here).values["messages"]] == ["hello", SECRET] * 2
    stored = repr((dict(saver.storage), dict(saver.blobs), dict(saver.writes)))
    assert SECRET not in stored
    shredder.shred("c-1")
    for use in (lambda: agent.get_state(here), lambda: agent.invoke({"messages": ["again"]}, here)):
        with pytest.raises(CustomerShreddedError):
            use()


def test_payloads_open_for_their_customer_only(shredder: Shredder) -> None:
    mine, other = shredder.serializer_for("c-1"), shredder.serializer_for("c-2")
    tag, data = mine.dumps_typed({"said": SECRET})
    assert mine.loads_typed((tag, data)) == {"said": SECRET}
    other.dumps_typed("so that the customer is known")
    with pytest.raises(UnsealError):
        other.loads_typed((tag, data))
    for position in range(0, len(data), 7):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises((UnsealError, FormatError)):
            mine.loads_typed((tag, changed))


def test_nothing_unsealed_is_read(shredder: Shredder) -> None:
    mine = shredder.serializer_for("c-1")
    unsealed = {"msgpack": b"\x01", "pickle": pickle.dumps(1), "shredsaver": b"\x01", "json": b"1", "null": b""}
    for tag, data in unsealed.items():
        with pytest.raises(FormatError):
            mine.loads_typed((tag, data))


def test_what_cannot_be_serialised_is_refused(shredder: Shredder) -> None:
    with pytest.raises(PayloadError):
        shredder.serializer_for("c-1").dumps_typed(object())


def test_who_comes_back_cannot_open_what_was_sealed_before(shredder: Shredder) -> None:
    sealed = shredder.serializer_for("c-1").dumps_typed(SECRET)
    shredder.shred("c-1")
    shredder.enrol("c-1")
    with pytest.raises(UnsealError):
        shredder.serializer_for("c-1").loads_typed(sealed)
