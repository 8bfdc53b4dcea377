"""Reading the store: single items, searches, listings of namespaces. All within a transaction that others opened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.store.base import Item, ListNamespacesOp, MatchCondition, SearchItem, SearchOp

from shredsaver import selecting
from shredsaver.core import Core
from shredsaver.db.base import Plan, Statement, run
from shredsaver.errors import ConfigurationError
from shredsaver.filters import matches
from shredsaver.items import Content, ItemRow, Owner, item_of, key_token, open_item, open_items, open_namespace
from shredsaver.namespaces import Namespace, Owned, Templates
from shredsaver.selecting import PAGE, Target
from shredsaver.vectors import Shelf, VectorCache, empty_shelf, open_vectors, shelved, stacked

if TYPE_CHECKING:
    from shredsaver.vectors import Matrix


_FEW: Final = 32
_PER_HIT: Final = 4
"""Items that are opened first for each that is wanted, when a filter may leave some out."""


_parsed: Final = json.JSONDecoder().decode


class Hit(NamedTuple):
    """An item that was found."""

    row: ItemRow
    item: Item
    score: float | None = None


class Searcher:
    """Reads for one batch, at one time. Everything needs an open transaction, and owners whom the fence let through."""

    def __init__(self, core: Core, templates: Templates, vectors: VectorCache, now_ms: int) -> None:
        self._core = core
        self._templates = templates
        self._vectors = vectors
        self._now = now_ms

    def get(self, owner: Owner, owned: Owned, key: str) -> Plan[Hit | None]:
        """One item."""
        target = Target(owner, owned.template, owned.labels)
        labels = target.prefix
        token = key_token(owner.tree, owned.template, labels, key)
        (found,) = yield from run(Statement(selecting.GET_ITEM, (*target.own(self._now), labels, token)))
        return self._hit(owner, ItemRow(*found.rows[0])) if found.rows else None

    def search(self, op: SearchOp, targets: Sequence[Target], query: Sequence[float] | None) -> Plan[list[Hit]]:
        """The items of some targets that pass a filter, best or newest first, as ``offset`` and ``limit`` say."""
        if op.limit < 0 or op.offset < 0:
            raise ConfigurationError("limit and offset of a search must not be negative")
        if query is not None:
            return (yield from self._similar(op, targets, query))
        if not op.filter and len(targets) == 1:
            rows = yield from selecting.newest(targets[0], self._now, op.limit, op.offset)
            return [self._hit(targets[0].owner, row) for row in rows]
        hits: list[Hit] = []
        wanted = op.offset + op.limit
        for target in targets:
            hits += yield from self._newest(target, op.filter, wanted)
        hits.sort(key=lambda hit: (hit.row.updated_at, hit.row.number), reverse=True)
        return hits[op.offset : wanted]

    def namespaces(self, owner: Owner) -> Plan[list[Namespace]]:
        """A customer's namespaces that hold an item."""
        listing = Statement(selecting.LIST_NAMESPACES, (owner.customer, owner.generation, self._now))
        (found,) = yield from run(listing)
        names = []
        for row in found.rows:
            label, labels = open_namespace(self._core, owner, row)
            namespace = self._templates.namespace(row[0], label, labels)
            if namespace is not None:
                names.append(namespace)
        return names

    # -- newest first -----------------------------------------------------------------------------------------------

    def _hit(self, owner: Owner, row: ItemRow) -> Hit:
        content = open_item(self._core, owner, row)
        return Hit(row, item_of(self._namespace(row, content), content, row))

    def _passing(self, owner: Owner, rows: Sequence[ItemRow], wanted: Mapping[str, Any] | None) -> list[Hit]:
        """Those that pass a filter: most of those that are looked at may not, so nothing else is made of them."""
        hits = []
        for row, content in zip(rows, open_items(self._core, owner, rows), strict=True):
            value = _parsed(content.value)
            if matches(value, wanted):
                hits.append(Hit(row, item_of(self._namespace(row, content), content, row, value)))
        return hits

    def _namespace(self, row: ItemRow, content: Content) -> Namespace:
        namespace = self._templates.namespace(row.template, content.customer_label, content.labels)
        if namespace is None:
            raise ConfigurationError(
                f"items under the template {row.template} are there, but it is not configured any more"
            )
        return namespace

    def _newest(self, target: Target, wanted: Mapping[str, Any] | None, most: int) -> Plan[list[Hit]]:
        """Up to so many items of a target that pass: from the newest page, then from all there are, in order."""
        page = min(PAGE, most if not wanted else max(_FEW, _PER_HIT * most))
        rows = yield from selecting.newest(target, self._now, page)
        hits = self._passing(target.owner, rows, wanted)
        if len(rows) < page or len(hits) >= most:
            return hits[:most]
        seen = {row.number for row in rows}
        numbers = yield from selecting.numbers(target, self._now)
        hits += yield from self._in_order(target, [one for one in numbers if one not in seen], wanted, most - len(hits))
        return hits

    def _in_order(
        self, target: Target, numbers: Sequence[int], wanted: Mapping[str, Any] | None, most: int
    ) -> Plan[list[Hit]]:
        """The first so many that pass, of items given by number."""
        hits: list[Hit] = []
        for some in selecting.chunks(numbers, PAGE if wanted else min(PAGE, max(most, 1))):
            if len(hits) >= most:
                break
            rows = yield from selecting.rows(target, self._now, some)
            hits += self._passing(target.owner, [rows[number] for number in some if number in rows], wanted)
        return hits[: max(most, 0)]

    # -- by similarity ----------------------------------------------------------------------------------------------

    def _similar(self, op: SearchOp, targets: Sequence[Target], query: Sequence[float]) -> Plan[list[Hit]]:
        """Best first; items without vectors fill what is left of the page, as in LangGraph's own store."""
        most = op.offset + op.limit
        hits: list[Hit] = []
        bare: list[tuple[Target, list[int]]] = []
        for target in targets:
            numbers = yield from selecting.numbers(target, self._now)
            shelf = yield from self._shelf(target, numbers, len(query))
            ranked, scores, rest = shelf.ranking(query, numbers)
            found = yield from self._in_order(target, ranked, op.filter, most)
            by_number = dict(zip(ranked, scores, strict=True))
            hits += (hit._replace(score=by_number[hit.row.number]) for hit in found)
            bare.append((target, rest))
        hits.sort(key=lambda hit: hit.score or 0.0, reverse=True)
        hits = hits[op.offset : most]
        for target, numbers in bare:
            hits += yield from self._in_order(target, numbers, op.filter, op.limit - len(hits))
        return hits

    def _shelf(self, target: Target, numbers: Sequence[int], dims: int) -> Plan[Shelf]:
        """A shelf with at least the vectors of these items, from the cache and the database."""
        owner = target.owner
        place = (*owner.pair, target.template, target.prefix)
        kept, ticket = self._vectors.get(place)
        shelf = empty_shelf(dims) if kept is None else kept
        parts = [shelf]
        missing = shelf.missing(numbers)
        for some in selecting.chunks(missing, PAGE):
            rows = yield from selecting.rows(target, self._now, some, vectors=True)
            parts.append(shelved(dims, [(number, self._opened(owner, rows[number])) for number in sorted(rows)]))
        if missing:
            shelf = stacked(parts)
        if len(shelf.numbers) > len(numbers) + max(PAGE, len(numbers) // 4):
            shelf = shelf.having(numbers)
        if shelf is not kept:
            self._vectors.keep(place, shelf, ticket)
        return shelf

    def _opened(self, owner: Owner, row: ItemRow) -> Matrix | None:
        return open_vectors(self._core, owner, row, row.vectors) if isinstance(row.vectors, bytes) else None


def found_item(hit: Hit) -> SearchItem:
    """What a search gives."""
    item = hit.item
    return SearchItem(
        namespace=item.namespace,
        key=item.key,
        value=item.value,
        created_at=item.created_at,
        updated_at=item.updated_at,
        score=hit.score,
    )


def listed(op: ListNamespacesOp, names: Iterable[Namespace]) -> list[Namespace]:
    """Those namespaces that an operation asks for."""
    if op.limit < 0 or op.offset < 0:
        raise ConfigurationError("limit and offset of a listing must not be negative")
    conditions = op.match_conditions or ()
    chosen = {name[: op.max_depth] for name in names if all(_fits(condition, name) for condition in conditions)}
    return sorted(chosen)[op.offset : op.offset + op.limit]


def _fits(condition: MatchCondition, name: Namespace) -> bool:
    path = tuple(condition.path)
    if len(name) < len(path):
        return False
    if condition.match_type == "prefix":
        part = name[: len(path)]
    elif condition.match_type == "suffix":
        part = name[len(name) - len(path) :]
    else:
        raise ConfigurationError(f"there is no match type {condition.match_type!r}: it is prefix or suffix")
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
