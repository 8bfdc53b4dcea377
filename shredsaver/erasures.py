"""The log of erasures: its entries, chained by HMAC under the log key, and the receipts issued for them."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from shredsaver import erasure, receipts
from shredsaver.core import GET_ERASURE, LOCK_CUSTOMER, Core, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Statement, run, sql
from shredsaver.errors import RevocationLogDamagedError
from shredsaver.threads import ADD_COUNTER, SET_CUSTOMER

SCHEDULED: Final = "scheduled"
COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
"""States of an entry besides those of a generation."""

_ORDER: Final = (SCHEDULED, *erasure.STEPS, COMPLETE, CANCELLED)
_FIRST_KNOWN: Final = ("revoked_at", "destroyed_at", "purged_at", "before")
"""What two processes at work on one erasure both note: what was noted first stands."""

LOG_COUNTER: Final = (b"", 0, 0)
"""The row of ``counters`` that numbers the log of erasures, and that shreds queue at."""

ERASED: Final = "erased"
"""The status of an erasure target that is done."""

RECEIPT_COUNTER: Final = (b"", 0, 1)
EVENT_COUNTER: Final = (b"", 0, 2)

ENTRY_COLUMNS: Final = "seq, erasure_id, customer, generation, state, record, mac"
NEXT_SEQ: Final = sql(
    "UPDATE counters SET next = next + 1 WHERE customer = ? AND generation = ? AND scope = ? RETURNING next - 1"
)
_NEXT_SEQS: Final = sql(
    "UPDATE counters SET next = next + ? WHERE customer = ? AND generation = ? AND scope = ? RETURNING next"
)
LOG_PAGE: Final = sql(f"SELECT {ENTRY_COLUMNS}, chain FROM erasures WHERE seq > ? ORDER BY seq LIMIT 500")
GET_CHAIN: Final = sql("SELECT chain FROM erasures WHERE seq = ?")
ADD_ERASURE: Final = sql(f"INSERT INTO erasures ({ENTRY_COLUMNS}, chain, retry) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
SET_ERASURE: Final = sql(
    "UPDATE erasures SET customer = ?, generation = ?, state = ?, record = ?, mac = ? WHERE seq = ? AND erasure_id = ?"
)
GET_ONE: Final = sql(f"SELECT {ENTRY_COLUMNS} FROM erasures WHERE erasure_id = ?")
OPEN_ERASURES: Final = sql(
    f"SELECT {ENTRY_COLUMNS} FROM erasures WHERE state NOT IN ('complete', 'cancelled') ORDER BY seq"
)
SCHEDULED_OF: Final = sql(
    f"SELECT {ENTRY_COLUMNS} FROM erasures WHERE customer = ? AND state = 'scheduled' ORDER BY seq"
)
GET_RETRY: Final = sql("SELECT retry FROM erasures WHERE erasure_id = ?")
SET_RETRY: Final = sql("UPDATE erasures SET retry = ? WHERE erasure_id = ?")
GET_RECEIPT: Final = sql("SELECT number, jws FROM receipts WHERE erasure_id = ? ORDER BY number DESC LIMIT 1")
LAST_RECEIPT: Final = sql("SELECT jws FROM receipts WHERE number = ?")
LIST_RECEIPTS: Final = sql("SELECT number, jws FROM receipts WHERE number > ? ORDER BY number LIMIT 100")
ADD_RECEIPT: Final = sql("INSERT INTO receipts (number, erasure_id, jws) VALUES (?, ?, ?)")


def now(core: Core) -> str:
    """The time as the record keeps it: ISO 8601 in UTC."""
    return stamp(core.clock())


def stamp(seconds: float) -> str:
    """A time in seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def number(counter: tuple[bytes, int, int]) -> Plan[int]:
    """The next number of a log, within the open transaction; others wait for this one."""
    _, taken = yield from run(Statement(ADD_COUNTER, (*counter, 1)), Statement(NEXT_SEQ, counter))
    return int(taken.rows[0][0])


def next_receipt() -> Plan[tuple[int, str | None]]:
    """The next receipt's number and the digest of the one before, within the open transaction."""
    taken = yield from number(RECEIPT_COUNTER)
    (last,) = yield from run(Statement(LAST_RECEIPT, (taken - 1,)))
    return taken, receipts.digest(last.rows[0][0]) if last.rows else None


def append(core: Core, one: Erasure, retry: bytes | None) -> Plan[Erasure]:
    """Adds an entry within the open transaction. The entry that is given back has its position."""
    (added,) = yield from append_all(core, [one], retry)
    return added


def append_all(core: Core, new: Sequence[Erasure], retry: bytes | None = None) -> Plan[list[Erasure]]:
    """Adds entries, in this order, within the open transaction. Those that are given back have their positions."""
    if not new:
        return []
    _, taken = yield from run(
        Statement(ADD_COUNTER, (*LOG_COUNTER, 1)), Statement(_NEXT_SEQS, (len(new), *LOG_COUNTER))
    )
    first = int(taken.rows[0][0]) - len(new)
    (before,) = yield from run(Statement(GET_CHAIN, (first - 1,)))
    previous = bytes(before.rows[0][0]) if before.rows else b""
    added, rows = [], []
    for seq, one in enumerate(new, first):
        added.append(one._replace(seq=seq))
        previous = chained(core, previous, added[-1])
        rows.append((*core.erasure_row(added[-1]), previous, retry))
    yield from run(Statement(ADD_ERASURE, rows, many=True))
    return added


def chained(core: Core, previous: bytes, one: Erasure) -> bytes:
    """The chain's value at an entry: over the value before and what never changes of the entry."""
    return core.mac("erasure-log", previous, one.seq, one.erasure_id, one.customer, one.record["requested_at"])


def latest(core: Core, token: bytes, generation: int) -> Plan[Erasure | None]:
    """The erasure of a generation, within the open transaction."""
    (found,) = yield from run(Statement(GET_ERASURE, (token, generation)))
    return core.erasure(found.rows[0]) if found.rows else None


def unfinished(core: Core) -> Plan[list[Erasure]]:
    """Every entry that is neither complete nor cancelled."""
    yield Begin("read")
    (found,) = yield from run(Statement(OPEN_ERASURES))
    yield Commit()
    return [core.erasure(row) for row in found.rows]


def again(core: Core, one: Erasure) -> Plan[Erasure]:
    """An entry as it stands now, within the open transaction."""
    (found,) = yield from run(Statement(GET_ONE, (one.erasure_id,)))
    return core.erasure(found.rows[0])


def changed(core: Core, one: Erasure) -> Statement:
    """The statement that stores an entry's new state."""
    seq, erasure_id, *rest = core.erasure_row(one)
    return Statement(SET_ERASURE, (*rest, seq, erasure_id))


def advance(core: Core, one: Erasure, state: str | None = None) -> Plan[Erasure]:
    """Makes a step durable in a transaction of its own: the entry, and the customer's state if one is given.

    Gives the entry as it stands then: another process may be at work on the same erasure, and may be further.
    """
    yield Begin("write")
    one, statements = yield from moved(core, one, state)
    yield from run(*statements, commit=True)
    return one


def moved(core: Core, one: Erasure, state: str | None = None) -> Plan[tuple[Erasure, list[Statement]]]:
    """What `advance` stores, within the open transaction."""
    row, stored = yield from run(Statement(LOCK_CUSTOMER, (one.customer,)), Statement(GET_ONE, (one.erasure_id,)))
    one = merged(core.erasure(stored.rows[0]), one)
    customer = core.customer(row.rows[0])
    statements = [changed(core, one)]
    # An enrolment may have come in between: then the row speaks of a later generation and is left alone.
    if state is not None and customer.generation <= one.generation and customer.state in erasure.DEAD:
        state = max(state, customer.state, key=erasure.STEPS.index)
        after = customer._replace(state=state, generation=one.generation)
        statements.append(Statement(SET_CUSTOMER, core.customer_row(after, None)))
    return one, statements


def merged(stored: Erasure, one: Erasure) -> Erasure:
    """An entry with what another process has added to it meanwhile; nothing that was reached is taken back."""
    if stored.state in (COMPLETE, CANCELLED):
        return stored
    first = {name: stored.record[name] for name in _FIRST_KNOWN if stored.record.get(name) is not None}
    record = {**stored.record, **one.record, **first}
    targets = dict(one.record.get("targets", {}))
    for name, found in stored.record.get("targets", {}).items():
        if name not in targets or found["status"] == ERASED:
            targets[name] = found
    if targets:
        record["targets"] = targets
    state = max(stored.state, one.state, key=_ORDER.index)
    return one._replace(state=state, generation=max(stored.generation, one.generation), record=record)


def receipt_of(erasure_id: str) -> Plan[str | None]:
    """The last receipt of an erasure, within the open transaction."""
    (found,) = yield from run(Statement(GET_RECEIPT, (erasure_id,)))
    return str(found.rows[0][1]) if found.rows else None


def check(core: Core) -> Plan[int]:
    """Follows the log's chain from its start. Gives its length.

    Raises:
        RevocationLogDamagedError: An entry is missing, altered or out of order.
    """
    seq, previous = 0, b""
    while True:
        yield Begin("read")
        (page,) = yield from run(Statement(LOG_PAGE, (seq,)))
        yield Commit()
        if not page.rows:
            return seq
        for row in page.rows:
            one = core.erasure(row[:7])
            expected = chained(core, previous, one)
            if one.seq != seq + 1 or not hmac.compare_digest(expected, bytes(row[7])):
                raise RevocationLogDamagedError(f"the log of erasures is broken at entry {seq + 1}; run reconcile")
            seq, previous = one.seq, bytes(row[7])


def page_of_receipts(after: int) -> Plan[list[tuple[int, str]]]:
    """Some receipts behind a number, with theirs."""
    yield Begin("read")
    (found,) = yield from run(Statement(LIST_RECEIPTS, (after,)))
    yield Commit()
    return [(int(row[0]), str(row[1])) for row in found.rows]
