"""Builders for calls made straight to a saver, without a graph."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base.id import uuid6


def config(thread_id: Any = "t-1", customer_id: Any = "c-1", **more: Any) -> dict[str, Any]:
    """A config as a graph's caller gives it; ``customer_id=None`` leaves the customer out."""
    configurable: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ""}
    if customer_id is not None:
        configurable["customer_id"] = customer_id
    return {"configurable": {**configurable, **more}}


def checkpoint(values: dict[str, Any] | None = None, *, key: str | None = None, version: Any = 1) -> Checkpoint:
    """A checkpoint that holds ``values``, every channel at the same version."""
    values = values or {}
    return Checkpoint(
        v=4,
        id=key or str(uuid6(clock_seq=-1)),
        ts=datetime.now(UTC).isoformat(),
        channel_values=values,
        channel_versions=dict.fromkeys(values, version),
        versions_seen={},
        updated_channels=None,
    )


def metadata(step: int = 0, source: str = "loop", **more: Any) -> CheckpointMetadata:
    return {"source": source, "step": step, "parents": {}, **more}  # type: ignore[typeddict-item,return-value]


def put(call: Any, saver: Any, where: dict[str, Any], values: dict[str, Any] | None = None, **options: Any) -> Any:
    """Puts one checkpoint and returns the config the saver gives back.

    Options: ``id``, ``version`` as in `checkpoint`; ``new_versions`` (default: every channel); the rest is metadata.
    """
    made = checkpoint(values, key=options.pop("id", None), version=options.pop("version", 1))
    new = options.pop("new_versions", made["channel_versions"])
    return call(saver, "put", where, made, metadata(**options), new)


def chain(call: Any, saver: Any, where: dict[str, Any], states: list[dict[str, Any]]) -> list[Any]:
    """Puts one checkpoint after the other, each the parent of the next, and returns their configs."""
    stored: list[Any] = []
    for step, values in enumerate(states):
        here = {"configurable": dict(where["configurable"])}
        if stored:
            here["configurable"]["checkpoint_id"] = stored[-1]["configurable"]["checkpoint_id"]
        stored.append(put(call, saver, here, values, version=step + 1, step=step))
    return stored


def checkpoint_id(config: dict[str, Any]) -> str:
    return str(config["configurable"]["checkpoint_id"])
