"""From opened bytes to LangGraph's tuples: the last step of a read, after everything was authenticated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver.fingerprints import Print, applies, load
from shredsaver.memory import Known, Memory, Place
from shredsaver.reading import Loaded
from shredsaver.rebuilding import loads
from shredsaver.records import Typed

Revive = Callable[[Typed], Any]

_PRINTED: Final = 2048
"""Bytes from which it pays to look for a value's print."""


class Reviver:
    """Revives checkpoints, every object in them fresh.

    Args:
        memory: What this process knows of its threads.
        fingerprints: Whether messages are put together without validating them, and made again from their print.
    """

    def __init__(self, memory: Memory, *, fingerprints: bool) -> None:
        self._memory = memory
        self._fingerprints = fingerprints

    def resumed(self, serde: SerializerProtocol, place: Place, loaded: Loaded) -> CheckpointTuple:
        """What a resumed run reads, remembered for the run's writes and for the next read."""
        ns = loaded.row.ns
        revive = self._revive(serde)
        known = None if revive == serde.loads_typed else self._memory.get(place.thread)
        prints: dict[str, Print] = {}
        values: dict[str, Any] = {}
        for channel, value in loaded.values.items():
            typed = (value.tag, value.data)
            if known is None or len(value.data) < _PRINTED:
                values[channel] = revive(typed)
                continue
            key = (ns, channel)
            again = known.values.get(key) is value
            values[channel], taken = load(serde, typed, known.prints.get(key), again=again)
            if taken is not None:
                prints[channel] = taken
        checkpoint = revive(loaded.record.checkpoint)
        versions = checkpoint.get("channel_versions", {})
        manifest = {channel: Known(versions.get(channel), entry) for channel, entry in loaded.record.manifest.items()}
        self._memory.remember(
            place, ns=ns, values=loaded.values, prints=prints, manifest=(loaded.row.checkpoint_id, manifest)
        )
        return _tuple(revive, loaded, revive(loaded.record.metadata), checkpoint, values)

    def listed(self, serde: SerializerProtocol, loaded: Loaded, metadata: Any) -> CheckpointTuple:
        """A checkpoint of a listing, whose metadata was looked at before."""
        revive = self._revive(serde)
        values = {channel: revive((value.tag, value.data)) for channel, value in loaded.values.items()}
        return _tuple(revive, loaded, metadata, revive(loaded.record.checkpoint), values)

    def _revive(self, serde: SerializerProtocol) -> Revive:
        """The serializer's way, or the short one where it gives the same."""
        return partial(loads, serde) if self._fingerprints and applies(serde) else serde.loads_typed


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _tuple(revive: Revive, loaded: Loaded, metadata: Any, checkpoint: Any, values: dict[str, Any]) -> CheckpointTuple:
    row = loaded.row
    checkpoint["id"] = row.checkpoint_id
    checkpoint["channel_values"] = values
    return CheckpointTuple(
        config=config_of(loaded.thread_id, row.ns, row.checkpoint_id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=config_of(loaded.thread_id, row.ns, row.parent_id) if row.parent_id else None,
        pending_writes=[(write.task_id, write.channel, revive(write.value)) for write in loaded.writes],
    )
