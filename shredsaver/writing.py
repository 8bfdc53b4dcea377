"""Writing a checkpoint or pending writes: serialise, cut, seal, then one transaction.

Everything is sealed before the transaction begins, under numbers that are only assumed to be free. The transaction asks
the fence, checks and allocates the numbers with one UPDATE, and inserts. Where the assumption was wrong (another writer
was faster), the thread is looked at again and the parts are sealed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver import sealing
from shredsaver.core import SHARE_CUSTOMER, Core
from shredsaver.customers import CustomerResolver
from shredsaver.db.base import Begin, Plan, Rollback, Statement, T, call, run, sql
from shredsaver.errors import DatabaseUnavailableError, PayloadError
from shredsaver.fingerprints import Print, applies, dump
from shredsaver.keytree import KeyPuncturedError, KeyTree
from shredsaver.memory import Known, Memory, Place, ThreadMemory
from shredsaver.parts import Value, split
from shredsaver.reading import load_manifest
from shredsaver.records import CheckpointRecord, Typed, pack_checkpoint, pack_write
from shredsaver.sealing import CHECKPOINT, PART, WRITE
from shredsaver.threads import LAST_NUMBER, Ref, claim, no_owner

ATTEMPTS: Final = 1000
PRINTED: Final = 6
"""Messages of a list from which its print pays."""
ADVANCE_THREAD: Final = sql(
    "UPDATE threads SET next_record = ?, next_part = ?, touched_at = ?, "
    "uses_delta = CASE WHEN ? = 1 THEN 1 ELSE uses_delta END "
    "WHERE thread = ? AND customer = ? AND generation = ? AND scope = ? AND next_record = ? AND next_part = ? "
    "AND epoch = ?"
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


class Sealed(NamedTuple):
    """What one attempt is going to insert, and what to remember once it is committed."""

    statements: Sequence[Statement]
    place: Place
    """Where the thread stands afterwards."""
    values: Mapping[str, Value]
    manifest: tuple[str, Mapping[str, Known]] | None
    elements: Mapping[bytes, int]


def serialise(serde: SerializerProtocol, value: Any, what: str) -> Typed:
    """The serializer's tag and bytes of a value.

    Raises:
        PayloadError: As `attempt`, or it is above the limit.
    """
    tag, data = attempt(partial(serde.dumps_typed, value), value, what)
    check_size(data, what)
    return tag, bytes(data)


def check_size(data: bytes, what: str) -> None:
    """Refuses a value above the limit before anything is written.

    Raises:
        PayloadError: It is.
    """
    if len(data) > sealing.MAX_PLAINTEXT:
        raise PayloadError(f"{what} has {len(data)} bytes, above the limit of {sealing.MAX_PLAINTEXT}: split it")


def attempt(function: Callable[[], T], value: Any, what: str) -> T:
    """Calls what serialises a value.

    Raises:
        PayloadError: The serializer cannot take it. Its own error is not chained: it may quote the value.
    """
    try:
        return function()
    except Exception as error:  # noqa: BLE001 -- a serializer may raise anything
        raise PayloadError(
            f"{what} cannot be serialised: a {type(value).__name__} raised {type(error).__name__}. Keep plain data, "
            "messages, dataclasses or pydantic models in the state, or give a serializer that knows the type"
        ) from None


class Writer:
    """The plans that write to threads. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, memory: Memory, resolver: CustomerResolver, *, fingerprints: bool = True) -> None:
        self.core = core
        self.memory = memory
        self.resolver = resolver
        self.fingerprints = fingerprints

    def put(self, ref: Ref, new: NewCheckpoint, serde: SerializerProtocol) -> Plan[None]:
        """Stores a checkpoint; one with the same id is replaced."""
        prints: dict[str, Print] = {}
        checkpoint, metadata, typed = yield from call(partial(self._serialised, ref, new, serde, prints))
        for _ in range(ATTEMPTS):
            place, tree = yield from self._stand(ref)
            inherited = yield from self._inherit(ref, new, typed, serde)
            pack = partial(self._seal_checkpoint, place, tree, new, (checkpoint, metadata, typed, inherited))
            sealed = yield from call(partial(_numbered, place, tree, pack))
            if (yield from self._commit(ref, place, tree, sealed, uses_delta=new.uses_delta)):
                self._remember(new.ns, sealed, new.run, prints)
                return
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
        typed = yield from call(
            lambda: [(write, serialise(serde, write.value, f"a write to {write.channel!r}")) for write in new]
        )
        for _ in range(ATTEMPTS):
            place, tree = yield from self._stand(ref)
            pack = partial(self._seal_writes, place, tree, (ns, checkpoint_id, *task), typed)
            sealed = yield from call(partial(_numbered, place, tree, pack))
            if (yield from self._commit(ref, place, tree, sealed, uses_delta=False)):
                self._remember(ns, sealed)
                return
        raise _contended(ref)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _serialised(
        self, ref: Ref, new: NewCheckpoint, serde: SerializerProtocol, prints: dict[str, Print]
    ) -> tuple[Typed, Typed, dict[str, Typed]]:
        """The checkpoint, its metadata and the changed values, serialised; fills ``prints`` by channel."""
        known = self.memory.get(ref.thread)
        printed = self.fingerprints and applies(serde)
        typed: dict[str, Typed] = {}
        for channel, value in new.values.items():
            if channel not in new.changed and new.parent_id:
                continue
            what = f"the value of channel {channel!r}"
            if printed and type(value) is list and len(value) >= PRINTED:
                before = known.prints.get((new.ns, channel)) if known is not None else None
                typed[channel], taken = attempt(partial(dump, serde, value, before), value, what)
                check_size(typed[channel][1], what)
                if taken is not None:
                    prints[channel] = taken
            else:
                typed[channel] = serialise(serde, value, what)
        checkpoint = serialise(serde, new.checkpoint, "the checkpoint")
        return checkpoint, serialise(serde, new.metadata, "the checkpoint's metadata"), typed

    def _stand(self, ref: Ref) -> Plan[tuple[Place, KeyTree]]:
        """Where the thread stands, from memory if it is known there: the transaction checks it anyway."""
        known = self.memory.get(ref.thread)
        if known is not None and ref.customer in (None, known.place.customer):
            place = known.place
            tree = self.core.keyring.cached(place.customer, place.generation, 0)
            if tree is not None and max(place.next_record, place.next_part) < LAST_NUMBER - 1_000_000:
                return place, tree
        return (yield from claim(self.core, self.memory, self.resolver, ref))

    def _inherit(
        self, ref: Ref, new: NewCheckpoint, typed: dict[str, Typed], serde: SerializerProtocol
    ) -> Plan[dict[str, Known]]:
        """The unchanged channels' values, where the parent has them; the others are serialised after all."""
        wanted = (new.values.keys() | (new.delta - new.changed)) - typed.keys()
        if not wanted:
            return {}
        known = self.memory.get(ref.thread)
        parent = known.manifests.get((new.ns, new.parent_id)) if known else None
        if parent is None:
            parent = yield from load_manifest(self.core, self.memory, ref, new.ns, new.parent_id, serde)
        inherited = {}
        for channel in wanted:
            found = parent.get(channel)
            if found is not None and channel in new.versions and _same(found.version, new.versions[channel]):
                inherited[channel] = found
            elif channel in new.values:
                typed[channel] = serialise(serde, new.values[channel], f"the value of channel {channel!r}")
        return inherited

    def _seal_checkpoint(
        self,
        place: Place,
        tree: KeyTree,
        new: NewCheckpoint,
        content: tuple[Typed, Typed, Mapping[str, Typed], Mapping[str, Known]],
        first: tuple[int, int],
    ) -> Sealed:
        checkpoint, metadata, typed, inherited = content
        known = self._known(place)
        values: dict[str, Value] = {}
        parts: list[bytes] = []
        manifest = dict(inherited)
        for channel, (tag, data) in typed.items():
            previous = known.values.get((new.ns, channel)) if known else None
            values[channel], added = split(tag, data, previous, known.elements if known else {}, first[1] + len(parts))
            parts += added
            manifest[channel] = Known(new.versions.get(channel), values[channel].entry)
        record = pack_checkpoint(
            CheckpointRecord(checkpoint, metadata, {channel: found.entry for channel, found in manifest.items()})
        )
        columns = (new.parent_id, new.run, new.source, new.step)
        key = (place.thread, new.ns, new.checkpoint_id)
        sealed = self.core.seal(tree, CHECKPOINT, place.owner, place.scope, first[0], record, *key, *columns)
        row = (*key, place.generation, *columns, place.scope, first[0], sealed)
        statements = [*self._part_rows(place, tree, parts, first[1]), Statement(PUT_CHECKPOINT, row)]
        if new.run and not (known and new.run in known.runs):
            statements.append(Statement(ADD_RUN, (new.run, place.thread)))
        after = place._replace(next_record=first[0] + 1, next_part=first[1] + len(parts))
        elements = {part: first[1] + offset for offset, part in enumerate(parts)}
        return Sealed(statements, after, values, (new.checkpoint_id, manifest), elements)

    def _seal_writes(
        self,
        place: Place,
        tree: KeyTree,
        where: tuple[str, str, str, str],
        typed: Sequence[tuple[NewWrite, Typed]],
        first: tuple[int, int],
    ) -> Sealed:
        ns, checkpoint_id, task_id, task_path = where
        known = self._known(place)
        parts: list[bytes] = []
        kept: list[tuple[Any, ...]] = []
        replacing: list[tuple[Any, ...]] = []
        for offset, (write, (tag, data)) in enumerate(typed):
            value, added = split(tag, data, None, known.elements if known else {}, first[1] + len(parts))
            parts += added
            key = (place.thread, ns, checkpoint_id, task_id)
            number = first[0] + offset
            sealed = self.core.seal(
                tree,
                WRITE,
                place.owner,
                place.scope,
                number,
                pack_write(value.entry),
                *key,
                str(write.idx),
                task_path,
                write.channel,
            )
            row = (*key, write.idx, place.generation, task_path, write.channel, place.scope, number, sealed)
            (replacing if write.idx < 0 else kept).append(row)
        statements = self._part_rows(place, tree, parts, first[1])
        if kept:
            statements.append(Statement(ADD_WRITE, kept, many=True))
        if replacing:
            statements.append(Statement(PUT_WRITE, replacing, many=True))
        after = place._replace(next_record=first[0] + len(typed), next_part=first[1] + len(parts))
        elements = {part: first[1] + offset for offset, part in enumerate(parts)}
        return Sealed(statements, after, {}, None, elements)

    def _known(self, place: Place) -> ThreadMemory | None:
        known = self.memory.get(place.thread)
        return known if known is not None and known.place.same_thread(place) else None

    def _part_rows(self, place: Place, tree: KeyTree, parts: Sequence[bytes], first: int) -> list[Statement]:
        if not parts:
            return []
        scope = place.scope + 1
        rows = [
            (
                place.thread,
                place.generation,
                scope,
                number,
                self.core.seal(tree, PART, place.owner, scope, number, part, place.thread),
            )
            for number, part in enumerate(parts, first)
        ]
        return [Statement(ADD_PART, rows, many=True)]

    def _commit(self, ref: Ref, place: Place, tree: KeyTree, sealed: Sealed, *, uses_delta: bool) -> Plan[bool]:
        """Asks the fence, allocates, inserts. False where the thread or the keys are not what they were."""
        after = sealed.place
        advance = (after.next_record, after.next_part, int(self.core.clock() * 1000), int(uses_delta), *place)
        yield Begin("write")
        row, advanced = yield from run(Statement(SHARE_CUSTOMER, (place.customer,)), Statement(ADVANCE_THREAD, advance))
        if not row.rows:
            no_owner(place)
        now = yield from self.core.admit(row.rows[0], place.generation)
        if self.core.keyring.cached(now.customer, now.generation, now.key_version) is not tree:
            yield Rollback()
            yield from self.core.load_tree(now)
            return False
        if not advanced.changed:
            yield Rollback()
            yield from claim(self.core, self.memory, self.resolver, ref)
            return False
        yield from run(*sealed.statements, commit=True)
        return True

    def _remember(
        self, ns: str, sealed: Sealed, run_token: bytes = b"", prints: Mapping[str, Print] | None = None
    ) -> None:
        self.memory.remember(
            sealed.place,
            ns=ns,
            values=sealed.values,
            prints=prints,
            manifest=sealed.manifest,
            elements=sealed.elements,
            run=run_token or None,
        )


def _numbered(place: Place, tree: KeyTree, pack: Callable[[tuple[int, int]], Sealed]) -> Sealed:
    """Seals under the next numbers, jumping over those whose keys were punctured."""
    first = (place.next_record, place.next_part)
    while True:
        try:
            return pack(first)
        except KeyPuncturedError:
            record = tree.next_alive(place.scope, first[0])
            part = tree.next_alive(place.scope + 1, first[1])
            if record is None or part is None:
                raise
            # Where both are alive, a number further on was not: step over it.
            first = (record, part) if (record, part) != first else (record + 1, part + 1)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _contended(ref: Ref) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"thread {ref.thread.hex()} is written to by so many others that {ATTEMPTS} attempts failed; call again",
        retryable=True,
    )
