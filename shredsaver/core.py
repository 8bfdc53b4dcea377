"""What saver, store and shredder share: one database, one key service, opened keys, and the fence.

The fence is a customer's row in the database. Whoever reads or writes a customer's data reads that row in the same
snapshot or transaction, and goes no further unless it says ``live``.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgpack

from shredsaver import erasure
from shredsaver.customers import token
from shredsaver.db.base import Database, Plan, Rollback, Statement, call, run, sql
from shredsaver.errors import (
    CustomerRestrictedError,
    CustomerShreddedError,
    KeyNotFoundError,
    RevocationLogDamagedError,
    ShredSaverError,
    UnsealError,
)
from shredsaver.events import Events
from shredsaver.keyring import Keyring
from shredsaver.keytree import KeyPuncturedError, KeyTree
from shredsaver.kms.base import DeploymentSecrets, KeyService
from shredsaver.sealing import REASON, associated_data, associated_range, seal, unseal, unseal_range

FIRST_NUMBER: Final = 16
"""The first number of a scope that is handed out, and the first scope that a thread gets."""

CUSTOMER_COLUMNS: Final = "customer, generation, state, key_version, held_until, mac"
GET_CUSTOMER: Final = sql(f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer = ?")
SHARE_CUSTOMER: Final = sql(f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer = ? {{share}}")
LOCK_CUSTOMER: Final = sql(f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer = ? {{update}}")
GET_ERASURE: Final = sql(
    "SELECT seq, erasure_id, customer, generation, state, record, mac FROM erasures "
    "WHERE customer = ? AND generation >= ? AND state NOT IN ('scheduled', 'cancelled') ORDER BY generation LIMIT 1"
)


TOKENS: Final = 4096
"""Ids whose tokens are remembered."""

VERIFIED_ROWS: Final = 10_000
"""Rows whose MAC was checked and that are remembered byte by byte, so that an unchanged row is not checked again."""


class Customer(NamedTuple):
    """A customer's row, its MAC checked."""

    customer: bytes
    generation: int
    state: str
    key_version: int
    held_until: str


class Erasure(NamedTuple):
    """A row of ``erasures``, its MAC checked."""

    seq: int
    erasure_id: str
    customer: bytes
    generation: int
    state: str
    record: dict[str, Any]


class Core:
    """One opened deployment. Shared by every shallow copy of a saver, so it holds no per-graph state."""

    def __init__(
        self,
        database: Database,
        keys: KeyService,
        *,
        keyring: Keyring | None = None,
        clock: Callable[[], float] = time.time,
        events: Events | None = None,
    ) -> None:
        self.database = database
        self.keys = keys
        self.keyring = keyring or Keyring(keys)
        self.secrets: DeploymentSecrets = keys.deployment()
        self.deployment = self.secrets.deployment
        self.clock = clock
        self.events = events or Events()
        self.shut: RevocationLogDamagedError | None = None
        """Why nothing is served: nobody can say who was shredded."""
        self._token = lru_cache(TOKENS)(partial(token, self.secrets.lookup_key))
        self._verified: dict[bytes, tuple[Any, ...]] = {}

    # -- names ------------------------------------------------------------------------------------------------------

    def token(self, kind: str, identifier: str) -> bytes:
        """The token that stands for an id of this kind (``"customer"``, ``"thread"``, ``"run"``)."""
        return self._token(kind, identifier)

    # -- records ----------------------------------------------------------------------------------------------------

    def seal(
        self, tree: KeyTree, table: int, owner: tuple[bytes, int], scope: int, number: int, data: bytes, *columns: Any
    ) -> bytes:
        """Seals a record of a customer's generation (``owner``) under the key of scope and number."""
        associated = associated_data(table, self.deployment, *owner, scope, number, *columns)
        return seal(tree.derive(scope, number), data, associated)

    def seal_rows(
        self,
        tree: KeyTree,
        table: int,
        owner: tuple[bytes, int],
        scope: int,
        first: int,
        rows: Sequence[bytes],
        *columns: Any,
    ) -> list[bytes]:
        """Seals records of one scope that differ by their number, from ``first`` on."""
        associated = associated_range(table, self.deployment, *owner, scope, *columns)
        return [
            seal(tree.derive(scope, number), data, associated.at(number)) for number, data in enumerate(rows, first)
        ]

    def unseal(
        self,
        tree: KeyTree,
        table: int,
        owner: tuple[bytes, int],
        scope: int,
        number: int,
        record: bytes,
        where: tuple[object, ...],
        *columns: Any,
    ) -> bytes:
        """Opens a record.

        Raises:
            UnsealError: It does not belong here, or its key is no more.
            FormatError: It is no sealed record.
        """
        associated = associated_data(table, self.deployment, *owner, scope, number, *columns)
        try:
            key = tree.derive(scope, number)
        except KeyPuncturedError:
            raise UnsealError(f"{where[0]}: the key of record {scope}/{number} is no more") from None
        return unseal(key, record, associated, where)

    def unseal_rows(
        self,
        tree: KeyTree,
        table: int,
        owner: tuple[bytes, int],
        scope: int,
        rows: Sequence[tuple[int, bytes]],
        where: tuple[object, ...],
        *columns: Any,
    ) -> dict[int, bytes]:
        """Opens records of one scope that differ by their number, given as (number, record). Errors as `unseal`."""
        associated = associated_range(table, self.deployment, *owner, scope, *columns)
        numbers = [row[0] for row in rows]
        try:
            if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
                keys = tree.derive_range(scope, numbers[0], numbers[-1])
            else:
                keys = [tree.derive(scope, number) for number in numbers]
        except KeyPuncturedError:
            raise UnsealError(f"{where[0]}: a key of scope {scope} is no more") from None
        return unseal_range(zip(numbers, [row[1] for row in rows], keys, strict=True), associated, where)

    def seal_own(self, kind: str, identifier: str, data: bytes) -> bytes:
        """Seals what belongs to the deployment and to no customer, such as the reason of an erasure."""
        return seal(self._own_key(kind, identifier), data, self._own_place(identifier))

    def unseal_own(self, kind: str, identifier: str, record: bytes) -> bytes:
        """Opens what `seal_own` sealed."""
        return unseal(self._own_key(kind, identifier), record, self._own_place(identifier), (kind, identifier))

    def _own_key(self, kind: str, identifier: str) -> bytes:
        message = msgpack.packb(["own-key", kind, identifier])
        return hmac.digest(self.secrets.receipt_key, message, hashlib.sha256)

    def _own_place(self, identifier: str) -> bytes:
        return associated_data(REASON, self.deployment, b"", 0, 0, 0, identifier)

    def mac(self, kind: str, *fields: Any) -> bytes:
        """HMAC-SHA-256 of a row of the revocation record under the log key."""
        message = msgpack.packb([kind, self.deployment, *fields])
        return hmac.digest(self.secrets.log_key, message, hashlib.sha256)

    # -- the fence --------------------------------------------------------------------------------------------------

    def customer(self, row: Sequence[Any]) -> Customer:
        """A row of `CUSTOMER_COLUMNS`, believed only if its MAC is right.

        Raises:
            RevocationLogDamagedError: It is not, so nobody can say whether the customer was shredded.
        """
        found = tuple(row)
        key = found[0]
        if self._verified.get(key) != found:
            parsed = Customer(*found[:5])
            if not _equal(self.mac("customers", *parsed), found[5]):
                name = key.hex() if isinstance(key, bytes) else "of no name"
                raise RevocationLogDamagedError(
                    f"the row of customer {name} in customers was altered, so its data stays shut: run reconcile"
                )
            if len(self._verified) > VERIFIED_ROWS:
                self._verified.clear()
            self._verified[key] = found
            return parsed
        return Customer(*found[:5])

    def known(self, customer: bytes) -> Customer | None:
        """What this process saw last of a customer: a guess, until the database was asked again."""
        row = self._verified.get(customer)
        return None if row is None else Customer(*row[:5])

    def admitted(self, customer: bytes, generation: int) -> tuple[Any, ...] | None:
        """The customer's row as it was last seen, if it lets this generation through. Only a guess, as `known`."""
        row = self._verified.get(customer)
        served = row is not None and row[1] == generation and row[2] in erasure.SERVED and self.shut is None
        return row if served else None

    def customer_row(self, customer: Customer, name: bytes | None) -> tuple[Any, ...]:
        """The row to store: `CUSTOMER_COLUMNS` and the sealed name."""
        return (*customer, self.mac("customers", *customer), name)

    def erasure(self, row: Sequence[Any]) -> Erasure:
        """A row of ``erasures``, believed only if its MAC is right."""
        *fields, mac = row
        if not _equal(self.mac("erasures", *fields), mac):
            raise RevocationLogDamagedError(f"entry {fields[0]} of erasures was altered; run reconcile")
        seq, erasure_id, customer, generation, state, packed = fields
        return Erasure(seq, erasure_id, customer, generation, state, msgpack.unpackb(packed))

    def erasure_row(self, erasure_: Erasure) -> tuple[Any, ...]:
        """The row to store."""
        fields = (*erasure_[:5], msgpack.packb(erasure_.record))
        return (*fields, self.mac("erasures", *fields))

    def admit(self, row: Sequence[Any], generation: int | None = None, *, restricted: bool = False) -> Plan[Customer]:
        """Lets a live customer through, within the open transaction, which is rolled back otherwise.

        Args:
            row: The customer's row.
            generation: The generation of what is asked for; an older one than the customer's is dead.
            restricted: Also let through one whose use is restricted: for showing what is held, and nothing else.

        Raises:
            CustomerShreddedError, CustomerRestrictedError, RevocationLogDamagedError: No entry.
        """
        if self.shut is not None:
            yield Rollback()
            raise self.shut
        customer = self.customer(row)
        open_to = erasure.SHOWN if restricted else erasure.SERVED
        if customer.state in open_to and (generation is None or generation == customer.generation):
            return customer
        raise (yield from self.refusal(customer, generation))

    def refusal(self, customer: Customer, generation: int | None = None) -> Plan[ShredSaverError]:
        """The error that a customer's state means. Ends the open transaction."""
        dead = customer.state in erasure.DEAD
        if generation is not None and generation > customer.generation:
            yield Rollback()
            return UnsealError(f"customer {customer.customer.hex()}: a row claims a generation that does not exist")
        if customer.state == erasure.RESTRICTED and generation in (None, customer.generation):
            yield Rollback()
            return CustomerRestrictedError(
                f"use of customer {customer.customer.hex()} is restricted: reinstate ends it"
            )
        target = customer.generation if generation is None else generation
        (found,) = yield from run(Statement(GET_ERASURE, (customer.customer, target)))
        yield Rollback()
        self.keyring.revoke(customer.customer, customer.generation if dead else customer.generation - 1)
        if not found.rows:
            return CustomerShreddedError(f"customer {customer.customer.hex()} was shredded")
        return shredded(self.erasure(found.rows[0]))

    def tree(self, customer: Customer) -> KeyTree | None:
        """The customer's tree if it is at hand; otherwise `load_tree`, outside any transaction."""
        return self.keyring.cached(customer.customer, customer.generation, customer.key_version)

    def load_tree(self, customer: Customer) -> Plan[None]:
        """Brings a tree from the key service.

        Raises:
            CustomerShreddedError: The key service says it was destroyed, whatever the database says.
            KeyNotFoundError: It has no such key, or only one older than the database knows.
        """
        version = yield from call(partial(self.keyring.load, customer.customer, customer.generation))
        if version < customer.key_version:
            raise KeyNotFoundError(
                f"the key store has version {version} of the keys of customer {customer.customer.hex()}, the database "
                f"needs {customer.key_version}: the key store is older than the database, restore a current copy"
            )


def _equal(expected: bytes, found: object) -> bool:
    # In a schema that was altered a column may hold anything.
    return isinstance(found, bytes) and hmac.compare_digest(expected, found)


def shredded(record: Erasure) -> CustomerShreddedError:
    """The error for a customer with this erasure."""
    at = record.record.get("revoked_at")
    when = f" at {at}" if at else ""
    return CustomerShreddedError(
        f"customer {record.customer.hex()} was shredded{when} (erasure {record.erasure_id})",
        shredded_at=datetime.fromisoformat(at) if at else None,
        erasure_id=record.erasure_id,
    )
