"""Searches and listings that name no customer: a walk over the living, one transaction each, the dead left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph.store.base import ListNamespacesOp, SearchOp

from shredsaver.core import CUSTOMER_COLUMNS, GET_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run, sql
from shredsaver.errors import CustomerRestrictedError, CustomerShreddedError
from shredsaver.items import Owner
from shredsaver.namespaces import SHARED_NAME, Reach, Templates
from shredsaver.searching import Searcher
from shredsaver.selecting import Target
from shredsaver.vectors import VectorCache

LIVE_CUSTOMERS: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer > ? AND state = 'live' ORDER BY customer LIMIT 64"
)

Wide = tuple[SearchOp | ListNamespacesOp, Sequence[Reach], Sequence[float] | None]
"""An operation, the templates under which it reaches everybody, and its embedded query."""


class Everybody:
    """The walk. Holds what it shares with the store."""

    def __init__(self, core: Core, templates: Templates, vectors: VectorCache) -> None:
        self._core = core
        self._templates = templates
        self._vectors = vectors

    def find(self, wide: Mapping[int, Wide]) -> Plan[dict[int, list[Any]]]:
        """What some operations find, by position: hits of searches, namespaces of listings. Shared items are left out.

        Each customer's part of an answer is of one moment, the whole is not.
        """
        found: dict[int, list[Any]] = {position: [] for position in wide}
        shared = self._core.token(*SHARED_NAME)
        after = b""
        while wide:
            yield Begin("read")
            (rows,) = yield from run(Statement(LIVE_CUSTOMERS, (after,)))
            yield Rollback()
            if not rows.rows:
                break
            for row in rows.rows:
                after = bytes(row[0])
                if after != shared:
                    yield from self._one(self._core.customer(row), wide, found)
        return found

    def _one(self, customer: Customer, wide: Mapping[int, Wide], found: Mapping[int, list[Any]]) -> Plan[None]:
        try:
            if self._core.tree(customer) is None:
                yield from self._core.load_tree(customer)
            yield Begin("read")
            (row,) = yield from run(Statement(GET_CUSTOMER, (customer.customer,)))
            now = yield from self._core.admit(row.rows[0], customer.generation)
        except (CustomerShreddedError, CustomerRestrictedError):
            return  # since the page was read
        tree = self._core.tree(now)
        if tree is None:  # replaced since the page was read
            yield Rollback()
            yield from self._one(now, wide, found)
            return
        owner = Owner(customer.customer, customer.generation, tree)
        searcher = Searcher(self._core, self._templates, self._vectors, int(self._core.clock() * 1000))
        for position, (op, reaches, query) in wide.items():
            if isinstance(op, SearchOp):
                targets = [Target(owner, reach.template, reach.labels) for reach in reaches]
                page = op._replace(limit=op.limit + op.offset, offset=0)
                found[position].extend((yield from searcher.search(page, targets, query)))
            else:
                found[position].extend((yield from searcher.namespaces(owner)))
        yield Commit()
