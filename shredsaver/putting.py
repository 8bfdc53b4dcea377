"""Storing and deleting items, within a transaction that others opened and behind a fence that others passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from shredsaver.core import FIRST_NUMBER, Core
from shredsaver.db.base import Plan, Result, Statement, run, sql
from shredsaver.errors import DatabaseUnavailableError
from shredsaver.items import SCOPE, Content, ItemRow, Owner, key_token, label_tokens, pack_content
from shredsaver.keytree import KeyPuncturedError
from shredsaver.namespaces import Namespace, Owned
from shredsaver.sealing import ITEM, NAMESPACE
from shredsaver.selecting import each
from shredsaver.vectors import pack_vectors

Place = tuple[bytes, str, bytes]
"""Customer, template, tokens of labels: what tells a row of ``namespaces``."""

Key = tuple[bytes, str, bytes, bytes]
"""The same and the token of the key: what tells a row of ``items``."""

_WIDTH: Final = 32
_PER_ITEM: Final = 3  # numbers: for the item, its vectors, and its namespace's name
# A single put, by far the most frequent, need not look for so many keys.
_CREATED: Final = (
    "i.customer = ? AND i.template = ? AND i.labels = ? AND i.generation = ? "
    "AND (i.expires_at IS NULL OR i.expires_at > ?)"
)
CREATED_AT: Final = {
    1: sql(f"SELECT i.key, i.created_at FROM items i WHERE i.key = ? AND {_CREATED}"),
    _WIDTH: each("i.key, i.created_at", ("i.key", "{bytes}"), _WIDTH, _CREATED),
}
TAKE_NUMBERS: Final = sql(
    "INSERT INTO counters (customer, generation, scope, next) VALUES (?, ?, ?, ?) ON CONFLICT (customer, generation, "
    "scope) DO UPDATE SET next = counters.next + ? RETURNING next"
)
PUT_ITEM: Final = sql(
    "INSERT INTO items (customer, template, labels, key, generation, scope, number, sealed, vectors, created_at, "
    "updated_at, ttl, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (customer, template, labels, key) DO UPDATE SET generation = excluded.generation, "
    "scope = excluded.scope, number = excluded.number, sealed = excluded.sealed, vectors = excluded.vectors, "
    "created_at = excluded.created_at, updated_at = excluded.updated_at, ttl = excluded.ttl, "
    "expires_at = excluded.expires_at"
)
# A namespace's name goes with its last item. Whoever puts an item there keeps it from going, and whoever deletes one
# waits, so that the last statement of the two sees what the other did.
_NAMESPACE: Final = "FROM namespaces WHERE customer = ? AND template = ? AND labels = ?"
SHARE_NAMESPACE: Final = sql(f"SELECT generation {_NAMESPACE} {{share}}")
LOCK_NAMESPACE: Final = sql(f"SELECT generation {_NAMESPACE} {{update}}")
ADD_NAMESPACE: Final = sql(
    "INSERT INTO namespaces (customer, template, labels, generation, scope, number, sealed) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (customer, template, labels) DO UPDATE SET "
    "generation = excluded.generation, scope = excluded.scope, number = excluded.number, sealed = excluded.sealed "
    "WHERE namespaces.generation < excluded.generation"
)
DELETE_ITEM: Final = sql("DELETE FROM items WHERE customer = ? AND template = ? AND labels = ? AND key = ?")
DELETE_NAMESPACE: Final = sql(
    f"DELETE {_NAMESPACE} AND NOT EXISTS (SELECT 1 FROM items i "
    "WHERE i.customer = namespaces.customer AND i.template = namespaces.template AND i.labels = namespaces.labels)"
)


class Put(NamedTuple):
    """An item to store, or (without a value) to delete."""

    owned: Owned
    customer_label: str | None
    key: str
    value: str | None
    vectors: Sequence[Sequence[float]]
    ttl_ms: int | None


class _Job:
    """What one customer's puts and deletions come to.

    Attributes:
        owner: Whose they are.
        puts: What is stored, with its row.
        deleted: The rows that go.
        first: The first of the numbers taken for what is stored.
        created_at: When rows that are there already were created.
        named: The namespaces that have their name.
    """

    def __init__(self, owner: Owner, puts: Sequence[Put]) -> None:
        keys = _keys(owner, puts)
        self.owner = owner
        self.puts = [(key, put) for key, put in keys if put.value is not None]
        self.deleted = sorted(key for key, put in keys if put.value is None)
        self.first = 0
        self.created_at: dict[Key, int] = {}
        self.named: set[Place] = set()
        self._emptied = sorted({key[:3] for key in self.deleted})
        self._filled = sorted({key[:3] for key, _ in self.puts}.difference(self._emptied))
        self._asked: list[Place] = []

    @property
    def numbers(self) -> int:
        """How many numbers it needs."""
        return _PER_ITEM * len(self.puts)

    def questions(self, now_ms: int) -> list[Statement]:
        """What must be known first, and locked. `take` is given the answers."""
        statements = [
            *(Statement(LOCK_NAMESPACE, place) for place in self._emptied),
            *(Statement(SHARE_NAMESPACE, place) for place in self._filled),
        ]
        by_place: dict[Place, list[bytes]] = {}
        for key, _ in self.puts:
            by_place.setdefault(key[:3], []).append(key[3])
        self._asked = []
        for place, tokens in by_place.items():
            width = 1 if len(tokens) == 1 else _WIDTH
            for start in range(0, len(tokens), width):
                some = tokens[start : start + width]
                filled = (*some, *some[-1:] * (width - len(some)))
                statements.append(Statement(CREATED_AT[width], (*filled, *place, self.owner.generation, now_ms)))
                self._asked.append(place)
        return statements

    def take(self, answers: Sequence[Result]) -> None:
        """Takes the answers in, in the order of `questions`."""
        places = [*self._emptied, *self._filled]
        # A namespace without further labels is the same row before and after its customer came back.
        mine = [(self.owner.generation,)]
        self.named = {place for place, answer in zip(places, answers, strict=False) if answer.rows == mine}
        for place, answer in zip(self._asked, answers[len(places) :], strict=True):
            for token, created in answer.rows:
                self.created_at[*place, bytes(token)] = created

    def deletions(self) -> list[Statement]:
        """The statements that delete."""
        if not self.deleted:
            return []
        return [
            Statement(DELETE_ITEM, self.deleted, many=True),
            Statement(DELETE_NAMESPACE, self._emptied, many=True),
        ]


class Putter:
    """Writes for one batch.

    Args:
        core: The deployment.
        dims: Dimensions of the index; 0 without one.
    """

    def __init__(self, core: Core, dims: int) -> None:
        self._core = core
        self._dims = dims
        self._now = 0

    def put(self, puts: Sequence[Put], owners: Mapping[str | None, Owner]) -> Plan[None]:
        """Stores and deletes, customer by customer in the order of their tokens, and commits.

        What is asked first changes nothing but the counters of numbers.
        """
        by_owner: dict[Owner, list[Put]] = {}
        for put in puts:
            owner = owners.get(put.owned.customer_id)
            if owner is not None:  # a deletion of somebody who is not known finds nothing
                by_owner.setdefault(owner, []).append(put)
        jobs = [_Job(owner, by_owner[owner]) for owner in sorted(by_owner, key=lambda one: one.customer)]
        if jobs:
            yield from self._ask(jobs)
        # Whoever waited for a lock writes after those who had it, and says so.
        self._now = int(self._core.clock() * 1_000_000)
        writes: list[Statement] = []
        for job in jobs:
            writes += job.deletions()
            if job.puts:
                writes += self._stored(job)
        yield from run(*writes, commit=True)

    def _ask(self, jobs: Sequence[_Job]) -> Plan[None]:
        now_ms = int(self._core.clock() * 1000)
        questions = [job.questions(now_ms) for job in jobs]
        takes = [_taking(job) for job in jobs if job.puts]
        answers = yield from run(*takes, *(statement for some in questions for statement in some))
        taken, rest = iter(answers[: len(takes)]), answers[len(takes) :]
        for job, some in zip(jobs, questions, strict=True):
            job.take(rest[: len(some)])
            rest = rest[len(some) :]
            if job.puts:
                yield from self._number(job, next(taken))

    def _number(self, job: _Job, taken: Result) -> Plan[None]:
        """Finds free numbers in a row, whose keys are all alive."""
        owner, count = job.owner, job.numbers
        while True:
            first = job.first = int(taken.rows[0][0]) - count
            if owner.tree.next_alive(SCOPE, first) is None or first + count > 2**32:
                raise DatabaseUnavailableError(
                    f"customer {owner.customer.hex()} has used up the numbers of its items: rotate its keys"
                )
            try:
                owner.tree.derive(SCOPE, first + count - 1)
                owner.tree.derive(SCOPE, first)
            except KeyPuncturedError:
                (taken,) = yield from run(_taking(job))
            else:
                return

    def _stored(self, job: _Job) -> list[Statement]:
        items: list[ItemRow] = []
        names: dict[Place, tuple[Any, ...]] = {}
        for number, (key, put) in zip(range(job.first, job.first + job.numbers, _PER_ITEM), job.puts, strict=True):
            items.append(self._sealed(job.owner, key, put, number, job.created_at.get(key, self._now)))
            place = key[:3]
            if place not in names and (place not in job.named or job.deleted):
                names[place] = self._sealed_name(job.owner, place, put, number + 2)
        items.sort(key=_row_key)  # the order in which any other batch locks them
        statements = [Statement(PUT_ITEM, items, many=True)]
        return [*statements, Statement(ADD_NAMESPACE, list(names.values()), many=True)] if names else statements

    def _sealed(self, owner: Owner, key: Key, put: Put, number: int, created_at: int) -> ItemRow:
        updated_at = self._now
        content = Content(put.customer_label, put.owned.labels, put.key, put.value or "", len(put.vectors))
        seal, columns = self._core.seal, (*key[1:], str(created_at), str(updated_at))
        sealed = seal(owner.tree, ITEM, owner.pair, SCOPE, number, pack_content(content), *columns)
        vectors = None
        if put.vectors:
            packed = pack_vectors(put.vectors, self._dims)
            vectors = seal(owner.tree, ITEM, owner.pair, SCOPE, number + 1, packed, *columns)
        expires_at = None if put.ttl_ms is None else updated_at // 1000 + put.ttl_ms
        return ItemRow(
            *key, owner.generation, SCOPE, number, sealed, vectors, created_at, updated_at, put.ttl_ms, expires_at
        )

    def _sealed_name(self, owner: Owner, place: Place, put: Put, number: int) -> tuple[Any, ...]:
        packed = msgpack.packb([put.customer_label, list(put.owned.labels)], unicode_errors="surrogatepass")
        sealed = self._core.seal(owner.tree, NAMESPACE, owner.pair, SCOPE, number, packed, *place[1:])
        return (*place, owner.generation, SCOPE, number, sealed)


def _taking(job: _Job) -> Statement:
    params = (*job.owner.pair, SCOPE, FIRST_NUMBER + job.numbers, job.numbers)
    return Statement(TAKE_NUMBERS, params)


def _row_key(row: ItemRow) -> tuple[Any, ...]:
    return row[:4]


def _keys(owner: Owner, puts: Sequence[Put]) -> list[tuple[Key, Put]]:
    """The row of each put; the tokens of a namespace are made once."""
    places: dict[tuple[str, Namespace], bytes] = {}
    found: list[tuple[Key, Put]] = []
    for put in puts:
        template, _, names = put.owned
        labels = places.get((template, names))
        if labels is None:
            labels = places[template, names] = label_tokens(owner.tree, template, names)
        found.append(((owner.customer, template, labels, key_token(owner.tree, template, labels, put.key)), put))
    return found
