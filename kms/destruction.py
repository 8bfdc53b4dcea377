"""Putting customers out of use in the key store, and telling what became of their roots: plans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run
from shredsaver.errors import KeyServiceUnavailableError, LegalHoldError
from shredsaver.kms import deadlog, holds, schema
from shredsaver.kms.records import Destruction
from shredsaver.kms.wrapping import Entry


def revoke(log_key: bytes, slots: Mapping[bytes, int], now: str, bounds: Mapping[bytes, int]) -> Plan[None]:
    """Drops the customers' keys, leaves tombstones and makes their slots due, all in one transaction.

    A customer with a bound that has a later generation is left alone.

    Raises:
        LegalHoldError: One of them is held; nothing was changed.
    """
    yield Begin("write")
    epochs = {}
    for slot in sorted(set(slots.values())):
        # The row is there even for an unused slot, so that a creator and a destroyer always meet at its lock.
        _, found = yield from run(Statement(schema.SLOT_ADD, (slot, b"")), Statement(schema.SLOT_UPDATE, (slot,)))
        epochs[slot] = found.rows[0][0]
    due = dict(slots)
    for customer, bound in bounds.items():
        if (yield from _enrolled_since(log_key, customer, slots[customer], bound)):
            del due[customer]
    yield from _let_go(log_key, due, now)
    new = []
    for customer, slot in due.items():
        entry = yield from _drop(log_key, customer, slot, epochs[slot], now)
        if entry is not None:
            new.append(entry)
    if new:
        yield from deadlog.append(log_key, new)
    yield Commit()


def _let_go(log_key: bytes, due: Mapping[bytes, int], now: str) -> Plan[None]:
    """Refuses customers that are held, and drops the holds of the others, which have ended."""
    for slot in sorted(set(due.values())):
        kept = yield from holds.checked(log_key, slot)
        ended = [customer for customer, at in due.items() if at == slot and customer in kept]
        for customer in ended:
            if holds.in_force(kept.pop(customer), now):
                yield Rollback()
                raise LegalHoldError(f"customer {customer.hex()} is held: release the hold first; nothing was changed")
        if ended:
            yield from holds.store(log_key, slot, kept, ended)


def _enrolled_since(log_key: bytes, customer: bytes, slot: int, bound: int) -> Plan[bool]:
    dead = yield from deadlog.find(log_key, customer)
    (live,) = yield from run(Statement(schema.LIVE_OF, (slot, customer)))
    return dead is not None and dead.generation >= bound and any(row[0] > dead.generation for row in live.rows)


def _drop(log_key: bytes, customer: bytes, slot: int, epoch: int, now: str) -> Plan[Entry | None]:
    dead = yield from deadlog.find(log_key, customer)
    (live,) = yield from run(Statement(schema.LIVE_OF, (slot, customer)))
    if live.rows:
        yield from run(
            Statement(schema.WRAPS_DROP, (slot, customer)),
            Statement(schema.TREES_DROP, (customer,)),
            Statement(schema.SLOT_DUE, (slot,)),
        )
    last = dead.generation if dead else 0
    alive = [(generation, first) for generation, first, _ in live.rows if generation > last]
    if alive:
        first = min(first for _, first in alive)
        return Entry(0, customer, max(generation for generation, _ in alive), now, 1, slot, first, epoch, b"")
    return None if dead else Entry(0, customer, 1, now, 0, slot, 0, 0, b"")


def outcome(
    log_key: bytes, slots: Mapping[bytes, int], customers: Sequence[bytes], assurance: str
) -> Plan[list[Destruction]]:
    """What became of the roots of customers that have a tombstone.

    Raises:
        KeyServiceUnavailableError: A root is not yet seen off; calling `destroy` again goes on.
    """
    yield Begin("read")
    found = []
    for customer in customers:
        dead = yield from deadlog.find(log_key, customer)
        (slot,) = yield from run(Statement(schema.SLOT, (slots[customer],)))
        if dead is None:
            raise KeyServiceUnavailableError(f"customer {customer.hex()} was not put out of use yet; call again")
        found.append((yield from _outcome(dead, slot.rows[0][0] if slot.rows else 0, assurance)))
    yield Commit()
    return found


def _outcome(dead: Entry, epoch: int, assurance: str) -> Plan[Destruction]:
    ends: list[dict[str, Any]] = []
    pending = False
    if dead.known:
        span = (dead.slot, dead.first_epoch, dead.last_epoch)
        counts, proofs = yield from run(
            Statement(schema.EPOCHS_BETWEEN, span), Statement(schema.PROOFS, (*span, dead.last_epoch))
        )
        total, gone, waiting = (int(count or 0) for count in counts.rows[0])
        if total != dead.last_epoch - dead.first_epoch + 1 or gone + waiting != total:
            raise KeyServiceUnavailableError(
                f"the roots of slot {dead.slot} up to epoch {dead.last_epoch} are not all proven dead yet; customer "
                f"{dead.customer.hex()} is out of use already, call again to finish"
            )
        pending = waiting > 0
        ends = [json.loads(row[0]) for row in proofs.rows]
    return Destruction(
        customer=dead.customer,
        generation=dead.generation,
        known=bool(dead.known),
        state="pending" if pending else "destroyed",
        method=ends[-1]["method"] if ends else "",
        slot=dead.slot,
        old_epoch=dead.last_epoch or None,
        new_epoch=epoch or None,
        key_ids=tuple(key for end in ends for key in end["key_ids"]),
        assurance=assurance,
        tombstone=dead.seq,
        revoked_at=dead.at,
        destroyed_at=None if pending else _latest(ends, "at"),
        pending_until=_latest(ends, "pending_until") if pending else None,
        cached_until=_latest(ends, "cached_until"),
        details=ends[-1]["details"] if ends else {},
    )


def _latest(ends: Sequence[Mapping[str, Any]], name: str) -> str | None:
    return max((end[name] for end in ends if end[name] is not None), default=None)
