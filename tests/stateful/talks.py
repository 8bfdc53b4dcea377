"""Graphs that talk with a customer, through a saver that notes for the model what they put."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from tests.stateful.model import Saved, Thread
from tests.support.backends import Backend


def _merge(before: list[str], new: list[str]) -> list[str]:
    return [*before, *(one for one in new if one not in before)]


class State(TypedDict):
    items: Annotated[list[str], _merge]


def graph(saver: Any) -> Any:
    """Hears, asks in a subgraph and waits for the answer, spreads out, and ends."""
    inner = StateGraph(State)
    inner.add_node("ask", lambda s: {"items": [f"told {interrupt({'about': s['items'][-1]})}"]})
    inner.add_node("note", lambda s: {"items": [f"noted {s['items'][-1]}"]})
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "note")
    outer = StateGraph(State)
    outer.add_node("hear", lambda s: {"items": [f"heard {s['items'][-1]}"]})
    outer.add_node("inner", inner.compile())
    outer.add_node("leaf", lambda s: {"items": [f"leaf {s['n']} of {s['text']}"]})
    outer.add_edge(START, "hear")
    outer.add_edge("hear", "inner")
    leaves: Callable[[State], list[Send]] = lambda s: [Send("leaf", {"n": n, "text": s["items"][-1]}) for n in (1, 2)]  # noqa: E731
    outer.add_conditional_edges("inner", leaves, ["leaf"])
    outer.add_edge("leaf", END)
    return outer.compile(checkpointer=saver)


def _stored(value: Any) -> Any:
    """What LangGraph's own serializer makes of a value, such as a list of a tuple; nobody can change it any more."""
    serde = JsonPlusSerializer()
    return serde.loads_typed(serde.dumps_typed(value))


class Doubt:
    """A put or put_writes that nobody knows the outcome of."""

    def __init__(
        self, key: tuple[str, str], saved: Saved | None, task: str, writes: list[tuple[int, str, Any]]
    ) -> None:
        self.key, self.saved, self.task, self.writes = key, saved, task, writes

    def settle(self, thread: Thread) -> None:
        """It was stored."""
        there = thread.setdefault(self.key, Saved())
        if self.saved is not None:
            there.values, there.parent = self.saved.values, self.saved.parent
        for index, channel, value in self.writes:
            there.write(self.task, index, channel, value)

    def stored(self, backend: Backend, thread: bytes) -> bool:
        """Whether it was, as an administrator sees it: all of it, or nothing."""
        if self.saved is not None:
            statement = "SELECT count(*) FROM checkpoints WHERE thread = ? AND ns = ? AND checkpoint_id = ?"
            return bool(backend.execute(statement, (thread, *self.key))[0][0])
        statement = "SELECT idx FROM writes WHERE thread = ? AND ns = ? AND checkpoint_id = ? AND task_id = ?"
        found = {idx for (idx,) in backend.execute(statement, (thread, *self.key, self.task))}
        there = {index for index, *_ in self.writes} & found
        assert there in (set(), {index for index, *_ in self.writes})
        return bool(there)


class Noted:
    """A saver for one run of a graph, and what the run put.

    Args:
        saver: The saver itself; it is copied, as LangGraph does too.
        thread: The model's thread, which is changed once the saver has answered.
    """

    def __init__(self, saver: Any, thread: Thread) -> None:
        self.saver, self.thread = copy.copy(saver), thread
        self.doubts: list[Doubt] = []
        self._lock = threading.Lock()
        self.saver.put = self._noting(saver.put, self._put)
        self.saver.put_writes = self._noting(saver.put_writes, self._writes)

    def _noting(self, act: Callable[..., Any], understand: Callable[..., Doubt]) -> Callable[..., Any]:
        @wraps(act)
        def noting(*args: Any, **kwargs: Any) -> Any:
            doubt = understand(*args)
            with self._lock:
                self.doubts.append(doubt)
            answer = act(*args, **kwargs)
            with self._lock:
                self.doubts.remove(doubt)
                doubt.settle(self.thread)
            return answer

        return noting

    @staticmethod
    def _put(config: Any, checkpoint: Any, *_: Any) -> Doubt:
        here = config["configurable"]
        saved = Saved(_stored(checkpoint["channel_values"]), here.get("checkpoint_id"))
        return Doubt((here.get("checkpoint_ns", ""), checkpoint["id"]), saved, "", [])

    @staticmethod
    def _writes(config: Any, writes: Any, task: str, *_: Any) -> Doubt:
        here = config["configurable"]
        given = [(WRITES_IDX_MAP.get(c, i), c, _stored(v)) for i, (c, v) in enumerate(writes)]
        return Doubt((here.get("checkpoint_ns", ""), here["checkpoint_id"]), None, task, given)


def turn(flow: Any, here: dict[str, Any], text: str, durability: str) -> None:
    """Says something to a graph, or answers what it waits for."""
    state = flow.get_state(here)
    flow.invoke(Command(resume=text) if state.interrupts else {"items": [text]}, here, durability=durability)


def go_on(flow: Any, here: dict[str, Any], text: str, durability: str) -> None:
    """Takes a turn to its end after an interruption: says again what did not arrive."""
    state = flow.get_state(here, subgraphs=True)
    if state.interrupts or not any(text in item for item in state.values.get("items", ())):
        turn(flow, here, text, durability)
    elif state.next:
        flow.invoke(None, here, durability=durability)
