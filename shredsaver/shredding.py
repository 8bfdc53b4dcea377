"""The steps of a shred as plans: revoke, destroy, purge, verify. Each is durable before the next begins.

Revoking ends use at once, in every process: it waits for the writers in flight and refuses those after. Destroying makes
every copy of the data unreadable. Purging is hygiene. Whatever fails, the customer is already out of use, and `resume`
or another shred goes on where this one stopped.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from shredsaver import erasure
from shredsaver.core import GET_ERASURE, LOCK_CUSTOMER, Core, Customer, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, call, run, sql
from shredsaver.errors import (
    CustomerShreddedError,
    KeyServiceError,
    LegalHoldError,
    ShredIncompleteError,
)
from shredsaver.kms.base import Destruction
from shredsaver.memory import Memory
from shredsaver.results import ShredResult
from shredsaver.threads import ADD_COUNTER, SET_CUSTOMER
from shredsaver.upkeep import DELETE_OF_THREAD, EPOCH_BITS
from shredsaver.vectors import VectorCache

LOG_COUNTER: Final = (b"", 0, 0)
"""The row of ``counters`` that numbers the log of erasures, and that shreds queue at."""

NEXT_SEQ: Final = sql(
    "UPDATE counters SET next = next + 1 WHERE customer = ? AND generation = ? AND scope = ? RETURNING next - 1"
)
GET_CHAIN: Final = sql("SELECT chain FROM erasures WHERE seq = ?")
ADD_ERASURE: Final = sql(
    "INSERT INTO erasures (seq, erasure_id, customer, generation, state, record, mac, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SET_ERASURE: Final = sql(
    "UPDATE erasures SET customer = ?, generation = ?, state = ?, record = ?, mac = ? WHERE seq = ? AND erasure_id = ?"
)
OPEN_ERASURES: Final = sql(
    "SELECT seq, erasure_id, customer, generation, state, record, mac FROM erasures WHERE state <> ? ORDER BY seq"
)
THREADS_TO_PURGE: Final = sql(
    "SELECT thread FROM threads WHERE customer = ? AND generation <= ? AND scope > 0 LIMIT 64"
)
EMPTY_THREAD: Final = sql(
    "UPDATE threads SET scope = 0, next_record = 0, next_part = 0, epoch = ?, uses_delta = 0, name = NULL, "
    "touched_at = 0, expires_at = NULL WHERE thread = ?"
)
DELETE_OF_CUSTOMER: Final = tuple(
    sql(f"DELETE FROM {table} WHERE customer = ? AND generation <= ?") for table in ("items", "namespaces", "counters")
)
"""What belongs to a customer and to no thread."""

_OF_THREADS: Final = (
    "SELECT count(*) FROM {} x WHERE x.generation <= ? AND x.thread IN (SELECT thread FROM threads WHERE customer = ?)"
)
ROUTES: Final = {
    "threads": sql("SELECT count(*) FROM threads WHERE generation <= ? AND customer = ? AND scope > 0"),
    "checkpoints": sql(_OF_THREADS.format("checkpoints")),
    "writes": sql(_OF_THREADS.format("writes")),
    "parts": sql(_OF_THREADS.format("parts")),
    "items": sql("SELECT count(*) FROM items WHERE generation <= ? AND customer = ?"),
}
"""Rows of a customer's generations, by route."""

COMPLETE: Final = "complete"
"""State of an erasure whose every step is done."""


def now(core: Core) -> str:
    """The time as the record keeps it: ISO 8601 in UTC."""
    return datetime.fromtimestamp(core.clock(), UTC).isoformat(timespec="milliseconds")


def count(customer: bytes, generation: int) -> Plan[dict[str, int]]:
    """Counts a customer's rows by route, within the open transaction."""
    results = yield from run(*(Statement(statement, (generation, customer)) for statement in ROUTES.values()))
    return {route: int(result.rows[0][0]) for route, result in zip(ROUTES, results, strict=True)}


class Shredding:
    """The plans of erasure. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, memory: Memory, vectors: VectorCache) -> None:
        self._core = core
        self._memory = memory
        self._vectors = vectors

    def shred(self, tokens: Sequence[bytes], *, purge: bool) -> Plan[list[ShredResult]]:
        """Erases customers: each is revoked, then all keys are destroyed together, then each is purged and verified."""
        requested = now(self._core)
        erasures = []
        for token in tokens:
            if (yield from call(partial(self._core.keys.held, token))) is not None:
                raise held(token)
        for token in tokens:
            erasures.append((yield from self.revoke(token, requested, purge=purge)))
        return (yield from self.finish(erasures))

    def resume(self) -> Plan[list[ShredResult]]:
        """Finishes every erasure that is not complete."""
        yield from call(self._core.keys.resume)
        yield Begin("read")
        (found,) = yield from run(Statement(OPEN_ERASURES, (COMPLETE,)))
        yield Commit()
        return (yield from self.finish([self._core.erasure(row) for row in found.rows]))

    def finish(self, erasures: Sequence[Erasure]) -> Plan[list[ShredResult]]:
        """Takes revoked erasures through the steps that are left."""
        erasures = yield from self.destroy(erasures)
        results = []
        for one in erasures:
            if one.record["purge"] and not one.record.get("purged_at"):
                one = yield from self.purge(one)  # noqa: PLW2901 -- the next state of the same erasure
            if one.state != COMPLETE:
                one = yield from self.verify(one)  # noqa: PLW2901
            results.append(result(one))
        return results

    # -- steps ------------------------------------------------------------------------------------------------------

    def revoke(self, token: bytes, requested: str, *, purge: bool) -> Plan[Erasure]:
        """Ends a customer's use: state, log entry and tombstone in one transaction. The first step of every shred.

        Raises:
            LegalHoldError: The customer is under a hold.
        """
        core = self._core
        yield Begin("write")
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
        customer = core.customer(row.rows[0]) if row.rows else None
        if customer is not None and customer.state in erasure.DEAD:
            (found,) = yield from run(Statement(GET_ERASURE, (token, customer.generation)))
            yield Rollback()
            return core.erasure(found.rows[0])
        if customer is not None and erasure.held(customer.held_until, core.clock()):
            yield Rollback()
            raise held(token)
        known = customer is not None
        if customer is None:
            customer = Customer(token, 1, erasure.LIVE, 0, "")
        revoked = customer._replace(state=erasure.advance(customer.state, erasure.REVOKED))
        record = {"requested_at": requested, "revoked_at": now(core), "known": known, "purge": purge}
        one = yield from self._log(Erasure(0, str(uuid4()), token, customer.generation, erasure.REVOKED, record))
        yield from run(Statement(SET_CUSTOMER, core.customer_row(revoked, None)), commit=True)
        core.keyring.revoke(token, customer.generation)
        self._memory.forget_customer(token)
        self._vectors.forget_customer(token)
        return one

    def _log(self, one: Erasure) -> Plan[Erasure]:
        """Appends to the log of erasures, whose entries are chained by HMAC under the log key."""
        core = self._core
        _, taken = yield from run(Statement(ADD_COUNTER, (*LOG_COUNTER, 1)), Statement(NEXT_SEQ, LOG_COUNTER))
        one = one._replace(seq=int(taken.rows[0][0]))
        (before,) = yield from run(Statement(GET_CHAIN, (one.seq - 1,)))
        previous = bytes(before.rows[0][0]) if before.rows else b""
        chain = core.mac("erasure-log", previous, one.seq, one.erasure_id, one.customer, one.record["revoked_at"])
        yield from run(Statement(ADD_ERASURE, (*core.erasure_row(one), chain)))
        return one

    def destroy(self, erasures: Sequence[Erasure]) -> Plan[list[Erasure]]:
        """Destroys the keys of those that are revoked, in one call to the key service.

        Raises:
            ShredIncompleteError: The key service failed; the customers stay revoked.
        """
        waiting = [one for one in erasures if one.state == erasure.REVOKED]
        done: dict[str, Erasure] = {one.erasure_id: one for one in erasures}
        if waiting:
            try:
                destructions: list[Destruction] = yield from call(
                    partial(self._core.keys.destroy, [one.customer for one in waiting])
                )
            except KeyServiceError as error:
                raise ShredIncompleteError(
                    f"the keys of {len(waiting)} customers could not be destroyed yet ({type(error).__name__}); they are "
                    "out of use, call resume or shred again",
                    pending=erasure.remaining(erasure.REVOKED, purge=True),
                ) from error
            for one, destruction in zip(waiting, destructions, strict=True):
                done[one.erasure_id] = yield from self._destroyed(one, destruction)
        return [done[one.erasure_id] for one in erasures]

    def _destroyed(self, one: Erasure, destruction: Destruction) -> Plan[Erasure]:
        record = {**one.record, "destruction": _plain(destruction)}
        record["known"] = bool(record["known"] or destruction.known)
        state = one.state
        generation = max(one.generation, destruction.generation)
        if destruction.state == "destroyed":
            state = erasure.DESTROYED
            record["destroyed_at"] = destruction.destroyed_at or now(self._core)
        return (yield from self._advance(one._replace(state=state, generation=generation, record=record), state))

    def purge(self, one: Erasure) -> Plan[Erasure]:
        """Deletes the customer's rows, thread by thread; only who a thread belonged to stays, so that it stays refused."""
        owner = (one.customer, one.generation)
        if "before" not in one.record:
            yield Begin("read")
            counts = yield from count(*owner)
            yield Commit()
            one = one._replace(record={**one.record, "before": counts})
            one = yield from self._advance(one, None)
        while True:
            yield Begin("write")
            (threads,) = yield from run(Statement(THREADS_TO_PURGE, owner))
            if not threads.rows:
                break
            for (thread,) in threads.rows:
                yield from run(
                    *(Statement(delete, (thread,)) for delete in DELETE_OF_THREAD),
                    Statement(EMPTY_THREAD, (secrets.randbits(EPOCH_BITS), thread)),
                )
            yield Commit()
        yield from run(*(Statement(delete, owner) for delete in DELETE_OF_CUSTOMER), commit=True)
        state = erasure.PURGED if one.state == erasure.DESTROYED else one.state
        one = one._replace(state=state, record={**one.record, "purged_at": now(self._core)})
        return (yield from self._advance(one, state))

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
        record = {**one.record, "after": after, "verified_at": now(self._core)}
        record.setdefault("before", after)
        if one.record["purge"] and any(after.values()):
            raise ShredIncompleteError(
                f"rows of customer {one.customer.hex()} are still there after the purge: "
                + ", ".join(f"{number} {route}" for route, number in after.items() if number),
                pending=(erasure.PURGED,),
            )
        final = one.state in (erasure.DESTROYED, erasure.PURGED)
        return (yield from self._advance(one._replace(state=COMPLETE if final else one.state, record=record), None))

    def _advance(self, one: Erasure, state: str | None) -> Plan[Erasure]:
        """Makes a step durable: the log's entry, and the customer's state if it changed."""
        core = self._core
        *fields, mac = core.erasure_row(one)
        seq, erasure_id, *rest = fields
        yield Begin("write")
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (one.customer,)))
        customer = core.customer(row.rows[0])
        statements = [Statement(SET_ERASURE, (*rest, mac, seq, erasure_id))]
        # An enrolment may have come in between: then the row speaks of a later generation and is left alone.
        if state is not None and customer.generation <= one.generation and customer.state in erasure.DEAD:
            moved = customer._replace(state=state, generation=one.generation)
            statements.append(Statement(SET_CUSTOMER, core.customer_row(moved, None)))
        yield from run(*statements, commit=True)
        return one


def held(token: bytes) -> LegalHoldError:
    """The error for a customer under a hold."""
    return LegalHoldError(f"customer {token.hex()} is under a hold: release it first, or defer the erasure")


def result(one: Erasure) -> ShredResult:
    """What a caller is told of an erasure."""
    record: Mapping[str, Any] = one.record
    state = one.state
    if state == COMPLETE:
        state = erasure.PURGED if record["purge"] else erasure.DESTROYED
    return ShredResult(
        erasure_id=one.erasure_id,
        customer=one.customer.hex(),
        generation=one.generation,
        known=record["known"],
        state=state,
        requested_at=record["requested_at"],
        revoked_at=record["revoked_at"],
        destroyed_at=record.get("destroyed_at"),
        purged_at=record.get("purged_at"),
        verified_at=record.get("verified_at"),
        before=record.get("before", {}),
        after=record.get("after", {}),
        destruction=record.get("destruction", {}),
        pending=erasure.remaining(state, purge=record["purge"]),
    )


def _plain(destruction: Destruction) -> dict[str, Any]:
    fields = asdict(destruction)
    fields["customer"] = destruction.customer.hex()
    fields["key_ids"] = list(destruction.key_ids)
    fields["details"] = dict(destruction.details)
    return fields
