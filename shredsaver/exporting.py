"""Everything that is held on a person, as lines of JSON; and taking such an export back as new data.

Each line holds its payloads twice: as the serializer's bytes, so that an import loses nothing, and as plain JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from langchain_core.messages import BaseMessage, message_to_dict
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import Item

from shredsaver.core import GET_CUSTOMER, Core
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Sql, Statement, run, sql
from shredsaver.erasures import now
from shredsaver.errors import ConfigurationError, FormatError
from shredsaver.items import ITEM_COLUMNS, ItemRow, Owner, item_of, open_item
from shredsaver.memory import Place
from shredsaver.namespaces import Templates
from shredsaver.restraint import EVENTS_OF, EventRow, open_event
from shredsaver.saver import ShredSaver
from shredsaver.selecting import items_sql
from shredsaver.showing import Pending, Showing, Shown, admit_to_show
from shredsaver.threads import open_name

FORMAT: Final = "shredsaver-export/1"


THREADS: Final = sql(
    "SELECT thread, customer, generation, scope, next_record, next_part, epoch, name FROM threads "
    "WHERE customer = ? AND generation = ? AND scope > 0 AND thread > ? ORDER BY thread LIMIT ?"
)
ITEMS: Final = items_sql(
    f"SELECT {ITEM_COLUMNS} FROM items i WHERE {{numbered}} = ? AND i.generation = ? AND i.number > ? "
    "ORDER BY i.number LIMIT ?"
)
PAGE: Final = 64


class Exporter:
    """Walks what is held on a customer, page by page, each behind the fence."""

    def __init__(self, core: Core, saver: ShredSaver, templates: Templates) -> None:
        self._core = core
        self._serde = saver.serde
        self._showing = Showing(core)
        self._templates = templates

    def lines(self, customer_id: str) -> Iterator[str]:
        """The export's lines, each ending in a line feed."""
        token = self._core.token("customer", customer_id)
        database, serde = self._core.database, self._serde
        generation = database.run(partial(self._owner, token)).generation
        yield _line(header(customer_id, generation, now(self._core)))
        after = b""
        while threads := database.run(partial(self._threads, token, after)):
            for after, name in threads:  # noqa: B007 -- where the next page begins
                for found in self._showing.checkpoints(name, serde):
                    yield _line(checkpoint_line(serde, found))
                for pending in database.run(partial(self._showing.pending, name)):
                    yield _line(pending_line(serde, name, pending))
        number = -1
        while items := database.run(partial(self._items, token, number)):
            for number, item in items:  # noqa: B007 -- where the next page begins
                yield _line(item_line(item))
        seq = 0
        while events := database.run(partial(self._events, token, seq)):
            for seq, event in events:  # noqa: B007 -- where the next page begins
                yield _line(event)

    def _owner(self, token: bytes) -> Plan[Owner]:
        """The customer behind the fence, the transaction closed again."""
        while True:
            yield Begin("read")
            owner = yield from self._enter(token)
            yield Rollback()
            if owner is not None:
                return owner
            yield from self._fetch(token)

    def _enter(self, token: bytes) -> Plan[Owner | None]:
        (row,) = yield from run(Statement(GET_CUSTOMER, (token,)))
        if not row.rows:
            yield Rollback()
            raise ConfigurationError(
                f"customer {token.hex()} is not known, so there is nothing to export: check the id"
            )
        customer = yield from admit_to_show(self._core, row.rows[0])
        tree = self._core.tree(customer)
        return None if tree is None else Owner(token, customer.generation, tree)

    def _fetch(self, token: bytes) -> Plan[None]:
        yield Begin("read")
        (row,) = yield from run(Statement(GET_CUSTOMER, (token,)))
        yield Rollback()
        yield from self._core.load_tree(self._core.customer(row.rows[0]))

    def _page(self, token: bytes, statement: Sql, after: object) -> Plan[tuple[Owner, Sequence[Sequence[Any]]]]:
        """A page of a customer's living generation; `EVENTS_OF` gives those of all."""
        while True:
            yield Begin("read")
            owner = yield from self._enter(token)
            if owner is not None:
                key = (token,) if statement is EVENTS_OF else owner.pair
                (page,) = yield from run(Statement(statement, (*key, after, PAGE)))
                yield Commit()
                return owner, page.rows
            yield Rollback()
            yield from self._fetch(token)

    def _threads(self, token: bytes, after: bytes) -> Plan[list[tuple[bytes, str]]]:
        owner, rows = yield from self._page(token, THREADS, after)
        return [(bytes(row[0]), open_name(self._core, owner.tree, Place(*row[:7]), row[7])) for row in rows]

    def _items(self, token: bytes, after: int) -> Plan[list[tuple[int, Item]]]:
        owner, rows = yield from self._page(token, ITEMS, after)
        found = []
        for row in map(ItemRow._make, rows):
            content = open_item(self._core, owner, row)
            namespace = self._templates.namespace(row.template, content.customer_label, content.labels)
            if namespace is None:
                raise ConfigurationError(
                    f"items are there under the template {row.template}: configure it to export them"
                )
            found.append((row.number, item_of(namespace, content, row)))
        return found

    def _events(self, token: bytes, after: int) -> Plan[list[tuple[int, dict[str, Any]]]]:
        found: list[tuple[int, dict[str, Any]]] = []
        while True:
            owner, rows = yield from self._page(token, EVENTS_OF, after)
            for row in map(EventRow._make, rows):
                after = row.seq
                if row.generation == owner.generation:
                    told = open_event(self._core, owner.tree, token, row)
                    line = {"type": "event", "kind": row.kind, "at": row.at, "until": row.until or None, **told}
                    found.append((row.seq, line))
            if found or len(rows) < PAGE:
                return found


def header(customer_id: str, generation: int, at: str) -> dict[str, Any]:
    """The first line: whose export it is."""
    return {"type": "export", "format": FORMAT, "customer_id": customer_id, "generation": generation, "exported_at": at}


def checkpoint_line(serde: SerializerProtocol, shown: Shown) -> dict[str, Any]:
    """A checkpoint with its values and pending writes."""
    found = shown.checkpoint
    configurable = found.config["configurable"]
    checkpoint: dict[str, Any] = dict(found.checkpoint)
    values = checkpoint.pop("channel_values")
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    return {
        "type": "checkpoint",
        "thread_id": configurable["thread_id"],
        "checkpoint_ns": configurable["checkpoint_ns"],
        "checkpoint_id": configurable["checkpoint_id"],
        "parent_id": parent,
        "checkpoint": _typed(serde, checkpoint),
        "metadata": _typed(serde, found.metadata),
        "values": {channel: _typed(serde, value) for channel, value in values.items()},
        "writes": [
            {"task_id": task_id, "task_path": path, "channel": channel, **_typed(serde, value)}
            for (task_id, channel, value), path in zip(found.pending_writes or (), shown.task_paths, strict=True)
        ],
    }


def pending_line(serde: SerializerProtocol, thread_id: str, pending: Pending) -> dict[str, Any]:
    """Writes whose checkpoint is not there."""
    return {
        "type": "writes",
        "thread_id": thread_id,
        "checkpoint_ns": pending.ns,
        "checkpoint_id": pending.checkpoint_id,
        "writes": [
            {
                "task_id": write.task_id,
                "task_path": write.task_path,
                "channel": write.channel,
                **_typed(serde, serde.loads_typed(write.value)),
            }
            for write in pending.writes
        ],
    }


def item_line(item: Item) -> dict[str, Any]:
    """A store item."""
    return {
        "type": "item",
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.isoformat(),
        "updated_at": item.updated_at.isoformat(),
    }


def read_lines(lines: Iterator[str | bytes]) -> Iterator[dict[str, Any]]:
    """The lines of an export, as text or its UTF-8, the header first.

    Raises:
        FormatError: They are none. The message names the line and shows nothing of it.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise FormatError(f"line {number} of the export is no JSON") from None
        known = isinstance(found, dict) and found.get("type") in ("export", "checkpoint", "writes", "item", "event")
        if not known or (number == 1) != (found["type"] == "export"):
            raise FormatError(f"line {number} of the export is no line of {FORMAT}")
        if number == 1 and found.get("format") != FORMAT:
            raise FormatError(f"the export has a format that this library does not know: {FORMAT} is needed")
        yield found


def revived(serde: SerializerProtocol, typed: Mapping[str, Any]) -> Any:
    """A value of a line."""
    try:
        data = base64.b64decode(typed["data"], validate=True)
        tag = typed["serializer"]
    except (KeyError, TypeError, ValueError):
        raise FormatError("a value of the export is damaged") from None
    try:
        return serde.loads_typed((tag, data))
    except Exception as error:  # noqa: BLE001 -- a serializer may raise anything, and may quote the value
        raise FormatError(f"a value of the export cannot be read: {type(error).__name__}") from None


def _typed(serde: SerializerProtocol, value: Any) -> dict[str, Any]:
    tag, data = serde.dumps_typed(value)
    return {"serializer": tag, "data": base64.b64encode(data).decode("ascii"), "shown": _shown(value)}


def _shown(value: Any) -> Any:
    """A value for a person to read: JSON where it can be, text otherwise."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, BaseMessage):
        return _shown(message_to_dict(value))
    if isinstance(value, Mapping):
        return {str(key): _shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(inner) for inner in value]
    return str(value)


def _line(found: Mapping[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=True) + "\n"
