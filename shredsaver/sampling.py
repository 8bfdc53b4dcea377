"""A sample of what is left of an erased customer, and trying to open it: no key that can still be had may do that.

Rows are left where an erasure does not purge, and in the log of events always. The sample is bounded, so that it costs
the same for a customer with a few records and for one with many.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from shredsaver.core import Core
from shredsaver.customers import TOKEN_BYTES
from shredsaver.db.base import Begin, Commit, Plan, Result, Statement, call, run, sql
from shredsaver.errors import CustomerShreddedError, FormatError, KeyNotFoundError, UnsealError
from shredsaver.items import ITEM_COLUMNS, ItemRow
from shredsaver.keytree import KeyTree
from shredsaver.reading import CHECKPOINT_COLUMNS, WRITE_COLUMNS, CheckpointRow, WriteRow
from shredsaver.restraint import SCOPE as EVENT_SCOPE
from shredsaver.sealing import CHECKPOINT, ITEM, NAMESPACE, PART, REASON, THREAD_NAME, WRITE, associated_data, unseal

ROUTES: Final = ("threads", "checkpoints", "writes", "parts", "items", "vectors", "namespaces", "events")
"""What sealed records a sample is taken of."""

THREADS: Final = 4
"""Most threads that are looked into, from a random one on."""

_ROWS: Final = 8
"""Most rows of a table; of a thread's tables a quarter of that."""

_NUMBERED_THREADS: Final = sql(
    "SELECT thread, generation, scope, name FROM threads WHERE customer = ? AND scope > 0 AND thread >= ? "
    f"ORDER BY thread LIMIT {THREADS}"
)
_OF_CUSTOMER: Final = {
    "items": sql(
        f"SELECT {ITEM_COLUMNS} FROM items i WHERE i.customer = ? AND i.generation <= ? ORDER BY i.number LIMIT {_ROWS}"
    ),
    "namespaces": sql(
        "SELECT generation, template, labels, scope, number, sealed FROM namespaces "
        f"WHERE customer = ? AND generation <= ? ORDER BY template, labels LIMIT {_ROWS}"
    ),
    "events": sql(
        "SELECT generation, seq, number, sealed FROM events WHERE customer = ? AND generation <= ? "
        f"AND sealed IS NOT NULL ORDER BY seq DESC LIMIT {_ROWS}"
    ),
}
_OF_THREAD: Final = {
    "checkpoints": sql(
        f"SELECT {CHECKPOINT_COLUMNS} FROM checkpoints k WHERE k.thread = ? AND k.generation <= ? "
        f"ORDER BY k.ns, k.checkpoint_id DESC LIMIT {_ROWS // THREADS}"
    ),
    "writes": sql(
        f"SELECT {WRITE_COLUMNS} FROM writes w WHERE w.thread = ? AND w.generation <= ? "
        f"ORDER BY w.ns, w.checkpoint_id DESC LIMIT {_ROWS // THREADS}"
    ),
    "parts": sql(
        "SELECT thread, generation, scope, number, sealed FROM parts WHERE thread = ? AND generation <= ? "
        f"ORDER BY generation DESC, scope DESC, number DESC LIMIT {_ROWS // THREADS}"
    ),
}


class Sample(NamedTuple):
    """A sealed record, with all that it is bound to."""

    route: str
    table: int
    generation: int
    scope: int
    number: int
    record: bytes
    columns: tuple[Any, ...]


class Verification(NamedTuple):
    """What came of a sample that nothing opened.

    Attributes:
        sampled: Records tried, by route.
        keys_tried: Keys that each of them was tried with.
    """

    sampled: dict[str, int]
    keys_tried: int


class StillOpenError(Exception):
    """Something opened, or a key was given out. The message holds no id and no payload."""


def verify(core: Core, customer: bytes, generation: int) -> Plan[Verification]:
    """Takes a sample of what is left of a customer's generations and tries to open it.

    It is tried with every key that can be had: those that this process still has of the customer, those of a later
    generation, and the deployment's own. The key service is asked for every generation of which something was found.

    Raises:
        StillOpenError: A record opened, or the key service gave out a key.
        KeyServiceError: The key service cannot say.
    """
    samples = yield from take(customer, generation)
    trees = core.keyring.trees_of(customer)
    for each in sorted({generation, *(one.generation for one in samples if 0 < one.generation < generation)}):
        if (yield from _given_out(core, customer, each, known=each == generation)) is not None:
            raise StillOpenError(f"the key service still gives out the keys of generation {each}")
    later = yield from call(partial(core.keys.current, customer))
    if later is not None:
        found = yield from _given_out(core, customer, later, known=False)
        trees += [] if found is None else [found]
    own = (core.secrets.lookup_key, core.secrets.log_key, core.secrets.receipt_key, core.secrets.signing_key)
    opened = Counter(sample.route for sample in samples if _opens(core, customer, sample, trees, own))
    if opened:
        shown = ", ".join(f"{count} {route}" for route, count in opened.items())
        raise StillOpenError(f"of {len(samples)} records that were tried some still open ({shown})")
    counted = Counter(sample.route for sample in samples)
    return Verification({route: counted[route] for route in ROUTES}, len(trees) + len(own))


def take(customer: bytes, generation: int) -> Plan[list[Sample]]:
    """A few records of each table, of a customer's generations up to one."""
    owner, start = (customer, generation), secrets.token_bytes(TOKEN_BYTES)
    yield Begin("read")
    behind, first, *others = yield from run(
        Statement(_NUMBERED_THREADS, (customer, start)),
        Statement(_NUMBERED_THREADS, (customer, b"")),
        *(Statement(statement, owner) for statement in _OF_CUSTOMER.values()),
    )
    threads = {bytes(row[0]): row for row in (*behind.rows, *first.rows)}
    chosen = list(threads.values())[:THREADS]
    keys = [(row[0], generation) for row in chosen]
    inside = yield from run(*(Statement(statement, key) for key in keys for statement in _OF_THREAD.values()))
    yield Commit()
    samples = [
        Sample("threads", THREAD_NAME, row[1], row[2], 0, bytes(row[3]), (bytes(row[0]),))
        for row in chosen
        if row[1] <= generation and row[3] is not None
    ]
    for position in range(0, len(inside), len(_OF_THREAD)):
        samples += _inside(*inside[position : position + len(_OF_THREAD)])
    return [*samples, *_of_customer(*others)]


def _inside(checkpoints: Result, writes: Result, parts: Result) -> Iterable[Sample]:
    for row in map(CheckpointRow._make, checkpoints.rows):
        bound = (*row[:3], row.parent_id, row.run, row.source, row.step)
        yield Sample("checkpoints", CHECKPOINT, row.generation, row.scope, row.number, row.sealed, bound)
    for write in map(WriteRow._make, writes.rows):
        columns = (*write[:4], str(write.idx), write.task_path, write.channel)
        yield Sample("writes", WRITE, write.generation, write.scope, write.number, write.sealed, columns)
    for thread, generation, scope, number, sealed in parts.rows:
        yield Sample("parts", PART, generation, scope, number, sealed, (thread,))


def _of_customer(items: Result, namespaces: Result, events: Result) -> Iterable[Sample]:
    for row in map(ItemRow._make, items.rows):
        yield Sample("items", ITEM, row.generation, row.scope, row.number, row.sealed, row.columns)
        if isinstance(row.vectors, bytes):
            yield Sample("vectors", ITEM, row.generation, row.scope, row.number + 1, row.vectors, row.columns)
    for generation, template, labels, scope, number, sealed in namespaces.rows:
        yield Sample("namespaces", NAMESPACE, generation, scope, number, sealed, (template, labels))
    for generation, seq, number, sealed in events.rows:
        yield Sample("events", REASON, generation, EVENT_SCOPE, number, sealed, (f"event/{seq}",))


def _given_out(core: Core, customer: bytes, generation: int, *, known: bool) -> Plan[KeyTree | None]:
    """The tree that the key service gives out. Of a generation that it must know, not to have it is no answer."""
    try:
        record = yield from call(partial(core.keys.load, customer, generation))
    except CustomerShreddedError:
        return None
    except KeyNotFoundError:
        if known:
            raise
        return None
    return KeyTree.from_bytes(record.secret)


def _opens(core: Core, customer: bytes, sample: Sample, trees: Iterable[KeyTree], own: Iterable[bytes]) -> bool:
    keys = list(own)
    for tree in trees:
        try:
            keys.append(tree.derive(sample.scope, sample.number))
        except (LookupError, ValueError):  # no key of that number, or no number
            continue
    place = (sample.table, core.deployment, customer, sample.generation, sample.scope, sample.number)
    for key in keys:
        try:
            unseal(key, sample.record, associated_data(*place, *sample.columns), ())
        except (UnsealError, FormatError):
            continue
        return True
    return False
