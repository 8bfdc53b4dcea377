"""Keeping and pausing: holds against erasure, and restriction of use that can be taken back.

Each leaves an entry in the log of events, chained under the log key; who and why is sealed under the customer's own
keys, and so goes with the customer.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from shredsaver import erasure, receipts
from shredsaver.core import LOCK_CUSTOMER, Core, Customer, shredded
from shredsaver.db.base import Begin, Plan, Rollback, Statement, call, run, sql
from shredsaver.erasures import CANCELLED, EVENT_COUNTER, SCHEDULED_OF, SET_RETRY, changed, latest, now, number
from shredsaver.errors import ConfigurationError, CustomerShreddedError, FormatError
from shredsaver.keytree import KeyTree
from shredsaver.sealing import REASON
from shredsaver.threads import GET_NAME, SET_CUSTOMER

SCOPE: Final = 2
"""The scope of what is sealed about a customer in the log of events."""

_TOLD: Final = {
    "hold": "hold set",
    "release": "hold released",
    "restrict": "restricted",
    "reinstate": "reinstated",
}

FIRST_EVENT: Final = 16
FOREVER: Final = "9999-12-31T23:59:59.000+00:00"
GET_EVENT_CHAIN: Final = sql("SELECT chain FROM events WHERE seq = ?")
EVENTS_OF: Final = sql(
    "SELECT seq, at, kind, generation, until, number, sealed FROM events WHERE customer = ? AND seq > ? "
    "ORDER BY seq LIMIT ?"
)
ADD_EVENT: Final = sql(
    "INSERT INTO events (seq, at, kind, customer, generation, until, number, sealed, chain) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class EventRow(NamedTuple):
    """An entry of the log of events, as `EVENTS_OF` gives it."""

    seq: int
    at: str
    kind: str
    generation: int
    until: str
    number: int
    sealed: bytes


def open_event(core: Core, tree: KeyTree, customer: bytes, row: EventRow) -> dict[str, str | None]:
    """Who decided and why: ``reason`` and ``requested_by``.

    Raises:
        UnsealError: It is not this entry's, or the customer's keys are no more.
        FormatError: It opens to something else.
    """
    owner, where = (customer, row.generation), ("events", customer, row.seq)
    opened = core.unseal(tree, REASON, owner, SCOPE, row.number, row.sealed, where, f"event/{row.seq}")
    match json.loads(opened):
        case {"reason": str() | None as reason, "requested_by": str() | None as requested_by}:
            return {"reason": reason, "requested_by": requested_by}
    raise FormatError(f"events/{row.seq}: the entry opens to something that is none")


class Restraint:
    """The plans of holds and restrictions. Holds what they share; one for each deployment."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def hold(self, token: bytes, why: dict[str, Any], until: datetime | None) -> Plan[None]:
        """Forbids erasure and deletion until then, or until `release`.

        The key service is told first: it is the authority, and a hold in it alone already protects.
        """
        if until is not None and until.tzinfo is None:
            raise ConfigurationError("the end of a hold needs a time zone")
        ends = FOREVER if until is None else until.astimezone(UTC).isoformat(timespec="milliseconds")
        yield from self._living(token)
        salt = receipts.salt(self._core.secrets.receipt_key, token.hex())
        commitment = receipts.commitment(salt, "hold", json.dumps(why, sort_keys=True)).encode("ascii")
        yield from call(partial(self._core.keys.hold, token, until, commitment))
        try:
            yield from self._change(token, "hold", why, held_until=ends)
        except CustomerShreddedError:  # a shred came in between: nothing is left to keep, and the hold must not stop it
            yield from call(partial(self._core.keys.release, token))
            raise

    def release(self, token: bytes, why: dict[str, Any]) -> Plan[None]:
        """Ends a hold; does nothing where there is none. The key service, as the authority, is told last."""
        try:
            yield from self._change(token, "release", why, held_until="")
        except CustomerShreddedError:
            if (yield from call(partial(self._core.keys.held, token))) is None:
                raise
        yield from call(partial(self._core.keys.release, token))

    def restrict(self, token: bytes, why: dict[str, Any]) -> Plan[None]:
        """Stops every use of a customer's data; keys and data stay."""
        yield from self._change(token, "restrict", why, state=erasure.RESTRICTED)

    def reinstate(self, token: bytes, why: dict[str, Any]) -> Plan[None]:
        """Ends a restriction, and cancels an erasure whose grace has not ended."""
        yield from self._change(token, "reinstate", why, state=erasure.LIVE)

    def _living(self, token: bytes) -> Plan[Customer]:
        """A customer that is not shredded, within a transaction that is left open no longer."""
        yield Begin("write")
        customer = yield from self._locked(token)
        yield Rollback()
        return customer

    def _locked(self, token: bytes) -> Plan[Customer]:
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
        if not row.rows:
            yield Rollback()
            raise ConfigurationError(f"customer {token.hex()} is not known: check the id")
        customer = self._core.customer(row.rows[0])
        if customer.state in erasure.DEAD:
            record = yield from latest(self._core, token, customer.generation)
            yield Rollback()
            raise shredded(record) if record else CustomerShreddedError(f"customer {token.hex()} was shredded")
        return customer

    def _change(
        self, token: bytes, kind: str, why: dict[str, Any], *, state: str | None = None, held_until: str | None = None
    ) -> Plan[None]:
        """Changes the customer's row and adds the event, in one transaction."""
        core = self._core
        while True:
            yield Begin("write")
            customer = yield from self._locked(token)
            if core.tree(customer) is not None:
                break
            yield Rollback()
            yield from core.load_tree(customer)
        (kept,) = yield from run(Statement(GET_NAME, (token,)))
        moved = customer
        if state is not None and state != customer.state:
            moved = moved._replace(state=erasure.advance(customer.state, state))
        if held_until is not None:
            moved = moved._replace(held_until=held_until)
        statements = [Statement(SET_CUSTOMER, core.customer_row(moved, kept.rows[0][0]))]
        if kind == "reinstate":
            (scheduled,) = yield from run(Statement(SCHEDULED_OF, (token,)))
            for row in scheduled.rows:
                one = core.erasure(row)
                record = {**one.record, "cancelled_at": now(core)}
                statements.append(changed(core, one._replace(state=CANCELLED, record=record)))
                statements.append(Statement(SET_RETRY, (None, one.erasure_id)))
        statements.append((yield from self._event(customer, kind, held_until or "", why)))
        yield from run(*statements, commit=True)
        core.events.emit(_TOLD[kind], token, until=held_until or None)

    def _event(self, customer: Customer, kind: str, until: str, why: dict[str, Any]) -> Plan[Statement]:
        """The statement that logs an event."""
        core, tree = self._core, self._core.tree(customer)
        if tree is None:
            raise ValueError("an event is logged with the customer's tree at hand")
        seq = yield from number(EVENT_COUNTER)
        owner = (customer.customer, customer.generation)
        taken = tree.next_alive(SCOPE, FIRST_EVENT + seq)
        if taken is None:
            raise ConfigurationError(f"customer {customer.customer.hex()} has used up the numbers of its events")
        sealed = core.seal(tree, REASON, owner, SCOPE, taken, json.dumps(why).encode("ascii"), f"event/{seq}")
        (before,) = yield from run(Statement(GET_EVENT_CHAIN, (seq - 1,)))
        previous = bytes(before.rows[0][0]) if before.rows else b""
        entry = (seq, now(core), kind, *owner, until, taken, sealed)
        return Statement(ADD_EVENT, (*entry, core.mac("event-log", previous, *entry)))
