"""The store within agents: nodes, tools, Deep Agents, forks, other processes, and what is left at rest."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from shredsaver import CUSTOMER, CustomerShreddedError, Shredder
from tests.support.backends import Backend, read_files
from tests.support.calls import Caller
from tests.support.canaries import labels, search, word
from tests.support.processes import RemoteError, worker

WHO = "c-1"
NS = ("users", WHO)
HERE = {"configurable": {"thread_id": "t", "customer_id": WHO}}


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def remembering(shredder: Shredder) -> Any:
    """Two nodes: the second keeps what was said in the store."""

    def listen(_: State) -> State:
        return {"said": ["heard"]}

    def keep(state: State, runtime: Runtime[Any]) -> State:
        assert runtime.store is not None
        runtime.store.put(NS, f"memory-{len(state['said'])}", {"said": state["said"]})
        return {"said": [str(len(runtime.store.search(NS)))]}

    graph = StateGraph(State).add_node("listen", listen).add_node("keep", keep)
    graph.add_edge(START, "listen").add_edge("listen", "keep")
    return graph.compile(checkpointer=shredder.saver, store=shredder.store)


def test_a_memory_outlives_a_fork_and_dies_with_the_customer(
    shredder: Shredder, call: Caller, backend: Backend, keys: str
) -> None:
    agent = remembering(shredder)
    call(agent, "invoke", {"said": ["hello"]}, HERE)
    history = call(agent, "get_state_history", HERE)
    before = next(state for state in history if state.next == ("keep",))
    assert call(shredder.store, "get", NS, "memory-2").value == {"said": ["hello", "heard"]}
    forked = call(agent, "update_state", before.config, {"said": ["another"]}, as_node="listen")
    assert call(shredder.store, "get", NS, "memory-2") is not None
    call(agent, "invoke", None, forked)
    assert {item.key for item in call(shredder.store, "search", NS)} == {"memory-2", "memory-3"}
    with worker(backend.url, keys=keys) as other:
        assert other(found) == ["memory-2", "memory-3"]
        call(shredder, "shred", WHO)
        for ask in (found, put):
            with pytest.raises(RemoteError, match="CustomerShreddedError"):
                other(ask)
    for config in (HERE, {"configurable": {"thread_id": "t"}}):
        with pytest.raises(CustomerShreddedError):
            call(agent, "invoke", {"said": ["again"]}, config)
    for method, *args in (("get", NS, "memory-2"), ("search", NS), ("put", NS, "k", {}), ("delete", NS, "memory-2")):
        with pytest.raises(CustomerShreddedError):
            call(shredder.store, method, *args)


def found(shredder: Shredder) -> list[str]:
    return sorted(item.key for item in shredder.store.search(NS))


def put(shredder: Shredder) -> None:
    shredder.store.put(NS, "late", {})


def test_tools_with_an_injected_store(shredder: Shredder) -> None:
    @tool
    def remember(fact: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Remember a fact."""
        store.put(NS, "fact", {"fact": fact})
        return "noted"

    def ask(_: MessagesState) -> dict[str, Any]:
        call = {"name": "remember", "args": {"fact": "likes tea"}, "id": "1", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode([remember]))
    graph.add_edge(START, "ask").add_edge("ask", "tools")
    agent = graph.compile(checkpointer=shredder.saver, store=shredder.store)
    state = agent.invoke({"messages": ["I like tea"]}, HERE)
    assert state["messages"][-1].content == "noted"
    item = shredder.store.get(NS, "fact")
    assert item is not None
    assert item.value == {"fact": "likes tea"}


def test_files_of_deep_agents(make_shredder: Callable[..., Shredder]) -> None:
    from deepagents.backends import StoreBackend

    shredder = make_shredder(namespaces=((CUSTOMER, "filesystem"),))
    files = StoreBackend(namespace=lambda _: (WHO, "filesystem"), store=shredder.store)
    written = files.write("/notes/tea.md", "likes tea\nand cake\n")
    assert written.error is None
    assert "likes tea" in str(files.read("/notes/tea.md"))
    assert files.edit("/notes/tea.md", "tea", "coffee").error is None
    assert "likes coffee" in str(files.read("/notes/tea.md"))
    for number in range(120):
        files.write(f"/many/{number}.md", f"file {number}")
    assert "/notes/tea.md" in str(files.glob("**/*.md"))
    assert shredder.plan(WHO).counts["items"] == 121
    shredder.shred(WHO)
    with pytest.raises(CustomerShreddedError):
        files.read("/notes/tea.md")


SECRETS = {name: word(name) for name in ("label", "key", "value", "nested key", "customer id")}
VECTOR = [0.123456789, -7.25e-11, 3.0e8, 1.5]


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [VECTOR for _ in texts]


def test_neither_labels_nor_keys_nor_values_nor_vectors_are_readable_at_rest(
    make_shredder: Callable[..., Shredder], backend: Backend, home: Any
) -> None:
    index = {"dims": 4, "embed": embed, "fields": ["text"]}
    shredder = make_shredder(index=index, namespaces=(("users", CUSTOMER),))
    namespace = ("users", SECRETS["customer id"], SECRETS["label"])
    shredder.store.put(namespace, SECRETS["key"], {"text": SECRETS["value"], SECRETS["nested key"]: 1}, ttl=5)
    assert len(shredder.store.search(namespace, query="anything")) == 1
    packed = {
        f"vector {form}": struct.pack(f"{order}{len(VECTOR)}{code}", *VECTOR)
        for form, order, code in (("float32", "<", "f"), ("float64", "<", "d"), ("float32 big", ">", "f"))
    }
    two_numbers = {f"{name}, two of it": data[: len(data) // 2] for name, data in packed.items()}
    for step in ("stored", "deleted", "shredded"):
        if step == "deleted":
            shredder.store.delete(namespace, SECRETS["key"])
        if step == "shredded":
            shredder.shred(SECRETS["customer id"])
        places = {**backend.dump(), **read_files(file for file in home.rglob("*") if file.is_file())}
        assert labels(search(places, {**SECRETS, **packed, **two_numbers})) == set(), step
