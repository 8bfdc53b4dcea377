"""The steps of a shred as plans: revoke, destroy, purge, verify. Each is durable before the next begins.

Revoking ends use at once, in every process: it waits for the writers in flight and refuses those after. Destroying
makes every copy of the data unreadable. Purging is hygiene. Whatever fails, the customer is already out of use, and
`resume` or another shred goes on where this one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial

from shredsaver import erasure, proof, sampling
from shredsaver.core import Erasure
from shredsaver.db.base import Begin, Commit, Plan, Rollback, call, run
from shredsaver.erasures import (
    CANCELLED,
    COMPLETE,
    SCHEDULED,
    advance,
    again,
    moved,
    now,
    receipt_of,
    stamp,
    unfinished,
)
from shredsaver.errors import (
    DatabaseUnavailableError,
    KeyServiceError,
    LegalHoldError,
    RevocationLogDamagedError,
    ShredIncompleteError,
)
from shredsaver.kms.base import Destruction
from shredsaver.purging import count, purge
from shredsaver.reconcile import Dead
from shredsaver.results import ShredResult
from shredsaver.revoking import Request, Revoking
from shredsaver.targets import REVOKED, VERIFIED


class Shredding(Revoking):
    """The plans of erasure, from the request to the receipt."""

    def shred(self, customers: Sequence[tuple[bytes, str]], request: Request) -> Plan[list[ShredResult]]:
        """Erases customers, given by token and id.

        Each is put out of use, then all keys are destroyed together, then each is purged and verified.
        """
        yield from call(self._guarded.check)
        if not request.defer:
            yield from self.refuse_held([token for token, _ in customers])
        begun = []
        for token, customer_id in customers:
            try:
                begun.append((yield from self.begin(token, customer_id, request)))
            except LegalHoldError:  # a hold that was set since: those before it are out of use, and go on
                yield from self.finish(begun)
                raise
        return (yield from self._finished(begun))

    def resume(self) -> Plan[list[ShredResult]]:
        """Finishes every erasure that can be finished now: interrupted ones, and those whose time has come."""
        yield from call(self._core.keys.resume)
        due = []
        for one in (yield from unfinished(self._core)):
            if one.state != SCHEDULED:
                due.append(one)
            elif (yield from self._due(one)):
                due.append((yield from self.revoke(one)))
        return (yield from self._finished(due))

    def _finished(self, begun: Sequence[Erasure]) -> Plan[list[ShredResult]]:
        """As `finish`, and what became of them; an error that says they are not complete tells that too."""
        try:
            yield from self.finish(begun)
        except ShredIncompleteError as error:
            with suppress(DatabaseUnavailableError):  # that may be why; what is pending is said already
                error.results = yield from self.results(begun)
            raise
        return (yield from self.results(begun))

    def resume_due(self) -> Plan[None]:
        """Destroys what was scheduled and whose time has come. Interrupted erasures may be another process's work."""
        for one in (yield from unfinished(self._core)):
            if one.state == SCHEDULED and (yield from self._due(one)):
                yield from self.finish_or_leave([(yield from self.revoke(one))])

    def finish_revoked(self) -> Plan[None]:
        """Finishes what is revoked: a database in quarantine could note it only."""
        yield from self.finish_or_leave((yield from unfinished(self._core)))  # scheduled ones are left as they are

    def finish_or_leave(self, begun: Sequence[Erasure]) -> Plan[None]:
        """As `finish`, where what cannot be finished must not stop what comes next: it stays for `resume`."""
        try:
            yield from self.finish(begun)
        except ShredIncompleteError as error:
            self._core.events.emit("incomplete", pending=", ".join(error.pending))

    def finish(self, begun: Sequence[Erasure]) -> Plan[None]:
        """Takes revoked erasures through the steps that are left.

        Raises:
            ShredIncompleteError: Some could not be finished; they are out of use.
        """
        pending: list[str] = []
        going = [one for one in begun if one.state not in (SCHEDULED, COMPLETE, CANCELLED)]
        problem: Exception | None
        ready, undestroyed = yield from self.destroy(going)
        problem = undestroyed
        if undestroyed is not None:
            pending += undestroyed.pending
        for one in ready:
            try:
                pending += yield from self._finish_one(one)
            except DatabaseUnavailableError as error:
                problem, pending = error, [*pending, erasure.PURGED]
            except KeyServiceError as error:
                problem, pending = error, [*pending, "verified"]
            except ShredIncompleteError as error:
                problem, pending = error, [*pending, *error.pending]
        failed = tuple(dict.fromkeys(pending))
        if failed:
            raise ShredIncompleteError(
                str(problem)
                if isinstance(problem, ShredIncompleteError)
                else f"the erasure is not complete, though use has ended; to be done: {', '.join(failed)}. Call resume",
                pending=failed,
            ) from problem

    def results(self, begun: Sequence[Erasure]) -> Plan[list[ShredResult]]:
        """What became of some erasures."""
        found = []
        yield Begin("read")
        for one in begun:
            current = yield from again(self._core, one)
            receipt = yield from receipt_of(one.erasure_id)
            found.append(result(current, receipt, self._outside.steps(current)))
        yield Commit()
        return found

    # -- the other steps --------------------------------------------------------------------------------------------

    def destroy(self, going: Sequence[Erasure]) -> Plan[tuple[list[Erasure], ShredIncompleteError | None]]:
        """Destroys the keys of those that are revoked, in one call to the key service.

        Gives those that can go on, and why the others cannot: they stay revoked.
        """
        waiting = [one for one in going if one.state == erasure.REVOKED]
        ready = [one for one in going if one.state != erasure.REVOKED]
        if not waiting:
            return ready, None
        problem: ShredIncompleteError | None = None
        try:
            if self._journal is not None:
                dead = [Dead(one.customer, one.generation, one.record["revoked_at"]) for one in waiting]
                yield from call(partial(self._journal.append, *dead))
            try:
                destructions = yield from self._destroy_keys(waiting)
            except LegalHoldError:  # somebody set a hold in the key service since: it protects those it names alone
                free: list[Erasure] = []
                for one in waiting:
                    free += [] if (yield from self._held(one.customer)) else [one]
                problem = _undestroyed(len(waiting) - len(free), LegalHoldError.__name__)
                waiting = free
                destructions = (yield from self._destroy_keys(waiting)) if waiting else []
        except (KeyServiceError, LegalHoldError, DatabaseUnavailableError, RevocationLogDamagedError) as error:
            problem = _undestroyed(len(waiting), type(error).__name__)
            problem.__cause__ = error
            return ready, problem
        for one, destruction in zip(waiting, destructions, strict=True):
            ready.append((yield from self._destroyed(one, destruction)))
        return ready, problem

    def _destroy_keys(self, waiting: Sequence[Erasure]) -> Plan[list[Destruction]]:
        # Not later generations: another process may have finished the erasure, and the customer may be back since.
        customers, generations = [one.customer for one in waiting], [one.generation for one in waiting]
        found: list[Destruction] = yield from call(partial(self._core.keys.destroy, customers, generations))
        return found

    def _destroyed(self, one: Erasure, destruction: Destruction) -> Plan[Erasure]:
        fields = {**asdict(destruction), "customer": destruction.customer.hex()}
        record = {**one.record, "destruction": fields}
        record["known"] = bool(record["known"] or destruction.known)
        generation = max(one.generation, destruction.generation)
        state = one.state
        if destruction.state == "destroyed":
            state = erasure.PURGED if record.get("purged_at") else erasure.DESTROYED
            at = destruction.destroyed_at
            record["destroyed_at"] = stamp(datetime.fromisoformat(at).timestamp()) if at else now(self._core)
        one = one._replace(state=state, generation=generation, record=record)
        one = yield from advance(self._core, one, state)
        if destruction.state == "destroyed":
            self._core.events.emit("destroyed", one.customer, erasure=one.erasure_id)
        return one

    def _finish_one(self, one: Erasure) -> Plan[list[str]]:
        """Targets, purge, verification, receipt. Gives the steps that failed.

        Keys that die at a date are no failure, nor what waits for that: the result says so, and `resume` asks again.
        """
        one = yield from self._outside.erase(one, REVOKED)
        if one.record["purge"] and not one.record.get("purged_at"):
            one = yield from purge(self._core, one)
            self._core.events.emit("purged", one.customer, erasure=one.erasure_id)
        if one.state == COMPLETE:
            return []
        one = yield from self.verify(one)
        gone = one.state in (erasure.DESTROYED, erasure.PURGED)
        if gone:
            one = yield from self._outside.erase(one, VERIFIED)
        if one.state == COMPLETE:
            return []
        failed = self._outside.pending(one)
        one = yield from proof.issue(self._core, one, failed if gone else (erasure.DESTROYED, *failed))
        self._core.events.emit("verified", one.customer, erasure=one.erasure_id, pending=", ".join(failed) or None)
        waiting = () if gone else self._outside.waiting(one)
        return [step for step in failed if step not in waiting]

    def verify(self, one: Erasure) -> Plan[Erasure]:
        """Counts again, asks the key service for the keys, and tries to open a sample of what is left.

        Raises:
            ShredIncompleteError: Keys are still there, or something opens, or rows are left that were to be deleted.
        """
        self.forget(one.customer, one.generation)  # another process may have revoked, and this one have seen no refusal
        try:
            tried = yield from sampling.verify(self._core, one.customer, one.generation)
        except sampling.StillOpenError as error:
            raise ShredIncompleteError(
                f"customer {one.customer.hex()} is not erased after the destruction of its keys: {error}",
                pending=erasure.remaining(erasure.REVOKED, purge=one.record["purge"]),
            ) from None
        yield Begin("write")
        after = yield from count(one.customer, one.generation)
        record = {"before": after, **one.record, "after": after, "verified_at": now(self._core)}
        record["verification"] = tried._asdict()
        if one.record["purge"] and any(after.values()):
            yield Rollback()
            raise ShredIncompleteError(
                f"rows of customer {one.customer.hex()} are still there after the purge: "
                + ", ".join(f"{number} {route}" for route, number in after.items() if number),
                pending=(erasure.PURGED,),
            )
        one, statements = yield from moved(self._core, one._replace(record=record))
        yield from run(*statements, commit=True)
        return one


def _undestroyed(customers: int, why: str) -> ShredIncompleteError:
    return ShredIncompleteError(
        f"the keys of {customers} customers could not be destroyed yet ({why}); they are out of use, call resume or "
        "shred again",
        pending=erasure.remaining(erasure.REVOKED, purge=True),
    )


def result(one: Erasure, receipt: str | None, steps: tuple[str, ...]) -> ShredResult:
    """What a caller is told of an erasure."""
    record, state = one.record, one.state
    if state == COMPLETE:
        state = erasure.PURGED if record["purge"] else erasure.DESTROYED
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
        verification=record.get("verification", {}),
        destruction=record.get("destruction", {}),
        targets=record.get("targets", {}),
        receipt=receipt,
        pending=steps,
    )
