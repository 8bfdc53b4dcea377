"""Storing and deleting items, within a transaction that others opened and behind a fence that others passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from shredsaver.core import FIRST_NUMBER, Core
from shredsaver.db.base import Plan, Statement, run, sql
from shredsaver.errors import DatabaseUnavailableError
from shredsaver.items import SCOPE, Content, ItemRow, Owner, key_token, label_tokens, pack_content
from shredsaver.keytree import KeyPuncturedError
from shredsaver.namespaces import Namespace, Owned
from shredsaver.sealing import ITEM, NAMESPACE
from shredsaver.threads import ADD_COUNTER
from shredsaver.vectors import pack_vectors

Key = tuple[bytes, str, bytes, bytes]
"""Customer, template, tokens of labels, token of the key: what tells a row of ``items``."""

_WIDTH: Final = 32
# A single put, by far the most frequent, need not look for so many keys.
_CREATED: Final = (
    "SELECT i.key, i.created_at FROM items i WHERE i.customer = ? AND i.template = ? AND i.labels = ? "
    "AND i.generation = ? AND (i.expires_at IS NULL OR i.expires_at > ?) AND i.key"
)
CREATED_AT: Final = {1: sql(f"{_CREATED} = ?"), _WIDTH: sql(f"{_CREATED} IN ({', '.join('?' * _WIDTH)})")}
TAKE_NUMBERS: Final = sql(
    "UPDATE counters SET next = next + ? WHERE customer = ? AND generation = ? AND scope = ? RETURNING next - ?"
)
PUT_ITEM: Final = sql(
    "INSERT INTO items (customer, template, labels, key, generation, scope, number, sealed, vectors, created_at, "
    "updated_at, ttl, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (customer, template, labels, key) DO UPDATE SET generation = excluded.generation, "
    "scope = excluded.scope, number = excluded.number, sealed = excluded.sealed, vectors = excluded.vectors, "
    "created_at = excluded.created_at, updated_at = excluded.updated_at, ttl = excluded.ttl, "
    "expires_at = excluded.expires_at"
)
ADD_NAMESPACE: Final = sql(
    "INSERT INTO namespaces (customer, template, labels, generation, scope, number, sealed) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (customer, template, labels) DO NOTHING"
)
DELETE_ITEM: Final = sql("DELETE FROM items WHERE customer = ? AND template = ? AND labels = ? AND key = ?")
DELETE_NAMESPACE: Final = sql(
    "DELETE FROM namespaces WHERE customer = ? AND template = ? AND labels = ? AND NOT EXISTS (SELECT 1 FROM items i "
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


class Putter:
    """Writes for one batch, at one time.

    Args:
        core: The deployment.
        dims: Dimensions of the index; 0 without one.
        now: The time of the batch, in seconds.
    """

    def __init__(self, core: Core, dims: int, now: float) -> None:
        self._core = core
        self._dims = dims
        self._now = int(now * 1_000_000)

    def put(self, puts: Sequence[Put], owners: Mapping[str | None, Owner]) -> Plan[None]:
        """Stores and deletes, customer by customer in the order of their tokens."""
        by_owner: dict[Owner, list[Put]] = {}
        for put in puts:
            owner = owners.get(put.owned.customer_id)
            if owner is not None:  # a deletion of somebody who is not known finds nothing
                by_owner.setdefault(owner, []).append(put)
        for owner in sorted(by_owner, key=lambda one: one.customer):
            keys = _keys(owner, by_owner[owner])
            yield from self._delete([key for key, put in keys if put.value is None])
            yield from self._store(owner, [(key, put) for key, put in keys if put.value is not None])

    def _delete(self, keys: Sequence[Key]) -> Plan[None]:
        if keys:
            names = sorted({key[:3] for key in keys})
            yield from run(Statement(DELETE_ITEM, keys, many=True), Statement(DELETE_NAMESPACE, names, many=True))

    def _store(self, owner: Owner, puts: Sequence[tuple[Key, Put]]) -> Plan[None]:
        if not puts:
            return
        created_at = yield from self._created_at(owner, [key for key, _ in puts])
        first = yield from self._numbers(owner, 3 * len(puts))
        items: list[ItemRow] = []
        named: dict[Any, tuple[Any, ...]] = {}
        for number, (key, put) in zip(range(first, first + 3 * len(puts), 3), puts, strict=True):
            items.append(self._sealed(owner, key, put, number, created_at.get(key, self._now)))
            if key[:3] not in named:
                named[key[:3]] = self._sealed_name(owner, key, put, number + 2)
        yield from run(Statement(PUT_ITEM, items, many=True), Statement(ADD_NAMESPACE, list(named.values()), many=True))

    def _created_at(self, owner: Owner, keys: Sequence[Key]) -> Plan[dict[Key, int]]:
        """When those that are there already were created."""
        places: dict[tuple[bytes, str, bytes], list[bytes]] = {}
        for key in keys:
            places.setdefault(key[:3], []).append(key[3])
        asked: list[tuple[tuple[bytes, str, bytes], Statement]] = []
        for place, tokens in places.items():
            fixed = (*place, owner.generation, self._now // 1000)
            width = 1 if len(tokens) == 1 else _WIDTH
            for start in range(0, len(tokens), width):
                some = tokens[start : start + width]
                params = (*fixed, *some, *some[-1:] * (width - len(some)))
                asked.append((place, Statement(CREATED_AT[width], params)))
        results = yield from run(*(statement for _, statement in asked))
        return {
            (*place, bytes(token)): created
            for (place, _), result in zip(asked, results, strict=True)
            for token, created in result.rows
        }

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

    def _sealed(self, owner: Owner, key: Key, put: Put, number: int, created_at: int) -> ItemRow:
        times = (created_at, self._now)
        expires_at = None if put.ttl_ms is None else self._now // 1000 + put.ttl_ms
        empty = ItemRow(*key, owner.generation, SCOPE, number, b"", None, *times, put.ttl_ms, expires_at)
        content = Content(put.customer_label, put.owned.labels, put.key, put.value or "", len(put.vectors))
        seal, columns = self._core.seal, empty.columns
        sealed = seal(owner.tree, ITEM, owner.pair, SCOPE, number, pack_content(content), *columns)
        vectors = None
        if put.vectors:
            packed = pack_vectors(put.vectors, self._dims)
            vectors = seal(owner.tree, ITEM, owner.pair, SCOPE, number + 1, packed, *columns)
        return empty._replace(sealed=sealed, vectors=vectors)

    def _sealed_name(self, owner: Owner, key: Key, put: Put, number: int) -> tuple[Any, ...]:
        packed = msgpack.packb([put.customer_label, list(put.owned.labels)], unicode_errors="surrogatepass")
        sealed = self._core.seal(owner.tree, NAMESPACE, owner.pair, SCOPE, number, packed, *key[1:3])
        return (*key[:3], owner.generation, SCOPE, number, sealed)


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
