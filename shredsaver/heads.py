"""How far the records of revocations were compared when a database was opened last, so that opening stays quick.

What was compared then is not opened again entry by entry: the chains' heads stand for it, and one query for the rows.
An explicit `Shredder.reconcile` always looks at everything.
"""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

import msgpack

from shredsaver.core import Core
from shredsaver.db.base import Begin, Commit, Plan, Statement, run, sql
from shredsaver.db.migrations import GET_META, PUT_META

_KEY: Final = "compared"
_ENTRY: Final = sql("SELECT (SELECT count(*) FROM erasures WHERE seq <= ?), chain FROM erasures WHERE seq = ?")
_UNDONE: Final = sql(
    "SELECT e.customer FROM erasures e LEFT JOIN customers c ON c.customer = e.customer WHERE e.seq <= ? "
    "AND e.state NOT IN ('scheduled', 'cancelled') AND (c.customer IS NULL OR (e.generation >= c.generation "
    "AND c.state IN ('live', 'restricted'))) LIMIT 1"
)


class Heads(NamedTuple):
    """Last entries that were compared: of the key service's log, of the database's, and of the journal."""

    key_seq: int
    key_chain: bytes
    log_seq: int
    log_chain: bytes
    journal_count: int
    journal_mac: str


START: Final = Heads(0, b"", 0, b"", 0, "")


def remembered(core: Core) -> Plan[Heads]:
    """How far the last comparison came; `START` where there was none, or where the note does not verify."""
    yield Begin("read")
    (found,) = yield from run(Statement(GET_META, (_KEY,)))
    yield Commit()
    if not found.rows:
        return START
    try:
        *fields, mac = msgpack.unpackb(bytes(found.rows[0][0]))
        if len(fields) == len(START) and hmac.compare_digest(core.mac(_KEY, *fields), mac):
            return Heads(*fields)
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return START


def remember(core: Core, heads: Heads) -> Plan[None]:
    """Notes how far a comparison came that found nothing to put right."""
    note = msgpack.packb([*heads, core.mac(_KEY, *heads)])
    yield Begin("write")
    yield from run(Statement(PUT_META, (_KEY, note)), commit=True)


def intact(heads: Heads) -> Plan[bool]:
    """Whether the database's log still has all it had then, and no customer it names came back into use since."""
    if not heads.log_seq:
        return True
    yield Begin("read")
    entry, undone = yield from run(
        Statement(_ENTRY, (heads.log_seq, heads.log_seq)), Statement(_UNDONE, (heads.log_seq,)), commit=True
    )
    return [(int(number), bytes(chain)) for number, chain in entry.rows] == [
        (heads.log_seq, heads.log_chain)
    ] and not undone.rows
