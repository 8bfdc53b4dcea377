"""Comparable views of checkpoints, snapshots and stream events: everything but ids, times and version suffixes.

An id is named by what it stands for (a checkpoint by namespace, source, step and how many of those came before it), so
that a wrong parent is seen although the ids of two runs always differ.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, PregelTask, StateSnapshot
from pydantic import BaseModel

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
_VERSION = re.compile(r"\b0\d{31}\.[\d.]+\b")


class Names(dict[str, str]):
    """Checkpoint id to name; ids that are no checkpoint's are all alike."""

    def text(self, text: str) -> str:
        text = _IDS.sub(lambda match: self.get(match.group(), "<id>"), text)
        return _VERSION.sub(lambda match: f"v{int(match.group().split('.')[0])}", _TIME.sub("<time>", text))


def version(value: Any) -> int:
    return int(str(value).split(".", maxsplit=1)[0])


def plain(value: Any, names: Names) -> Any:
    """Builtin containers and strings only, types kept as names."""
    if isinstance(value, str):
        return names.text(value)
    if isinstance(value, BaseMessage):
        return (type(value).__name__, plain({**value.__dict__, "id": value.id and names.text(value.id)}, names))
    if isinstance(value, Interrupt):
        return ("Interrupt", plain(value.value, names))
    if isinstance(value, _DeltaSnapshot):
        return ("_DeltaSnapshot", plain(value.value, names))
    if isinstance(value, StateSnapshot):
        return snapshot(value, names)
    if isinstance(value, PregelTask):
        return task(value, names)
    if isinstance(value, BaseModel):
        return (type(value).__name__, plain(dict(value), names))
    if isinstance(value, dict):
        if "channel_versions" in value and "versions_seen" in value:
            return checkpoint(value, names)
        if "thread_id" in value or "checkpoint_id" in value:
            value = {k: v for k, v in value.items() if not str(k).startswith("__")}
        return {plain(k, names): plain(v, names) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (type(value).__name__, *(plain(v, names) for v in value))
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(v, names) for v in value]
        return (type(value).__name__, sorted(items, key=repr) if isinstance(value, set | frozenset) else items)
    if isinstance(value, Exception):
        return (type(value).__name__, names.text(str(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return (type(value).__name__, plain(fields, names))
    return (type(value).__name__, names.text(repr(value)))


def checkpoint(value: Any, names: Names) -> dict[str, Any]:
    return {
        "values": plain(value["channel_values"], names),
        "versions": {channel: version(v) for channel, v in value["channel_versions"].items()},
        "seen": {node: {c: version(v) for c, v in seen.items()} for node, seen in value["versions_seen"].items()},
        "updated": value.get("updated_channels"),
        "v": value["v"],
    }


def task(value: Any, names: Names) -> dict[str, Any]:
    return {
        "name": value.name,
        "path": plain(value.path, names),
        "error": plain(value.error, names),
        "interrupts": plain(value.interrupts, names),
        "state": plain(value.state, names),
        "result": plain(value.result, names),
    }


def snapshot(value: StateSnapshot, names: Names) -> dict[str, Any]:
    return {
        "config": plain(value.config, names),
        "parent": plain(value.parent_config, names),
        "values": plain(value.values, names),
        "next": value.next,
        "metadata": plain(dict(value.metadata or {}), names),
        "tasks": sorted((task(t, names) for t in value.tasks), key=repr),
        "interrupts": plain(value.interrupts, names),
    }


def name_checkpoints(tuples: Iterable[Any]) -> Names:
    """Names for every checkpoint of a thread."""
    names, seen = Names(), defaultdict[str, int](int)
    for t in sorted(tuples, key=lambda t: str(t.config["configurable"]["checkpoint_id"])):
        place = (
            f"{_IDS.sub('<id>', t.config['configurable']['checkpoint_ns'])}/{t.metadata['source']}/{t.metadata['step']}"
        )
        names[t.config["configurable"]["checkpoint_id"]] = f"<{place}/{seen[place]}>"
        seen[place] += 1
    return names


def stored(tuples: list[Any], names: Names) -> list[dict[str, Any]]:
    """All that a saver lists of a thread."""
    views = []
    for t in tuples:
        by_task = defaultdict[str, list[Any]](list)
        for task_id, channel, value in t.pending_writes:
            by_task[task_id].append((channel, plain(value, names)))
        views.append(
            {
                "config": plain(t.config, names),
                "parent": plain(t.parent_config, names),
                "checkpoint": checkpoint(t.checkpoint, names),
                "metadata": plain(dict(t.metadata), names),
                "writes": sorted(by_task.values(), key=repr),
            }
        )
    return sorted(views, key=repr)
