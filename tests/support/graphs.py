"""Graph shapes, each a scenario: it drives a graph over a saver and returns what a caller saw.

A scenario gets a `Run`; what it returns, and every checkpoint it leaves, must be the same whatever the saver.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.channels.delta import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

from tests.support.calls import Caller

MODES = ["values", "updates", "checkpoints", "tasks", "custom", "messages"]


class Run:
    """One scenario on one saver."""

    def __init__(self, call: Caller, saver: Any, durability: str, thread_id: str = "t-1") -> None:
        self.call = call
        self.saver = saver
        self.durability = durability
        self.config: dict[str, Any] = {"configurable": {"thread_id": thread_id, "customer_id": "c-1"}}

    def stream(self, graph: Any, value: Any, config: dict[str, Any] | None = None, **options: Any) -> list[Any]:
        options = {"stream_mode": MODES, "subgraphs": True, "durability": self.durability, **options}
        events: list[Any] = self.call(graph, "stream", value, config or self.config, **options)
        return events

    def history(self, graph: Any) -> list[Any]:
        found: list[Any] = self.call(graph, "get_state_history", self.config)
        return found

    def state(self, graph: Any, config: dict[str, Any] | None = None, **options: Any) -> Any:
        return self.call(graph, "get_state", config or self.config, **options)

    def update(self, graph: Any, values: Any, config: dict[str, Any] | None = None, **options: Any) -> Any:
        return self.call(graph, "update_state", config or self.config, values, **options)

    def seen(self, graph: Any, *events: Any) -> list[Any]:
        """What a caller sees: the events, the state with its subgraphs, the history."""
        return [*events, self.state(graph, subgraphs=True), self.history(graph)]


class Items(TypedDict):
    items: Annotated[list[Any], operator.add]


class Total(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    total: int
    note: str
    extra: dict[str, Any]


def step(name: str) -> Callable[[Any], dict[str, Any]]:
    def node(state: Any) -> dict[str, Any]:
        return {"items": [f"{name}:{len(state['items'])}"]}

    return node


def line(*names: str, state: Any = Items) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(state)
    for name in names:
        builder.add_node(name, step(name))
    for before, after in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(before, after)
    return builder


def sequence(run: Run) -> list[Any]:
    builder = StateGraph(Total)
    builder.add_node(
        "one", lambda s: {"items": ["one"], "total": 1, "note": "x\x00y", "extra": {"k": [1, {"d": None}]}}
    )
    builder.add_node("two", lambda s: {"items": ["two" * 100], "total": s["total"] + 1})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph = builder.compile(checkpointer=run.saver)
    return run.seen(graph, *(run.stream(graph, {"items": [f"turn {n}"]}) for n in range(3)))


def parallel_branches(run: Run) -> list[Any]:
    builder = StateGraph(Items)
    for number, name in enumerate("abc"):
        builder.add_node(name, lambda s, number=number, name=name: time.sleep(number / 100) or {"items": [name]})
        builder.add_edge(START, name)
        builder.add_edge(name, "join")
    builder.add_node("join", lambda s: {"items": [len(s["items"])]})
    graph = builder.compile(checkpointer=run.saver)
    return run.seen(graph, run.stream(graph, {"items": []}), run.stream(graph, {"items": ["again"]}))


def send_fan_out(run: Run) -> list[Any]:
    builder = StateGraph(Items)
    builder.add_node("plan", lambda s: {"items": ["planned"]})
    builder.add_node("work", lambda s: time.sleep(s["n"] / 100) or {"items": [("worked", s["n"])]})
    builder.add_node("end", lambda s: {"items": [len(s["items"])]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda s: [Send("work", {"n": n}) for n in range(4)], ["work"])
    builder.add_edge("work", "end")
    graph = builder.compile(checkpointer=run.saver)
    return run.seen(graph, run.stream(graph, {"items": []}))


def subgraph_inherited(run: Run) -> list[Any]:
    outer = StateGraph(Items)
    outer.add_node("before", step("before"))
    outer.add_node("inner", line("i1", "i2").compile())
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    graph = outer.compile(checkpointer=run.saver)
    return run.seen(graph, *(run.stream(graph, {"items": [n]}) for n in range(2)))


def subgraph_with_memory(run: Run) -> list[Any]:
    inner = line("i1", "i2").compile(checkpointer=True)
    outer = StateGraph(Items)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=run.saver)
    return run.seen(graph, *(run.stream(graph, {"items": [n]}) for n in range(3)))


def subgraph_nested_with_interrupt(run: Run) -> list[Any]:
    def ask(state: Items) -> dict[str, Any]:
        return {"items": [interrupt({"question": len(state["items"])})]}

    deepest = StateGraph(Items)
    deepest.add_node("ask", ask)
    deepest.add_edge(START, "ask")
    middle = StateGraph(Items)
    middle.add_node("deepest", deepest.compile())
    middle.add_edge(START, "deepest")
    outer = StateGraph(Items)
    outer.add_node("middle", middle.compile())
    outer.add_node("after", step("after"))
    outer.add_edge(START, "middle")
    outer.add_edge("middle", "after")
    graph = outer.compile(checkpointer=run.saver)
    first = run.stream(graph, {"items": ["hello"]})
    waiting = run.state(graph, subgraphs=True)
    return run.seen(graph, first, waiting, run.stream(graph, Command(resume={"answer": 42})))


def interrupts_in_one_node(run: Run) -> list[Any]:
    def ask(state: Items) -> dict[str, Any]:
        return {"items": [interrupt("name?"), interrupt("age?")]}

    builder = StateGraph(Items)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=run.saver)
    events = [run.stream(graph, {"items": []})]
    events += [run.stream(graph, Command(resume=answer)) for answer in ("Ada", 36)]
    return run.seen(graph, *events)


def interrupts_in_a_fan_out(run: Run) -> list[Any]:
    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"items": [(state["n"], interrupt({"n": state["n"]}))]}

    builder = StateGraph(Items)
    builder.add_node("ask", ask)
    builder.add_conditional_edges(START, lambda s: [Send("ask", {"n": n}) for n in range(3)], ["ask"])
    graph = builder.compile(checkpointer=run.saver)
    first = run.stream(graph, {"items": []})
    waiting = run.state(graph)
    some = {i.id: f"answer {i.value['n']}" for i in waiting.interrupts if i.value["n"] != 1}
    second = run.stream(graph, Command(resume=some))
    rest = {i.id: "late answer" for i in run.state(graph).interrupts}
    return run.seen(graph, first, waiting, second, run.stream(graph, Command(resume=rest)))


def static_interrupts(run: Run) -> list[Any]:
    graph = line("a", "b", "c").compile(checkpointer=run.saver, interrupt_before=["b"], interrupt_after=["b"])
    events = [run.stream(graph, {"items": []}), run.stream(graph, None), run.stream(graph, None)]
    return run.seen(graph, *events)


def state_updates(run: Run) -> list[Any]:
    graph = line("a", "b").compile(checkpointer=run.saver, interrupt_before=["b"])
    run.update(graph, {"items": ["before anything"]})
    run.update(graph, {"items": ["as a"]}, as_node="a")
    middle = run.state(graph)
    events = run.stream(graph, None)
    supersteps = [[("a", {"items": ["bulk"]})], [("b", {"items": ["more bulk"]})]]
    run.call(
        graph,
        "bulk_update_state",
        run.config,
        [[_update(values, node) for node, values in updates] for updates in ((*s,) for s in supersteps)],
    )
    run.update(graph, None, as_node=END)
    return run.seen(graph, middle, events)


def _update(values: Any, node: str) -> Any:
    from langgraph.types import StateUpdate

    return StateUpdate(values=values, as_node=node)


def forks_and_time_travel(run: Run) -> list[Any]:
    graph = line("a", "b").compile(checkpointer=run.saver)
    events = []
    for turn in range(2):
        events.append(run.stream(graph, {"items": [f"turn {turn}"]}, interrupt_before=["b"]))
        events.append(run.stream(graph, None))
    history = run.history(graph)
    at_b = next(s for s in history if s.next == ("b",))
    forked = run.update(graph, {"items": ["forked"]}, at_b.config)
    events.append(run.stream(graph, None, forked))
    events.append(run.stream(graph, None, history[-1].config))
    copied = run.update(graph, None, at_b.config, as_node="__copy__")
    events.append(run.stream(graph, None, copied))
    return run.seen(graph, *events)


class Watched:
    """A graph whose events are shown to a function while it runs."""

    def __init__(self, graph: Any, show: Callable[[Any], None]) -> None:
        self._graph = graph
        self._show = show

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        for event in self._graph.stream(*args, **options):
            self._show(event)
            yield event

    async def astream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in self._graph.astream(*args, **options):
            self._show(event)
            yield event


def errors_and_retries(run: Run) -> list[Any]:
    failures = {"left": 2, "flaky": 1}
    through: set[str] = set()
    others_through = threading.Event()

    def show(event: Any) -> None:
        _, mode, said = event
        if mode == "updates":
            through.update(said)
            if {"works", "flaky"} <= through:
                others_through.set()

    def fails(state: Items) -> dict[str, Any]:
        # A failure cancels what runs beside it: what others wrote must have been taken in, and is told of after that.
        assert others_through.wait(120)
        if failures["left"]:
            failures["left"] -= 1
            raise ValueError("not yet")
        return {"items": ["at last"]}

    def flaky(state: Items) -> dict[str, Any]:
        if failures["flaky"]:
            failures["flaky"] -= 1
            raise ConnectionError("flaky")
        return {"items": ["flaky done"]}

    builder = StateGraph(Items)
    builder.add_node("works", lambda s: {"items": ["worked once"]})
    builder.add_node("fails", fails)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    for name in ("works", "fails", "flaky"):
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=run.saver)
    seen: list[Any] = []
    for value in ({"items": ["go"]}, None, None):
        try:
            seen.append(run.stream(Watched(graph, show), value))
        except ValueError as error:
            seen.append(error)
        seen.append(run.state(graph))
    return run.seen(graph, *seen)


def commands(run: Run) -> list[Any]:
    builder = StateGraph(Total)
    builder.add_node("first", lambda s: Command(update={"items": ["first"], "total": 1}, goto=["third"]))
    builder.add_node("second", lambda s: {"items": ["never"]})
    builder.add_node("third", lambda s: Command(goto=[Send("fourth", {"items": ["sent"], "total": 9})]))
    builder.add_node("fourth", lambda s: {"items": [s["total"]]})
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=run.saver)
    events = [run.stream(graph, {"items": []}), run.stream(graph, Command(update={"items": ["given"]}, goto="second"))]
    return run.seen(graph, *events)


def functional_api(run: Run) -> list[Any]:
    @task
    def double(number: int) -> dict[str, int]:
        return {"doubled": number * 2}

    @entrypoint(checkpointer=run.saver)
    def flow(number: int, *, previous: Any = None) -> Any:
        doubled = double(number).result()
        answer = interrupt({"sure about": doubled})
        return entrypoint.final(value={"answer": answer}, save={"last": doubled, "before": previous})

    @task
    async def adouble(number: int) -> dict[str, int]:
        return {"doubled": number * 2}

    @entrypoint(checkpointer=run.saver)
    async def aflow(number: int, *, previous: Any = None) -> Any:
        doubled = await adouble(number)
        answer = interrupt({"sure about": doubled})
        return entrypoint.final(value={"answer": answer}, save={"last": doubled, "before": previous})

    graph = flow if run.call.mode == "sync" else aflow
    events = []
    for number in (1, 2):
        events += [run.stream(graph, number), run.stream(graph, Command(resume=f"yes {number}"))]
    return run.seen(graph, *events)


def _extend(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict):
    log: Annotated[list[Any], DeltaChannel(_extend, snapshot_frequency=3)]
    items: Annotated[list[Any], operator.add]


def delta_channels(run: Run) -> list[Any]:
    builder = StateGraph(Delta)
    builder.add_node("a", lambda s: {"log": [f"a{len(s['log'])}"], "items": [len(s["log"])]})
    builder.add_node("b", lambda s: {"log": [{"b": len(s["log"])}]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    graph = builder.compile(checkpointer=run.saver)
    events = [run.stream(graph, {"log": [f"turn {n}"], "items": []}) for n in range(4)]
    history = run.history(graph)
    old = history[min(5, len(history) - 1)]
    events.append(run.stream(graph, {"log": ["forked"], "items": []}, old.config))
    return run.seen(graph, *events)


@tool
def look_up(order: str) -> str:
    """Looks an order up."""
    return f"order {order}: a pair of walking boots, size 43, sent on Monday"


class Scripted(FakeMessagesListChatModel):
    """A model that says what it is told to; tools may be bound to it."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def agent(run: Run) -> list[Any]:
    answers: list[AIMessage] = []
    for turn in range(3):
        call = {"name": "look_up", "args": {"order": f"A-{turn}"}, "id": f"call-{turn}"}
        answers += [
            AIMessage("", tool_calls=[call], id=f"m{turn}-1"),
            AIMessage(f"It was sent ({turn}).", id=f"m{turn}-2"),
        ]  # type: ignore[list-item]
    graph = create_agent(Scripted(responses=list(answers)), [look_up], checkpointer=run.saver)
    events = [
        run.stream(graph, {"messages": [HumanMessage(f"Where is A-{turn}?", id=f"h{turn}")]}) for turn in range(3)
    ]
    return run.seen(graph, *events)


def messages(run: Run) -> list[Any]:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "reply", lambda s: {"messages": [AIMessage(f"reply {len(s['messages'])}", id=f"a{len(s['messages'])}")]}
    )
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=run.saver)
    events = [run.stream(graph, {"messages": [HumanMessage(f"turn {n}", id=f"h{n}")]}) for n in range(3)]
    run.update(graph, {"messages": [HumanMessage("corrected", id="h1")]})
    run.update(graph, {"messages": [RemoveMessage(id="h0")]})
    run.update(graph, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), ToolMessage("x", tool_call_id="t", id="n")]})
    return run.seen(graph, *events)


def cached_nodes(run: Run) -> list[Any]:
    builder = StateGraph(Items)
    builder.add_node("dear", step("dear"), cache_policy=CachePolicy())
    builder.add_edge(START, "dear")
    graph = builder.compile(checkpointer=run.saver, cache=InMemoryCache())
    other = {"configurable": {**run.config["configurable"], "thread_id": "t-2"}}
    events = [run.stream(graph, {"items": ["same"]}), run.stream(graph, {"items": ["same"]}, other)]
    return run.seen(graph, *events)


class Address(BaseModel):
    street: str
    number: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Typed(TypedDict, total=False):
    address: Address
    points: Annotated[list[Point], operator.add]
    message: AnyMessage
    chat: Annotated[list[AnyMessage], add_messages]
    raw: bytes
    nothing: None


def typed_state(run: Run) -> list[Any]:
    builder = StateGraph(Typed)
    builder.add_node("a", lambda s: {"points": [Point(1, 2.5)], "raw": b"\x00\xff", "nothing": None})
    builder.add_node("b", lambda s: {"address": Address(street=s["address"].street.upper()), "points": [Point(3, 4)]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    graph = builder.compile(checkpointer=run.saver)
    value = {"address": Address(street="Main"), "points": [], "chat": [HumanMessage("hi", id="1")]}
    return run.seen(graph, run.stream(graph, value), run.stream(graph, {"points": [Point(9, 9)]}))


ORDERED: dict[str, Callable[[Run], list[Any]]] = {
    f.__name__: f
    for f in (
        sequence,
        subgraph_inherited,
        subgraph_with_memory,
        subgraph_nested_with_interrupt,
        interrupts_in_one_node,
        static_interrupts,
        state_updates,
        forks_and_time_travel,
        commands,
        functional_api,
        delta_channels,
        agent,
        messages,
        cached_nodes,
        typed_state,
    )
}
UNORDERED: dict[str, Callable[[Run], list[Any]]] = {
    f.__name__: f for f in (parallel_branches, send_fan_out, interrupts_in_a_fan_out, errors_and_retries)
}
"""Scenarios whose tasks run side by side: their events come in any order within a superstep."""
