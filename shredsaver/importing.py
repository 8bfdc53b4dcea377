"""Taking an export back, as new data of its customer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.store.base import InvalidNamespaceError

from shredsaver.core import Core
from shredsaver.customers import CustomerResolver, exact_id
from shredsaver.errors import FormatError
from shredsaver.exporting import read_lines, revived
from shredsaver.saver import ShredSaver
from shredsaver.store import ShredStore


class Importer:
    """Writes the lines of an export through saver and store, so that the fence decides as for any other write."""

    def __init__(self, core: Core, saver: ShredSaver, store: ShredStore) -> None:
        self._core = core
        self._serde = saver.serde
        self._store = store

    def load(self, lines: Iterable[str | bytes]) -> int:
        """Imports all lines. An import that was interrupted is repeated from the start: what is there is put again.

        Raises:
            FormatError: It is no export, or holds data of another customer than it says.
        """
        count, customer_id = 0, ""
        saver: ShredSaver | None = None
        for line in read_lines(iter(lines)):
            try:
                if line["type"] == "export":
                    customer_id = exact_id(line["customer_id"], "the export's customer_id")
                    saver = self._saver_of(customer_id)
                elif line["type"] == "checkpoint" and saver is not None:
                    self._checkpoint(saver, line)
                elif line["type"] == "writes" and saver is not None:
                    self._writes(saver, line)
                elif line["type"] == "event":
                    pass  # what was decided about the data there, not data
                else:
                    self._item(customer_id, line)
            except (KeyError, TypeError, AttributeError, InvalidNamespaceError):
                raise FormatError(f"line {count + 1} of the export lacks what it must have") from None
            count += 1
        return count

    def _item(self, customer_id: str, line: dict[str, Any]) -> None:
        namespace = tuple(line["namespace"])
        if self._store._templates.owner(namespace).customer_id != customer_id:
            raise FormatError("the export holds an item of another customer than it is an export of")
        self._store.put(namespace, line["key"], line["value"])

    def _saver_of(self, customer_id: str) -> ShredSaver:
        """A saver whose every call is about one customer, whatever ``customer=`` says."""
        return ShredSaver(self._core, CustomerResolver(lambda _: customer_id), serde=self._serde)

    def _checkpoint(self, saver: ShredSaver, line: dict[str, Any]) -> None:
        where = {"thread_id": line["thread_id"], "checkpoint_ns": line["checkpoint_ns"]}
        checkpoint = revived(self._serde, line["checkpoint"])
        checkpoint["channel_values"] = {
            channel: revived(self._serde, value) for channel, value in line["values"].items()
        }
        parent = {"checkpoint_id": line["parent_id"]} if line["parent_id"] else {}
        metadata = cast("CheckpointMetadata", revived(self._serde, line["metadata"]))
        config = cast("RunnableConfig", {"configurable": {**where, **parent}})
        saver.put(config, cast("Checkpoint", checkpoint), metadata, checkpoint["channel_versions"])
        self._writes(saver, line)

    def _writes(self, saver: ShredSaver, line: dict[str, Any]) -> None:
        keys = ("thread_id", "checkpoint_ns", "checkpoint_id")
        at = cast("RunnableConfig", {"configurable": {key: line[key] for key in keys}})
        by_task: dict[tuple[str, str], list[tuple[str, Any]]] = {}
        for write in line["writes"]:
            task = (write["task_id"], write.get("task_path", ""))
            by_task.setdefault(task, []).append((write["channel"], revived(self._serde, write)))
        for (task_id, task_path), writes in by_task.items():
            saver.put_writes(at, writes, task_id, task_path)
