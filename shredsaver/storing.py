"""A batch of store operations as one transaction: the fence for everybody concerned, then reads, then writes.

Reads see the state before the batch's writes. A search that names no customer walks all of them, page by page, before
the batch's own transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack
from langgraph.store.base import GetOp, Item, ListNamespacesOp, SearchItem, SearchOp

from shredsaver import erasure
from shredsaver.core import CUSTOMER_COLUMNS, FIRST_NUMBER, GET_CUSTOMER, SHARE_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run, sql
from shredsaver.errors import ConfigurationError, CustomerShreddedError, DatabaseUnavailableError
from shredsaver.items import (
    SCOPE,
    Content,
    ItemRow,
    Owner,
    key_token,
    label_tokens,
    pack_content,
)
from shredsaver.keytree import KeyPuncturedError
from shredsaver.namespaces import SHARED_NAME, Namespace, Owned, Reach, Templates
from shredsaver.sealing import ITEM, NAMESPACE
from shredsaver.searching import GET_ITEM, Hit, Searcher, Target, found_item, listed
from shredsaver.threads import ADD_COUNTER, Ref, introduce
from shredsaver.vectors import VectorCache, pack_vectors

Answer = Item | list[SearchItem] | list[Namespace] | None

TAKE_NUMBERS: Final = sql(
    "UPDATE counters SET next = next + ? WHERE customer = ? AND generation = ? AND scope = ? RETURNING next - ?"
)
PUT_ITEM: Final = sql(
    "INSERT INTO items (customer, template, labels, key, generation, scope, number, sealed, vectors, created_at, "
    "updated_at, "
    "ttl, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (customer, template, labels, "
    "key) DO UPDATE "
    "SET generation = excluded.generation, scope = excluded.scope, number = excluded.number, sealed = excluded.sealed, "
    "vectors = excluded.vectors, created_at = excluded.created_at, updated_at = excluded.updated_at, ttl = "
    "excluded.ttl, "
    "expires_at = excluded.expires_at"
)
ADD_NAMESPACE: Final = sql(
    "INSERT INTO namespaces (customer, template, labels, generation, scope, number, sealed) VALUES (?, ?, ?, ?, "
    "?, ?, ?) "
    "ON CONFLICT (customer, template, labels) DO NOTHING"
)
DELETE_ITEM: Final = sql("DELETE FROM items WHERE customer = ? AND template = ? AND labels = ? AND key = ?")
DELETE_NAMESPACE: Final = sql(
    "DELETE FROM namespaces WHERE customer = ? AND template = ? AND labels = ? AND NOT EXISTS (SELECT 1 FROM items i "
    "WHERE i.customer = namespaces.customer AND i.template = namespaces.template AND i.labels = namespaces.labels)"
)
REFRESH_ITEM: Final = sql(
    "UPDATE items SET expires_at = ? + ttl WHERE customer = ? AND template = ? AND labels = ? AND key = ? AND "
    "number = ? "
    "AND ttl IS NOT NULL"
)
EXPIRED: Final = sql("SELECT customer, template, labels, key FROM items WHERE expires_at <= ? LIMIT 500")
LIVE_CUSTOMERS: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer > ? AND state = 'live' ORDER BY customer LIMIT 64"
)


class Put(NamedTuple):
    """An item to store, or (without a value) to delete."""

    owned: Owned
    customer_label: str | None
    key: str
    value: str | None
    vectors: Sequence[Sequence[float]]
    ttl_ms: int | None


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

    def batch(self, batch: Batch) -> Plan[dict[int, Answer]]:
        """Carries out a batch. Gives the answers of its reads by position."""
        self._check(batch)
        strangers = yield from self._everybody(batch)
        needed = {read: self._reaches(op) for read, op in batch.reads.items()}
        ids = {reach.customer_id for reaches in needed.values() for reach in reaches if not reach.everyone}
        writers = {put.owned.customer_id for put in batch.puts if put.value is not None}
        ids |= {put.owned.customer_id for put in batch.puts}
        while True:
            owners = yield from self._enter(ids, writers, write=bool(batch.puts))
            if owners is None:
                continue
            searcher = Searcher(self._core, self._templates, self._vectors, int(self._core.clock() * 1000))
            answers: dict[int, Answer] = {}
            refresh: list[Hit] = []
            for position in batch.reads:
                answers[position] = yield from self._read(searcher, batch, position, needed, owners, strangers, refresh)
            if batch.puts:
                yield from self._touch(refresh)
                yield from self._put(batch.puts, owners)
            yield Commit()
            if refresh and not batch.puts:
                yield from self._refresh(ids, refresh)
            return answers

    def sweep(self) -> Plan[int]:
        """Deletes expired items. Gives their number. Items of customers under a hold stay."""
        swept = 0
        now_ms = int(self._core.clock() * 1000)
        while True:
            yield Begin("write")
            (found,) = yield from run(Statement(EXPIRED, (now_ms,)))
            keys = [tuple(row) for row in found.rows]
            if not keys:
                yield Rollback()
                return swept
            names = sorted({key[:3] for key in keys})
            yield from run(
                Statement(DELETE_ITEM, keys, many=True), Statement(DELETE_NAMESPACE, names, many=True), commit=True
            )
            swept += len(keys)

    # -- who --------------------------------------------------------------------------------------------------------

    def _check(self, batch: Batch) -> None:
        if self._cross:
            return
        for op in batch.reads.values():
            if any(reach.everyone for reach in self._reaches(op)):
                raise ConfigurationError(
                    "a namespace prefix that ends before the customer's label reaches everybody's data: name the "
                    "customer, "
                    "or open with cross_customer_search=True"
                )

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
        self, ids: Iterable[str | None], writers: Iterable[str | None], *, write: bool
    ) -> Plan[dict[str | None, Owner] | None]:
        """Opens the transaction and lets everybody through the fence; None if something had to be fetched first.

        Customers that are not known yet have nothing to read, and are introduced when something is written.
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
            customer = yield from self._core.admit(result.rows[0])
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

    def _everybody(self, batch: Batch) -> Plan[dict[int, list[Any]]]:
        """What searches and listings over everybody find, by position: customer by customer, the dead left out."""
        found: dict[int, list[Any]] = {}
        ops = {
            position: [reach for reach in self._reaches(op) if reach.everyone]
            for position, op in batch.reads.items()
            if not isinstance(op, GetOp)
        }
        ops = {position: reaches for position, reaches in ops.items() if reaches}
        after = b""
        shared = self._core.token(*SHARED_NAME)
        while ops:
            yield Begin("read")
            (rows,) = yield from run(Statement(LIVE_CUSTOMERS, (after,)))
            yield Rollback()
            if not rows.rows:
                break
            for row in rows.rows:
                after = bytes(row[0])
                if after != shared:
                    yield from self._one_of_everybody(self._core.customer(row), batch, ops, found)
        return found

    def _one_of_everybody(
        self, customer: Customer, batch: Batch, ops: Mapping[int, Sequence[Reach]], found: dict[int, list[Any]]
    ) -> Plan[None]:
        try:
            if self._core.tree(customer) is None:
                yield from self._core.load_tree(customer)
            tree = self._core.tree(customer)
            yield Begin("read")
            (row,) = yield from run(Statement(GET_CUSTOMER, (customer.customer,)))
            now = yield from self._core.admit(row.rows[0], customer.generation)
        except CustomerShreddedError:
            return
        if tree is None or now.state != erasure.LIVE:
            yield Rollback()
            return
        owner = Owner(customer.customer, customer.generation, tree)
        searcher = Searcher(self._core, self._templates, self._vectors, int(self._core.clock() * 1000))
        for position, reaches in ops.items():
            op = batch.reads[position]
            if isinstance(op, SearchOp):
                targets = [Target(owner, reach.template, reach.labels) for reach in reaches]
                wide = op._replace(limit=op.limit + op.offset, offset=0)
                hits = yield from searcher.search(wide, targets, batch.queries.get(position))
                found.setdefault(position, []).extend(hits)
            else:
                found.setdefault(position, []).extend((yield from searcher.namespaces(owner)))
        yield Commit()

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
        while (yield from self._enter(ids, (), write=True)) is None:
            pass
        yield from self._touch(hits)
        yield Commit()

    def _touch(self, hits: Sequence[Hit]) -> Plan[None]:
        now_ms = int(self._core.clock() * 1000)
        rows = [(now_ms, *hit.row[:4], hit.row.number) for hit in hits]
        if rows:
            yield from run(Statement(REFRESH_ITEM, rows, many=True))

    def _put(self, puts: Sequence[Put], owners: Mapping[str | None, Owner]) -> Plan[None]:
        """Stores and deletes, customer by customer in the order of their tokens."""
        by_owner: dict[str | None, list[Put]] = {}
        for put in puts:
            by_owner.setdefault(put.owned.customer_id, []).append(put)
        for one in sorted(by_owner, key=self._token):
            if one in owners:  # a deletion of somebody who is not known finds nothing
                yield from self._put_of(owners[one], by_owner[one])

    def _put_of(self, owner: Owner, puts: Sequence[Put]) -> Plan[None]:
        keys = []
        for put in puts:
            labels = label_tokens(owner.tree, put.owned.template, put.owned.labels)
            keys.append(
                (owner.customer, put.owned.template, labels, key_token(owner.tree, put.owned.template, labels, put.key))
            )
        gone = [key for key, put in zip(keys, puts, strict=True) if put.value is None]
        if gone:
            names = sorted({key[:3] for key in gone})
            yield from run(Statement(DELETE_ITEM, gone, many=True), Statement(DELETE_NAMESPACE, names, many=True))
        kept = [(key, put) for key, put in zip(keys, puts, strict=True) if put.value is not None]
        if not kept:
            return
        now = self._core.clock()
        now_ms = int(now * 1000)
        before = yield from run(*(Statement(GET_ITEM, (*key, owner.generation, now_ms)) for key, _ in kept))
        first = yield from self._numbers(owner, 3 * len(kept))
        items: list[ItemRow] = []
        named: dict[Any, tuple[Any, ...]] = {}
        for offset, ((key, put), found) in enumerate(zip(kept, before, strict=True)):
            created = ItemRow(*found.rows[0]).created_at if found.rows else int(now * 1_000_000)
            number = first + 3 * offset
            items.append(self._sealed(owner, key, put, number, created, int(now * 1_000_000)))
            if key[:3] not in named:
                named[key[:3]] = self._sealed_name(owner, key, put, number + 2)
        yield from run(Statement(PUT_ITEM, items, many=True), Statement(ADD_NAMESPACE, list(named.values()), many=True))

    def _numbers(self, owner: Owner, count: int) -> Plan[int]:
        """The first of so many free numbers in a row, whose keys are all alive."""
        while True:
            _, taken = yield from run(
                Statement(ADD_COUNTER, (*owner.pair, SCOPE, FIRST_NUMBER)),
                Statement(TAKE_NUMBERS, (count, *owner.pair, SCOPE, count)),
            )
            first = int(taken.rows[0][0])
            if owner.tree.next_alive(SCOPE, first) is None or first + count > 2**32:
                raise DatabaseUnavailableError(
                    f"customer {owner.customer.hex()} has used up the numbers of its items: rotate its keys"
                )
            try:
                for number in (first, first + count - 1):
                    owner.tree.derive(SCOPE, number)
            except KeyPuncturedError:
                continue
            return first

    def _sealed(
        self, owner: Owner, key: tuple[Any, ...], put: Put, number: int, created_at: int, updated_at: int
    ) -> ItemRow:
        expires_at = None if put.ttl_ms is None else updated_at // 1000 + put.ttl_ms
        customer, template, labels, token = key
        empty = ItemRow(
            customer,
            template,
            labels,
            token,
            owner.generation,
            SCOPE,
            number,
            b"",
            None,
            created_at,
            updated_at,
            put.ttl_ms,
            expires_at,
        )
        content = Content(put.customer_label, put.owned.labels, put.key, put.value or "", len(put.vectors))
        seal, columns = self._core.seal, empty.columns
        sealed = seal(owner.tree, ITEM, owner.pair, SCOPE, number, pack_content(content), *columns)
        vectors = None
        if put.vectors:
            packed = pack_vectors(put.vectors, self._dims)
            vectors = seal(owner.tree, ITEM, owner.pair, SCOPE, number + 1, packed, *columns)
        return empty._replace(sealed=sealed, vectors=vectors)

    def _sealed_name(self, owner: Owner, key: tuple[Any, ...], put: Put, number: int) -> tuple[Any, ...]:
        packed = msgpack.packb([put.customer_label, list(put.owned.labels)], unicode_errors="surrogatepass")
        sealed = self._core.seal(owner.tree, NAMESPACE, owner.pair, SCOPE, number, packed, *key[1:3])
        return (*key[:3], owner.generation, SCOPE, number, sealed)


def _rank(hit: Hit) -> tuple[bool, float, int, int]:
    return (hit.score is not None, hit.score or 0.0, hit.row.updated_at, hit.row.number)
