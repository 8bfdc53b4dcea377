"""Reading for the person whose data it is: a restriction ends use, and not the right to be told what is held.

Nothing else goes this way (GDPR, Art. 15 and 18). It opens what the fence refuses to everybody else, and no more than
that: whoever was shredded, or may have been, stays shut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver import erasure
from shredsaver.core import Core, Customer
from shredsaver.customers import CustomerResolver
from shredsaver.db.base import Commit, Plan, Rollback, Statement, run, sql
from shredsaver.erasures import SCHEDULED_OF
from shredsaver.errors import CustomerRestrictedError
from shredsaver.listing import Cursor, Lister, Page, Query, Walk
from shredsaver.memory import Memory, Place
from shredsaver.reading import WRITE_COLUMNS, Loaded, Reader, Write, WriteRow
from shredsaver.reviving import Reviver
from shredsaver.threads import Found, Ref, no_owner

PENDING: Final = sql(
    f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ? AND w.generation = ? AND NOT EXISTS (SELECT 1 FROM "
    "checkpoints k WHERE k.thread = w.thread AND k.ns = w.ns AND k.checkpoint_id = w.checkpoint_id "
    "AND k.generation = w.generation) ORDER BY w.ns, w.checkpoint_id, w.task_path, w.task_id, w.idx"
)


class Shown(NamedTuple):
    """A checkpoint, and the task path of each of its pending writes."""

    checkpoint: CheckpointTuple
    task_paths: list[str]


class Pending(NamedTuple):
    """Writes that came before their checkpoint, or stayed without one."""

    ns: str
    checkpoint_id: str
    writes: list[Write]


def admit_to_show(core: Core, row: Sequence[Any], generation: int | None = None) -> Plan[Customer]:
    """Lets a customer through who lives, or whose use is restricted; within the open transaction.

    Raises:
        CustomerShreddedError, RevocationLogDamagedError: No entry.
        CustomerRestrictedError: Another record says that the customer was shredded, and nobody has confirmed it yet.
    """
    customer = yield from core.admit(row, generation, restricted=True)
    if customer.state == erasure.RESTRICTED:
        (scheduled,) = yield from run(Statement(SCHEDULED_OF, (customer.customer,)))
        if any("reconciled_at" in core.erasure(found).record for found in scheduled.rows):
            yield Rollback()
            raise CustomerRestrictedError(
                f"another record says that customer {customer.customer.hex()} was shredded, so nothing is shown until "
                "reconcile confirms it, or reinstate says that it is wrong"
            )
    return customer


class _Reader(Reader):
    """A reader behind that fence. It is told of threads that are there, by their names."""

    admits = erasure.SHOWN

    def enter(self, ref: Ref, threads: Sequence[Sequence[Any]], *, running: bool) -> Plan[Found | None]:
        if not threads:  # deleted since its page was read
            return (yield from super().enter(ref, threads, running=running))
        place = Place(*threads[0][:7])
        if threads[0][8] is None:
            no_owner(place)
        customer = yield from admit_to_show(self.core, threads[0][8:14], place.generation)
        return Found(place, threads[0][7], customer)


class Showing:
    """What a thread holds, read page by page, each behind the fence."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # A memory of its own: what is opened to be shown is not kept for use.
        memory = Memory()
        self._reader = _Reader(core, memory, CustomerResolver(lambda _: None))
        self._reviver = Reviver(memory, fingerprints=False)
        self._lister = Lister(self._reader)

    def checkpoints(self, thread_id: str, serde: SerializerProtocol) -> Iterator[Shown]:
        """A thread's checkpoints in every namespace, newest first. Blocks."""
        walk = Walk(Query(self._ref(thread_id), None, "", "", "", {}), None)
        while not walk.done:
            page = self._core.database.run(partial(self._page, walk.query, serde, walk.size, walk.after))
            yield from walk.take(([self._shown(serde, *found) for found in page.found], page.after))

    def _shown(self, serde: SerializerProtocol, loaded: Loaded, metadata: Any) -> Shown:
        return Shown(self._reviver.listed(serde, loaded, metadata), [write.task_path for write in loaded.writes])

    def _page(self, query: Query, serde: SerializerProtocol, size: int, after: Cursor | None) -> Plan[Page]:
        return (yield from self._lister.page(query, serde, size, after))

    def pending(self, thread_id: str) -> Plan[list[Pending]]:
        """A thread's writes whose checkpoint is not there, by the checkpoint they are for."""
        opener, _ = yield from self._reader.begin(self._ref(thread_id))
        if opener is None:
            yield Rollback()
            return []
        (rows,) = yield from run(Statement(PENDING, (opener.place.thread, opener.place.generation)))
        entries = [(row, opener.write(row)) for row in map(WriteRow._make, rows.rows)]
        yield from opener.fetch([(row.scope + 1, entry) for row, entry in entries])
        yield Commit()
        by_checkpoint: dict[tuple[str, str], list[Write]] = {}
        for row, entry in entries:
            value = opener.join(row.scope + 1, entry)
            write = Write(row.task_id, row.task_path, row.channel, (value.tag, value.data))
            by_checkpoint.setdefault((row.ns, row.checkpoint_id), []).append(write)
        return [Pending(*place, writes) for place, writes in by_checkpoint.items()]

    def _ref(self, thread_id: str) -> Ref:
        return Ref(thread_id, self._core.token("thread", thread_id), None, None)
