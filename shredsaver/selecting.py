"""Which items a search looks at, and their rows: the statements, each answered by an index. Nothing is opened here.

A search first asks which numbers there are, in the order it wants them, from an index alone; rows, which are long, are
fetched by number as they are needed. So a page never sorts rows, and a long search never sorts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from shredsaver.db.base import Plan, Statement, run, sql
from shredsaver.items import ITEM_COLUMNS, ItemRow, Owner, label_tokens
from shredsaver.namespaces import Namespace

PAGE: Final = 256
"""Rows fetched at once."""

_WIDTH: Final = 64
_BEYOND: Final = b"\xff" * 64
"""Sorts behind whatever tokens may follow a prefix."""

# Vectors are long, and whoever opens an item needs to know only whether it has any.
_HEADS: Final = ITEM_COLUMNS.replace("i.vectors", "length(i.vectors)")
_OWN: Final = "FROM items i WHERE i.customer = ? AND i.template = ? AND i.generation = ? "
_LIVE: Final = "AND (i.expires_at IS NULL OR i.expires_at > ?) "
_UNDER: Final = f"{_OWN}{_LIVE}AND i.labels >= ? AND i.labels <= ? "
_NEWEST: Final = "ORDER BY i.updated_at DESC, i.number DESC"
# By customer and number alone: with the template, SQLite would walk all of it in the order of another index.
_BY_NUMBER: Final = "FROM items i WHERE i.customer = ? AND i.generation = ? "
_NUMBERED: Final = f"{_BY_NUMBER}{_LIVE}AND i.number IN ({', '.join('?' * _WIDTH)})"

GET_ITEM: Final = sql(f"SELECT {_HEADS} {_OWN}{_LIVE}AND i.labels = ? AND i.key = ?")
NEWEST_OF_ALL: Final = sql(f"SELECT {_HEADS} {_OWN}{_LIVE}{_NEWEST} LIMIT ? OFFSET ?")
NEWEST_UNDER: Final = sql(
    f"SELECT {_HEADS} {_BY_NUMBER}AND i.number IN (SELECT i.number {_UNDER}{_NEWEST} LIMIT ? OFFSET ?)"
)
NUMBERS_UNDER: Final = sql(f"SELECT i.number {_UNDER}{_NEWEST}")
HEADS_BY_NUMBER: Final = sql(f"SELECT {_HEADS} {_NUMBERED}")
ROWS_BY_NUMBER: Final = sql(f"SELECT {ITEM_COLUMNS} {_NUMBERED}")
LIST_NAMESPACES: Final = sql(
    "SELECT n.template, n.labels, n.scope, n.number, n.sealed FROM namespaces n WHERE n.customer = ? "
    "AND n.generation = ? AND EXISTS (SELECT 1 FROM items i WHERE i.customer = n.customer AND i.template = n.template "
    f"AND i.labels = n.labels AND i.generation = n.generation {_LIVE}) ORDER BY n.template, n.labels"
)


class Target(NamedTuple):
    """Where one search looks: a customer's items under a template, whose labels begin with some."""

    owner: Owner
    template: str
    labels: Namespace

    @property
    def prefix(self) -> bytes:
        """The tokens that the labels of its items begin with."""
        return label_tokens(self.owner.tree, self.template, self.labels)

    def own(self, now_ms: int) -> tuple[Any, ...]:
        """The parameters that statements here begin with."""
        return (self.owner.customer, self.template, self.owner.generation, now_ms)


def newest(target: Target, now_ms: int, limit: int, offset: int = 0) -> Plan[list[ItemRow]]:
    """A page of items, newest first, without their vectors."""
    own, prefix = target.own(now_ms), target.prefix
    if prefix:
        params = (*target.owner.pair, *own, prefix, prefix + _BEYOND, limit, offset)
        statement = Statement(NEWEST_UNDER, params)
    else:
        statement = Statement(NEWEST_OF_ALL, (*own, limit, offset))
    (found,) = yield from run(statement)
    page = (ItemRow(*row) for row in found.rows)
    return sorted(page, key=lambda row: (row.updated_at, row.number), reverse=True)


def numbers(target: Target, now_ms: int) -> Plan[list[int]]:
    """The numbers of all items, newest first."""
    prefix = target.prefix
    (found,) = yield from run(Statement(NUMBERS_UNDER, (*target.own(now_ms), prefix, prefix + _BEYOND)))
    return [number for (number,) in found.rows]


def rows(target: Target, now_ms: int, wanted: Sequence[int], *, vectors: bool = False) -> Plan[dict[int, ItemRow]]:
    """Up to about `PAGE` items by number, with their vectors or without; those that are gone are left out."""
    own = (*target.owner.pair, now_ms)
    template = ROWS_BY_NUMBER if vectors else HEADS_BY_NUMBER
    filled = ((*some, *some[-1:] * (_WIDTH - len(some))) for some in chunks(wanted, _WIDTH))
    results = yield from run(*(Statement(template, (*own, *some)) for some in filled))
    found = (ItemRow(*row) for result in results for row in result.rows)
    return {row.number: row for row in found}


def chunks(whole: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """A sequence in pieces."""
    rest = iter(whole)
    while piece := tuple(islice(rest, size)):
        yield piece
