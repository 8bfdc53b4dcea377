"""Applying what another record knows of the dead: putting them out of use, for good or until somebody confirms.

A restore can make this necessary for very many at once, so that each transaction and each call takes a page of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

from shredsaver import erasure
from shredsaver.core import CUSTOMER_COLUMNS, Core, Customer, Erasure
from shredsaver.db.base import Begin, Plan, Statement, call, run, sql
from shredsaver.erasures import ENTRY_COLUMNS, SCHEDULED, append_all, changed, now
from shredsaver.errors import KeyServiceError, LegalHoldError, RevocationLogDamagedError
from shredsaver.guarding import GuardedKeys
from shredsaver.reconcile import Dead
from shredsaver.restraint import FOREVER
from shredsaver.shredding import Shredding
from shredsaver.threads import SET_CUSTOMER

T = TypeVar("T")

ROWS_AT_ONCE: Final = 200
_PLACES: Final = ", ".join("?" * ROWS_AT_ONCE)
GET_CUSTOMERS: Final = sql(f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer IN ({_PLACES})")
_LOCK_CUSTOMERS: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS}, name FROM customers WHERE customer IN ({_PLACES}) ORDER BY customer {{update}}"
)
_SCHEDULED_AMONG: Final = sql(
    f"SELECT {ENTRY_COLUMNS} FROM erasures WHERE customer IN ({_PLACES}) AND state = 'scheduled' ORDER BY seq"
)


def pages(of: Sequence[T]) -> Iterator[Sequence[T]]:
    """The pages of a sequence."""
    for first in range(0, len(of), ROWS_AT_ONCE):
        yield of[first : first + ROWS_AT_ONCE]


def among(tokens: Sequence[bytes]) -> list[bytes]:
    """The parameters of a statement about one page of customers: it has a fixed number of places."""
    return [*tokens, *[tokens[-1]] * (ROWS_AT_ONCE - len(tokens))]


class Applying:
    """The plans that apply. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, keys: GuardedKeys, shredding: Shredding) -> None:
        self._core = core
        self._keys = keys
        self._shredding = shredding

    def revoke(self, dead: Sequence[Dead], *, forked: bool) -> Plan[None]:
        """Puts customers out of use whom another record knows as dead, and takes the erasures to their end.

        Everybody is out of use before the first erasure goes on; in a copy of the database none does.
        """
        begun: list[Erasure] = []
        for page in pages(dead):
            begun += yield from self._revoke(page)
        for some in () if forked else pages(begun):
            yield from self._shredding.finish_or_leave(some)

    def shut(self, dead: Sequence[Dead]) -> Plan[None]:
        """Puts customers out of use until somebody confirms, or reinstates them: a wrong record must not kill many."""
        for page in pages(dead):
            yield from self._shut(page)

    def destroy(self, waiting: Sequence[Dead]) -> Plan[int]:
        """Destroys keys on another record's word. What cannot be destroyed now must not keep everyone else waiting."""
        done = 0
        for some in pages(waiting):
            customers, generations = [dead.customer for dead in some], [dead.generation for dead in some]
            try:
                yield from call(partial(self._keys.destroy, customers, generations))
                done += len(some)
            except LegalHoldError:
                for dead in some:
                    try:
                        yield from call(partial(self._keys.destroy, [dead.customer], [dead.generation]))
                        done += 1
                    except LegalHoldError:
                        continue
            except KeyServiceError as error:
                self._core.events.emit("key unavailable", error=type(error).__name__)
                break
        return done

    # -- one page -----------------------------------------------------------------------------------------------------

    def _revoke(self, page: Sequence[Dead]) -> Plan[list[Erasure]]:
        core = self._core
        rows, scheduled = yield from self._locked(page)
        new, going, statements, customers = [], [], [], []
        for dead in page:
            at = dead.at or now(core)
            asked = scheduled.get(dead.customer)
            if asked is not None:  # here as well, and it waited for a grace, a hold, or a confirmation
                record = {**asked.record, "revoked_at": at, "reconciled_at": now(core)}
                generation = max(asked.generation, dead.generation)
                going.append(asked._replace(state=erasure.REVOKED, generation=generation, record=record))
                statements.append(changed(core, going[-1]))
            else:
                record = self._record(dead, known=dead.customer in rows) | {"revoked_at": at}
                new.append(Erasure(0, str(uuid4()), dead.customer, dead.generation, erasure.REVOKED, record))
            if self._standing(rows, dead).generation <= dead.generation:
                customers.append(
                    core.customer_row(Customer(dead.customer, dead.generation, erasure.REVOKED, 0, ""), None)
                )
        begun = [*going, *(yield from append_all(core, new))]
        yield from run(*statements, *_stored(customers), commit=True)
        for one in begun:
            core.events.emit("revoked", one.customer, erasure=one.erasure_id)
            self._shredding.forget(one.customer, one.generation)
        return begun

    def _shut(self, page: Sequence[Dead]) -> Plan[None]:
        core = self._core
        rows, scheduled = yield from self._locked(page)
        new, customers, doubted = [], [], []
        for dead in page:
            asked = scheduled.get(dead.customer)
            if asked is not None:  # out of use already; that it may be dead must be known to whoever would be shown it
                record = {**asked.record, "reconciled_at": asked.record.get("reconciled_at") or now(core)}
                doubted.append(changed(core, asked._replace(record=record)))
            else:
                record = self._record(dead, known=dead.customer in rows) | {"due_at": FOREVER}
                new.append(Erasure(0, str(uuid4()), dead.customer, dead.generation, SCHEDULED, record))
                name = rows[dead.customer][-1] if dead.customer in rows else None
                paused = self._standing(rows, dead)._replace(state=erasure.RESTRICTED)
                customers.append(core.customer_row(paused, name))
        begun = yield from append_all(core, new)
        yield from run(*doubted, *_stored(customers), commit=True)
        for one in begun:
            core.events.emit("scheduled", one.customer, erasure=one.erasure_id)

    def _locked(self, page: Sequence[Dead]) -> Plan[tuple[dict[bytes, Sequence[Any]], dict[bytes, Erasure]]]:
        """Opens a write transaction; the customers' rows and the erasures of theirs that are scheduled, by token."""
        places = among([dead.customer for dead in page])
        yield Begin("write")
        rows, scheduled = yield from run(Statement(_LOCK_CUSTOMERS, places), Statement(_SCHEDULED_AMONG, places))
        waiting = [self._core.erasure(row) for row in scheduled.rows]
        return {bytes(row[0]): row for row in rows.rows}, {one.customer: one for one in waiting}

    def _record(self, dead: Dead, *, known: bool) -> dict[str, Any]:
        at = now(self._core)
        return {"requested_at": dead.at or at, "known": known, "purge": True, "reconciled_at": at}

    def _standing(self, rows: Mapping[bytes, Sequence[Any]], dead: Dead) -> Customer:
        """The customer's row; where there is none, or an altered one, as the other record has it."""
        try:
            if dead.customer in rows:
                return self._core.customer(rows[dead.customer][:-1])
        except RevocationLogDamagedError:
            pass
        return Customer(dead.customer, dead.generation, erasure.LIVE, 0, "")


def _stored(rows: Sequence[Sequence[Any]]) -> list[Statement]:
    return [Statement(SET_CUSTOMER, rows, many=True)] if rows else []
