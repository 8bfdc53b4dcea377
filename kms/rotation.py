"""Seeing a slot's root off: a new root, every key re-wrapped under it, proof, and only then the end of the old one.

Each step is durable before the next begins, and each can be taken again. So a crash anywhere is mended by
`Rotation.run`, which only ever goes forward: a newer root is never given up for an older one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from shredsaver.db.base import Begin, Commit, Database, Plan, Rollback, Statement, run
from shredsaver.errors import (
    FormatError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    ShredSaverError,
    UnsealError,
)
from shredsaver.kms import schema
from shredsaver.kms._steps import step
from shredsaver.kms.roots import Anchor, Death, Epoch, Roots
from shredsaver.kms.wrapping import Store, Wrapped, unwrap, wrap

_BATCH: Final = 32  # slots re-wrapped in one transaction: bounds how long writers of one slot wait
_PATIENCE: Final = 300.0  # seconds to wait for another host's rotation
_POLL: Final = 0.02
_DAMAGE: Final = (UnsealError, FormatError, KeyNotFoundError, KeyStoreStaleError)


@dataclass(frozen=True)
class _Task:
    """What is to be done for one slot: ``new`` is the epoch to make (None: none), ``retiring`` those to see off."""

    slot: int
    epoch: int
    old: Epoch | None
    new: Epoch | None
    retiring: tuple[Epoch, ...]


class Rotation:
    """Rotates whatever is due in a key store.

    Args:
        database: The key store's driver.
        roots: The provider.
        store: What rows are bound to.
        durable: Called before a root is destroyed; raises unless what was committed is durable on every copy that could
            come into use (mirrors, synchronous standbys).
    """

    def __init__(self, database: Database, roots: Roots, store: Store, durable: Callable[[], None]) -> None:
        self._database = database
        self._roots = roots
        self._store = store
        self._durable = durable

    def run(self, only: Collection[int] | None = None) -> int:
        """Does all that is due, or what is due for some slots, and waits where another host is doing it.

        Callers that arrive together for one slot share an epoch: the second finds its work done.

        Returns:
            How many times a slot was moved to a new root or freed of an old one by this call.

        Raises:
            UnsealError, FormatError: A row does not open, or what is noted of a slot cannot be: the slot was left as it
                is; every other slot was rotated.
            KeyServiceUnavailableError: Another host takes too long.
        """
        done, batch = 0, _BATCH
        failed: dict[int, ShredSaverError] = {}
        claim = os.urandom(16) if self._roots.lease else b""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with self._roots.exclusive():
                survey = partial(self._survey, claim, only, frozenset(failed), batch)
                tasks, busy, broken = self._database.run(survey)
                failed.update(broken)
                if tasks:
                    try:
                        self._carry_out(claim, tasks)
                        done += len(tasks)
                    except _DAMAGE as error:
                        if len(tasks) == 1:
                            failed[tasks[0].slot] = error
                        batch = 1  # the damaged slot must not keep the others from being rotated
                    finally:
                        if claim:
                            self._database.run(partial(_free, claim, tasks))
                    continue
            if not busy:
                break
            if time.monotonic() > deadline:
                raise KeyServiceUnavailableError("another host has been rotating this key store's roots for too long")
            time.sleep(_POLL)
        if failed:
            raise next(iter(failed.values()))
        return done

    def begin(self, slot: int) -> None:
        """Gives a slot its first root."""
        self._database.run(partial(_add_slot, slot))
        step("slot-added")
        self.run([slot])

    def ask_again(self) -> int:
        """Asks the provider about roots whose destruction is pending. Returns how many have become final."""
        return self._see_off(self._database.run(_pending))

    # -- one batch --------------------------------------------------------------------------------------------------

    def _carry_out(self, claim: bytes, tasks: Sequence[_Task]) -> None:
        leaving = [task for task in tasks if task.retiring]
        if leaving:
            self._prove({task.slot: task.epoch for task in leaving})
            self._see_off([epoch for task in leaving for epoch in task.retiring])
        due = [task for task in tasks if task.new is not None]
        if not due:
            return
        anchor = self._database.run(_anchor)
        old = {task.slot: self._roots.open(task.old) for task in due if task.old is not None and not _idle(task)}
        step("roots-make")
        made = self._roots.make([task.new for task in due if task.new is not None], anchor)
        step("roots-made")
        new = {task.slot: root for task, root in zip(due, made, strict=True)}
        moved = self._database.run(partial(self._publish, claim, due, old, new))
        step("roots-published")
        self._prove({slot: task.epoch + 1 for slot, task in moved.items()})
        step("roots-proven")
        self._see_off([task.old for task in moved.values() if task.old is not None])

    def _prove(self, epochs: Mapping[int, int]) -> None:
        """Shows, on another connection and with roots read anew, that nothing of the slots needs an older root."""
        live = self._database.run(partial(_live, epochs))
        roots = {epoch.slot: self._roots.open(epoch, fresh=True) for epoch in live}
        self._database.run(partial(self._check, epochs, roots))
        self._durable()

    def _see_off(self, epochs: Sequence[Epoch]) -> int:
        if not epochs:
            return 0
        step("roots-destroy")
        deaths = self._roots.destroy(epochs)
        step("roots-destroyed")
        self._database.run(partial(_record, epochs, deaths))
        step("roots-recorded")
        return sum(death.state == "destroyed" for death in deaths)

    # -- plans ------------------------------------------------------------------------------------------------------

    def _survey(
        self, claim: bytes, only: Collection[int] | None, without: Collection[int], most: int
    ) -> Plan[tuple[list[_Task], bool, dict[int, FormatError]]]:
        """What there is to do, claimed for us; whether other hosts have claimed some of it; slots that are damaged."""
        yield Begin("write" if claim else "read")
        (work,) = yield from run(Statement(schema.WORK))
        tasks: list[_Task] = []
        broken: dict[int, FormatError] = {}
        busy = False
        now = time.time()
        for (slot,) in work.rows:
            if slot in without or (only is not None and slot not in only):
                continue
            if len(tasks) == most:
                break
            # Locked one by one: what the first query saw may be done by now, and then there is no task.
            slots, epochs = yield from run(Statement(schema.SLOT_UPDATE, (slot,)), Statement(schema.EPOCHS, (slot,)))
            epoch, due, owner, until = slots.rows[0]
            if bytes(owner) not in {b"", claim} and until > now:
                busy = True
                continue
            try:
                task = self._task(slot, epoch, due, epochs.rows)
            except FormatError as error:
                broken[slot] = error
                continue
            if task is None:
                continue
            if claim:
                yield from run(Statement(schema.SLOT_CLAIM, (claim, now + self._roots.lease, slot)))
                if task.new is not None:
                    _, wraps = yield from run(
                        Statement(schema.EPOCH_MAKING, (slot, task.new.epoch, b"")),
                        Statement(schema.WRAPS_ANY, (slot,)),
                    )
                    idle = task.old is not None and not wraps.rows
                    note = self._noter(claim, slot, task.new.epoch)
                    task = replace(task, new=replace(task.new, note=note, idle=idle))
            tasks.append(task)
        yield Commit()
        return tasks, busy, broken

    @staticmethod
    def _task(slot: int, epoch: int, due: int, rows: Sequence[tuple[Any, ...]]) -> _Task | None:
        found = {number: (state, Epoch(slot, number, bytes(material))) for number, state, material in rows}
        retiring = tuple(known for state, known in found.values() if state == schema.RETIRING)
        new = old = None
        if due > epoch or (epoch and epoch not in found):
            raise FormatError(
                f"slot {slot} of the key store stands at epoch {epoch}, and what is noted of its epochs does not go "
                "with that: its rows were edited. Restore a current copy of the key store"
            )
        if due >= epoch:
            new = found[epoch + 1][1] if epoch + 1 in found else Epoch(slot, epoch + 1)
            if epoch:
                old = found[epoch][1]
        return _Task(slot, epoch, old, new, retiring) if new is not None or retiring else None

    def _publish(
        self, claim: bytes, tasks: Sequence[_Task], old: Mapping[int, bytes], new: Mapping[int, bytes]
    ) -> Plan[dict[int, _Task]]:
        """Moves every row of the slots to the new roots in one transaction; one row that does not open stops it all."""
        yield Begin("write")
        moved = {}
        for task in tasks:
            slot, epoch = task.slot, task.epoch
            (found,) = yield from run(Statement(schema.SLOT_UPDATE, (slot,)))
            at, _, owner, _ = found.rows[0]
            if at != epoch or bytes(owner) != claim:
                continue  # another host took the rotation over; it finds the new root and goes on with it
            (rows,) = yield from run(Statement(schema.WRAPS_OF_SLOT, (slot,)))
            if rows.rows and _idle(task):
                continue  # a customer came back meanwhile; the next survey takes that in
            changes = []
            for row in _wraps(slot, epoch, rows.rows):
                key = unwrap(self._store, old[slot], row)
                after = wrap(self._store, new[slot], key, row._replace(epoch=epoch + 1))
                changes.append((epoch + 1, after.wrapped, slot, row.customer, row.generation))
            if changes:
                yield from run(Statement(schema.WRAP_MOVE, changes, many=True))
            yield from run(
                Statement(schema.SLOT_ADVANCE, (epoch + 1, slot)),
                Statement(schema.EPOCH_LIVE, (slot, epoch + 1, b"")),
                Statement(schema.EPOCH_STATE, (schema.RETIRING, "", slot, epoch)),
            )
            moved[slot] = task
        yield Commit()
        return moved

    def _check(self, epochs: Mapping[int, int], roots: Mapping[int, bytes]) -> Plan[None]:
        yield Begin("read")
        for slot, epoch in epochs.items():
            (rows,) = yield from run(Statement(schema.WRAPS_OF_SLOT, (slot,)))
            for row in _wraps(slot, epoch, rows.rows):
                unwrap(self._store, roots[slot], row)
        yield Commit()

    def _noter(self, claim: bytes, slot: int, epoch: int) -> Callable[[bytes], None]:
        def note(material: bytes) -> None:
            self._database.run(partial(_note, claim, self._roots.lease, slot, epoch, material))

        return note


def _idle(task: _Task) -> bool:
    return task.new is not None and task.new.idle


def _wraps(slot: int, epoch: int, rows: Sequence[tuple[Any, ...]]) -> Iterator[Wrapped]:
    for customer, generation, at, version, wrapped in rows:
        row = Wrapped(slot, bytes(customer), generation, at, version, bytes(wrapped))
        if at != epoch or not epoch:
            raise UnsealError(
                f"key_wraps/{row.customer.hex()}/{generation} is wrapped under epoch {at}, its slot is at {epoch}: it "
                "was put back from an older copy, or altered; no root of the slot is destroyed before that is mended"
            )
        yield row


def _add_slot(slot: int) -> Plan[None]:
    yield Begin("write")
    yield from run(Statement(schema.SLOT_ADD, (slot, b"")), Statement(schema.SLOT_BEGIN, (slot,)), commit=True)


def _anchor() -> Plan[Anchor]:
    yield Begin("read")
    (found,) = yield from run(Statement(schema.LOG), commit=True)
    length, head = found.rows[0]
    return Anchor(length, bytes(head))


def _live(epochs: Mapping[int, int]) -> Plan[list[Epoch]]:
    yield Begin("read")
    found = yield from run(*(Statement(schema.SLOT_LIVE, (slot,)) for slot in epochs), commit=True)
    live = [Epoch(slot, epoch, bytes(material)) for result in found for slot, epoch, material in result.rows]
    if {epoch.slot: epoch.epoch for epoch in live} != dict(epochs):
        raise KeyServiceUnavailableError("a slot moved on while its rotation was being proven; call again")
    return live


def _pending() -> Plan[list[Epoch]]:
    yield Begin("read")
    (found,) = yield from run(Statement(schema.EPOCHS_PENDING), commit=True)
    return [Epoch(slot, epoch, bytes(material)) for slot, epoch, material in found.rows]


def _record(epochs: Sequence[Epoch], deaths: Sequence[Death]) -> Plan[None]:
    yield Begin("write")
    for epoch, death in zip(epochs, deaths, strict=True):
        state = schema.DEAD if death.state == "destroyed" else schema.PENDING
        proof = json.dumps(asdict(death))
        yield from run(Statement(schema.EPOCH_STATE, (state, proof, epoch.slot, epoch.epoch)))
    yield Commit()


def _note(claim: bytes, lease: float, slot: int, epoch: int, material: bytes) -> Plan[None]:
    yield Begin("write")
    (renewed,) = yield from run(Statement(schema.SLOT_RENEW, (time.time() + lease, slot, claim)))
    if not renewed.rows:
        yield Rollback()
        raise KeyServiceUnavailableError("another host has taken this rotation over; it will finish it")
    yield from run(Statement(schema.EPOCH_NOTE, (material, slot, epoch)), commit=True)


def _free(claim: bytes, tasks: Sequence[_Task]) -> Plan[None]:
    yield Begin("write")
    yield from run(*(Statement(schema.SLOT_FREE, (b"", task.slot, claim)) for task in tasks), commit=True)
