"""Listings: checkpoints by page, newest first, and a channel's history along the parents.

Each page is a transaction of its own that asks the fence again, and nothing is held between pages. A listing over
everybody leaves out those who cannot be read; a listing of one thread refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver.core import CUSTOMER_COLUMNS, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Sql, Statement, T, run, sql
from shredsaver.errors import CustomerShreddedError, UnsealError
from shredsaver.keytree import KeyTree
from shredsaver.memory import Place
from shredsaver.reading import (
    CHECKPOINT_COLUMNS,
    GET_LATEST_ID,
    GET_WRITES,
    CheckpointRow,
    Loaded,
    Opener,
    Reader,
    WriteRow,
)
from shredsaver.threads import GET_THREAD, Found, Ref, check_name, open_name

_THREAD_COLUMNS: Final = "t.thread, t.customer, t.generation, t.scope, t.next_record, t.next_part, t.epoch, t.name"
_JOINED: Final = (
    f"SELECT {CHECKPOINT_COLUMNS}, {_THREAD_COLUMNS}, "
    + ", ".join(f"c.{column}" for column in CUSTOMER_COLUMNS.split(", "))
    + " FROM checkpoints k JOIN threads t ON t.thread = k.thread AND t.generation = k.generation "
    "JOIN customers c ON c.customer = t.customer WHERE "
)
_ORDER: Final = " ORDER BY k.checkpoint_id DESC, k.thread, k.ns LIMIT ?"
_CONDITIONS: Final = {
    "thread": "k.thread = ?",
    "ns": "k.ns = ?",
    "checkpoint_id": "k.checkpoint_id = ?",
    "before": "k.checkpoint_id < ?",
    "source": "k.source = ?",
}
_AFTER: Final = "(k.checkpoint_id < ? OR (k.checkpoint_id = ? AND (k.thread > ? OR (k.thread = ? AND k.ns > ?))))"
_CHAIN_PAGE: Final = 64
_FIRST_PAGE: Final = 8
_LARGEST_PAGE: Final = 64
GET_CHAIN: Final = sql(
    "WITH RECURSIVE chain (checkpoint_id, parent_id, depth) AS ("
    "SELECT a.checkpoint_id, a.parent_id, 0 FROM checkpoints a WHERE a.thread = ? AND a.ns = ? AND a.checkpoint_id = ? "
    "UNION ALL SELECT b.checkpoint_id, b.parent_id, chain.depth + 1 FROM chain JOIN checkpoints b "
    "ON b.checkpoint_id = chain.parent_id AND b.thread = ? AND b.ns = ? WHERE chain.depth < ?) "
    f"SELECT {CHECKPOINT_COLUMNS} FROM chain JOIN checkpoints k "
    "ON k.thread = ? AND k.ns = ? AND k.checkpoint_id = chain.checkpoint_id ORDER BY chain.depth"
)
_CHECKPOINT_WIDTH: Final = len(CheckpointRow._fields)
_PLACE_WIDTH: Final = len(Place._fields)

Cursor = tuple[str, bytes, str]


class Query(NamedTuple):
    """What a listing is asked for. Empty values do not restrict."""

    ref: Ref | None
    ns: str | None
    checkpoint_id: str
    before: str
    source: str
    wanted: Mapping[str, Any]
    """What the deserialised metadata must equal, key by key."""


class Page(NamedTuple):
    """Some checkpoints, and where to go on; ``after`` is None at the end."""

    found: Sequence[tuple[Loaded, Mapping[str, Any]]]
    after: Cursor | None


@lru_cache(maxsize=64)
def _statement(names: tuple[str, ...], *, resumed: bool) -> Sql:
    conditions = [_CONDITIONS[name] for name in names] + ([_AFTER] if resumed else [])
    return sql(_JOINED + (" AND ".join(conditions) or "1 = 1") + _ORDER)


class Lister:
    """The plans that list. Holds what they share; one for each deployment."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._core: Core = reader.core

    def page(self, query: Query, serde: SerializerProtocol, size: int, after: Cursor | None) -> Plan[Page]:
        """One page of at most ``size`` checkpoints, of which those are given that pass the filter."""
        given = {
            "thread": query.ref.thread if query.ref else None,
            "ns": query.ns,
            "checkpoint_id": query.checkpoint_id or None,
            "before": query.before or None,
            "source": query.source or None,
        }
        names = tuple(name for name, value in given.items() if value is not None)
        params = [given[name] for name in names]
        if after is not None:
            params += [after[0], after[0], after[1], after[1], after[2]]
        statement = Statement(_statement(names, resumed=after is not None), (*params, size))
        dead: set[bytes] = set()
        while True:
            yield Begin("read")
            if query.ref is not None:
                threads, rows = yield from run(Statement(GET_THREAD, (query.ref.thread,)), statement)
                found = yield from self._reader.enter(query.ref, threads.rows, running=False)
                if found is None:
                    yield Rollback()
                    return Page((), None)
            else:
                (rows,) = yield from run(statement)
            customers = self._customers(rows.rows, dead)
            missing = [customer for customer in customers.values() if self._core.tree(customer) is None]
            if missing:
                yield Rollback()
                yield from self._load(missing, dead, strict=query.ref is not None)
                continue
            page = yield from self._open(query, serde, rows.rows, customers)
            yield Commit()
            end = CheckpointRow(*rows.rows[-1][:_CHECKPOINT_WIDTH]) if len(rows.rows) == size else None
            return Page(page, (end.checkpoint_id, end.thread, end.ns) if end else None)

    def _customers(self, rows: Sequence[Sequence[Any]], dead: set[bytes]) -> dict[bytes, Customer]:
        """The customers of some joined rows that may be read."""
        found: dict[bytes, Customer] = {}
        for row in rows:
            columns = row[_CHECKPOINT_WIDTH + _PLACE_WIDTH + 1 :]
            if columns[0] in dead or columns[0] in found:
                continue
            customer = self._core.customer(columns)
            if customer.state in self._reader.admits:
                found[customer.customer] = customer
        return found

    def _load(self, missing: Sequence[Customer], dead: set[bytes], *, strict: bool) -> Plan[None]:
        for customer in missing:
            try:
                yield from self._core.load_tree(customer)
            except CustomerShreddedError:
                if strict:
                    raise
                dead.add(customer.customer)

    def _open(
        self,
        query: Query,
        serde: SerializerProtocol,
        rows: Sequence[Sequence[Any]],
        customers: Mapping[bytes, Customer],
    ) -> Plan[list[tuple[Loaded, Mapping[str, Any]]]]:
        """Opens the joined rows that pass the filter, within the open transaction."""
        openers: dict[bytes, tuple[Opener, str]] = {}
        chosen: list[tuple[CheckpointRow, Mapping[str, Any]]] = []
        for joined in rows:
            row = CheckpointRow(*joined[:_CHECKPOINT_WIDTH])
            place = Place(*joined[_CHECKPOINT_WIDTH : _CHECKPOINT_WIDTH + _PLACE_WIDTH])
            customer = customers.get(place.customer)
            tree = self._core.tree(customer) if customer else None
            if customer is None or tree is None or customer.generation != place.generation:
                continue
            if place.thread not in openers:
                found = Found(place, joined[_CHECKPOINT_WIDTH + _PLACE_WIDTH], customer)
                name = self._name(tree, found, query.ref)
                openers[place.thread] = (Opener(self._core, place, tree), name)
            record = openers[place.thread][0].checkpoint(row)
            metadata = serde.loads_typed(record.metadata)
            if all(metadata.get(key) == value for key, value in query.wanted.items()):
                chosen.append((row, metadata))
        writes = yield from run(*(Statement(GET_WRITES, (row.thread, row.ns, row.checkpoint_id)) for row, _ in chosen))
        page = []
        for (row, metadata), pending in zip(chosen, writes, strict=True):
            opener, thread_id = openers[row.thread]
            loaded = yield from self._reader.load(opener, thread_id, row, map(WriteRow._make, pending.rows))
            page.append((loaded, metadata))
        return page

    def _name(self, tree: KeyTree, found: Found, ref: Ref | None) -> str:
        if ref is not None:
            check_name(self._core, tree, found, ref)
            return ref.thread_id
        name = open_name(self._core, tree, found.place, found.name)
        if self._core.token("thread", name) != found.place.thread:
            raise UnsealError(f"threads/{found.place.thread.hex()}: the row carries another thread's name")
        return name

    # -- delta channels -----------------------------------------------------------------------------------------------

    def history(
        self, ref: Ref, ns: str, checkpoint_id: str, channels: Sequence[str], serde: SerializerProtocol
    ) -> Plan[dict[str, DeltaChannelHistory]]:
        """What some channels' values were made of: see `BaseCheckpointSaver.get_delta_channel_history`."""
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        seen: set[str] = set()
        cursor = checkpoint_id
        while len(seeds) < len(writes):
            for loaded in (yield from self._chain(ref, ns, cursor, writes.keys() - seeds.keys())):
                first = not seen
                if loaded.row.checkpoint_id in seen:
                    raise UnsealError(f"checkpoints/{ref.thread.hex()}: a checkpoint is its own ancestor")
                seen.add(loaded.row.checkpoint_id)
                cursor = loaded.row.parent_id
                if first:  # the writes of the checkpoint asked for are still pending, its value is the question
                    continue
                for write in reversed(loaded.writes):
                    if write.channel not in seeds:
                        writes[write.channel].append((write.task_id, write.channel, serde.loads_typed(write.value)))
                for channel, value in loaded.values.items():
                    if channel not in seeds:
                        seeds[channel] = serde.loads_typed((value.tag, value.data))
            if not seen or not cursor or cursor in seen:
                break
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            history[channel] = {"writes": list(reversed(writes[channel]))}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    def _chain(self, ref: Ref, ns: str, start: str, channels: AbstractSet[str]) -> Plan[list[Loaded]]:
        """A checkpoint (the latest without an id) and its ancestors, a page of them, with nothing but some channels."""
        key = (ref.thread, ns)
        opener, (_, latest) = yield from self._reader.begin(ref, Statement(GET_LATEST_ID, (*key, ref.thread)))
        first = start or (latest.rows[0][0] if latest.rows else "")
        if opener is None or not first:
            yield Rollback()
            return []
        (rows,) = yield from run(Statement(GET_CHAIN, (*key, first, *key, _CHAIN_PAGE - 1, *key)))
        chain = [row for row in map(CheckpointRow._make, rows.rows) if row.generation == opener.place.generation]
        writes = yield from run(*(Statement(GET_WRITES, (*key, row.checkpoint_id)) for row in chain))
        page = []
        for row, pending in zip(chain, writes, strict=True):
            rows_ = map(WriteRow._make, pending.rows)
            page.append((yield from self._reader.load(opener, ref.thread_id, row, rows_, channels)))
        yield Commit()
        return page


class Walk:
    """Where a listing stands between two pages."""

    def __init__(self, query: Query, limit: int | None) -> None:
        self.query = query
        self.after: Cursor | None = None
        self._left = limit
        self._size = _FIRST_PAGE if limit is None else min(_FIRST_PAGE, max(limit, 1))
        self.done = limit is not None and limit <= 0

    @property
    def size(self) -> int:
        """Rows to look at for the next page: more and more, since with a filter few of them may count."""
        if self._left is None or self.query.wanted:
            return self._size
        return min(self._size, max(self._left, 1))

    def take(self, page: tuple[list[T], Cursor | None]) -> list[T]:
        """What to give of a page."""
        found, self.after = page
        found = found[: self._left]
        if self._left is not None:
            self._left -= len(found)
        self._size = min(2 * self._size, _LARGEST_PAGE)
        self.done = self.after is None or self._left == 0
        return found
