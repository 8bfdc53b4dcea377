"""Counting again, by route: what is there of a customer, and how much of it opens.

The same rows are counted here, exported, and erased by a shred: what is shown is what is erased. Records are opened
with whatever key the key service still gives, which for a shredded customer is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shredsaver.administration import Administration
from shredsaver.core import GET_CUSTOMER, Core
from shredsaver.db.base import Begin, Commit, Plan, Statement, run, sql
from shredsaver.errors import CustomerShreddedError, FormatError, UnsealError
from shredsaver.items import ITEM_COLUMNS, ItemRow, Owner, open_item, open_namespace
from shredsaver.keytree import KeyTree
from shredsaver.memory import Place
from shredsaver.namespaces import SHARED_NAME
from shredsaver.outside import Outside
from shredsaver.purging import count
from shredsaver.reading import CHECKPOINT_COLUMNS, WRITE_COLUMNS, CheckpointRow, Opener, WriteRow
from shredsaver.restraint import EVENTS_OF, EventRow, open_event
from shredsaver.results import CustomerStatus
from shredsaver.sealing import CUSTOMER_NAME
from shredsaver.selecting import items_sql
from shredsaver.threads import GET_NAME

# Where a page begins is compared as a row: so it is a bound of the index, and not a filter over all that was counted.
PAGE: Final = 64
THREADS: Final = sql(
    "SELECT thread, customer, generation, scope, next_record, next_part, epoch FROM threads "
    "WHERE customer = ? AND scope > 0 AND thread > ? ORDER BY thread LIMIT ?"
)
CHECKPOINTS: Final = sql(
    f"SELECT {CHECKPOINT_COLUMNS} FROM checkpoints k WHERE k.thread = ? "
    "AND (k.ns, k.checkpoint_id) > (?, ?) ORDER BY k.ns, k.checkpoint_id LIMIT ?"
)
WRITES: Final = sql(f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ?")
PARTS: Final = sql(
    "SELECT generation, scope, number, sealed FROM parts WHERE thread = ? AND (generation, scope, number) > (?, ?, ?) "
    "ORDER BY generation, scope, number LIMIT ?"
)
ITEMS: Final = items_sql(
    f"SELECT {ITEM_COLUMNS} FROM items i WHERE {{numbered}} = ? "
    "AND (i.number, i.generation) > (?, ?) ORDER BY i.number, i.generation LIMIT ?"
)
NAMESPACES: Final = sql(
    "SELECT generation, template, labels, scope, number, sealed FROM namespaces WHERE customer = ? "
    "AND (template, labels) > (?, ?) ORDER BY template, labels LIMIT ?"
)
TOMBSTONES: Final = sql("SELECT count(*) FROM erasures WHERE customer = ? AND state NOT IN ('scheduled', 'cancelled')")


_PAYLOADS: Final = ("checkpoints", "writes", "parts", "items", "namespaces", "events")
_ROUTES: Final = ("live state", "resumable snapshots", *_PAYLOADS, "tombstones", "threads")


@dataclass(frozen=True)
class RouteCount:
    """Rows of a route, and how many of them open with today's keys."""

    rows: int
    opens: int


@dataclass(frozen=True)
class Audit:
    """What is there of a customer.

    Attributes:
        status: Where the customer stands; None in an audit of everybody.
        routes: By route: ``live state`` (threads whose latest checkpoint opens), ``resumable snapshots``,
            ``checkpoints``, ``writes``, ``parts``, ``items``, ``namespaces`` (of items), ``events`` (who held or
            restricted it, and why), ``tombstones`` (they hold no payload: none opens), and ``target NAME`` for each
            erasure target: what it still has, all of which counts as open.
        damaged: Rows that should open and do not, by name.
        unanswered: Erasure targets that did not answer.
    """

    status: CustomerStatus | None
    routes: Mapping[str, RouteCount]
    damaged: Sequence[str] = field(default=())
    unanswered: Sequence[str] = field(default=())

    @property
    def opens(self) -> int:
        """How many records open, over all routes that hold payloads."""
        return sum(self.routes[route].opens for route in _PAYLOADS)

    @classmethod
    def of_all(cls, audits: Iterable[Audit]) -> Audit:
        """The sum of some audits."""
        rows: Counter[str] = Counter()
        opens: Counter[str] = Counter()
        damaged: list[str] = []
        unanswered: dict[str, None] = {}
        for one in audits:
            for route, found in one.routes.items():
                rows[route] += found.rows
                opens[route] += found.opens
            damaged += one.damaged
            unanswered.update(dict.fromkeys(one.unanswered))
        routes = dict.fromkeys((*_ROUTES, *rows))
        return cls(None, {route: RouteCount(rows[route], opens[route]) for route in routes}, damaged, (*unanswered,))


class _Tally(NamedTuple):
    rows: dict[str, int]
    opens: dict[str, int]
    damaged: list[str]

    def add(self, route: str, *, opens: bool) -> None:
        self.rows[route] = self.rows.get(route, 0) + 1
        self.opens[route] = self.opens.get(route, 0) + opens


class Auditor:
    """The plans that count. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, administration: Administration, outside: Outside) -> None:
        self._core = core
        self._administration = administration
        self._outside = outside

    def audit(self, token: bytes, customer_id: str | None) -> Plan[Audit]:
        """Counts a customer's records and tries to open each, page by page. Works before, during and after a shred.

        Targets are asked by the id; without one, by the id that is sealed in the customer's row.
        """
        status = yield from self._administration.status(token)
        tree = yield from self._tree(token)
        tally = _Tally({}, {}, [])
        after = b""
        while True:
            yield Begin("read")
            (threads,) = yield from run(Statement(THREADS, (token, after, PAGE)))
            yield Commit()
            for row in threads.rows:
                place = Place(*row)
                # A customer that came back has another tree: rows that were left of it before are dead, not damaged.
                living = tree if place.generation == status.generation else None
                yield from self._thread(place, living, tally)
            if len(threads.rows) < PAGE:
                break
            after = bytes(threads.rows[-1][0])
        owner = None if tree is None else Owner(token, status.generation, tree)
        for route in (self._items, self._namespaces, self._events):
            yield from route(owner, token, tally)
        yield Begin("read")
        (dead,) = yield from run(Statement(TOMBSTONES, (token,)))
        counted = yield from count(token, max(status.generation, 1))
        yield Commit()
        routes = {
            route: RouteCount(tally.rows.get(route, 0), tally.opens.get(route, 0))
            for route in ("live state", "resumable snapshots", *_PAYLOADS)
        }
        routes["tombstones"] = RouteCount(int(dead.rows[0][0]), 0)
        routes["threads"] = RouteCount(counted["threads"], routes["live state"].opens)
        if customer_id is None and tree is not None:
            customer_id = yield from self._id(token, status.generation, tree)
        told = yield from self._outside.count(token, status.generation, customer_id, tree, status.erasure_id)
        routes.update({f"target {name}": RouteCount(left, left) for name, left in told.items() if left is not None})
        return Audit(status, routes, tuple(tally.damaged), tuple(name for name, left in told.items() if left is None))

    def _id(self, token: bytes, generation: int, tree: KeyTree) -> Plan[str | None]:
        """The customer's id. None for the deployment's own, which is nobody's."""
        if token == self._core.token(*SHARED_NAME):
            return None
        yield Begin("read")
        (found,) = yield from run(Statement(GET_NAME, (token,)))
        yield Commit()
        if not found.rows or found.rows[0][0] is None:
            return None
        where = ("customers", token)
        opened = self._core.unseal(tree, CUSTOMER_NAME, (token, generation), 0, 0, found.rows[0][0], where)
        return opened.decode("utf-8")

    def _events(self, owner: Owner | None, token: bytes, tally: _Tally) -> Plan[None]:
        seq = 0
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(EVENTS_OF, (token, seq, PAGE)))
            yield Commit()
            for row in map(EventRow._make, page.rows):
                seq = row.seq
                living = _living(owner, row.generation)
                opens = _opens(living, tally, lambda to, row=row: open_event(self._core, to.tree, token, row))
                tally.add("events", opens=opens)
            if len(page.rows) < PAGE:
                return

    def _tree(self, token: bytes) -> Plan[KeyTree | None]:
        """The tree, whatever the customer's state says, as long as the key service gives it; straight from there."""
        yield Begin("read")
        (row,) = yield from run(Statement(GET_CUSTOMER, (token,)))
        yield Commit()
        if not row.rows:
            return None
        customer = self._core.customer(row.rows[0])
        try:
            yield from self._core.load_tree(customer)
        except CustomerShreddedError:
            return None
        return self._core.tree(customer)

    def _thread(self, place: Place, tree: KeyTree | None, tally: _Tally) -> Plan[None]:
        opener = Opener(self._core, place, tree) if tree is not None else None
        latest: dict[str, tuple[str, bool]] = {}
        ns, checkpoint_id = "", ""
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(CHECKPOINTS, (place.thread, ns, checkpoint_id, PAGE)))
            for row in map(CheckpointRow._make, page.rows):
                ns, checkpoint_id = row.ns, row.checkpoint_id
                opens = yield from self._resumable(opener, place, row, tally)
                latest[ns] = (checkpoint_id, opens)
            yield Commit()
            if len(page.rows) < PAGE:
                break
        if latest:
            tally.add("live state", opens=all(opens for _, opens in latest.values()))
        yield Begin("read")
        (writes,) = yield from run(Statement(WRITES, (place.thread,)))
        yield Commit()
        for write in map(WriteRow._make, writes.rows):
            living = opener if write.generation == place.generation else None
            tally.add("writes", opens=_opens(living, tally, lambda found, write=write: found.write_bytes(write)))
        yield from self._parts(place, opener, tally)

    def _resumable(self, opener: Opener | None, place: Place, row: CheckpointRow, tally: _Tally) -> Plan[bool]:
        """Whether a checkpoint's record opens, and all of its values do."""
        living = opener if row.generation == place.generation else None
        opens = _opens(living, tally, lambda found: found.checkpoint_bytes(row))
        tally.add("checkpoints", opens=opens)
        resumable = False
        if opens and living is not None:
            manifest = living.checkpoint(row).manifest
            try:
                yield from living.fetch([(row.scope + 1, entry) for entry in manifest.values()])
                for entry in manifest.values():
                    living.join(row.scope + 1, entry)
                resumable = True
            except (UnsealError, FormatError) as error:
                tally.damaged.append(str(error))
        tally.add("resumable snapshots", opens=resumable)
        return resumable

    def _parts(self, place: Place, opener: Opener | None, tally: _Tally) -> Plan[None]:
        # Each generation hands scopes and numbers out anew.
        last = scope = number = -1
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(PARTS, (place.thread, last, scope, number, PAGE)))
            yield Commit()
            for last, scope, number, sealed in page.rows:
                part = (scope, number, sealed)
                living = opener if last == place.generation else None
                tally.add("parts", opens=_opens(living, tally, lambda found, part=part: found.part(*part)))
            if len(page.rows) < PAGE:
                return

    def _items(self, owner: Owner | None, token: bytes, tally: _Tally) -> Plan[None]:
        # Each generation numbers its items anew.
        number = last = -1
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(ITEMS, (token, number, last, PAGE)))
            yield Commit()
            for row in map(ItemRow._make, page.rows):
                number, last = row.number, row.generation
                living = _living(owner, row.generation)
                tally.add("items", opens=_opens(living, tally, lambda to, row=row: open_item(self._core, to, row)))
            if len(page.rows) < PAGE:
                return

    def _namespaces(self, owner: Owner | None, token: bytes, tally: _Tally) -> Plan[None]:
        template, labels = "", b""
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(NAMESPACES, (token, template, labels, PAGE)))
            yield Commit()
            for generation, *row in page.rows:
                template, labels = row[:2]
                living = _living(owner, generation)
                opens = _opens(living, tally, lambda to, row=row: open_namespace(self._core, to, row))
                tally.add("namespaces", opens=opens)
            if len(page.rows) < PAGE:
                return


def _living(owner: Owner | None, generation: int) -> Owner | None:
    return owner if owner is not None and generation == owner.generation else None


def _opens(living: Opener | Owner | None, tally: _Tally, attempt: Any) -> bool:
    if living is None:
        return False
    try:
        attempt(living)
    except (UnsealError, FormatError) as error:
        tally.damaged.append(str(error))
        return False
    return True
