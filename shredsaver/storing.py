"""A batch of store operations as one transaction: the fence for everybody concerned, then reads, then writes.

Reads see the state before the batch's writes. A search that names no customer walks all of them, page by page, before
the batch's own transaction.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from langgraph.store.base import GetOp, Item, ListNamespacesOp, SearchItem, SearchOp

from shredsaver import erasure
from shredsaver.core import GET_CUSTOMER, SHARE_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run, sql
from shredsaver.errors import ConfigurationError, CustomerShreddedError, LegalHoldError
from shredsaver.everybody import Everybody, Wide
from shredsaver.items import Owner
from shredsaver.namespaces import SHARED_NAME, Namespace, Owned, Reach, Templates
from shredsaver.putting import DELETE_NAMESPACE, Put, Putter
from shredsaver.searching import Hit, Searcher, found_item, listed
from shredsaver.selecting import Target
from shredsaver.threads import Ref, introduce
from shredsaver.vectors import VectorCache

Answer = Item | list[SearchItem] | list[Namespace] | None

REFRESH_ITEM: Final = sql(
    "UPDATE items SET expires_at = ? + ttl WHERE customer = ? AND template = ? AND labels = ? AND key = ? "
    "AND number = ? AND ttl IS NOT NULL"
)
EXPIRED: Final = sql(
    "SELECT i.customer, i.template, i.labels, i.key FROM items i WHERE i.expires_at <= ? AND "
    "(SELECT c.held_until FROM customers c WHERE c.customer = i.customer AND c.state <> 'restricted') <= ? LIMIT 500"
)
# Since it was found, an item may have been renewed.
DELETE_EXPIRED: Final = sql(
    "DELETE FROM items WHERE customer = ? AND template = ? AND labels = ? AND key = ? AND expires_at <= ?"
)


class Batch(NamedTuple):
    """Checked operations: reads by their position, and the last put of each key."""

    reads: Mapping[int, GetOp | SearchOp | ListNamespacesOp]
    puts: Sequence[Put]
    queries: Mapping[int, Sequence[float]]
    """Embedded queries of searches, by position."""


class Storing:
    """The plans of the store. Holds what they share; one for each deployment."""

    def __init__(
        self, core: Core, templates: Templates, vectors: VectorCache, *, dims: int, cross_customer_search: bool
    ) -> None:
        self._core = core
        self._templates = templates
        self._vectors = vectors
        self._dims = dims
        self._cross = cross_customer_search
        self._everybody = Everybody(core, templates, vectors)

    def batch(self, batch: Batch) -> Plan[dict[int, Answer]]:
        """Carries out a batch. Gives the answers of its reads by position."""
        needed = {read: self._reaches(op) for read, op in batch.reads.items()}
        strangers = yield from self._everybody.find(self._wide(batch, needed))
        ids = {reach.customer_id for reaches in needed.values() for reach in reaches if not reach.everyone}
        writers = {put.owned.customer_id for put in batch.puts if put.value is not None}
        ids |= {put.owned.customer_id for put in batch.puts}
        deleters = {put.owned.customer_id for put in batch.puts if put.value is None}
        while True:
            owners = yield from self._enter(ids, writers, deleters, write=bool(batch.puts))
            if owners is None:
                continue
            searcher = Searcher(self._core, self._templates, self._vectors, int(self._core.clock() * 1000))
            answers: dict[int, Answer] = {}
            refresh: list[Hit] = []
            for position in batch.reads:
                answers[position] = yield from self._read(searcher, batch, position, needed, owners, strangers, refresh)
            if batch.puts:
                yield from self._touch(refresh)
                yield from Putter(self._core, self._dims, self._core.clock()).put(batch.puts, owners)
            yield Commit()
            if refresh and not batch.puts:
                yield from self._refresh(ids, refresh)
            return answers

    def sweep(self) -> Plan[int]:
        """Deletes expired items. Gives their number. Items of customers under a hold or a restriction stay."""
        swept = 0
        now = self._core.clock()
        now_ms = int(now * 1000)
        # As the ends of holds are written, so that texts compare as times.
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        while True:
            yield Begin("write")
            (found,) = yield from run(Statement(EXPIRED, (now_ms, at)))
            keys = [tuple(row) for row in found.rows]
            if not keys:
                yield Rollback()
                return swept
            names = sorted({key[:3] for key in keys})
            expired = [(*key, now_ms) for key in keys]
            yield from run(
                Statement(DELETE_EXPIRED, expired, many=True),
                Statement(DELETE_NAMESPACE, names, many=True),
                commit=True,
            )
            swept += len(keys)

    # -- who --------------------------------------------------------------------------------------------------------

    def _wide(self, batch: Batch, needed: Mapping[int, Sequence[Reach]]) -> dict[int, Wide]:
        """Which reads reach everybody."""
        wide: dict[int, Wide] = {}
        for position, op in batch.reads.items():
            reaches = [reach for reach in needed[position] if reach.everyone]
            if reaches and not isinstance(op, GetOp):
                wide[position] = (op, reaches, batch.queries.get(position))
        if wide and not self._cross:
            raise ConfigurationError(
                "a namespace prefix that ends before the customer's label reaches everybody's data: name the customer, "
                "or open with cross_customer_search=True"
            )
        return wide

    def _reaches(self, op: GetOp | SearchOp | ListNamespacesOp) -> list[Reach]:
        if isinstance(op, GetOp):
            owned = self._templates.owner(op.namespace)
            return [Reach(*owned, everyone=False)]
        if isinstance(op, SearchOp):
            return self._templates.reach(op.namespace_prefix)
        prefixes = [tuple(one.path) for one in op.match_conditions or () if one.match_type == "prefix"]
        plain = [prefix[: prefix.index("*")] if "*" in prefix else prefix for prefix in prefixes]
        return self._templates.reach(max(plain, key=len, default=()))

    def _token(self, customer_id: str | None) -> bytes:
        return self._core.token(*SHARED_NAME) if customer_id is None else self._core.token("customer", customer_id)

    def _enter(
        self,
        ids: Iterable[str | None],
        writers: Container[str | None] = (),
        deleters: Container[str | None] = (),
        *,
        write: bool,
    ) -> Plan[dict[str | None, Owner] | None]:
        """Opens the transaction and lets everybody through the fence; None if something had to be fetched first.

        Customers that are not known yet have nothing to read, and are introduced when something is written. Those
        under a hold may not delete.
        """
        tokens = sorted((self._token(one), one) for one in ids)
        statement = SHARE_CUSTOMER if write else GET_CUSTOMER
        yield Begin("write" if write else "read")
        results = yield from run(*(Statement(statement, (token,)) for token, _ in tokens))
        owners: dict[str | None, Owner] = {}
        strange: list[tuple[bytes, str | None]] = []
        closed: list[Customer] = []
        for (token, one), result in zip(tokens, results, strict=True):
            if not result.rows:
                strange += [(token, one)] if one in writers else []
                continue
            try:
                customer = yield from self._core.admit(result.rows[0])
            except CustomerShreddedError:
                self._vectors.forget_customer(token)  # another process may have shredded
                raise
            if one in deleters and erasure.held(customer.held_until, self._core.clock()):
                yield Rollback()
                raise LegalHoldError(
                    f"customer {token.hex()} is under a hold: no item of it is deleted until it is released"
                )
            tree = self._core.tree(customer)
            if tree is None:
                closed.append(customer)
            else:
                owners[one] = Owner(customer.customer, customer.generation, tree)
        if not strange and not closed:
            return owners
        yield Rollback()
        for token, one in strange:
            name = SHARED_NAME[1] if one is None else one
            yield from introduce(self._core, Ref("", b"", name, token))
        for customer in closed:
            yield from self._core.load_tree(customer)
        return None

    # -- what -------------------------------------------------------------------------------------------------------

    def _read(
        self,
        searcher: Searcher,
        batch: Batch,
        position: int,
        needed: Mapping[int, Sequence[Reach]],
        owners: Mapping[str | None, Owner],
        strangers: Mapping[int, list[Any]],
        refresh: list[Hit],
    ) -> Plan[Answer]:
        op = batch.reads[position]
        reaches = [reach for reach in needed[position] if not reach.everyone and reach.customer_id in owners]
        if isinstance(op, GetOp):
            if not reaches:
                return None
            owned = Owned(*reaches[0][:3])
            hit = yield from searcher.get(owners[owned.customer_id], owned, op.key)
            if hit is None:
                return None
            refresh += [hit] if op.refresh_ttl and hit.row.ttl is not None else []
            return hit.item
        if isinstance(op, SearchOp):
            targets = [Target(owners[reach.customer_id], reach.template, reach.labels) for reach in reaches]
            query = batch.queries.get(position)
            if position in strangers:
                wide = op._replace(limit=op.limit + op.offset, offset=0)
                hits = [*strangers[position], *(yield from searcher.search(wide, targets, query))]
                hits.sort(key=_rank, reverse=True)
                hits = hits[op.offset : op.offset + op.limit]
            else:
                hits = yield from searcher.search(op, targets, query)
            refresh += [hit for hit in hits if op.refresh_ttl and hit.row.ttl is not None]
            return [found_item(hit) for hit in hits]
        names: set[Namespace] = set(strangers.get(position, ()))
        for one in {reach.customer_id for reach in reaches}:
            names.update((yield from searcher.namespaces(owners[one])))
        return listed(op, names)

    def _refresh(self, ids: Iterable[str | None], hits: Sequence[Hit]) -> Plan[None]:
        """Moves the expiry of what was read, in a transaction of its own behind the fence."""
        ids = set(ids)
        while (yield from self._enter(ids, write=True)) is None:
            pass
        yield from self._touch(hits)
        yield Commit()

    def _touch(self, hits: Sequence[Hit]) -> Plan[None]:
        now_ms = int(self._core.clock() * 1000)
        rows = [(now_ms, *hit.row[:4], hit.row.number) for hit in hits]
        if rows:
            yield from run(Statement(REFRESH_ITEM, rows, many=True))


def _rank(hit: Hit) -> tuple[bool, float, int, int]:
    return (hit.score is not None, hit.score or 0.0, hit.row.updated_at, hit.row.number)
