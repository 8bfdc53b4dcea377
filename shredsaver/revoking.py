"""The first step of an erasure: putting a customer out of use, for good or for now.

It waits for the writers in flight and refuses those after, in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import uuid4

from shredsaver import erasure, proof, receipts
from shredsaver.core import GET_CUSTOMER, LOCK_CUSTOMER, Core, Customer, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, call, run
from shredsaver.erasures import (
    SCHEDULED,
    SCHEDULED_OF,
    again,
    append,
    changed,
    latest,
    now,
    stamp,
)
from shredsaver.errors import (
    CustomerShreddedError,
    FormatError,
    KeyNotFoundError,
    LegalHoldError,
    RevocationLogDamagedError,
    UnsealError,
)
from shredsaver.guarding import GuardedKeys
from shredsaver.journal import Journal
from shredsaver.keytree import KeyTree
from shredsaver.memory import Memory
from shredsaver.outside import Outside
from shredsaver.threads import ADD_CUSTOMER, GET_NAME, SET_CUSTOMER
from shredsaver.vectors import VectorCache

AT_ONCE: Final = 100
"""Customers looked at in one round trip."""


class Request(NamedTuple):
    """How a shred was asked for."""

    reason: str | None = None
    requested_by: str | None = None
    purge: bool = True
    grace: timedelta | None = None
    defer: bool = False


class Revoking:
    """The plans that put out of use. Holds what all of erasure shares; one for each deployment."""

    def __init__(
        self,
        core: Core,
        guarded: GuardedKeys,
        memory: Memory,
        vectors: VectorCache,
        outside: Outside,
        journal: Journal | None = None,
    ) -> None:
        self._core = core
        self._guarded = guarded
        self._memory = memory
        self._vectors = vectors
        self._outside = outside
        self._journal = journal

    def begin(self, token: bytes, customer_id: str, request: Request) -> Plan[Erasure]:
        """Records that an erasure was asked for, and puts the customer out of use: for good, or with a grace for now.

        Raises:
            LegalHoldError: The customer is under a hold, and ``defer`` was not asked for.
        """
        core = self._core
        is_held, lost = (yield from self._held(token)), False
        keyed = yield from self._keyed(token)
        while True:
            yield Begin("write")
            (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
            if not row.rows:
                # A row to lock, that nobody else sees yet: a first write or another shred may be under way.
                blank = core.customer_row(Customer(token, 1, erasure.LIVE, 0, ""), None)
                added, other = yield from run(Statement(ADD_CUSTOMER, blank), Statement(LOCK_CUSTOMER, (token,)))
                row = row if added.changed else other
            customer = core.customer(row.rows[0]) if row.rows else None
            if keyed > (customer.generation if customer else 1):
                customer = Customer(token, keyed, erasure.LIVE, 0, customer.held_until if customer else "")
            if customer is not None and customer.state in erasure.DEAD:
                one = yield from latest(core, token, customer.generation)
                yield Rollback()
                if one is None:
                    raise CustomerShreddedError(f"customer {token.hex()} was shredded")
                return one
            is_held = is_held or (customer is not None and erasure.held(customer.held_until, core.clock()))
            if is_held and not request.defer:
                yield Rollback()
                raise (yield from self._refusal(token))
            tree = core.tree(customer) if customer is not None else None
            if customer is not None and tree is None and self._outside.names and not lost:
                yield Rollback()
                try:
                    yield from core.load_tree(customer)
                except (CustomerShreddedError, KeyNotFoundError, UnsealError, FormatError):
                    lost = True  # targets hear of no threads, and the receipt says so; the erasure goes on
                continue
            (scheduled,) = yield from run(Statement(SCHEDULED_OF, (token,)))
            if scheduled.rows:
                yield Rollback()
                one = core.erasure(scheduled.rows[0])
                return one if is_held or request.grace is not None else (yield from self.revoke(one))
            waits = customer is not None and (is_held or request.grace is not None)
            one = yield from self._record(token, customer, customer_id, request, tree, waits=waits)
            return (yield from self._put_out_of_use(customer or Customer(token, 1, erasure.LIVE, 0, ""), one))

    def revoke(self, scheduled: Erasure) -> Plan[Erasure]:
        """Revokes a customer whose erasure was scheduled, unless that was cancelled meanwhile."""
        core = self._core
        yield Begin("write")
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (scheduled.customer,)))
        one = yield from again(core, scheduled)
        if one.state != SCHEDULED:
            yield Rollback()
            return one
        one = one._replace(state=erasure.REVOKED, record={**one.record, "revoked_at": now(core)})
        return (yield from self._put_out_of_use(core.customer(row.rows[0]), one))

    def _record(
        self,
        token: bytes,
        customer: Customer | None,
        customer_id: str,
        request: Request,
        tree: KeyTree | None,
        *,
        waits: bool,
    ) -> Plan[Erasure]:
        """Appends the entry of a new erasure within the open transaction."""
        core, erasure_id = self._core, str(uuid4())
        generation = customer.generation if customer else 1
        salt = receipts.salt(core.secrets.receipt_key, erasure_id)
        record: dict[str, Any] = {
            "requested_at": now(core),
            "known": customer is not None,
            "purge": request.purge,
            "who": receipts.commitment(salt, "customer", customer_id),
            "reason": proof.reason(core, erasure_id, request.reason, "reason"),
            "requested_by": proof.reason(core, erasure_id, request.requested_by, "requested_by"),
            "target_names": self._outside.names,
        }
        if waits:
            record["due_at"] = stamp(core.clock() + (request.grace or timedelta()).total_seconds())
        else:
            record["revoked_at"] = record["requested_at"]
        retry, unnamed = yield from self._outside.remember(erasure_id, token, generation, customer_id, tree)
        if unnamed:
            record["threads_unnamed"] = unnamed
        state = SCHEDULED if waits else erasure.REVOKED
        return (yield from append(core, Erasure(0, erasure_id, token, generation, state, record), retry))

    def _put_out_of_use(self, customer: Customer, one: Erasure) -> Plan[Erasure]:
        """Changes the customer's state as the entry says, within the open transaction, and commits."""
        state = erasure.REVOKED if one.state == erasure.REVOKED else erasure.RESTRICTED
        (kept,) = yield from run(Statement(GET_NAME, (customer.customer,)))
        name = kept.rows[0][0] if state == erasure.RESTRICTED else None
        after = customer if customer.state == state else customer._replace(state=erasure.advance(customer.state, state))
        row = self._core.customer_row(after, name)
        yield from run(changed(self._core, one), Statement(SET_CUSTOMER, row), commit=True)
        kind = "revoked" if state == erasure.REVOKED else "scheduled"
        self._core.events.emit(kind, one.customer, erasure=one.erasure_id, due=one.record.get("due_at"))
        if state == erasure.REVOKED:
            self.forget(customer.customer, customer.generation)
        return one

    def forget(self, customer: bytes, generation: int) -> None:
        """Drops what this process has opened of a customer."""
        self._core.keyring.revoke(customer, generation)
        self._memory.forget_customer(customer)
        self._vectors.forget_customer(customer)

    def refuse_held(self, tokens: Sequence[bytes]) -> Plan[None]:
        """Refuses a batch before any of it is put out of use."""
        for token in tokens if len(tokens) > 1 else ():
            if (yield from self._held(token)):
                raise (yield from self._refusal(token))
        yield Begin("read")
        for first in range(0, len(tokens), AT_ONCE):
            some = tokens[first : first + AT_ONCE]
            for found in (yield from run(*(Statement(GET_CUSTOMER, (token,)) for token in some))):
                for row in found.rows:
                    if erasure.held(self._core.customer(row).held_until, self._core.clock()):
                        yield Rollback()
                        raise held(bytes(row[0]))
        yield Commit()

    def _due(self, one: Erasure) -> Plan[bool]:
        return one.record["due_at"] <= now(self._core) and not (yield from self._held(one.customer))

    def _keyed(self, token: bytes) -> Plan[int]:
        """The generation that has keys: a database that was restored may know of an earlier one only."""
        try:
            return (yield from call(partial(self._core.keys.current, token))) or 0
        except RevocationLogDamagedError:  # use must end all the same; destroying will say what is wrong
            return 0

    def _held(self, token: bytes) -> Plan[bool]:
        """Whether the key service holds the customer, or cannot say."""
        try:
            return (yield from call(partial(self._core.keys.held, token))) is not None
        except LegalHoldError:
            return True

    def _refusal(self, token: bytes) -> Plan[LegalHoldError]:
        """Why a customer is not erased: under a hold, or maybe under one."""
        try:
            yield from call(partial(self._core.keys.held, token))
        except LegalHoldError as error:
            return error
        return held(token)


def held(token: bytes) -> LegalHoldError:
    """The error for a customer under a hold."""
    return LegalHoldError(f"customer {token.hex()} is under a hold: release it first, or defer the erasure")
