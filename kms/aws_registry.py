"""Every KMS key we ever ask for, recorded before it is asked for, so that none is orphaned by a crash or a lost answer.

A row's nonce is a tag of its key from creation on: a key whose ARN never arrived is looked for by it.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final, NamedTuple

from shredsaver.db.base import Begin, Commit, Database, Plan, Sql, Statement, run, sql
from shredsaver.db.migrations import LIST_TABLES, LOCK_SCHEMA
from shredsaver.kms.schema import META_ADD, META_GET

# States of a row, in the order they are passed.
INTENDED: Final = 0
MADE: Final = 1
READY: Final = 2
USED: Final = 3
LOST: Final = 4  # superseded before its ARN was known: if it turns up, it goes away
CLEARING: Final = 5  # dead or never used: to be scheduled for deletion
CLEARED: Final = 6

SPARE: Final = -1
"""Slot and epoch of a key made ahead, for whichever slot needs one next."""

_TABLES: Final = (
    sql(
        "CREATE TABLE IF NOT EXISTS key_kms (nonce {bytes} NOT NULL PRIMARY KEY, since {real} NOT NULL,"
        " arn {text} NOT NULL, token_until {text} NOT NULL, state {int} NOT NULL, slot {int} NOT NULL,"
        " epoch {int} NOT NULL, proven_at {text} NOT NULL, deletion_at {text} NOT NULL,"
        " cancelled {int} NOT NULL) {strict}"
    ),
    sql("CREATE INDEX IF NOT EXISTS key_kms_open ON key_kms (state, slot, epoch)"),
    sql(
        "CREATE TABLE IF NOT EXISTS key_late (slot {int} NOT NULL, epoch {int} NOT NULL, material {bytes} NOT NULL,"
        " PRIMARY KEY (slot, epoch)) {strict}"
    ),
    sql("CREATE TABLE IF NOT EXISTS key_own (slot {int} NOT NULL PRIMARY KEY, arn {text} NOT NULL) {strict}"),
)
_COLUMNS: Final = "nonce, since, arn, token_until, state, slot, epoch, proven_at, deletion_at, cancelled"
_ADD: Final = sql(f"INSERT INTO key_kms ({_COLUMNS}) VALUES (?, ?, '', '', 0, ?, ?, '', '', 0)")
_STRAY: Final = sql(
    f"INSERT INTO key_kms ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (nonce) DO NOTHING"
)
_OF_EPOCH: Final = sql(f"SELECT {_COLUMNS} FROM key_kms WHERE slot = ? AND epoch = ? AND state IN (0, 1, 2, 3)")
_SPARE_GET: Final = sql(f"SELECT {_COLUMNS} FROM key_kms WHERE state = 2 AND slot = -1 ORDER BY since LIMIT 1")
_SPARE_TAKE: Final = sql(
    f"UPDATE key_kms SET slot = ?, epoch = ? WHERE nonce = ? AND state = 2 AND slot = -1 RETURNING {_COLUMNS}"
)
_SPARES: Final = sql("SELECT nonce FROM key_kms WHERE slot = -1 AND state IN (0, 1, 2)")
_STATE_GET: Final = sql("SELECT state FROM key_kms WHERE nonce = ?")
_GIVEN_UP: Final = sql("UPDATE key_kms SET arn = ?, state = 5 WHERE nonce = ?")
_STEP: Final = sql(
    "UPDATE key_kms SET state = ?, arn = ?, token_until = ? WHERE nonce = ? AND state = ? RETURNING nonce"
)
_STATE: Final = sql("UPDATE key_kms SET state = ? WHERE nonce = ?")
_PROVEN: Final = sql("UPDATE key_kms SET state = 5, proven_at = ? WHERE arn = ? AND proven_at = ''")
_CLEARED: Final = sql("UPDATE key_kms SET state = 6, deletion_at = ? WHERE arn = ?")
_SCHEDULED: Final = sql("UPDATE key_kms SET deletion_at = ?, cancelled = cancelled + ? WHERE arn = ?")
_OF_ARN: Final = sql(f"SELECT {_COLUMNS} FROM key_kms WHERE arn = ?")
_LEFT: Final = sql(
    f"SELECT {_COLUMNS} FROM key_kms WHERE state IN (4, 5) OR (slot = -1 AND state IN (0, 1) AND since < ?)"
    " ORDER BY since"
)
_DROP: Final = sql("DELETE FROM key_kms WHERE nonce = ?")
_ALL: Final = sql(f"SELECT {_COLUMNS} FROM key_kms ORDER BY since")
_LATE_GET: Final = sql("SELECT material FROM key_late WHERE slot = ? AND epoch = ?")
_LATE_ADD: Final = sql(
    "INSERT INTO key_late (slot, epoch, material) VALUES (?, ?, ?) ON CONFLICT (slot, epoch) DO NOTHING"
)
_ARN_OF: Final = sql("SELECT arn FROM key_kms WHERE slot = ? AND state = 3 ORDER BY epoch DESC LIMIT 1")
_UNUSED: Final = sql("UPDATE key_kms SET state = 5 WHERE slot = ? AND epoch = ? AND state = 3")
_OWN_GET: Final = sql("SELECT arn FROM key_own WHERE slot = ?")
_OWN_PUT: Final = sql(
    "INSERT INTO key_own (slot, arn) VALUES (?, ?) ON CONFLICT (slot) DO UPDATE SET arn = excluded.arn"
)


class KmsKey(NamedTuple):
    """A row of the registry.

    Attributes:
        nonce: 16 random bytes, tagged on the key.
        since: When the row was written, in seconds since the epoch.
        arn: The key's ARN; "" as long as it is not known.
        token_until: Until when the import token of its material is accepted, ISO 8601 in UTC; "" where none was used.
        state: `INTENDED` to `CLEARED`.
        slot: The slot it is for, or `SPARE`.
        epoch: The epoch it is for, or `SPARE`.
        proven_at: When its death was proven, ISO 8601 in UTC; "" before.
        deletion_at: The date KMS gave for its deletion, ISO 8601 in UTC; "" before that was asked for.
        cancelled: How often somebody cancelled that.
    """

    nonce: bytes
    since: float
    arn: str
    token_until: str
    state: int
    slot: int
    epoch: int
    proven_at: str = ""
    deletion_at: str = ""
    cancelled: int = 0


def _key(row: tuple[Any, ...]) -> KmsKey:
    nonce, *rest = row
    return KmsKey(bytes(nonce), *rest)


class Registry:
    """The KMS keys of one key store, in its database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_up(self) -> None:
        """Makes the tables where they are missing."""

        def plan() -> Plan[None]:
            yield Begin("write")
            _, tables = yield from run(Statement(LOCK_SCHEMA), Statement(LIST_TABLES))
            if ("key_kms",) not in tables.rows:
                yield from run(*(Statement(table) for table in _TABLES))
            yield Commit()

        self._database.run(plan)

    def _write(self, statement: Sql, *params: object) -> list[tuple[Any, ...]]:
        def plan() -> Plan[list[tuple[Any, ...]]]:
            yield Begin("write")
            (found,) = yield from run(Statement(statement, params), commit=True)
            return found.rows

        return self._database.run(plan)

    def _read(self, statement: Sql, *params: object) -> list[tuple[Any, ...]]:
        def plan() -> Plan[list[tuple[Any, ...]]]:
            yield Begin("read")
            (found,) = yield from run(Statement(statement, params), commit=True)
            return found.rows

        return self._database.run(plan)

    def intend(self, slot: int = SPARE, epoch: int = SPARE) -> KmsKey:
        """Records that a key is about to be made."""
        nonce, since = os.urandom(16), time.time()
        self._write(_ADD, nonce, since, slot, epoch)
        return KmsKey(nonce, since, "", "", INTENDED, slot, epoch)

    def intend_spare(self, most: int) -> KmsKey | None:
        """Records a key to be made ahead, unless there are as many already."""
        nonce, since = os.urandom(16), time.time()

        def plan() -> Plan[bool]:
            yield Begin("write")
            (spares,) = yield from run(Statement(_SPARES))
            if room := len(spares.rows) < most:
                yield from run(Statement(_ADD, (nonce, since, SPARE, SPARE)))
            yield Commit()
            return room

        return KmsKey(nonce, since, "", "", INTENDED, SPARE, SPARE) if self._database.run(plan) else None

    def take(self, slot: int, epoch: int) -> KmsKey | None:
        """The key recorded for an epoch, or a spare, which from now on is that epoch's."""

        def plan() -> Plan[KmsKey | None]:
            yield Begin("write")
            (found,) = yield from run(Statement(_OF_EPOCH, (slot, epoch)))
            if not found.rows:
                (found,) = yield from run(Statement(_SPARE_GET))
                if found.rows:
                    (found,) = yield from run(Statement(_SPARE_TAKE, (slot, epoch, found.rows[0][0])))
            yield Commit()
            return _key(found.rows[0]) if found.rows else None

        return self._database.run(plan)

    def step(self, key: KmsKey, state: int, *, arn: str | None = None, token_until: str | None = None) -> KmsKey | None:
        """Moves a row on; None where another host has moved it first."""
        moved = key._replace(
            state=state,
            arn=key.arn if arn is None else arn,
            token_until=key.token_until if token_until is None else token_until,
        )
        rows = self._write(_STEP, state, moved.arn, moved.token_until, key.nonce, key.state)
        return moved if rows else None

    def orphaned(self, key: KmsKey, arn: str) -> bool:
        """Whether a key that turned up late was given up: then its ARN is noted. If not, another host adopted it."""

        def plan() -> Plan[bool]:
            yield Begin("write")
            (found,) = yield from run(Statement(_STATE_GET, (key.nonce,)))
            given_up = not found.rows or found.rows[0][0] == LOST
            if not found.rows:
                yield from run(Statement(_ADD, (key.nonce, key.since, key.slot, key.epoch)))
            if given_up:
                yield from run(Statement(_GIVEN_UP, (arn, key.nonce)))
            yield Commit()
            return given_up

        return self._database.run(plan)

    def stray(self, key: KmsKey) -> None:
        """Records a key that another copy of this key store had made."""
        self._write(_STRAY, *key)

    def lose(self, key: KmsKey) -> None:
        """Gives a key up whose ARN is not known: should it turn up, it is deleted."""
        self._write(_STATE, LOST, key.nonce)

    def clear(self, key: KmsKey) -> None:
        """Records that a key that was never used is to be scheduled for deletion."""
        self._write(_STATE, CLEARING, key.nonce)

    def proven(self, arn: str, at: str) -> None:
        """Records that a key is proven dead, so that only its deletion is left to be scheduled."""
        self._write(_PROVEN, at, arn)

    def cleared(self, arn: str, deletion_at: str) -> None:
        """Records that a dead key is scheduled for deletion."""
        self._write(_CLEARED, deletion_at, arn)

    def scheduled(self, arn: str, deletion_at: str, *, cancelled: bool) -> None:
        """Records the date on which a key that is not dead yet will be deleted, and whether it was cancelled before."""
        self._write(_SCHEDULED, deletion_at, int(cancelled), arn)

    def of(self, arn: str) -> KmsKey | None:
        """The row of a key."""
        rows = self._read(_OF_ARN, arn)
        return _key(rows[0]) if rows else None

    def drop(self, key: KmsKey) -> None:
        """Forgets a row whose key never came to be."""
        self._write(_DROP, key.nonce)

    def left(self, before: float) -> list[KmsKey]:
        """What a sweep has to do: keys lost, keys to be cleared, and spares begun before a time and never finished."""
        return [_key(row) for row in self._read(_LEFT, before)]

    def all(self) -> list[KmsKey]:
        """Every row."""
        return [_key(row) for row in self._read(_ALL)]

    def remember(self, name: str, value: str) -> str:
        """Notes a value of the whole key store, unless one is noted already; gives the one that is."""

        def plan() -> Plan[str]:
            yield Begin("write")
            _, found = yield from run(
                Statement(META_ADD, (name, value.encode())), Statement(META_GET, (name,)), commit=True
            )
            return bytes(found.rows[0][0]).decode()

        return self._database.run(plan)

    def imported(self, arn: str) -> bool:
        """Whether a key's material was imported, and not made by KMS."""
        key = self.of(arn)
        return key is not None and bool(key.token_until)

    def late(self, slot: int, epoch: int) -> bytes | None:
        """Material of a root that was put off, once it was made; empty if its epoch ended before that."""
        rows = self._read(_LATE_GET, slot, epoch)
        return bytes(rows[0][0]) if rows else None

    def settle_late(self, slot: int, epoch: int, material: bytes) -> bytes:
        """Records such material, or its end if empty. Gives what counts: the first that was recorded."""
        self._write(_LATE_ADD, slot, epoch, material)
        return self.late(slot, epoch) or b""

    def unused(self, slot: int, epoch: int) -> None:
        """Records that an epoch's key serves nothing after all, and is to be scheduled for deletion."""
        self._write(_UNUSED, slot, epoch)

    def arn_of(self, slot: int) -> str | None:
        """The key in use for a slot."""
        rows = self._read(_ARN_OF, slot)
        return str(rows[0][0]) if rows else None

    def own(self, slot: int) -> str | None:
        """The ARN of a key of the tenant's own, which wraps the slot's roots too."""
        rows = self._read(_OWN_GET, slot)
        return str(rows[0][0]) if rows else None

    def set_own(self, slot: int, arn: str) -> None:
        """Records a key of the tenant's own for the roots made from now on."""
        self._write(_OWN_PUT, slot, arn)
