"""The steps of a shred as plans: revoke, destroy, purge, verify. Each is durable before the next begins.

Revoking ends use at once, in every process: it waits for the writers in flight and refuses those after. Destroying
makes every copy of the data unreadable. Purging is hygiene. Whatever fails, the customer is already out of use, and
`resume` or another shred goes on where this one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from shredsaver import erasure, proof, receipts
from shredsaver.core import LOCK_CUSTOMER, Core, Customer, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, call, run
from shredsaver.erasures import (
    CANCELLED,
    COMPLETE,
    SCHEDULED,
    SCHEDULED_OF,
    SET_RETRY,
    advance,
    again,
    append,
    changed,
    latest,
    now,
    plain,
    receipt_of,
    stamp,
    unfinished,
)
from shredsaver.errors import (
    CustomerShreddedError,
    DatabaseUnavailableError,
    KeyServiceError,
    LegalHoldError,
    ShredIncompleteError,
)
from shredsaver.journal import Journal
from shredsaver.keytree import KeyTree
from shredsaver.kms.base import Destruction
from shredsaver.memory import Memory
from shredsaver.outside import Outside
from shredsaver.purging import count, purge
from shredsaver.reconcile import Dead
from shredsaver.results import ShredResult
from shredsaver.targets import REVOKED, VERIFIED
from shredsaver.threads import ADD_CUSTOMER, GET_NAME, SET_CUSTOMER
from shredsaver.vectors import VectorCache


class Request(NamedTuple):
    """How a shred was asked for."""

    reason: str | None = None
    requested_by: str | None = None
    purge: bool = True
    grace: timedelta | None = None
    defer: bool = False


class Shredding:
    """The plans of erasure. Holds what they share; one for each deployment."""

    def __init__(
        self, core: Core, memory: Memory, vectors: VectorCache, outside: Outside, journal: Journal | None = None
    ) -> None:
        self._core = core
        self._memory = memory
        self._vectors = vectors
        self._outside = outside
        self._journal = journal

    def shred(self, customers: Sequence[tuple[bytes, str]], request: Request) -> Plan[list[ShredResult]]:
        """Erases customers, given by token and id.

        Each is put out of use, then all keys are destroyed together, then each is purged and verified.
        """
        begun = []
        for token, customer_id in customers:
            begun.append((yield from self.begin(token, customer_id, request)))
        yield from self.finish(begun)
        return (yield from self.results(begun))

    def resume(self) -> Plan[list[ShredResult]]:
        """Finishes every erasure that can be finished now: interrupted ones, and those whose time has come."""
        yield from call(self._core.keys.resume)
        due = []
        for one in (yield from unfinished(self._core)):
            if one.state != SCHEDULED:
                due.append(one)
            elif (yield from self._due(one)):
                due.append((yield from self.revoke(one)))
        yield from self.finish(due)
        return (yield from self.results(due))

    def resume_due(self) -> Plan[None]:
        """Destroys what was scheduled and whose time has come. Interrupted erasures may be another process's work."""
        for one in (yield from unfinished(self._core)):
            if one.state == SCHEDULED and (yield from self._due(one)):
                yield from self.finish([(yield from self.revoke(one))])

    def finish(self, begun: Sequence[Erasure]) -> Plan[None]:
        """Takes revoked erasures through the steps that are left.

        Raises:
            ShredIncompleteError: Some could not be finished; they are out of use.
        """
        pending: list[str] = []
        problem: Exception | None = None
        going = [one for one in begun if one.state not in (SCHEDULED, COMPLETE, CANCELLED)]
        for one in (yield from self.destroy(going)):
            try:
                pending += yield from self._finish_one(one)
            except DatabaseUnavailableError as error:
                problem, pending = error, [*pending, erasure.PURGED]
        # Keys that die at a date are no failure: the result says so, and `resume` asks again.
        failed = tuple(dict.fromkeys(step for step in pending if step != erasure.DESTROYED))
        if failed:
            raise ShredIncompleteError(
                f"the erasure is not complete, though use has ended; to be done: {', '.join(failed)}. Call resume",
                pending=failed,
            ) from problem

    def results(self, begun: Sequence[Erasure]) -> Plan[list[ShredResult]]:
        """What became of some erasures."""
        found = []
        yield Begin("read")
        for one in begun:
            current = yield from again(self._core, one)
            receipt = yield from receipt_of(one.erasure_id)
            found.append(result(current, receipt, self._outside.pending(current)))
        yield Commit()
        return found

    # -- out of use -------------------------------------------------------------------------------------------------

    def begin(self, token: bytes, customer_id: str, request: Request) -> Plan[Erasure]:
        """Records that an erasure was asked for, and puts the customer out of use: for good, or with a grace for now.

        Raises:
            LegalHoldError: The customer is under a hold, and ``defer`` was not asked for.
        """
        core = self._core
        is_held = yield from self._held(token)
        while True:
            yield Begin("write")
            (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
            if not row.rows:
                # A row to lock, that nobody else sees yet: a first write or another shred may be under way.
                blank = core.customer_row(Customer(token, 1, erasure.LIVE, 0, ""), None)
                added, other = yield from run(Statement(ADD_CUSTOMER, blank), Statement(LOCK_CUSTOMER, (token,)))
                row = row if added.changed else other
            customer = core.customer(row.rows[0]) if row.rows else None
            if customer is not None and customer.state in erasure.DEAD:
                one = yield from latest(core, token, customer.generation)
                yield Rollback()
                if one is None:
                    raise CustomerShreddedError(f"customer {token.hex()} was shredded")
                return one
            is_held = is_held or (customer is not None and erasure.held(customer.held_until, core.clock()))
            if is_held and not request.defer:
                yield Rollback()
                raise held(token)
            tree = core.tree(customer) if customer is not None else None
            if customer is not None and tree is None and self._outside.names:
                yield Rollback()
                yield from core.load_tree(customer)
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
        retry = yield from self._outside.remember(erasure_id, token, generation, customer_id, tree)
        state = SCHEDULED if waits else erasure.REVOKED
        return (yield from append(core, Erasure(0, erasure_id, token, generation, state, record), retry))

    def _put_out_of_use(self, customer: Customer, one: Erasure) -> Plan[Erasure]:
        """Changes the customer's state as the entry says, within the open transaction, and commits."""
        state = erasure.REVOKED if one.state == erasure.REVOKED else erasure.RESTRICTED
        (kept,) = yield from run(Statement(GET_NAME, (customer.customer,)))
        name = kept.rows[0][0] if kept.rows and state == erasure.RESTRICTED else None
        moved = customer if customer.state == state else customer._replace(state=erasure.advance(customer.state, state))
        row = self._core.customer_row(moved, name)
        yield from run(changed(self._core, one), Statement(SET_CUSTOMER, row), commit=True)
        if state == erasure.REVOKED:
            self.forget(customer.customer, customer.generation)
        return one

    def forget(self, customer: bytes, generation: int) -> None:
        """Drops what this process has opened of a customer."""
        self._core.keyring.revoke(customer, generation)
        self._memory.forget_customer(customer)
        self._vectors.forget_customer(customer)

    # -- the other steps --------------------------------------------------------------------------------------------

    def destroy(self, going: Sequence[Erasure]) -> Plan[list[Erasure]]:
        """Destroys the keys of those that are revoked, in one call to the key service.

        Raises:
            ShredIncompleteError: The key service failed; the customers stay revoked.
        """
        waiting = [one for one in going if one.state == erasure.REVOKED]
        done: dict[str, Erasure] = {one.erasure_id: one for one in going}
        if waiting and self._journal is not None:
            for one in waiting:
                dead = Dead(one.customer, one.generation, one.record["revoked_at"])
                yield from call(partial(self._journal.append, dead))
        if waiting:
            try:
                destructions: list[Destruction] = yield from call(
                    partial(self._core.keys.destroy, [one.customer for one in waiting])
                )
            except KeyServiceError as error:
                raise ShredIncompleteError(
                    f"the keys of {len(waiting)} customers could not be destroyed yet ({type(error).__name__}); they "
                    "are out of use, call resume or shred again",
                    pending=erasure.remaining(erasure.REVOKED, purge=True),
                ) from error
            for one, destruction in zip(waiting, destructions, strict=True):
                done[one.erasure_id] = yield from self._destroyed(one, destruction)
        return [done[one.erasure_id] for one in going]

    def _destroyed(self, one: Erasure, destruction: Destruction) -> Plan[Erasure]:
        fields = plain({**asdict(destruction), "customer": destruction.customer.hex()})
        record = {**one.record, "destruction": fields}
        record["known"] = bool(record["known"] or destruction.known)
        generation = max(one.generation, destruction.generation)
        state = one.state
        if destruction.state == "destroyed":
            state = erasure.DESTROYED
            record["destroyed_at"] = destruction.destroyed_at or now(self._core)
        return (yield from advance(self._core, one._replace(state=state, generation=generation, record=record), state))

    def _finish_one(self, one: Erasure) -> Plan[list[str]]:
        """Targets, purge, verification, receipt. Gives the steps that could not be done."""
        one = yield from self._outside.erase(one, REVOKED)
        if one.record["purge"] and not one.record.get("purged_at"):
            one = yield from purge(self._core, one)
        one = yield from self.verify(one)
        pending = [] if one.state in (erasure.DESTROYED, erasure.PURGED) else [erasure.DESTROYED]
        if not pending:
            one = yield from self._outside.erase(one, VERIFIED)
        pending += self._outside.pending(one)
        yield from proof.issue(self._core, one, tuple(pending))
        if not pending:
            yield Begin("write")
            complete = changed(self._core, one._replace(state=COMPLETE))
            yield from run(complete, Statement(SET_RETRY, (None, one.erasure_id)), commit=True)
        return pending

    def verify(self, one: Erasure) -> Plan[Erasure]:
        """Counts again, and asks the key service for the keys: it must say that they are no more.

        Raises:
            ShredIncompleteError: They are still there, or rows are.
        """
        try:
            yield from call(partial(self._core.keys.load, one.customer, one.generation))
        except CustomerShreddedError:
            pass
        else:
            raise ShredIncompleteError(
                f"the key service still gives out the keys of customer {one.customer.hex()} after their destruction",
                pending=erasure.remaining(erasure.REVOKED, purge=one.record["purge"]),
            )
        yield Begin("read")
        after = yield from count(one.customer, one.generation)
        yield Commit()
        record = {"before": after, **one.record, "after": after, "verified_at": now(self._core)}
        if one.record["purge"] and any(after.values()):
            raise ShredIncompleteError(
                f"rows of customer {one.customer.hex()} are still there after the purge: "
                + ", ".join(f"{number} {route}" for route, number in after.items() if number),
                pending=(erasure.PURGED,),
            )
        return (yield from advance(self._core, one._replace(record=record)))

    def _due(self, one: Erasure) -> Plan[bool]:
        return one.record["due_at"] <= now(self._core) and not (yield from self._held(one.customer))

    def _held(self, token: bytes) -> Plan[bool]:
        return (yield from call(partial(self._core.keys.held, token))) is not None


def held(token: bytes) -> LegalHoldError:
    """The error for a customer under a hold."""
    return LegalHoldError(f"customer {token.hex()} is under a hold: release it first, or defer the erasure")


def result(one: Erasure, receipt: str | None, targets: tuple[str, ...]) -> ShredResult:
    """What a caller is told of an erasure."""
    record, state = one.record, one.state
    if state == COMPLETE:
        state = erasure.PURGED if record["purge"] else erasure.DESTROYED
    steps = () if state in (SCHEDULED, CANCELLED) else erasure.remaining(state, purge=record["purge"])
    return ShredResult(
        erasure_id=one.erasure_id,
        customer=one.customer.hex(),
        generation=one.generation,
        known=record["known"],
        state=state,
        requested_at=record["requested_at"],
        due_at=record.get("due_at"),
        revoked_at=record.get("revoked_at"),
        destroyed_at=record.get("destroyed_at"),
        purged_at=record.get("purged_at"),
        verified_at=record.get("verified_at"),
        before=record.get("before", {}),
        after=record.get("after", {}),
        destruction=record.get("destruction", {}),
        targets=record.get("targets", {}),
        receipt=receipt,
        pending=() if one.state in (COMPLETE, CANCELLED) else (*steps, *targets),
    )
