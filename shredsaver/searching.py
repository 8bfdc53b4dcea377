"""Reading the store: single items, searches, listings of namespaces. All within a transaction that others opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.store.base import Item, ListNamespacesOp, MatchCondition, SearchItem, SearchOp

from shredsaver.core import Core
from shredsaver.db.base import Plan, Statement, run, sql
from shredsaver.errors import ConfigurationError
from shredsaver.filters import matches
from shredsaver.items import (
    ITEM_COLUMNS,
    Content,
    ItemRow,
    Owner,
    item_of,
    key_token,
    label_tokens,
    open_item,
    open_namespace,
)
from shredsaver.namespaces import Namespace, Owned, Templates
from shredsaver.vectors import VectorCache, best_scores, open_vectors

if TYPE_CHECKING:
    from shredsaver.vectors import Matrix

_BEYOND: Final = b"\xff" * 64
"""Sorts behind whatever tokens may follow a prefix."""

_LIVE: Final = "(i.expires_at IS NULL OR i.expires_at > ?)"
_UNDER: Final = (
    "FROM items i WHERE i.customer = ? AND i.template = ? AND i.labels >= ? AND i.labels <= ? AND i.generation = ? "
    f"AND {_LIVE} "
)
_NEWEST: Final = "ORDER BY i.updated_at DESC, i.number DESC"
GET_ITEM: Final = sql(
    f"SELECT {ITEM_COLUMNS} FROM items i WHERE i.customer = ? AND i.template = ? AND i.labels = ? AND i.key = ? "
    f"AND i.generation = ? AND {_LIVE}"
)
PAGE_OF_ITEMS: Final = sql(f"SELECT {ITEM_COLUMNS} {_UNDER}{_NEWEST} LIMIT ? OFFSET ?")
NEXT_ITEMS: Final = sql(
    f"SELECT {ITEM_COLUMNS} {_UNDER}AND (i.updated_at < ? OR (i.updated_at = ? AND i.number < ?)) {_NEWEST} LIMIT ?"
)
ITEM_NUMBERS: Final = sql(f"SELECT i.number, i.vectors IS NOT NULL {_UNDER}{_NEWEST}")
ITEMS_BEHIND: Final = sql(f"SELECT {ITEM_COLUMNS} {_UNDER}AND i.number > ? ORDER BY i.number LIMIT ?")
ITEM_BY_NUMBER: Final = sql(f"SELECT {ITEM_COLUMNS} {_UNDER}AND i.number = ?")
LIST_NAMESPACES: Final = sql(
    "SELECT n.template, n.labels, n.scope, n.number, n.sealed FROM namespaces n WHERE n.customer = ? "
    "AND n.generation = ? AND EXISTS (SELECT 1 FROM items i WHERE i.customer = n.customer AND i.template = n.template "
    f"AND i.labels = n.labels AND i.generation = n.generation AND {_LIVE}) ORDER BY n.template, n.labels"
)
_PAGE: Final = 256
_NEVER: Final = 2**62


class Target(NamedTuple):
    """Where one search looks: a customer's items under a template, whose labels begin with some."""

    owner: Owner
    template: str
    labels: Namespace


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
        labels = label_tokens(owner.tree, owned.template, owned.labels)
        token = key_token(owner.tree, owned.template, labels, key)
        (found,) = yield from run(
            Statement(GET_ITEM, (owner.customer, owned.template, labels, token, owner.generation, self._now))
        )
        return self._hit(owner, ItemRow(*found.rows[0])) if found.rows else None

    def search(self, op: SearchOp, targets: Sequence[Target], query: Sequence[float] | None) -> Plan[list[Hit]]:
        """The items of some targets that pass a filter, best or newest first, as ``offset`` and ``limit`` say."""
        if op.limit < 0 or op.offset < 0:
            raise ConfigurationError("limit and offset of a search must not be negative")
        if query is not None:
            return (yield from self._similar(op, targets, query))
        hits: list[Hit] = []
        wanted = op.offset + op.limit
        for target in targets:
            if not op.filter and len(targets) == 1:
                page = (*self._under(target), op.limit, op.offset)
                (found,) = yield from run(Statement(PAGE_OF_ITEMS, page))
                return [self._hit(target.owner, ItemRow(*row)) for row in found.rows]
            hits += yield from self._newest(target, op.filter, wanted)
        hits.sort(key=lambda hit: (hit.row.updated_at, hit.row.number), reverse=True)
        return hits[op.offset : wanted]

    def namespaces(self, owner: Owner) -> Plan[list[Namespace]]:
        """A customer's namespaces that hold an item."""
        (found,) = yield from run(Statement(LIST_NAMESPACES, (owner.customer, owner.generation, self._now)))
        names = []
        for row in found.rows:
            label, labels = open_namespace(self._core, owner, row)
            namespace = self._templates.namespace(row[0], label, labels)
            if namespace is not None:
                names.append(namespace)
        return names

    # -- steps ------------------------------------------------------------------------------------------------------

    def _under(self, target: Target) -> tuple[Any, ...]:
        prefix = label_tokens(target.owner.tree, target.template, target.labels)
        owner = target.owner
        return (owner.customer, target.template, prefix, prefix + _BEYOND, owner.generation, self._now)

    def _hit(self, owner: Owner, row: ItemRow) -> Hit:
        content = open_item(self._core, owner, row)
        return Hit(row, item_of(self._namespace(row, content), content, row))

    def _namespace(self, row: ItemRow, content: Content) -> Namespace:
        namespace = self._templates.namespace(row.template, content.customer_label, content.labels)
        if namespace is None:
            raise ConfigurationError(
                f"items under the template {row.template} are there, but it is not configured any more"
            )
        return namespace

    def _newest(self, target: Target, wanted: Mapping[str, Any] | None, most: int) -> Plan[list[Hit]]:
        """Up to so many items of a target that pass, newest first, page by page."""
        hits: list[Hit] = []
        updated_at, number = _NEVER, 0
        while len(hits) < most:
            after = (updated_at, updated_at, number, _PAGE)
            (found,) = yield from run(Statement(NEXT_ITEMS, (*self._under(target), *after)))
            for values in found.rows:
                hit = self._hit(target.owner, ItemRow(*values))
                if matches(hit.item.value, wanted):
                    hits.append(hit)
            if len(found.rows) < _PAGE:
                break
            updated_at, number = hit.row.updated_at, hit.row.number
        return hits[:most]

    def _similar(self, op: SearchOp, targets: Sequence[Target], query: Sequence[float]) -> Plan[list[Hit]]:
        """By similarity; items without vectors fill what is left of the page, as in LangGraph's own store."""
        scored: list[tuple[float, Target, int]] = []
        unscored: list[tuple[Target, int]] = []
        for target in targets:
            (found,) = yield from run(Statement(ITEM_NUMBERS, self._under(target)))
            with_vectors = [int(number) for number, has in found.rows if has]
            unscored += ((target, int(number)) for number, has in found.rows if not has)
            matrices = yield from self._matrices(target, with_vectors)
            scores = best_scores(query, [matrices[number] for number in with_vectors])
            scored += ((score, target, number) for score, number in zip(scores, with_vectors, strict=True))
        scored.sort(key=lambda entry: entry[0], reverse=True)
        ranked = ((target, number, score) for score, target, number in scored)
        hits = (yield from self._passing(op, ranked, op.offset + op.limit))[op.offset :]
        rest = ((target, number, None) for target, number in unscored)
        return hits + (yield from self._passing(op, rest, op.limit - len(hits)))

    def _passing(self, op: SearchOp, ranked: Iterable[tuple[Target, int, float | None]], most: int) -> Plan[list[Hit]]:
        hits: list[Hit] = []
        for some in _chunks(ranked, most if not op.filter else _PAGE):
            if len(hits) >= most:
                break
            results = yield from run(
                *(Statement(ITEM_BY_NUMBER, (*self._under(target), number)) for target, number, _ in some)
            )
            for (target, _, score), result in zip(some, results, strict=True):
                hit = self._hit(target.owner, ItemRow(*result.rows[0]))._replace(score=score)
                if matches(hit.item.value, op.filter):
                    hits.append(hit)
        return hits[: max(most, 0)]

    def _matrices(self, target: Target, numbers: Sequence[int]) -> Plan[dict[int, Matrix]]:
        """The opened vectors of items, from the cache or the database."""
        owner = target.owner
        matrices = self._vectors.get(owner, numbers)
        fresh: dict[int, Matrix] = {}
        missing = sorted(set(numbers) - matrices.keys())
        behind = missing[0] - 1 if missing else 0
        while missing and behind < missing[-1]:
            (found,) = yield from run(Statement(ITEMS_BEHIND, (*self._under(target), behind, _PAGE)))
            if not found.rows:
                break
            for values in found.rows:
                row = ItemRow(*values)
                behind = row.number
                if row.vectors is not None and row.number not in matrices:
                    open_item(self._core, owner, row)  # so that vectors of another item are never ranked for it
                    fresh[row.number] = open_vectors(self._core, owner, row, row.vectors)
        self._vectors.add(owner, fresh)
        return {**matrices, **fresh}


def _chunks(
    items: Iterable[tuple[Target, int, float | None]], size: int
) -> Iterator[list[tuple[Target, int, float | None]]]:
    chunk: list[tuple[Target, int, float | None]] = []
    for item in items:
        if size <= 0:
            return
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


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
