"""What is written and read: messages, and the calls that LangGraph makes for one superstep."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint
from langgraph.checkpoint.base.id import uuid6

Saver = BaseCheckpointSaver[Any]

CUSTOMER = "customer-1"
TRIGGER = "branch:to:model"
_PROSE = (
    "the flight from Boston to Denver on 24 May was changed and my bag did not arrive please refund the fare to "
    "card 4417 or book seat 12A for Amelia Ahmed born 1957-03-21 reservation NO6JO3 gold member economy one way"
)


def text(seed: int, size: int) -> str:
    """About ``size`` characters of repeatable prose."""
    source, words_known = random.Random(seed), _PROSE.split(" ")
    words: list[str] = []
    length = 0
    while length < size:
        words.append(source.choice(words_known))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


def message(number: int) -> AnyMessage:
    """The n-th message of a conversation, about 700 bytes when serialised; person and model take turns."""
    identity = str(uuid.UUID(int=random.Random(number).getrandbits(128)))
    if number % 2 == 0:
        return HumanMessage(text(number, 520), id=identity)
    return AIMessage(
        text(number, 330),
        id=f"lc_run--{identity}",
        response_metadata={"finish_reason": "stop", "model_name": "model-1"},
        usage_metadata={"input_tokens": 900 + number, "output_tokens": 120, "total_tokens": 1020 + number},
    )


class Thread:
    """A thread driven as Pregel's loop drives a saver: the task's writes, then the checkpoint that they lead to.

    Args:
        saver: Where it is kept.
        name: The thread's id.
        state: Channels beside the messages.
        customer: Whose thread it is.
    """

    def __init__(
        self, saver: Saver, name: str, state: Mapping[str, Any] | None = None, *, customer: str = CUSTOMER
    ) -> None:
        self.saver = saver
        self.name = name
        self.customer = customer
        self.values: dict[str, Any] = {"messages": [], **(state or {})}
        self._versions: dict[str, Any] = {}
        self._seen: dict[str, dict[str, Any]] = {"__input__": {}}
        self._step = -1
        self._checkpoint_id: str | None = None

    @property
    def config(self) -> RunnableConfig:
        """The latest checkpoint's place, as a run's config has it."""
        configurable = {"thread_id": self.name, "checkpoint_ns": "", "customer_id": self.customer}
        if self._checkpoint_id is not None:
            configurable["checkpoint_id"] = self._checkpoint_id
        return {"configurable": configurable}

    @property
    def latest(self) -> RunnableConfig:
        """Asks for the newest checkpoint, as a resumed run does."""
        return {"configurable": {"thread_id": self.name, "checkpoint_ns": "", "customer_id": self.customer}}

    def grow(self, messages: Sequence[AnyMessage], at_once: int = 1) -> None:
        """Appends messages, unmeasured, ``at_once`` in a superstep."""
        for first in range(0, len(messages), at_once):
            self.append(*messages[first : first + at_once])()

    def append(self, *messages: AnyMessage) -> Callable[[], None]:
        """Prepares a superstep that appends ``messages`` and gives the calls it makes on the saver."""
        for_model = isinstance(messages[-1], HumanMessage)
        value = [*self.values["messages"], *messages]
        writes: list[tuple[str, Any]] = [("messages", list(messages))]
        values = {**self.values, "messages": value}
        if for_model:
            writes.append((TRIGGER, None))
            values[TRIGGER] = None
        else:
            values.pop(TRIGGER, None)
        return self._superstep(values, writes, ["messages", TRIGGER])

    def change(self, channel: str, value: Any, written: Any) -> Callable[[], None]:
        """Prepares a superstep that gives one channel a new value, ``written`` being what the node returned."""
        return self._superstep({**self.values, channel: value}, [(channel, written)], [channel])

    def _superstep(
        self, values: dict[str, Any], writes: list[tuple[str, Any]], changed: list[str]
    ) -> Callable[[], None]:
        config, first = self.config, self._checkpoint_id is None
        checkpoint, versions = self._checkpoint(values, list(values) if first else changed)
        metadata: Any = {"source": "input" if first else "loop", "step": self._step, "parents": {}}
        task = str(uuid.UUID(int=random.getrandbits(128)))
        saver = self.saver

        def calls() -> None:
            if not first:
                saver.put_writes(config, writes, task, "~__pregel_pull, model")
            saver.put(config, checkpoint, metadata, versions)

        return calls

    async def astep(self, *messages: AnyMessage) -> float:
        """One superstep through the async methods. Gives its seconds."""
        config = self.config
        value = [*self.values["messages"], *messages]
        first = self._checkpoint_id is None
        checkpoint, versions = self._checkpoint({**self.values, "messages": value}, ["messages"])
        metadata: Any = {"source": "input" if first else "loop", "step": self._step, "parents": {}}
        task = str(uuid.UUID(int=random.getrandbits(128)))
        start = time.perf_counter()
        if not first:
            await self.saver.aput_writes(config, [("messages", list(messages))], task, "~__pregel_pull, model")
        await self.saver.aput(config, checkpoint, metadata, versions)
        return time.perf_counter() - start

    def _checkpoint(self, values: dict[str, Any], changed: list[str]) -> tuple[Checkpoint, ChannelVersions]:
        newest = max(self._versions.values()) if self._versions else None
        version = self.saver.get_next_version(newest, None)
        new_versions = dict.fromkeys(changed, version)
        self._versions = {**self._versions, **new_versions}
        self._seen = {**self._seen, "model": {TRIGGER: version}}
        self._step += 1
        self.values = values
        self._checkpoint_id = str(uuid6(clock_seq=self._step))
        checkpoint = {
            "v": 4,
            "ts": datetime.now(UTC).isoformat(),
            "id": self._checkpoint_id,
            "channel_values": dict(values),
            "channel_versions": dict(self._versions),
            "versions_seen": {node: dict(seen) for node, seen in self._seen.items()},
            "updated_channels": sorted(changed),
        }
        return cast(Checkpoint, checkpoint), cast(ChannelVersions, new_versions)
