"""Reading and writing the rows of a key store: plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run
from shredsaver.kms import deadlog, schema
from shredsaver.kms.roots import Anchor, Epoch
from shredsaver.kms.wrapping import Entry, Store, Wrapped


class Look(NamedTuple):
    """What one snapshot shows of a customer."""

    root: Epoch | None  # of the customer's slot; None if the slot was never used
    live: int | None
    dead: Entry | None


class Found(NamedTuple):
    """A stored secret, with what is needed to open it."""

    row: Wrapped
    sealed: bytes | None
    root: Epoch | None
    dead: bool  # whether the customer has a tombstone, of whatever generation


def identify(deployment_: bytes | None = None) -> Plan[tuple[Store, bool]]:
    """The ids of key store and deployment, made on first use; and whether the key store has no key yet.

    Args:
        deployment_: The deployment of a new key store; None for one of its own.
    """
    known = (Statement(schema.META_GET, ("store",)), Statement(schema.META_GET, ("deployment",)))
    yield Begin("read")
    store, deployment, live = yield from run(*known, Statement(schema.SLOTS_LIVE), commit=True)
    if not store.rows or not deployment.rows:
        yield Begin("write")
        yield from run(
            Statement(schema.META_ADD, ("store", os.urandom(16))),
            Statement(schema.META_ADD, ("deployment", deployment_ or os.urandom(16))),
        )
        # Not what was just offered: another process may have been faster.
        store, deployment = yield from run(*known, commit=True)
    return Store(bytes(store.rows[0][0]), bytes(deployment.rows[0][0])), not live.rows


def live() -> Plan[list[Epoch]]:
    """The live epoch of every slot in use."""
    yield Begin("read")
    (found,) = yield from run(Statement(schema.SLOTS_LIVE), commit=True)
    return [Epoch(slot, epoch, bytes(material)) for slot, epoch, material in found.rows]


def claimed() -> Plan[list[Epoch]]:
    """The live epoch of every slot in use, and epoch 0 of those whose first root was begun."""
    yield Begin("read")
    found, begun = yield from run(Statement(schema.SLOTS_LIVE), Statement(schema.SLOTS_BEGUN), commit=True)
    live = [Epoch(slot, epoch, bytes(material)) for slot, epoch, material in found.rows]
    return live + [Epoch(row[0], 0) for row in begun.rows]


def settled() -> Plan[list[Epoch]]:
    """The live epoch of every slot that has no rotation to finish."""
    yield Begin("read")
    found, work = yield from run(Statement(schema.SLOTS_LIVE), Statement(schema.WORK), commit=True)
    busy = {row[0] for row in work.rows}
    return [Epoch(slot, epoch, bytes(material)) for slot, epoch, material in found.rows if slot not in busy]


def compare(anchors: Sequence[Anchor]) -> Plan[None]:
    """Holds the log of the dead against what the roots say of it."""
    yield Begin("read")
    yield from deadlog.compare(anchors)
    yield Commit()


def look(log_key: bytes | None, slot: int, customer: bytes) -> Plan[Look]:
    """What there is of a customer."""
    yield Begin("read")
    root, live = yield from run(Statement(schema.SLOT_LIVE, (slot,)), Statement(schema.LIVE_OF, (slot, customer)))
    dead = None if log_key is None else (yield from deadlog.find(log_key, customer))
    yield Commit()
    # A row of a destroyed generation was put back by someone: it is no live one.
    alive = [row[0] for row in live.rows if dead is None or row[0] > dead.generation]
    epoch = Epoch(root.rows[0][0], root.rows[0][1], bytes(root.rows[0][2])) if root.rows else None
    return Look(epoch, max(alive, default=None), dead)


def record(slot: int, customer: bytes, generation: int) -> Plan[Found | None]:
    """A stored secret, or None."""
    yield Begin("read")
    found, dead = yield from run(
        Statement(schema.RECORD, (slot, customer, generation)),
        Statement(schema.TOMBSTONE_OF, (customer,)),
        commit=True,
    )
    if not found.rows:
        return None
    at, version, wrapped, sealed, epoch, material = found.rows[0]
    row = Wrapped(slot, customer, generation, at, version, bytes(wrapped))
    root = None if material is None else Epoch(slot, epoch, bytes(material))
    return Found(row, None if sealed is None else bytes(sealed), root, bool(dead.rows))


def insert(row: Wrapped, sealed: bytes) -> Plan[bool]:
    """Adds a first version, if the slot is still where it was wrapped for and nobody was faster."""
    yield Begin("write")
    slot, dead, live = yield from run(
        Statement(schema.SLOT_SHARE, (row.slot,)),
        Statement(schema.TOMBSTONE_OF, (row.customer,)),
        Statement(schema.LIVE_OF, (row.slot, row.customer)),
    )
    last = dead.rows[0][2] if dead.rows else 0
    if slot.rows[0][0] != row.epoch or row.generation != last + 1 or any(found[0] > last for found in live.rows):
        yield Rollback()
        return False
    (added,) = yield from run(
        Statement(schema.WRAP_ADD, (row.slot, row.customer, row.generation, row.epoch, row.epoch, row.wrapped))
    )
    if not added.rows:
        yield Rollback()
        return False
    yield from run(Statement(schema.TREE_PUT, (row.customer, row.generation, sealed)), commit=True)
    return True


def replace(row: Wrapped, sealed: bytes) -> Plan[bool]:
    """Puts a new version in place, and makes the slot due: the epoch the old version was wrapped under must die."""
    yield Begin("write")
    (slot,) = yield from run(Statement(schema.SLOT_UPDATE, (row.slot,)))
    if slot.rows[0][0] != row.epoch:
        yield Rollback()
        return False
    place = (row.slot, row.customer, row.generation, row.key_version - 1)
    (changed,) = yield from run(Statement(schema.WRAP_REPLACE, (row.epoch, row.key_version, row.wrapped, *place)))
    if not changed.rows:
        yield Rollback()
        return False
    yield from run(
        Statement(schema.TREE_PUT, (row.customer, row.generation, sealed)),
        Statement(schema.SLOT_DUE, (row.slot,)),
        commit=True,
    )
    return True


def log_after(log_key: bytes, after: int) -> Plan[list[Entry]]:
    """The log of the dead behind a position, verified."""
    yield Begin("read")
    found = yield from deadlog.read(log_key, after)
    yield Commit()
    return found


def used(deployment_slot: int) -> Plan[bool]:
    """Whether any customer's slot is in use: then the deployment's secrets were made before, and are lost."""
    yield Begin("read")
    (live,) = yield from run(Statement(schema.SLOTS_LIVE), commit=True)
    return any(row[0] != deployment_slot for row in live.rows)


def all_due() -> Plan[list[int]]:
    """Makes every slot in use due for a new root; gives them."""
    yield Begin("write")
    _, live = yield from run(Statement(schema.SLOTS_DUE_ALL), Statement(schema.SLOTS_LIVE), commit=True)
    return [row[0] for row in live.rows]


def put_meta(name: str, value: bytes) -> Plan[None]:
    """Notes a value."""
    yield Begin("write")
    yield from run(Statement(schema.META_PUT, (name, value)), commit=True)


def get_meta(name: str) -> Plan[bytes | None]:
    """A noted value, or None."""
    yield Begin("read")
    (found,) = yield from run(Statement(schema.META_GET, (name,)), commit=True)
    return bytes(found.rows[0][0]) if found.rows else None


def drop_meta(name: str) -> Plan[None]:
    """Forgets a noted value."""
    yield Begin("write")
    yield from run(Statement(schema.META_DROP, (name,)), commit=True)
