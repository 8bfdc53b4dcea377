"""Writing a checkpoint or pending writes: serialise, cut, seal, then one transaction.

Everything is sealed before the transaction begins, under numbers that are only assumed to be free, for a customer that
was let through when it was last looked at. One UPDATE asks the fence whether that still is so, checks and allocates the
numbers; then the rows are inserted. Where an assumption was wrong (another writer was faster), the thread is looked at
again and the parts are sealed again.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver.core import CUSTOMER_COLUMNS, SHARE_CUSTOMER, Core
from shredsaver.customers import CustomerResolver
from shredsaver.db.base import Begin, Plan, Rollback, Statement, call, run, sql
from shredsaver.errors import DatabaseUnavailableError
from shredsaver.fingerprints import Print, applies, dump
from shredsaver.keytree import KeyPuncturedError
from shredsaver.memory import Known, Memory, Place, ThreadMemory
from shredsaver.parts import Value, split
from shredsaver.reading import load_manifest
from shredsaver.records import CheckpointRecord, Typed, pack_checkpoint, pack_write
from shredsaver.sealing import CHECKPOINT, PART, WRITE
from shredsaver.serialising import attempt, check_size, serialise
from shredsaver.threads import FULL, Ref, Stand, claim, no_owner

ATTEMPTS: Final = 1000
PRINTED: Final = 6
"""Messages of a list from which its print pays."""
_ADVANCE: Final = (
    "UPDATE threads SET next_record = ?, next_part = ?, touched_at = ?, "
    "uses_delta = CASE WHEN ? = 1 THEN 1 ELSE uses_delta END "
    "WHERE thread = ? AND customer = ? AND generation = ? AND scope = ? AND next_record = ? AND next_part = ? "
    "AND epoch = ? AND EXISTS (SELECT 1 FROM customers WHERE "
)
# The fence in the same statement: the customer's row must be, to the byte, the one that was admitted.
ADVANCE_THREAD: Final = sql(
    _ADVANCE + " AND ".join(f"{column} = ?" for column in CUSTOMER_COLUMNS.split(", ")) + " {share})"
)
ADD_PART: Final = sql("INSERT INTO parts (thread, generation, scope, number, sealed) VALUES (?, ?, ?, ?, ?)")
PUT_CHECKPOINT: Final = sql(
    "INSERT INTO checkpoints (thread, ns, checkpoint_id, generation, parent_id, run, source, step, scope, number, "
    "sealed) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread, ns, checkpoint_id) DO UPDATE SET "
    "generation = excluded.generation, parent_id = excluded.parent_id, run = excluded.run, source = excluded.source, "
    "step = excluded.step, scope = excluded.scope, number = excluded.number, sealed = excluded.sealed"
)
_INSERT_WRITE: Final = (
    "INSERT INTO writes (thread, ns, checkpoint_id, task_id, idx, generation, task_path, channel, scope, number, "
    "sealed) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread, ns, checkpoint_id, task_id, idx) DO UPDATE SET "
    "generation = excluded.generation, task_path = excluded.task_path, channel = excluded.channel, "
    "scope = excluded.scope, number = excluded.number, sealed = excluded.sealed"
)
PUT_WRITE: Final = sql(_INSERT_WRITE)
# A write that is there already stays as it is, unless it is of a generation that nobody can open any more.
ADD_WRITE: Final = sql(_INSERT_WRITE + " WHERE writes.generation < excluded.generation")
ADD_RUN: Final = sql("INSERT INTO runs (run, thread) VALUES (?, ?) ON CONFLICT (run, thread) DO NOTHING")


class NewCheckpoint(NamedTuple):
    """A checkpoint to store, values not serialised yet."""

    ns: str
    checkpoint_id: str
    parent_id: str
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    values: Mapping[str, Any]
    changed: frozenset[str]
    versions: Mapping[str, Any]
    run: bytes
    source: str
    step: str
    uses_delta: bool
    delta: frozenset[str]
    """Delta channels: one without a value whose version did not change still stands at its parent's snapshot."""


class NewWrite(NamedTuple):
    """A pending write to store, not serialised yet."""

    channel: str
    idx: int
    value: Any


@dataclass(slots=True)
class Draft:
    """A checkpoint whose parts are serialised, once whatever happens: nodes may go on with the values."""

    checkpoint: Typed
    metadata: Typed
    values: dict[str, Typed]
    prints: dict[str, Print]


class Sealed(NamedTuple):
    """What one attempt is going to insert, and what to remember once it is committed."""

    statements: Sequence[Statement]
    stand: Stand
    after: Place
    """Where the thread stands afterwards."""
    values: Mapping[str, Value]
    manifest: tuple[str, Mapping[str, Known]] | None
    elements: Mapping[bytes, int]


class Writer:
    """The plans that write to threads. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, memory: Memory, resolver: CustomerResolver, *, fingerprints: bool = True) -> None:
        self.core = core
        self.memory = memory
        self.resolver = resolver
        self.fingerprints = fingerprints

    def put(self, ref: Ref, new: NewCheckpoint, serde: SerializerProtocol) -> Plan[None]:
        """Stores a checkpoint; one with the same id is replaced."""
        draft, sealed = yield from call(partial(self._draft, ref, new, serde))
        for _ in range(ATTEMPTS):
            if sealed is None:
                stand = yield from claim(self.core, self.memory, self.resolver, ref)
                parent = yield from self._parent(ref, new, draft, serde)
                sealed = yield from call(partial(self._seal_checkpoint, stand, new, draft, parent, serde))
            if (yield from self._commit(sealed, uses_delta=new.uses_delta)):
                self._remember(new.ns, sealed, new.run, draft.prints)
                return
            sealed = None
        raise _contended(ref)

    def put_writes(
        self,
        ref: Ref,
        ns: str,
        checkpoint_id: str,
        task: tuple[str, str],
        new: Sequence[NewWrite],
        serde: SerializerProtocol,
    ) -> Plan[None]:
        """Stores pending writes of a task (its id and path)."""
        where = (ns, checkpoint_id, *task)
        typed, sealed = yield from call(partial(self._draft_writes, ref, where, new, serde))
        for _ in range(ATTEMPTS):
            if sealed is None:
                stand = yield from claim(self.core, self.memory, self.resolver, ref)
                sealed = yield from call(partial(self._seal_writes, stand, where, typed))
            if (yield from self._commit(sealed, uses_delta=False)):
                self._remember(ns, sealed)
                return
            sealed = None
        raise _contended(ref)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _draft(self, ref: Ref, new: NewCheckpoint, serde: SerializerProtocol) -> tuple[Draft, Sealed | None]:
        """Serialises the checkpoint, its metadata and the changed values; seals them if all else is in memory."""
        known = self.memory.get(ref.thread)
        printed = self.fingerprints and applies(serde)
        draft = Draft(
            serialise(serde, new.checkpoint, "the checkpoint"),
            serialise(serde, new.metadata, "the checkpoint's metadata"),
            {},
            {},
        )
        for channel, value in new.values.items():
            if channel not in new.changed and new.parent_id:
                continue
            what = f"the value of channel {channel!r}"
            if printed and type(value) is list and len(value) >= PRINTED:
                before = known.prints.get((new.ns, channel)) if known is not None else None
                draft.values[channel], taken = attempt(partial(dump, serde, value, before), value, what)
                check_size(draft.values[channel][1], what)
                if taken is not None:
                    draft.prints[channel] = taken
            else:
                draft.values[channel] = serialise(serde, value, what)
        stand = self._stand(ref, known)
        parent = self._known_parent(known, new, draft)
        if stand is None or parent is None:
            return draft, None
        return draft, self._seal_checkpoint(stand, new, draft, parent, serde)

    def _draft_writes(
        self, ref: Ref, where: tuple[str, str, str, str], new: Sequence[NewWrite], serde: SerializerProtocol
    ) -> tuple[list[tuple[NewWrite, Typed]], Sealed | None]:
        typed = [(write, serialise(serde, write.value, f"a write to {write.channel!r}")) for write in new]
        stand = self._stand(ref, self.memory.get(ref.thread))
        return typed, None if stand is None else self._seal_writes(stand, where, typed)

    def _stand(self, ref: Ref, known: ThreadMemory | None) -> Stand | None:
        """Where the thread stands, from memory if all is known there: the transaction checks it anyway."""
        if known is None:
            return None
        place = known.place
        if ref.customer != place.customer and ref.customer is not None:
            return None
        fence = self.core.admitted(place.customer, place.generation)
        if fence is None or place.next_record > FULL or place.next_part > FULL:
            return None
        tree = self.core.keyring.cached(place.customer, place.generation, fence[3])
        return None if tree is None else Stand(place, tree, fence)

    @staticmethod
    def _wanted(new: NewCheckpoint, draft: Draft) -> set[str]:
        """The channels whose values did not change: they are where the parent has them."""
        return (new.values.keys() | (new.delta - new.changed)) - draft.values.keys()

    def _known_parent(self, known: ThreadMemory | None, new: NewCheckpoint, draft: Draft) -> Mapping[str, Known] | None:
        if not self._wanted(new, draft):
            return {}
        return known.manifests.get((new.ns, new.parent_id)) if known is not None else None

    def _parent(
        self, ref: Ref, new: NewCheckpoint, draft: Draft, serde: SerializerProtocol
    ) -> Plan[Mapping[str, Known]]:
        """The parent's manifest, from the database if need be."""
        parent = self._known_parent(self.memory.get(ref.thread), new, draft)
        if parent is None:
            parent = yield from load_manifest(self.core, self.memory, ref, new.ns, new.parent_id, serde)
        return parent

    def _seal_checkpoint(
        self,
        stand: Stand,
        new: NewCheckpoint,
        draft: Draft,
        parent: Mapping[str, Known],
        serde: SerializerProtocol,
    ) -> Sealed:
        inherited = {}
        for channel in self._wanted(new, draft):
            found = parent.get(channel)
            if found is not None and channel in new.versions and _same(found.version, new.versions[channel]):
                inherited[channel] = found
            elif channel in new.values:
                draft.values[channel] = serialise(serde, new.values[channel], f"the value of channel {channel!r}")
        return _numbered(stand, lambda first: self._checkpoint_rows(stand, new, draft, inherited, first))

    def _checkpoint_rows(
        self, stand: Stand, new: NewCheckpoint, draft: Draft, inherited: Mapping[str, Known], first: tuple[int, int]
    ) -> Sealed:
        place, tree, _ = stand
        known = self._known(place)
        record_number, part_number = first
        values: dict[str, Value] = {}
        parts: list[bytes] = []
        added: dict[bytes, int] = {}
        elements: Mapping[bytes, int] = known.elements if known is not None else {}
        manifest = dict(inherited)
        for channel, (tag, data) in draft.values.items():
            previous = known.values.get((new.ns, channel)) if known is not None else None
            # What two channels have in common is stored once.
            existing = ChainMap(added, elements) if added else elements  # type: ignore[arg-type]
            value, more = split(tag, data, previous, existing, part_number + len(parts))
            added.update(_numbers(more, part_number + len(parts)))
            parts += more
            values[channel] = value
            manifest[channel] = Known(new.versions.get(channel), value.entry)
        record = pack_checkpoint(
            CheckpointRecord(
                draft.checkpoint, draft.metadata, {channel: found.entry for channel, found in manifest.items()}
            )
        )
        columns = (new.parent_id, new.run, new.source, new.step)
        key = (place.thread, new.ns, new.checkpoint_id)
        owner, scope = place.owner, place.scope
        sealed = self.core.seal(tree, CHECKPOINT, owner, scope, record_number, record, *key, *columns)
        statements = self._part_rows(stand, parts, part_number)
        row = (*key, place.generation, *columns, scope, record_number, sealed)
        statements.append(Statement(PUT_CHECKPOINT, row))
        if new.run and not (known is not None and new.run in known.runs):
            statements.append(Statement(ADD_RUN, (new.run, place.thread)))
        after = place._replace(next_record=record_number + 1, next_part=part_number + len(parts))
        return Sealed(statements, stand, after, values, (new.checkpoint_id, manifest), added)

    def _seal_writes(
        self, stand: Stand, where: tuple[str, str, str, str], typed: Sequence[tuple[NewWrite, Typed]]
    ) -> Sealed:
        return _numbered(stand, lambda first: self._write_rows(stand, where, typed, first))

    def _write_rows(
        self,
        stand: Stand,
        where: tuple[str, str, str, str],
        typed: Sequence[tuple[NewWrite, Typed]],
        first: tuple[int, int],
    ) -> Sealed:
        place, tree, _ = stand
        ns, checkpoint_id, task_id, task_path = where
        known = self._known(place)
        elements: Mapping[bytes, int] = known.elements if known is not None else {}
        number, part_number = first
        key = (place.thread, ns, checkpoint_id, task_id)
        owner, scope = place.owner, place.scope
        parts: list[bytes] = []
        added: dict[bytes, int] = {}
        kept: list[tuple[Any, ...]] = []
        replacing: list[tuple[Any, ...]] = []
        for write, (tag, data) in typed:
            existing = ChainMap(added, elements) if added else elements  # type: ignore[arg-type]
            value, more = split(tag, data, None, existing, part_number + len(parts))
            added.update(_numbers(more, part_number + len(parts)))
            parts += more
            columns = (str(write.idx), task_path, write.channel)
            sealed = self.core.seal(tree, WRITE, owner, scope, number, pack_write(value.entry), *key, *columns)
            row = (*key, write.idx, place.generation, task_path, write.channel, scope, number, sealed)
            (replacing if write.idx < 0 else kept).append(row)
            number += 1
        statements = self._part_rows(stand, parts, part_number)
        if kept:
            statements.append(Statement(ADD_WRITE, kept, many=True))
        if replacing:
            statements.append(Statement(PUT_WRITE, replacing, many=True))
        after = place._replace(next_record=number, next_part=part_number + len(parts))
        return Sealed(statements, stand, after, {}, None, added)

    def _known(self, place: Place) -> ThreadMemory | None:
        known = self.memory.get(place.thread)
        return known if known is not None and known.place.same_thread(place) else None

    def _part_rows(self, stand: Stand, parts: Sequence[bytes], first: int) -> list[Statement]:
        if not parts:
            return []
        place = stand.place
        thread, generation, scope = place.thread, place.generation, place.scope + 1
        sealed = self.core.seal_rows(stand.tree, PART, place.owner, scope, first, parts, thread)
        rows = [(thread, generation, scope, number, record) for number, record in enumerate(sealed, first)]
        return [Statement(ADD_PART, rows, many=True)]

    def _commit(self, sealed: Sealed, *, uses_delta: bool) -> Plan[bool]:
        """Asks the fence and allocates, inserts. False where the thread or the keys are not what they were."""
        place, _, fence = sealed.stand
        after = sealed.after
        now = int(self.core.clock() * 1000)
        advance = (after.next_record, after.next_part, now, int(uses_delta), *place, *fence)
        yield Begin("write")
        (advanced,) = yield from run(Statement(ADVANCE_THREAD, advance))
        if advanced.changed:
            yield from run(*sealed.statements, commit=True)
            return True
        (row,) = yield from run(Statement(SHARE_CUSTOMER, (place.customer,)))
        if not row.rows:
            no_owner(place)
        yield from self.core.admit(row.rows[0], place.generation)
        yield Rollback()
        return False

    def _remember(
        self, ns: str, sealed: Sealed, run_token: bytes = b"", prints: Mapping[str, Print] | None = None
    ) -> None:
        self.memory.remember(
            sealed.after,
            ns=ns,
            values=sealed.values,
            prints=prints,
            manifest=sealed.manifest,
            elements=sealed.elements,
            run=run_token or None,
        )


def _numbered(stand: Stand, pack: Callable[[tuple[int, int]], Sealed]) -> Sealed:
    """Seals under the next numbers, jumping over those whose keys were punctured."""
    place, tree, _ = stand
    first = (place.next_record, place.next_part)
    while True:
        try:
            return pack(first)
        except KeyPuncturedError:
            record = tree.next_alive(place.scope, first[0])
            part = tree.next_alive(place.scope + 1, first[1])
            if record is None or part is None:
                spent = f"thread {place.thread.hex()} has used up its numbers: rotate its customer's keys"
                raise DatabaseUnavailableError(spent) from None
            # Where both are alive, a number further on was not: step over it.
            first = (record, part) if (record, part) != first else (record + 1, part + 1)


def _numbers(parts: Sequence[bytes], first: int) -> dict[bytes, int]:
    return {part: number for number, part in enumerate(parts, first)}


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _contended(ref: Ref) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"thread {ref.thread.hex()} is written to by so many others that {ATTEMPTS} attempts failed; call again",
        retryable=True,
    )
