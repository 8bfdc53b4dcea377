"""The log of the dead: tombstones, chained under the log key so that none can be altered, moved or left out unseen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shredsaver.db.base import Plan, Statement, run
from shredsaver.errors import KeyStoreStaleError, RevocationLogDamagedError
from shredsaver.kms import schema
from shredsaver.kms.roots import Anchor
from shredsaver.kms.wrapping import ZEROS, Entry, chain, chained


def entries(rows: Sequence[tuple[object, ...]]) -> list[Entry]:
    """Rows of ``key_tombstones`` with plain bytes, whatever the driver gives."""
    return [Entry(*(bytes(value) if isinstance(value, memoryview) else value for value in row)) for row in rows]  # type: ignore[arg-type]


def read(log_key: bytes, after: int) -> Plan[list[Entry]]:
    """The log behind a position, verified to its end, within the open transaction.

    Raises:
        RevocationLogDamagedError: It does not verify.
    """
    log, found = yield from run(Statement(schema.LOG), Statement(schema.TOMBSTONES, (max(after, 1),)))
    length, head = log.rows[0]
    return list(_verified(log_key, after, Anchor(length, bytes(head)), entries(found.rows)))


def _verified(log_key: bytes, after: int, end: Anchor, found: Sequence[Entry]) -> Iterator[Entry]:
    # The first row is the one at `after` itself: the following is chained to it.
    seq, before = 0, ZEROS
    if after and found and found[0].seq == after:
        seq, before = after, found[0].chain
        found = found[1:]
    elif after:
        seq = after
        if found or end.length > after:
            raise _damaged(after)
        return
    for entry in found:
        seq += 1
        if entry.seq != seq or not chained(log_key, before, entry):
            raise _damaged(seq)
        before = entry.chain
        yield entry
    if (seq, before) != end:
        raise RevocationLogDamagedError(
            f"the key store's log of the dead has {seq} entries where its end is noted at {end.length}: entries are "
            "missing or were put back from an older copy; restore a current copy or mirror of the key store"
        )


def find(log_key: bytes, customer: bytes) -> Plan[Entry | None]:
    """The newest tombstone of a customer, verified against the entry before it, within the open transaction.

    Raises:
        RevocationLogDamagedError: It does not verify: the customer may be dead or not, and is not served.
    """
    (found,) = yield from run(Statement(schema.TOMBSTONE_OF, (customer,)))
    if not found.rows:
        return None
    (entry,) = entries(found.rows)
    (previous,) = yield from run(Statement(schema.TOMBSTONE_AT, (entry.seq - 1,)))
    before = entries(previous.rows)[0].chain if previous.rows else ZEROS
    if (entry.seq > 1) != bool(previous.rows) or not chained(log_key, before, entry):
        raise _damaged(entry.seq)
    return entry


def append(log_key: bytes, new: Sequence[Entry]) -> Plan[list[Entry]]:
    """Adds entries at the end, within the open writing transaction; ``seq`` and ``chain`` are filled in."""
    (log,) = yield from run(Statement(schema.LOG_UPDATE))
    length, head = int(log.rows[0][0]), bytes(log.rows[0][1])
    (last,) = yield from run(Statement(schema.TOMBSTONE_AT, (length,)))
    if length and (not last.rows or entries(last.rows)[0].chain != head):
        raise _damaged(length)
    added = []
    for entry in new:
        length += 1
        entry = entry._replace(seq=length)  # noqa: PLW2901
        entry = entry._replace(chain=chain(log_key, head, entry))  # noqa: PLW2901
        head = entry.chain
        added.append(entry)
    yield from run(
        Statement(schema.TOMBSTONE_ADD, [tuple(entry) for entry in added], many=True),
        Statement(schema.LOG_SET, (length, head)),
    )
    return added


def compare(anchors: Sequence[Anchor]) -> Plan[None]:
    """Holds the log against what the roots say of it, within the open transaction.

    Raises:
        KeyStoreStaleError: The log is shorter than it was when a root was made.
        RevocationLogDamagedError: It has another past.
    """
    if not anchors:
        return
    longest = max(anchors)
    (log,) = yield from run(Statement(schema.LOG))
    if log.rows[0][0] < longest.length:
        raise KeyStoreStaleError(
            f"the key store knows {log.rows[0][0]} tombstones, its roots have seen {longest.length}: it is an older "
            "copy. Restore a current copy or mirror of the key store; customers shredded since then must not come "
            "back. If there is none, `keys adopt` takes this one into use"
        )
    for length, head in sorted(set(anchors)):
        if length:
            (found,) = yield from run(Statement(schema.TOMBSTONE_AT, (length,)))
            if not found.rows or entries(found.rows)[0].chain != head:
                raise _damaged(length)


def _damaged(seq: int) -> RevocationLogDamagedError:
    return RevocationLogDamagedError(
        f"entry {seq} of the key store's log of the dead does not verify: it was altered, moved or is missing; "
        "restore a current copy or mirror of the key store"
    )
