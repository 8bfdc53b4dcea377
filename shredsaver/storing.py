"""A batch of store operations as one transaction: the fence for everybody concerned, then reads, then writes.

Reads see the state before the batch's writes. A search that names no customer walks all of them, page by page, before
the batch's own transaction.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from langgraph.store.base import GetOp, Item, ListNamespacesOp, SearchItem, SearchOp

from shredsaver import erasure
from shredsaver.ahead import Begun
from shredsaver.core import GET_CUSTOMER, SHARE_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Result, Rollback, Statement, run, sql
from shredsaver.errors import ConfigurationError, CustomerShreddedError, LegalHoldError
from shredsaver.everybody import Everybody, Wide
from shredsaver.items import Owner
from shredsaver.namespaces import SHARED_NAME, Namespace, Owned, Reach, Templates
from shredsaver.putting import DELETE_NAMESPACE, LOCK_NAMESPACE, Put, Putter
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
        ids |= {put.owned.customer_id for put in batch.puts}
        who = _Who(
            sorted((self._token(one), one) for one in ids),
            {put.owned.customer_id for put in batch.puts if put.value is not None},
            {put.owned.customer_id for put in batch.puts if put.value is None},
            write=bool(batch.puts),
        )
        while True:
            guessed = self._guess(who)
            work = None if guessed is None else _Work(self, batch, needed, strangers, guessed)
            entered = yield from self._enter(who, () if work is None else work.statements)
            if entered is None:
                continue
            owners, early = entered
            if work is None:
                work = _Work(self, batch, needed, strangers, owners)
                early = yield from run(*work.statements)
            elif owners != guessed:
                yield Rollback()
                continue
            answers, refresh = yield from work.done(early)
            if refresh and not batch.puts:
                yield from self._refresh(who, refresh)
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
                *(Statement(LOCK_NAMESPACE, name) for name in names),
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

    def _guess(self, who: _Who) -> dict[str | None, Owner] | None:
        """Who they will be found to be, if nothing has changed since they were last met; None if one never was."""
        owners: dict[str | None, Owner] = {}
        for token, one in who.tokens:
            customer = self._core.known(token)
            tree = None if customer is None else self._core.tree(customer)
            if customer is None or tree is None:
                return None
            owners[one] = Owner(token, customer.generation, tree)
        return owners

    def _enter(
        self, who: _Who, early: Sequence[Statement] = ()
    ) -> Plan[tuple[dict[str | None, Owner], list[Result]] | None]:
        """Opens the transaction and lets everybody through the fence; None if something had to be fetched first.

        Customers that are not known yet have nothing to read, and are introduced when something is written. Those
        under a hold may not delete. The answers to ``early``, which is asked along with the fence, are given too.
        """
        statement = SHARE_CUSTOMER if who.write else GET_CUSTOMER
        yield Begin("write" if who.write else "read")
        results = yield from run(*(Statement(statement, (token,)) for token, _ in who.tokens), *early)
        owners: dict[str | None, Owner] = {}
        strange: list[tuple[bytes, str | None]] = []
        closed: list[Customer] = []
        for (token, one), result in zip(who.tokens, results, strict=False):
            if not result.rows:
                strange += [(token, one)] if one in who.writers else []
                continue
            try:
                customer = yield from self._core.admit(result.rows[0])
            except CustomerShreddedError:
                self._vectors.forget_customer(token)  # another process may have shredded
                raise
            if one in who.deleters and erasure.held(customer.held_until, self._core.clock()):
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
            return owners, results[len(who.tokens) :]
        yield Rollback()
        for token, one in strange:
            name = SHARED_NAME[1] if one is None else one
            yield from introduce(self._core, Ref("", b"", name, token))
        for customer in closed:
            yield from self._core.load_tree(customer)
        return None

    # -- what -------------------------------------------------------------------------------------------------------

    def read(
        self,
        searcher: Searcher,
        op: GetOp | SearchOp | ListNamespacesOp,
        reaches: Sequence[Reach],
        owners: Mapping[str | None, Owner],
        query: Sequence[float] | None,
        strangers: list[Any] | None,
    ) -> Plan[tuple[Answer, list[Hit]]]:
        """Carries out a read. Gives its answer and the hits whose expiry it moves."""
        reaches = [reach for reach in reaches if not reach.everyone and reach.customer_id in owners]
        if isinstance(op, GetOp):
            if not reaches:
                return None, []
            owned = Owned(*reaches[0][:3])
            hit = yield from searcher.get(owners[owned.customer_id], owned, op.key)
            if hit is None:
                return None, []
            return hit.item, _renewed(op, [hit])
        if isinstance(op, SearchOp):
            targets = [Target(owners[reach.customer_id], reach.template, reach.labels) for reach in reaches]
            if strangers is not None:
                wide = op._replace(limit=op.limit + op.offset, offset=0)
                hits = [*strangers, *(yield from searcher.search(wide, targets, query))]
                hits.sort(key=_rank, reverse=True)
                hits = hits[op.offset : op.offset + op.limit]
            else:
                hits = yield from searcher.search(op, targets, query)
            return [found_item(hit) for hit in hits], _renewed(op, hits)
        names: set[Namespace] = set(strangers or ())
        for one in {reach.customer_id for reach in reaches}:
            names.update((yield from searcher.namespaces(owners[one])))
        return listed(op, names), []

    def work(
        self,
        batch: Batch,
        needed: Mapping[int, Sequence[Reach]],
        strangers: Mapping[int, list[Any]],
        owners: Mapping[str | None, Owner],
    ) -> tuple[dict[int, Begun[tuple[Answer, list[Hit]]]], Begun[None] | None]:
        """Begins what a batch does behind the fence: its reads by position, and its puts."""
        searcher = Searcher(self._core, self._templates, self._vectors, int(self._core.clock() * 1000))
        reads = {
            position: Begun(
                self.read(searcher, op, needed[position], owners, batch.queries.get(position), strangers.get(position))
            )
            for position, op in batch.reads.items()
        }
        return reads, Begun(Putter(self._core, self._dims).put(batch.puts, owners)) if batch.puts else None

    def _refresh(self, who: _Who, hits: Sequence[Hit]) -> Plan[None]:
        """Moves the expiry of what was read, in a transaction of its own behind the fence."""
        writing = who._replace(writers=frozenset(), deleters=frozenset(), write=True)
        while (yield from self._enter(writing)) is None:
            pass
        yield from self.touch(hits)
        yield Commit()

    def touch(self, hits: Sequence[Hit]) -> Plan[None]:
        """Moves the expiry of some items, within the open transaction."""
        now_ms = int(self._core.clock() * 1000)
        rows = [(now_ms, *hit.row[:4], hit.row.number) for hit in hits]
        if rows:
            yield from run(Statement(REFRESH_ITEM, rows, many=True))


class _Who(NamedTuple):
    """Whom a batch is about: their tokens in order, with ids; who gets something, who loses something."""

    tokens: Sequence[tuple[bytes, str | None]]
    writers: Container[str | None]
    deleters: Container[str | None]
    write: bool


class _Work:
    """What a batch does behind the fence, begun."""

    def __init__(
        self,
        storing: Storing,
        batch: Batch,
        needed: Mapping[int, Sequence[Reach]],
        strangers: Mapping[int, list[Any]],
        owners: Mapping[str | None, Owner],
    ) -> None:
        self._storing = storing
        self._reads, self._puts = storing.work(batch, needed, strangers, owners)

    @property
    def statements(self) -> list[Statement]:
        """What all of it asks first."""
        begun: list[Begun[Any]] = [*self._reads.values(), *([] if self._puts is None else [self._puts])]
        return [statement for one in begun for statement in one.statements]

    def done(self, results: Sequence[Result]) -> Plan[tuple[dict[int, Answer], list[Hit]]]:
        """The rest of it, given the answers to `statements`, and the commit."""
        rest = iter(results)
        answers: dict[int, Answer] = {}
        refresh: list[Hit] = []
        for position, begun in self._reads.items():
            mine = list(islice(rest, len(begun.statements)))
            answers[position], hits = yield from begun.go_on(mine)
            refresh += hits
        if self._puts is None:
            yield Commit()
        else:
            yield from self._storing.touch(refresh)
            yield from self._puts.go_on(list(rest))
        return answers, refresh


def _renewed(op: GetOp | SearchOp, hits: Sequence[Hit]) -> list[Hit]:
    return [hit for hit in hits if op.refresh_ttl and hit.row.ttl is not None]


def _rank(hit: Hit) -> tuple[bool, float, int, int]:
    return (hit.score is not None, hit.score or 0.0, hit.row.updated_at, hit.row.number)
