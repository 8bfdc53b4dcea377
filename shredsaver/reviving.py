"""From opened bytes to LangGraph's tuples: the last step of a read, after everything was authenticated."""

from __future__ import annotations

from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver.fingerprints import Print, applies, load
from shredsaver.memory import Known, Memory, Place
from shredsaver.reading import Loaded

_PRINTED: Final = 2048
"""Bytes from which it pays to look for a value's print."""


class Reviver:
    """Revives what a resumed run reads, and remembers it for the run's writes and for the next read.

    Args:
        memory: What this process knows of its threads.
        fingerprints: Whether messages are made again from their print.
    """

    def __init__(self, memory: Memory, *, fingerprints: bool) -> None:
        self._memory = memory
        self._fingerprints = fingerprints

    def resumed(self, serde: SerializerProtocol, place: Place, loaded: Loaded) -> CheckpointTuple:
        """The checkpoint that was read, every object in it fresh."""
        ns = loaded.row.ns
        known = self._memory.get(place.thread)
        printed = known is not None and self._fingerprints and applies(serde)
        prints: dict[str, Print] = {}
        values: dict[str, Any] = {}
        for channel, value in loaded.values.items():
            typed = (value.tag, value.data)
            if known is None or not printed or len(value.data) < _PRINTED:
                values[channel] = serde.loads_typed(typed)
                continue
            key = (ns, channel)
            again = known.values.get(key) is value
            values[channel], taken = load(serde, typed, known.prints.get(key), again=again)
            if taken is not None:
                prints[channel] = taken
        checkpoint = serde.loads_typed(loaded.record.checkpoint)
        versions = checkpoint.get("channel_versions", {})
        manifest = {channel: Known(versions.get(channel), entry) for channel, entry in loaded.record.manifest.items()}
        self._memory.remember(
            place, ns=ns, values=loaded.values, prints=prints, manifest=(loaded.row.checkpoint_id, manifest)
        )
        return _tuple(serde, loaded, serde.loads_typed(loaded.record.metadata), checkpoint, values)


def listed(serde: SerializerProtocol, loaded: Loaded, metadata: Any) -> CheckpointTuple:
    """A checkpoint of a listing, whose metadata was looked at before."""
    values = {channel: serde.loads_typed((value.tag, value.data)) for channel, value in loaded.values.items()}
    return _tuple(serde, loaded, metadata, serde.loads_typed(loaded.record.checkpoint), values)


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _tuple(
    serde: SerializerProtocol, loaded: Loaded, metadata: Any, checkpoint: Any, values: dict[str, Any]
) -> CheckpointTuple:
    row = loaded.row
    checkpoint["channel_values"] = values
    return CheckpointTuple(
        config=config_of(loaded.thread_id, row.ns, row.checkpoint_id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=config_of(loaded.thread_id, row.ns, row.parent_id) if row.parent_id else None,
        pending_writes=[(write.task_id, write.channel, serde.loads_typed(write.value)) for write in loaded.writes],
    )
