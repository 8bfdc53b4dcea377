"""Holds in the key store: each row under a MAC, and all of a slot under a seal that the slot's row keeps.

So none can be altered or forged, and none taken away, without the log key. What does not verify counts as a hold for
everybody of the slot: nothing there is destroyed until `mend` is given a record that does. Plans.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack

from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run
from shredsaver.errors import LegalHoldError
from shredsaver.kms import deadlog, schema
from shredsaver.kms.records import Hold
from shredsaver.kms.wrapping import Entry

_HOLD_LABEL: Final = b"shredsaver/v1/hold"
_HOLDS_LABEL: Final = b"shredsaver/v1/holds"

Row = tuple[bytes, str, bytes, str, bytes]
"""Customer, until, reason, since and MAC, as they are stored."""


def signed(log_key: bytes, slot: int, hold: Hold) -> Row:
    """The row of a hold."""
    said = (hold.customer, hold.until or "", hold.reason_commitment, hold.since)
    return (*said, _mac(log_key, slot, said))


def _mac(log_key: bytes, slot: int, said: Sequence[Any]) -> bytes:
    return hmac.digest(log_key, _HOLD_LABEL + msgpack.packb([slot, *said]), "sha256")


def _seal(log_key: bytes, slot: int, macs: Iterable[bytes]) -> bytes:
    return hmac.digest(log_key, _HOLDS_LABEL + msgpack.packb([slot, *macs]), "sha256")


def of_slot(log_key: bytes, slot: int) -> Plan[tuple[dict[bytes, Row], bool]]:
    """The holds of a slot that verify, and whether that is all there ever should be, within the open transaction."""
    seal, found = yield from run(Statement(schema.HOLDS_SEAL, (slot,)), Statement(schema.HOLDS_OF_SLOT, (slot,)))
    rows: list[Row] = [(bytes(row[0]), row[1], bytes(row[2]), row[3], bytes(row[4])) for row in found.rows]
    good = {row[0]: row for row in rows if hmac.compare_digest(_mac(log_key, slot, row[:4]), row[4])}
    kept = seal.rows[0][0] if seal.rows else None
    if kept is None:
        return good, not rows
    return good, len(good) == len(rows) and hmac.compare_digest(_seal(log_key, slot, (r[4] for r in rows)), bytes(kept))


def checked(log_key: bytes, slot: int) -> Plan[dict[bytes, Row]]:
    """The holds of a slot, within the open transaction, which is rolled back if they do not verify.

    Raises:
        LegalHoldError: They do not: anybody of the slot may be held.
    """
    good, whole = yield from of_slot(log_key, slot)
    if not whole:
        yield Rollback()
        raise LegalHoldError(
            f"the holds of slot {slot} in the key store do not verify: one was altered, forged or taken away, so who "
            "is held is not known, and nothing of the slot is destroyed. Run reconcile: it sets again the holds that "
            "the database knows"
        )
    return good


def store(log_key: bytes, slot: int, rows: Mapping[bytes, Row], gone: Iterable[bytes]) -> Plan[None]:
    """Puts rows and deletes others within the open writing transaction, and seals the slot anew; it was whole."""
    macs = [rows[customer][4] for customer in sorted(rows)]
    yield from run(
        *(Statement(schema.HOLD_DROP, (customer,)) for customer in gone),
        *(Statement(schema.HOLD_PUT, (slot, *row)) for row in rows.values()),
        Statement(schema.HOLDS_SET_SEAL, (_seal(log_key, slot, macs), slot)),
    )


def put(log_key: bytes, slot: int, hold: Hold) -> Plan[Entry | None]:
    """Sets a hold, or gives the tombstone of a customer that has nothing left to keep.

    Where the slot's holds do not verify this one is set all the same, and the slot stays as it is.
    """
    yield Begin("write")
    yield from run(Statement(schema.SLOT_ADD, (slot, b"")), Statement(schema.SLOT_UPDATE, (slot,)))
    dead = yield from deadlog.find(log_key, hold.customer)
    (live,) = yield from run(Statement(schema.LIVE_OF, (slot, hold.customer)))
    if dead is not None and not any(row[0] > dead.generation for row in live.rows):
        yield Rollback()
        return dead
    good, whole = yield from of_slot(log_key, slot)
    row = signed(log_key, slot, hold)
    if whole:
        yield from store(log_key, slot, {**good, hold.customer: row}, ())
    else:
        yield from run(Statement(schema.HOLD_PUT, (slot, *row)))
    yield Commit()
    return None


def get(log_key: bytes, slot: int, customer: bytes, now: str) -> Plan[Hold | None]:
    """The hold in force.

    Raises:
        LegalHoldError: The slot's holds do not verify.
    """
    yield Begin("read")
    found = (yield from checked(log_key, slot)).get(customer)
    yield Commit()
    if found is None or not in_force(found, now):
        return None
    return Hold(customer, found[1] or None, found[2], found[3])


def drop(log_key: bytes, slot: int, customer: bytes) -> Plan[None]:
    """Ends a hold; where the slot's holds do not verify, the slot stays as it is."""
    yield Begin("write")
    yield from run(Statement(schema.SLOT_UPDATE, (slot,)))
    good, whole = yield from of_slot(log_key, slot)
    good.pop(customer, None)
    if whole:
        yield from store(log_key, slot, good, [customer])
    else:
        yield from run(Statement(schema.HOLD_DROP, (customer,)))
    yield Commit()


def damaged(log_key: bytes) -> Plan[list[int]]:
    """The slots whose holds do not verify."""
    yield Begin("read")
    (slots,) = yield from run(Statement(schema.HELD_SLOTS))
    broken = []
    for (slot,) in slots.rows:
        if not (yield from of_slot(log_key, slot))[1]:
            broken.append(slot)
    yield Commit()
    return broken


def mend(log_key: bytes, broken: Mapping[int, Sequence[Hold]]) -> Plan[None]:
    """Seals slots anew: rows that verify stay, others go, and holds that another record knows are set where missing."""
    yield Begin("write")
    for slot, known in sorted(broken.items()):
        yield from run(Statement(schema.SLOT_ADD, (slot, b"")), Statement(schema.SLOT_UPDATE, (slot,)))
        good, _ = yield from of_slot(log_key, slot)
        missing = {hold.customer: signed(log_key, slot, hold) for hold in known if hold.customer not in good}
        (there,) = yield from run(Statement(schema.HOLDS_OF_SLOT, (slot,)))
        gone = [bytes(row[0]) for row in there.rows if bytes(row[0]) not in good]
        yield from store(log_key, slot, good | missing, gone)
    yield Commit()


def in_force(row: Row, now: str) -> bool:
    """Whether a hold has not ended by itself."""
    # Both are ISO 8601 in UTC with milliseconds, so they compare as text.
    return not row[1] or row[1] > now
