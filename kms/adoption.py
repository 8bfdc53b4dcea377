"""Taking an older copy of a key store into use where the current one is lost for good.

A slot is readable where its root is still the one that the copy's keys are wrapped under: nobody of it was destroyed
since. The others are lost, and with them the keys of every customer in them. The copy lacks the tombstones that were
added since. Records that verify must tell them, all that the roots have seen; otherwise nothing is done.

Then every root is replaced, also those that the lost key store had made since: should it turn up, it opens nothing.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import msgpack

from shredsaver.db.base import Begin, Commit, Plan, Statement, run
from shredsaver.errors import RevocationLogDamagedError
from shredsaver.kms import deadlog, holds, schema
from shredsaver.kms.roots import Anchor, Death, Standing
from shredsaver.kms.wrapping import Entry, Store

NOTE: Final = "adopting"
"""The row of ``key_meta`` that says that an adoption was begun and is to be finished."""

_LABEL: Final = b"shredsaver/v1/adoption"
_GONE: Final = "gone before an older copy of the key store was taken into use"


@dataclass(frozen=True)
class Survey:
    """What an older key store is good for.

    Attributes:
        readable: Slots whose keys open; behind the last of the customers' slots is the deployment's own.
        lost: Slots whose keys do not open any more.
        customers: How many customers of the copy are in readable slots.
        lost_customers: Tokens of the copy's customers in lost slots.
        tombstones: Tombstones that the copy has.
        seen: Tombstones that the roots have seen, at least.
    """

    readable: tuple[int, ...]
    lost: tuple[int, ...]
    customers: int
    lost_customers: tuple[bytes, ...]
    tombstones: int
    seen: int


def survey(standings: Sequence[Standing], anchors: Iterable[Anchor]) -> Plan[Survey]:
    """Counts what there is."""
    lost = {standing.slot for standing in standings if not standing.readable}
    yield Begin("read")
    log, wraps = yield from run(Statement(schema.LOG), Statement(schema.WRAPS_ALL), commit=True)
    tokens = [(slot, bytes(customer)) for slot, customer in wraps.rows if bytes(customer)]
    length = int(log.rows[0][0])
    return Survey(
        readable=tuple(standing.slot for standing in standings if standing.readable),
        lost=tuple(sorted(lost)),
        customers=len({token for slot, token in tokens if slot not in lost}),
        lost_customers=tuple(sorted({token for slot, token in tokens if slot in lost})),
        tombstones=length,
        seen=max((anchor.length for anchor in anchors), default=0),
    )


def adopt(
    store: Store,
    log_key: bytes,
    standings: Sequence[Standing],
    seen: int,
    dead: Mapping[tuple[bytes, int], int],
    now: str,
) -> Plan[None]:
    """Drops what is lost, enters the tombstones that are lacking, and makes every slot due: one transaction.

    Args:
        store: The key store.
        log_key: Key of the log of the dead.
        standings: What `Roots.survey` gave.
        seen: How many tombstones the roots have seen.
        dead: The slots of all who are dead by records that verify, by customer and generation.
        now: The time, ISO 8601 in UTC.

    Raises:
        RevocationLogDamagedError: These records do not tell of as many as the roots have seen; nothing was changed.
    """
    yield Begin("write")
    yield from run(Statement(schema.LOG_UPDATE))
    known = yield from deadlog.read(log_key, 0)
    entered = {(entry.customer, entry.generation) for entry in known}
    lacking = sorted(set(dead) - entered)
    if len(known) + len(lacking) < seen:
        raise RevocationLogDamagedError(
            f"the roots have seen {seen} erasures, this copy of the key store knows {len(known)} and the other records "
            f"{len(lacking)} more: {seen - len(known) - len(lacking)} are missing, and nobody can say whose. Give a "
            "current database or the journal; nothing was changed"
        )
    for standing in standings:
        yield from _settle(standing, now)
    new = []
    for customer, generation in lacking:
        new.append((yield from _bury(customer, generation, dead[customer, generation], now)))
    if new:
        yield from deadlog.append(log_key, new)
    for slot in sorted({dead[one] for one in lacking}):
        yield from _release(log_key, slot, {customer for customer, _ in lacking})
    (log,) = yield from run(Statement(schema.LOG))
    end = Anchor(int(log.rows[0][0]), bytes(log.rows[0][1]))
    yield from run(
        Statement(schema.SLOTS_DUE_ALL), Statement(schema.META_PUT, (NOTE, _note(store, log_key, end))), commit=True
    )


def _settle(standing: Standing, now: str) -> Plan[None]:
    """Brings a slot to where a rotation can go on: a lost one to its newest root, without anything wrapped under it."""
    slot, newest = standing.slot, standing.newest
    if standing.readable:
        if newest > standing.epoch and standing.material:
            yield from run(Statement(schema.EPOCH_MAKING, (slot, newest, standing.material)))
        return
    proof = json.dumps(asdict(Death("destroyed", _GONE, now)))
    gone = [(slot, epoch, schema.DEAD, b"", proof) for epoch in range(max(standing.epoch, 1), newest)]
    if gone and not standing.material:
        # A crash of the lost key store may have left it in the file of roots; destroying it again does no harm.
        gone[-1] = (slot, newest - 1, schema.RETIRING, b"", "")
    yield from run(
        Statement(schema.SLOT_ADD, (slot, b"")),
        Statement(schema.SLOT_UPDATE, (slot,)),
        Statement(schema.TREES_DROP_SLOT, (slot,)),
        Statement(schema.WRAPS_DROP_SLOT, (slot,)),
        *(Statement(schema.EPOCH_PUT, row) for row in gone),
        Statement(schema.EPOCH_PUT, (slot, newest, schema.LIVE, standing.material, "")),
        Statement(schema.SLOT_ADVANCE, (newest, slot)),
    )


def _bury(customer: bytes, generation: int, slot: int, now: str) -> Plan[Entry]:
    """Drops what is left of a customer's generations up to one; gives the tombstone that is to be entered."""
    held, found = yield from run(Statement(schema.SLOT, (slot,)), Statement(schema.LIVE_OF, (slot, customer)))
    firsts = [first for number, first, _ in found.rows if number <= generation]
    if not firsts:
        return Entry(0, customer, generation, now, 0, slot, 0, 0, b"")
    below = (slot, customer, generation)
    yield from run(Statement(schema.WRAPS_DROP_TO, below), Statement(schema.TREES_DROP_TO, below[1:]))
    return Entry(0, customer, generation, now, 1, slot, min(firsts), held.rows[0][0], b"")


def _release(log_key: bytes, slot: int, buried: set[bytes]) -> Plan[None]:
    """Ends the holds of the dead: they were released before the erasure, which the copy has not heard of either."""
    kept, whole = yield from holds.of_slot(log_key, slot)
    gone = sorted(buried & kept.keys())
    if gone and whole:
        for customer in gone:
            del kept[customer]
        yield from holds.store(log_key, slot, kept, gone)


def begun(store: Store, log_key: bytes, note: bytes) -> Plan[None]:
    """Makes sure that a note of an adoption is this key store's and speaks of this log.

    Raises:
        RevocationLogDamagedError: It does not.
    """
    yield Begin("read")
    found = yield from deadlog.read(log_key, 0)
    yield Commit()
    if not any(hmac.compare_digest(_note(store, log_key, Anchor(one.seq, one.chain)), note) for one in _ends(found)):
        raise RevocationLogDamagedError("the key store's note of an adoption does not verify: run `keys adopt` again")


def _ends(found: Collection[Entry]) -> Iterable[Entry]:
    yield Entry(0, b"", 0, "", 0, 0, 0, 0, bytes(32))
    yield from found


def _note(store: Store, log_key: bytes, end: Anchor) -> bytes:
    return hmac.digest(log_key, _LABEL + msgpack.packb([store.store, *end]), "sha256")
