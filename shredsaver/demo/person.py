"""A customer who talks to an agent: a real agent with real middleware; its model is a fake, so runs are alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import StateSnapshot

from shredsaver.demo.report import Counts
from shredsaver.demo.sides import Opened
from shredsaver.errors import CustomerShreddedError

T = TypeVar("T")

ITEM: Final = "profile"


class Person:
    """One customer with one thread and one store item."""

    def __init__(self, opened: Opened, customer: str) -> None:
        self.customer = customer
        self.thread = f"thread-of-{customer}"
        self.config: RunnableConfig = {"configurable": {"thread_id": self.thread, "customer_id": customer}}
        self._saver, self._store = opened
        self._namespace = ("users", customer)
        self._agent: Any = create_agent(
            FakeListChatModel(responses=["I see."]),
            [],
            middleware=[
                SummarizationMiddleware(
                    FakeListChatModel(responses=["They talked about plans."]),
                    trigger=("messages", 8),
                    keep=("messages", 2),
                )
            ],
            checkpointer=self._saver,
            store=self._store,
        )

    def say(self, text: str, config: RunnableConfig | None = None) -> str:
        """Takes one turn, from a given snapshot or from the latest; gives all that the agent then knows."""
        return repr(self._agent.invoke(_turn(text), config or self.config))

    def remember(self, text: str) -> None:
        """Keeps a note in the store."""
        self._store.put(self._namespace, ITEM, {"note": text})

    def clear(self) -> None:
        """Removes all messages from the state, as LangGraph's documentation says."""
        self._agent.update_state(self.config, _removal())

    def history(self) -> Iterator[StateSnapshot]:
        """The thread's snapshots, latest first."""
        return self._agent.get_state_history(self.config)  # type: ignore[no-any-return]

    def count(self, secret: str) -> Counts:
        """Counts where a text can be opened through the public API, each route asked on its own."""
        tuples = _opened(lambda: self._saver.list(self.config))
        items = _opened(lambda: self._store.search(self._namespace, limit=1000))
        return Counts(
            checkpoint_rows=sum(secret in repr((row.checkpoint, row.metadata)) for row in tuples),
            write_rows=sum(secret in repr(write) for row in tuples for write in row.pending_writes or ()),
            store_keys=sum(secret in repr(item.value) for item in items),
            resumable=sum(secret in repr(snapshot.values) for snapshot in _opened(self.history)),
        )

    def old_snapshot(self, secret: str) -> RunnableConfig:
        """The end of the first turn that knew a text, to fork from."""
        ended = [each for each in self.history() if not each.next and secret in repr(each.values)]
        return ended[-1].config

    def knows(self, *texts: str) -> bool:
        """Whether the latest state and the store item hold all of the texts between them."""
        item = self._store.get(self._namespace, ITEM)
        known = repr((self._agent.get_state(self.config).values, item and item.value))
        return all(text in known for text in texts)

    def calls(self, old: RunnableConfig) -> dict[str, Callable[[], object]]:
        """Every way into the thread by name: blocking and async, with the customer, the thread alone, a snapshot."""
        alone: RunnableConfig = {"configurable": {"thread_id": self.thread}}
        configs = {"customer given": self.config, "thread alone": alone, "old snapshot": old}
        return {f"{name}, {how}": call for how, config in configs.items() for name, call in self._calls(config).items()}

    def _calls(self, config: RunnableConfig) -> dict[str, Callable[[], object]]:
        agent, text = self._agent, "What do you know about me?"

        async def history() -> list[StateSnapshot]:
            return [snapshot async for snapshot in agent.aget_state_history(config)]

        return {
            "get_state": lambda: agent.get_state(config),
            "get_state_history": lambda: list(agent.get_state_history(config)),
            "update_state": lambda: agent.update_state(config, _removal()),
            "invoke": lambda: agent.invoke(_turn(text), config),
            "aget_state": lambda: asyncio.run(agent.aget_state(config)),
            "aget_state_history": lambda: asyncio.run(history()),
            "aupdate_state": lambda: asyncio.run(agent.aupdate_state(config, _removal())),
            "ainvoke": lambda: asyncio.run(agent.ainvoke(_turn(text), config)),
        }


def refused(call: Callable[[], object]) -> bool:
    """Whether a call gives `CustomerShreddedError`. Any other error passes."""
    try:
        call()
    except CustomerShreddedError:
        return True
    return False


def _opened(read: Callable[[], Iterable[T]]) -> list[T]:
    """What a reading gives; nothing where the customer was shredded."""
    try:
        return list(read())
    except CustomerShreddedError:
        return []


def _turn(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def _removal() -> dict[str, Any]:
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}
