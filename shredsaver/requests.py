"""What LangGraph's configs, checkpoints and writes say, in this library's terms: nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from shredsaver.core import Core
from shredsaver.customers import CustomerResolver
from shredsaver.errors import ConfigurationError
from shredsaver.listing import Query
from shredsaver.threads import Ref
from shredsaver.writing import NewCheckpoint, NewWrite

_APART: Final = frozenset({"id", "channel_values"})
"""What of a checkpoint is not in its record: the record is bound to the id, and values are in parts."""

_SOURCES: Final = frozenset({"input", "loop", "update", "fork"})


class Requests:
    """Understands calls to the saver: which thread and customer they are about, and what they want stored."""

    def __init__(self, core: Core, resolver: CustomerResolver) -> None:
        self._core = core
        self._resolver = resolver

    def thread(self, thread_id: object) -> Ref:
        """A thread by its id alone."""
        name = str(thread_id)
        try:
            return Ref(name, self._core.token("thread", name), None, None)
        except UnicodeEncodeError:
            raise ConfigurationError("a thread_id holds a lone surrogate, which is no Unicode text") from None

    def ref(self, config: RunnableConfig) -> Ref:
        """The thread and the customer that a config names.

        Raises:
            ConfigurationError: It names no thread.
            CustomerUnresolvedError, ThreadOwnershipError: The customer it names is none, or two.
        """
        thread_id = (config.get("configurable") or {}).get("thread_id")
        if thread_id is None:
            raise ConfigurationError('the config names no thread: give configurable["thread_id"]')
        customer_id = self._resolver(config)
        ref = self.thread(thread_id)
        if customer_id is None:
            return ref
        return Ref(ref.thread_id, ref.thread, customer_id, self._core.token("customer", customer_id))

    def checkpoint(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Ref, NewCheckpoint]:
        """A checkpoint to store, and where."""
        ref = self.ref(config)
        configurable = config["configurable"]
        stored = _metadata(config, metadata)
        values = {channel: _snapshot(value) for channel, value in checkpoint["channel_values"].items()}
        run_id, source, step = stored.get("run_id"), stored.get("source"), stored.get("step")
        counters = stored.get("counters_since_delta_snapshot") or {}
        uses_delta = bool(counters) or _DeltaSnapshot in map(type, values.values())
        return ref, NewCheckpoint(
            ns=configurable.get("checkpoint_ns") or "",
            checkpoint_id=checkpoint["id"],
            parent_id=configurable.get("checkpoint_id") or "",
            checkpoint={key: value for key, value in checkpoint.items() if key not in _APART},
            metadata=stored,
            values=values,
            changed=frozenset(new_versions),
            versions=checkpoint["channel_versions"],
            run=self._core.token("run", str(run_id)) if run_id is not None else b"",
            # Only what LangGraph puts there may stand in the clear.
            source=source if isinstance(source, str) and source in _SOURCES else "",
            step=str(step) if type(step) is int else "",
            uses_delta=uses_delta,
            delta=frozenset(counters) if isinstance(counters, dict) else frozenset(),
        )

    def writes(self, writes: Sequence[tuple[str, Any]]) -> list[NewWrite]:
        """Pending writes to store: special channels have negative indexes, and the last of them counts."""
        new: dict[int, NewWrite] = {}
        for position, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, position)
            new[idx] = NewWrite(channel, idx, _snapshot(value))
        return list(new.values())

    def query(
        self, config: RunnableConfig | None, wanted: Mapping[str, Any] | None, before: RunnableConfig | None
    ) -> Query:
        """What a listing asks for."""
        configurable = (config.get("configurable") or {}) if config else {}
        source = (wanted or {}).get("source")
        return Query(
            ref=self.ref(config) if config else None,
            ns=configurable.get("checkpoint_ns"),
            checkpoint_id=configurable.get("checkpoint_id") or "",
            before=((before or {}).get("configurable") or {}).get("checkpoint_id") or "",
            source=source if isinstance(source, str) and source in _SOURCES else "",
            wanted=wanted or {},
        )


def _snapshot(value: Any) -> Any:
    """A copy of the outermost container, since nodes may change it while it is being saved."""
    return value.copy() if type(value) in (list, dict) else value


def _metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store: as LangGraph's ``get_checkpoint_metadata``, but text stays as it is, NUL and all."""
    stored: dict[str, Any] = dict(metadata)
    for source in (config.get("metadata"), config.get("configurable")):
        for key, value in (source or {}).items():
            if key in stored or key in EXCLUDED_METADATA_KEYS or key.startswith("__"):
                continue
            if isinstance(value, str | int | float):
                stored[key] = value
    return stored
