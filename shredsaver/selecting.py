"""Which items a search looks at, and their rows: the statements, each answered by an index. Nothing is opened here.

A search first asks which numbers there are, in the order it wants them, from an index alone; rows, which are long, are
fetched by number as they are needed. So a page never sorts rows, and a long search never sorts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from shredsaver.db.base import Plan, Sql, Statement, run, sql
from shredsaver.items import ITEM_COLUMNS, ItemRow, Owner, label_tokens
from shredsaver.namespaces import Namespace

PAGE: Final = 256
"""Rows fetched at once."""

_WIDTH: Final = 64
_BEYOND: Final = b"\xff" * 64
"""Sorts behind whatever tokens may follow a prefix."""

# Vectors are long, and whoever opens an item needs to know only whether it has any.
_HEADS: Final = ITEM_COLUMNS.replace("i.vectors", "length(i.vectors)")
_LIVE: Final = "AND (i.expires_at IS NULL OR i.expires_at > ?) "
_OWN: Final = f"AND i.template = ? AND i.generation = ? {_LIVE}"
_NEWEST: Final = "ORDER BY i.updated_at DESC, i.number DESC"
_NUMBERS: Final = (
    f"SELECT i.number FROM items i WHERE {{placed}} = ? {_OWN}AND i.labels >= ? AND i.labels <= ? {_NEWEST}"
)
# By customer and number alone: with the template, SQLite would walk all of it in the order of another index.
_NUMBERED: Final = "{numbered} = ? AND i.generation = ? "
_BY_NUMBER: Final = ("i.number", "{int}")
# How the customer is written decides which indexes PostgreSQL may take: as it is, the primary key alone.
_WRITTEN: Final = {
    "aged": "(i.customer || ''::bytea)",  # items_by_age
    "placed": "(''::bytea || i.customer)",  # items_by_place
    "numbered": "substr(i.customer, 1)",  # items_by_number
}


def items_sql(template: str) -> Sql:
    """As `sql`, for items, the customer written as an index wants it: ``{aged}``, ``{placed}`` or ``{numbered}``."""
    plain, written = template, template
    for name, expression in _WRITTEN.items():
        plain = plain.replace(f"{{{name}}}", "i.customer")
        written = written.replace(f"{{{name}}}", expression)
    return Sql(sql(plain).sqlite, sql(written).postgres)


def each(columns: str, on: tuple[str, str], wanted: int | str, conditions: str) -> Sql:
    """Finds items one by one in an index. Its parameters are those of ``wanted``, then those of ``conditions``.

    SQLite does so for ``IN``. PostgreSQL might read all of a customer's items and compare; OFFSET 0 keeps it from that.

    Args:
        columns: What to select.
        on: The column that is looked for, and its type as `sql` has it.
        wanted: How many values of it are given, the same one several times if need be; or the query that gives them.
        conditions: The other columns of the index, and what else must hold.
    """
    column, kind = on
    listed = wanted if isinstance(wanted, str) else ", ".join("?" * wanted)
    rows = wanted
    if not isinstance(rows, str):
        rows = f"SELECT DISTINCT column1 FROM (VALUES {listed.replace('?', f'(CAST(? AS {kind}))')})"
    return Sql(
        items_sql(f"SELECT {columns} FROM items i WHERE {column} IN ({listed}) AND {conditions}").sqlite,
        items_sql(
            f"SELECT f.* FROM ({rows}) AS v(value) CROSS JOIN LATERAL "
            f"(SELECT {columns} FROM items i WHERE {column} = v.value AND {conditions} OFFSET 0) f"
        ).postgres,
    )


GET_ITEM: Final = sql(f"SELECT {_HEADS} FROM items i WHERE i.customer = ? {_OWN}AND i.labels = ? AND i.key = ?")
NEWEST_OF_ALL: Final = items_sql(f"SELECT {_HEADS} FROM items i WHERE {{aged}} = ? {_OWN}{_NEWEST} LIMIT ? OFFSET ?")
NEWEST_UNDER: Final = each(_HEADS, _BY_NUMBER, f"{_NUMBERS} LIMIT ? OFFSET ?", _NUMBERED)
NUMBERS_UNDER: Final = items_sql(_NUMBERS)
HEADS_BY_NUMBER: Final = each(_HEADS, _BY_NUMBER, _WIDTH, f"{_NUMBERED}{_LIVE}")
ROWS_BY_NUMBER: Final = each(ITEM_COLUMNS, _BY_NUMBER, _WIDTH, f"{_NUMBERED}{_LIVE}")
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
        params = (*own, prefix, prefix + _BEYOND, limit, offset, *target.owner.pair)
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
    results = yield from run(*(Statement(template, (*some, *own)) for some in filled))
    found = (ItemRow(*row) for result in results for row in result.rows)
    return {row.number: row for row in found}


def chunks(whole: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """A sequence in pieces."""
    rest = iter(whole)
    while piece := tuple(islice(rest, size)):
        yield piece
