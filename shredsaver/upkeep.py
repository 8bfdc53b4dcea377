"""Deleting, copying and pruning threads.

Deleting is hygiene: what makes data unreadable is the destruction of keys. Each operation on a thread is one
transaction, changes the thread's epoch where rows go (so that no process reuses parts that are gone), and leaves alone
what another writer added meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver import erasure
from shredsaver.core import LOCK_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run, sql
from shredsaver.errors import ConfigurationError, CustomerRestrictedError, LegalHoldError, ThreadOwnershipError
from shredsaver.keytree import KeyTree
from shredsaver.manifest import Entry
from shredsaver.memory import Memory, Place
from shredsaver.reading import CHECKPOINT_COLUMNS, WRITE_COLUMNS, CheckpointRow, Opener, WriteRow
from shredsaver.sealing import CHECKPOINT, PART, THREAD_NAME, WRITE
from shredsaver.threads import ADD_THREAD, GET_THREAD, MOVE_THREAD, NEXT_SCOPES, Ref, admit_thread, check_name
from shredsaver.writing import ADD_PART, ADD_RUN, ADD_WRITE, PUT_CHECKPOINT

DELETE_OF_THREAD: Final = tuple(
    sql(f"DELETE FROM {table} WHERE thread = ?") for table in ("checkpoints", "writes", "parts", "runs")
)
DELETE_THREAD: Final = sql("DELETE FROM threads WHERE thread = ?")
ALL_CHECKPOINTS: Final = sql(f"SELECT {CHECKPOINT_COLUMNS} FROM checkpoints k WHERE k.thread = ? AND k.generation = ?")
ALL_WRITES: Final = sql(f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ? AND w.generation = ?")
ALL_PARTS: Final = sql("SELECT scope, number, sealed FROM parts WHERE thread = ? AND generation = ?")
PART_NUMBERS: Final = sql("SELECT scope, number FROM parts WHERE thread = ? AND generation = ?")
DELETE_PARTS: Final = sql(
    "DELETE FROM parts WHERE thread = ? AND generation = ? AND scope = ? AND number BETWEEN ? AND ?"
)
DELETE_CHECKPOINT: Final = sql("DELETE FROM checkpoints WHERE thread = ? AND ns = ? AND checkpoint_id = ?")
DELETE_WRITES: Final = sql("DELETE FROM writes WHERE thread = ? AND ns = ? AND checkpoint_id = ?")
DELETE_RUN: Final = sql("DELETE FROM runs WHERE run = ? AND thread = ?")
THREADS_OF_RUN: Final = sql("SELECT thread FROM runs WHERE run = ?")
SET_DELTA: Final = sql("UPDATE threads SET uses_delta = 1 WHERE thread = ?")
USES_DELTA: Final = sql("SELECT uses_delta FROM threads WHERE thread = ?")
NEW_EPOCH: Final = sql("UPDATE threads SET epoch = ? WHERE thread = ?")
"""Takes the thread's row, so that writers of the thread wait, and voids what processes remember of it."""

STRATEGIES: Final = ("keep_latest", "delete", "delete_all")
EPOCH_BITS: Final = 62


class Rows(NamedTuple):
    """A thread's rows, and what opens them."""

    place: Place
    customer: Customer
    tree: KeyTree
    checkpoints: Sequence[CheckpointRow]
    writes: Sequence[WriteRow]


class Upkeep:
    """The plans of upkeep. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, memory: Memory) -> None:
        self._core = core
        self._memory = memory

    def delete(self, ref: Ref) -> Plan[None]:
        """Deletes a thread with all it has; the row of a shredded customer's thread stays, to refuse it for ever.

        Raises:
            LegalHoldError: Its customer is under a hold.
            CustomerRestrictedError: Its customer's use is restricted: what is restricted is kept.
        """
        yield Begin("write")
        (threads,) = yield from run(Statement(GET_THREAD, (ref.thread,)))
        if not threads.rows:
            yield from run(*(Statement(delete, (ref.thread,)) for delete in DELETE_OF_THREAD), commit=True)
            return
        place = Place(*threads.rows[0][:7])
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (place.customer,)))
        dead = False
        if row.rows:
            customer = self._core.customer(row.rows[0])
            self._refuse_kept(customer)
            dead = customer.state in erasure.DEAD or place.generation < customer.generation
        statements = [Statement(delete, (ref.thread,)) for delete in DELETE_OF_THREAD]
        if not dead:
            statements.append(Statement(DELETE_THREAD, (ref.thread,)))
        yield from run(Statement(NEW_EPOCH, (secrets.randbits(EPOCH_BITS), ref.thread)), *statements, commit=True)
        self._memory.forget(ref.thread)

    def threads_of(self, run_token: bytes) -> Plan[list[bytes]]:
        """The tokens of the threads in which a run left checkpoints."""
        yield Begin("read")
        (found,) = yield from run(Statement(THREADS_OF_RUN, (run_token,)))
        yield Commit()
        return [row[0] for row in found.rows]

    def delete_run(self, thread: bytes, run_token: bytes) -> Plan[None]:
        """Deletes what a run left in one thread, and the parts that nothing else uses."""
        rows = yield from self._open(Ref("", thread, None, None))
        if rows is None:
            return
        gone = [row for row in rows.checkpoints if row.run == run_token]
        yield from self._remove(rows, gone)
        yield from run(Statement(DELETE_RUN, (run_token, thread)), commit=True)
        self._memory.forget(thread)

    def prune(self, ref: Ref, serde: SerializerProtocol) -> Plan[None]:
        """Keeps the latest checkpoint of each namespace and its writes.

        Calls of subgraphs go with the root checkpoint they started from; what is kept has no parent any more.

        Raises:
            ConfigurationError: The thread uses delta channels, whose values are made of their ancestors' writes.
        """
        rows = yield from self._open(ref)
        if rows is None:
            return
        (delta,) = yield from run(Statement(USES_DELTA, (ref.thread,)))
        if delta.rows[0][0]:
            yield Rollback()
            raise ConfigurationError(
                f"thread {ref.thread.hex()} uses a delta channel, whose value is made of its ancestors' writes: "
                "keep_latest would lose state, delete the thread instead"
            )
        opener = Opener(self._core, rows.place, rows.tree)
        kept = _latest(rows.checkpoints)
        kept = self._without_calls(opener, serde, rows.checkpoints, kept)
        ids = {(row.ns, row.checkpoint_id) for row in kept}
        yield from self._remove(rows, [row for row in rows.checkpoints if (row.ns, row.checkpoint_id) not in ids])
        for row in kept:
            if row.parent_id:
                yield from self._orphan(rows, opener, row)
        yield Commit()
        self._memory.forget(ref.thread)

    def copy(self, source: Ref, target: Ref) -> Plan[None]:
        """Copies all of a thread to another of the same customer, sealed anew under a scope of its own.

        Raises:
            ThreadOwnershipError: The target belongs to somebody else.
            LegalHoldError: The customer is under a hold, and the target is there already.
        """
        rows = yield from self._open(source, deletes=False)
        if rows is None:
            return
        owner = rows.place.owner
        parts, targets = yield from run(
            Statement(ALL_PARTS, (source.thread, rows.place.generation)), Statement(GET_THREAD, (target.thread,))
        )
        used = sorted({rows.place.scope, *(row.scope for row in rows.checkpoints), *(row.scope for row in rows.writes)})
        allotted = yield from run(*(Statement(NEXT_SCOPES, owner) for _ in used))
        scopes = {old: int(result.rows[0][0]) for old, result in zip(used, allotted, strict=True)}
        scope = scopes[rows.place.scope]
        name = self._core.seal(rows.tree, THREAD_NAME, owner, scope, 0, target.thread_id.encode("utf-8"), target.thread)
        # The copy keeps every number, so that no manifest changes: only the scope and the thread are others.
        place = rows.place._replace(thread=target.thread, scope=scope, epoch=secrets.randbits(EPOCH_BITS))
        if targets.rows:
            old = Place(*targets.rows[0][:7])
            if old.customer != place.customer:
                yield Rollback()
                raise ThreadOwnershipError(
                    f"thread {target.thread.hex()} belongs to another customer than {source.thread.hex()}: "
                    "a copy stays with its customer"
                )
            self._refuse_kept(rows.customer)  # what is there may be replaced
            yield from run(
                Statement(MOVE_THREAD, (*place[2:], name, 0, old.thread, old.customer, *old[2:4], old.epoch))
            )
        else:
            yield from run(Statement(ADD_THREAD, (*place, name, int(self._core.clock() * 1000))))
        yield from self._copy_rows(rows, place, scopes, parts.rows)
        (delta,) = yield from run(Statement(USES_DELTA, (source.thread,)))
        if delta.rows[0][0]:
            yield from run(Statement(SET_DELTA, (target.thread,)))
        yield Commit()
        self._memory.forget(target.thread)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _open(self, ref: Ref, *, deletes: bool = True) -> Plan[Rows | None]:
        """Opens a write transaction with the thread's row taken and gives its rows; None if there is no such thread.

        A hold forbids it where something is to be deleted.
        """
        while True:
            yield Begin("write")
            (threads,) = yield from run(Statement(GET_THREAD, (ref.thread,)))
            if not threads.rows:
                yield Rollback()
                return None
            yield from run(Statement(LOCK_CUSTOMER, (threads.rows[0][1],)))
            yield from run(Statement(NEW_EPOCH, (secrets.randbits(EPOCH_BITS), ref.thread)))
            (threads,) = yield from run(Statement(GET_THREAD, (ref.thread,)))
            found = (yield from admit_thread(self._core, ref, threads.rows[0])) if threads.rows else None
            if found is None:
                yield Rollback()
                return None
            if deletes:
                self._refuse_kept(found.customer)
            tree = self._core.tree(found.customer)
            if tree is None:
                yield Rollback()
                yield from self._core.load_tree(found.customer)
                continue
            if ref.thread_id:
                check_name(self._core, tree, found, ref)
            key = (ref.thread, found.place.generation)
            checkpoints, writes = yield from run(Statement(ALL_CHECKPOINTS, key), Statement(ALL_WRITES, key))
            return Rows(
                found.place,
                found.customer,
                tree,
                [CheckpointRow(*row) for row in checkpoints.rows],
                [WriteRow(*row) for row in writes.rows],
            )

    def _remove(self, rows: Rows, gone: Sequence[CheckpointRow]) -> Plan[None]:
        """Deletes checkpoints with their writes, then every part that nothing left uses."""
        if not gone:
            return
        keys = [(row.thread, row.ns, row.checkpoint_id) for row in gone]
        yield from run(
            Statement(DELETE_CHECKPOINT, keys, many=True),
            Statement(DELETE_WRITES, keys, many=True),
        )
        removed = {key[1:] for key in keys}
        opener = Opener(self._core, rows.place, rows.tree)
        entries: list[tuple[int, Entry]] = []
        for row in rows.checkpoints:
            if (row.ns, row.checkpoint_id) not in removed:
                entries += ((row.scope + 1, entry) for entry in opener.checkpoint(row).manifest.values())
        for write in rows.writes:
            if (write.ns, write.checkpoint_id) not in removed:
                entries.append((write.scope + 1, opener.write(write)))
        used = yield from opener.used(entries)
        key = (rows.place.thread, rows.place.generation)
        (present,) = yield from run(Statement(PART_NUMBERS, key))
        unused = sorted({(scope, number) for scope, number in present.rows} - used)
        if unused:
            yield from run(Statement(DELETE_PARTS, [(*key, *span) for span in _spans(unused)], many=True))

    def _without_calls(
        self, opener: Opener, serde: SerializerProtocol, rows: Sequence[CheckpointRow], kept: Sequence[CheckpointRow]
    ) -> list[CheckpointRow]:
        """Leaves out the subgraph calls that started from a root checkpoint that is saved and not kept."""
        roots = {row.checkpoint_id for row in rows if not row.ns}
        kept_roots = {row.checkpoint_id for row in kept if not row.ns}
        left = []
        for row in kept:
            if ":" in row.ns:  # a call's namespace has its task's id behind a colon
                parents = serde.loads_typed(opener.checkpoint(row).metadata).get("parents") or {}
                root = parents.get("")
                if root in roots and root not in kept_roots:
                    continue
            left.append(row)
        return left

    def _orphan(self, rows: Rows, opener: Opener, row: CheckpointRow) -> Plan[None]:
        """Seals a checkpoint again without a parent."""
        record = opener.checkpoint_bytes(row)
        new = row._replace(parent_id="")
        yield from run(Statement(PUT_CHECKPOINT, self._sealed_row(rows.tree, rows.place.owner, new, record)))

    def _sealed_row(self, tree: KeyTree, owner: tuple[bytes, int], row: CheckpointRow, record: bytes) -> CheckpointRow:
        columns = (row.thread, row.ns, row.checkpoint_id, row.parent_id, row.run, row.source, row.step)
        sealed = self._core.seal(tree, CHECKPOINT, owner, row.scope, row.number, record, *columns)
        return row._replace(sealed=sealed)

    def _copy_rows(
        self, rows: Rows, to: Place, scopes: Mapping[int, int], parts: Sequence[Sequence[Any]]
    ) -> Plan[None]:
        seal, tree, owner = self._core.seal, rows.tree, to.owner
        opener = Opener(self._core, rows.place, tree)
        new_parts = []
        for scope, number, sealed in parts:
            if scope - 1 in scopes:
                new = scopes[scope - 1] + 1
                content = opener.part(scope, number, sealed)
                again = seal(tree, PART, owner, new, number, content, to.thread)
                new_parts.append((to.thread, to.generation, new, number, again))
        checkpoints = []
        runs = set()
        for row in rows.checkpoints:
            copied = row._replace(thread=to.thread, scope=scopes[row.scope])
            checkpoints.append(self._sealed_row(tree, owner, copied, opener.checkpoint_bytes(row)))
            runs.add(row.run)
        writes = []
        for write in rows.writes:
            columns = (to.thread, *write[1:4], str(write.idx), write.task_path, write.channel)
            scope = scopes[write.scope]
            sealed = seal(tree, WRITE, owner, scope, write.number, opener.write_bytes(write), *columns)
            writes.append(write._replace(thread=to.thread, scope=scope, sealed=sealed))
        yield from run(
            Statement(ADD_PART, new_parts, many=True),
            Statement(PUT_CHECKPOINT, checkpoints, many=True),
            Statement(ADD_WRITE, writes, many=True),
            Statement(ADD_RUN, [(token, to.thread) for token in runs if token], many=True),
        )

    def _refuse_kept(self, customer: Customer) -> None:
        if customer.state == erasure.RESTRICTED:
            raise CustomerRestrictedError(
                f"use of customer {customer.customer.hex()} is restricted: nothing of it is deleted until reinstate"
            )
        if erasure.held(customer.held_until, self._core.clock()):
            raise LegalHoldError(
                f"customer {customer.customer.hex()} is under a hold: nothing of it is deleted until it is released"
            )


def _latest(rows: Iterable[CheckpointRow]) -> list[CheckpointRow]:
    latest: dict[str, CheckpointRow] = {}
    for row in rows:
        if row.ns not in latest or latest[row.ns].checkpoint_id < row.checkpoint_id:
            latest[row.ns] = row
    return list(latest.values())


def _spans(numbers: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Runs of (scope, number), as (scope, first, last)."""
    spans: list[tuple[int, int, int]] = []
    for scope, number in numbers:
        if spans and spans[-1][0] == scope and spans[-1][2] == number - 1:
            spans[-1] = (scope, spans[-1][1], number)
        else:
            spans.append((scope, number, number))
    return spans
