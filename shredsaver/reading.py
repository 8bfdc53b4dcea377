"""Reading checkpoints: the fence, the rows and their parts in one snapshot, then opening and joining.

Nothing is deserialised before every record of it has been authenticated, and nothing is held while a caller looks at
what it got: a listing reads page by page, and asks the fence again for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver import erasure
from shredsaver.core import Core
from shredsaver.customers import CustomerResolver
from shredsaver.db.base import Begin, Commit, Plan, Result, Rollback, Statement, T, run, sql
from shredsaver.errors import UnsealError
from shredsaver.keytree import KeyTree
from shredsaver.manifest import Entry, needed, resolve, runs
from shredsaver.memory import Known, Memory, Place
from shredsaver.parts import Value, join
from shredsaver.records import CheckpointRecord, Typed, unpack_checkpoint, unpack_write
from shredsaver.sealing import CHECKPOINT, PART, WRITE
from shredsaver.threads import GET_THREAD, Found, Ref, admit_named, admit_thread, check_name

CHECKPOINT_COLUMNS: Final = (
    "k.thread, k.ns, k.checkpoint_id, k.generation, k.parent_id, k.run, k.source, k.step, k.scope, k.number, k.sealed"
)
WRITE_COLUMNS: Final = (
    "w.thread, w.ns, w.checkpoint_id, w.task_id, w.idx, w.generation, w.task_path, w.channel, w.scope, w.number, "
    "w.sealed"
)
GET_CHECKPOINT: Final = sql(
    f"SELECT {CHECKPOINT_COLUMNS} FROM checkpoints k WHERE k.thread = ? AND k.ns = ? AND k.checkpoint_id = ?"
)
_LATEST: Final = (
    "FROM checkpoints k WHERE k.thread = ? AND k.ns = ? AND k.generation = "
    "(SELECT t.generation FROM threads t WHERE t.thread = ?) ORDER BY k.checkpoint_id DESC LIMIT 1"
)
GET_LATEST: Final = sql(f"SELECT {CHECKPOINT_COLUMNS} {_LATEST}")
GET_LATEST_ID: Final = sql(f"SELECT k.checkpoint_id {_LATEST}")
GET_WRITES: Final = sql(f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ? AND w.ns = ? AND w.checkpoint_id = ?")
GET_LATEST_WRITES: Final = sql(
    f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ? AND w.ns = ? "
    f"AND w.checkpoint_id = (SELECT k.checkpoint_id {_LATEST})"
)
GET_PARTS: Final = sql(
    "SELECT number, sealed FROM parts WHERE thread = ? AND generation = ? AND scope = ? AND number BETWEEN ? AND ?"
)
_GAP: Final = 8
"""Numbers that a range read may run over: fetching a few rows too many is cheaper than another statement."""


class CheckpointRow(NamedTuple):
    """A row of ``checkpoints``."""

    thread: bytes
    ns: str
    checkpoint_id: str
    generation: int
    parent_id: str
    run: bytes
    source: str
    step: str
    scope: int
    number: int
    sealed: bytes


class WriteRow(NamedTuple):
    """A row of ``writes``."""

    thread: bytes
    ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    generation: int
    task_path: str
    channel: str
    scope: int
    number: int
    sealed: bytes


class Write(NamedTuple):
    """A pending write, opened and not yet deserialised."""

    task_id: str
    task_path: str
    channel: str
    value: Typed


class Loaded(NamedTuple):
    """A checkpoint, opened and not yet deserialised."""

    thread_id: str
    row: CheckpointRow
    record: CheckpointRecord
    values: Mapping[str, Value]
    writes: Sequence[Write]


class Opener:
    """Opens rows of one thread within one snapshot. Parts already seen are not fetched again.

    Attributes:
        place: The thread.
    """

    def __init__(self, core: Core, place: Place, tree: KeyTree) -> None:
        self._core = core
        self.place = place
        self._tree = tree
        self._parts: dict[int, dict[int, bytes]] = {}

    def checkpoint(self, row: CheckpointRow) -> CheckpointRecord:
        """Opens a checkpoint's record."""
        return unpack_checkpoint(self.checkpoint_bytes(row))

    def checkpoint_bytes(self, row: CheckpointRow) -> bytes:
        """The plaintext of a checkpoint's record."""
        key = row[:3]
        columns = (*key, row.parent_id, row.run, row.source, row.step)
        return self._open(
            CHECKPOINT, row.scope, row.number, row.sealed, ("checkpoints", self.place.customer, *key), columns
        )

    def write(self, row: WriteRow) -> Entry:
        """Opens a pending write's record."""
        return unpack_write(self.write_bytes(row))

    def write_bytes(self, row: WriteRow) -> bytes:
        """The plaintext of a pending write's record."""
        key = row[:4]
        columns = (*key, str(row.idx), row.task_path, row.channel)
        where = ("writes", self.place.customer, *key, row.idx)
        return self._open(WRITE, row.scope, row.number, row.sealed, where, columns)

    def part(self, scope: int, number: int, sealed: bytes) -> bytes:
        """The plaintext of a part."""
        where = ("parts", self.place.customer, self.place.thread, scope, number)
        return self._open(PART, scope, number, sealed, where, (self.place.thread,))

    def used(self, entries: Iterable[tuple[int, Entry]]) -> Plan[set[tuple[int, int]]]:
        """Every part that entries use, as (scope, number), index parts too; entries come with their parts' scope."""
        used: set[tuple[int, int]] = set()
        for scope, entry in entries:
            if len(entry.levels) > 1:
                yield from self.fetch([(scope, entry)])
            if not entry.inline:
                ranges, _, indexes = self._guard(scope, partial(resolve, entry, self._parts.get(scope, {})))
                used.update((scope, number) for run_ in runs(ranges) for number in run_)
                used.update((scope, number) for number in indexes.values())
        return used

    def offer(self, scope: int, value: Value) -> None:
        """Lends the parts of a value that was authenticated before."""
        if value.bounds:
            body = memoryview(value.data)[len(value.entry.header) :]
            have = self._parts.setdefault(scope, {})
            start = 0
            for number, end in zip(value.numbers, value.bounds, strict=True):
                have[number] = bytes(body[start:end])
                start = end
            have.update((number, content) for content, number in value.indexes.items())

    def fetch(self, wanted: Iterable[tuple[int, Entry]]) -> Plan[None]:
        """Fetches and opens the parts of entries, given with the scope of their parts, within the open transaction."""
        entries = [(scope, entry) for scope, entry in wanted if not entry.inline]
        # A round for each level of the deepest entry: what is not there after them is missing, and `join` says so.
        for _ in range(max((len(entry.levels) for _, entry in entries), default=0)):
            ranges: dict[int, list[range]] = {}
            unfinished = []
            for scope, entry in entries:
                missing = self._guard(scope, partial(needed, entry, self._parts.setdefault(scope, {})))
                if missing:
                    ranges.setdefault(scope, []).extend(missing)
                    if len(entry.levels) > 1:
                        unfinished.append((scope, entry))
            if not ranges:
                return
            reads = [(scope, span) for scope, spans in ranges.items() for span in _merged(spans)]
            owner = (self.place.thread, self.place.generation)
            results = yield from run(
                *(Statement(GET_PARTS, (*owner, scope, span.start, span.stop - 1)) for scope, span in reads)
            )
            for (scope, _), result in zip(reads, results, strict=True):
                have = self._parts[scope]
                rows = [row for row in result.rows if row[0] not in have] if have else result.rows
                where = ("parts", self.place.customer, self.place.thread, scope)
                have.update(
                    self._core.unseal_rows(self._tree, PART, self.place.owner, scope, rows, where, self.place.thread)
                )
            entries = unfinished

    def join(self, scope: int, entry: Entry) -> Value:
        """Puts a value together from what was fetched."""
        return self._guard(scope, partial(join, entry, self._parts.get(scope, {})))

    def _open(
        self, table: int, scope: int, number: int, sealed: bytes, where: tuple[object, ...], columns: tuple[Any, ...]
    ) -> bytes:
        return self._core.unseal(self._tree, table, self.place.owner, scope, number, sealed, where, *columns)

    def _guard(self, scope: int, function: Callable[[], T]) -> T:
        try:
            return function()
        except LookupError as error:
            wrong = f"part {error} is missing"
        except ValueError:
            wrong = "the parts do not make up their value"
        raise UnsealError(f"parts/{self.place.customer.hex()}/{self.place.thread.hex()}/{scope}: {wrong}")


def _merged(spans: Sequence[range]) -> list[range]:
    merged: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1].stop + _GAP:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return merged


class Reader:
    """The plans that read checkpoints. Holds what they share; one for each deployment."""

    admits = erasure.SERVED
    """States of a customer whose checkpoints are read."""

    def __init__(self, core: Core, memory: Memory, resolver: CustomerResolver) -> None:
        self.core = core
        self.memory = memory
        self.resolver = resolver

    def get(self, ref: Ref, ns: str, checkpoint_id: str, *, running: bool) -> Plan[tuple[Place, Loaded] | None]:
        """A checkpoint with its values and pending writes; the latest one without an id.

        Args:
            ref: The thread.
            ns: The checkpoint namespace.
            checkpoint_id: The checkpoint, or ``""``.
            running: Whether a running graph asks: then a thread that is new must name its customer.
        """
        latest = (ref.thread, ns, ref.thread)
        if checkpoint_id:
            key = (ref.thread, ns, checkpoint_id)
            statements = (Statement(GET_CHECKPOINT, key), Statement(GET_WRITES, key))
        else:
            statements = (Statement(GET_LATEST, latest), Statement(GET_LATEST_WRITES, (ref.thread, ns, *latest)))
        opener, (threads, checkpoints, writes) = yield from self.begin(ref, *statements, running=running)
        row = CheckpointRow(*checkpoints.rows[0]) if checkpoints.rows else None
        if row and checkpoint_id and threads.rows and (not opener or row.generation != opener.place.generation):
            # Asked for by its id, a row of a generation that was shredded is said to be so; without an id the
            # thread of a customer who came back starts empty, whether its old rows were purged or not.
            raise (yield from self.core.refusal(self.core.customer(threads.rows[0][8:14]), row.generation))
        if opener is None or row is None:
            yield Rollback()
            return None
        loaded = yield from self.load(opener, ref.thread_id, row, map(WriteRow._make, writes.rows))
        yield Commit()
        return opener.place, loaded

    def begin(
        self, ref: Ref, *statements: Statement, running: bool = False
    ) -> Plan[tuple[Opener | None, list[Result]]]:
        """Begins a reading transaction for one thread: the fence, and what else is asked in the same round trip.

        Returns:
            What opens the thread's records, or None for a thread that has nothing to read; the answers to `GET_THREAD`
            and to the statements. The transaction is left open.
        """
        while True:
            yield Begin("read")
            results = yield from run(Statement(GET_THREAD, (ref.thread,)), *statements)
            found = yield from self.enter(ref, results[0].rows, running=running)
            if found is None:
                return None, results
            tree = self.core.tree(found.customer)
            if tree is not None:
                check_name(self.core, tree, found, ref)
                return Opener(self.core, found.place, tree), results
            yield Rollback()
            yield from self.core.load_tree(found.customer)

    def enter(self, ref: Ref, threads: Sequence[Sequence[Any]], *, running: bool) -> Plan[Found | None]:
        """The fence, within the open transaction. None for a thread that has nothing to read."""
        if threads:
            return (yield from admit_thread(self.core, ref, threads[0]))
        if ref.customer is None and running:
            yield Rollback()
            raise self.resolver.missing()
        yield from admit_named(self.core, ref)
        return None

    def load(
        self,
        opener: Opener,
        thread_id: str,
        row: CheckpointRow,
        writes: Iterable[WriteRow],
        channels: Container[str] | None = None,
    ) -> Plan[Loaded]:
        """Opens one checkpoint with its values and writes, of some channels or all, within the open transaction."""
        place = opener.place
        record = opener.checkpoint(row)
        manifest = {
            channel: entry for channel, entry in record.manifest.items() if channels is None or channel in channels
        }
        pending = sorted(
            (
                write
                for write in writes
                if write.generation == place.generation and (channels is None or write.channel in channels)
            ),
            key=lambda write: (write.task_path, write.task_id, write.idx),
        )
        entries = [(write, opener.write(write)) for write in pending]
        known = self.memory.get(place.thread)
        values: dict[str, Value] = {}
        scope = row.scope + 1
        for channel, entry in manifest.items():
            value = known.values.get((row.ns, channel)) if known else None
            if value is None or known is None or not known.place.same_thread(place) or known.place.scope + 1 != scope:
                continue
            if value.entry == entry:
                values[channel] = value
            elif not entry.inline:
                opener.offer(scope, value)
        missing = {channel: entry for channel, entry in manifest.items() if channel not in values}
        yield from opener.fetch(
            [*((scope, entry) for entry in missing.values()), *((write.scope + 1, entry) for write, entry in entries)]
        )
        for channel, entry in missing.items():
            values[channel] = opener.join(scope, entry)
        opened = [
            Write(write.task_id, write.task_path, write.channel, _typed(opener.join(write.scope + 1, entry)))
            for write, entry in entries
        ]
        return Loaded(thread_id, row, record, values, opened)


def _typed(value: Value) -> Typed:
    return value.tag, value.data


def known_channels(serde: SerializerProtocol, record: CheckpointRecord) -> dict[str, Known]:
    """The manifest with each channel's version."""
    versions = serde.loads_typed(record.checkpoint).get("channel_versions", {})
    return {channel: Known(versions.get(channel), entry) for channel, entry in record.manifest.items()}


def load_manifest(
    core: Core, memory: Memory, ref: Ref, ns: str, checkpoint_id: str, serde: SerializerProtocol
) -> Plan[Mapping[str, Known]]:
    """The manifest of a checkpoint; empty where there is no such checkpoint, or it cannot be used any more."""
    while True:
        yield Begin("read")
        threads, checkpoints = yield from run(
            Statement(GET_THREAD, (ref.thread,)), Statement(GET_CHECKPOINT, (ref.thread, ns, checkpoint_id))
        )
        found = (yield from admit_thread(core, ref, threads.rows[0])) if threads.rows else None
        yield Commit()
        if found is None or not checkpoints.rows:
            return {}
        row = CheckpointRow(*checkpoints.rows[0])
        if row.generation != found.place.generation or row.scope != found.place.scope:
            return {}
        tree = core.tree(found.customer)
        if tree is not None:
            manifest = known_channels(serde, Opener(core, found.place, tree).checkpoint(row))
            memory.remember(found.place, ns=ns, values={}, manifest=(checkpoint_id, manifest))
            return manifest
        yield from core.load_tree(found.customer)
