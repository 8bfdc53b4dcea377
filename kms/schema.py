"""Tables of the key store and the statements on them. Names begin with ``key_``, so that they can share a database."""

from __future__ import annotations

from typing import Final

from shredsaver.db.base import Begin, Commit, Plan, Sql, Statement, run, sql
from shredsaver.db.migrations import CREATE_SCHEMA, LIST_TABLES, LOCK_SCHEMA
from shredsaver.errors import SchemaVersionError

VERSION: Final = 1

# States of an epoch, in the order they are passed.
MAKING: Final = 0
LIVE: Final = 1
RETIRING: Final = 2
PENDING: Final = 3
DEAD: Final = 4

_TABLES: Final = (
    sql("CREATE TABLE IF NOT EXISTS key_meta (name {text} NOT NULL PRIMARY KEY, value {bytes} NOT NULL) {strict}"),
    # due: the newest epoch that must die; a rotation is due while it is not below `epoch`.
    sql(
        "CREATE TABLE IF NOT EXISTS key_slots (slot {int} NOT NULL PRIMARY KEY, epoch {int} NOT NULL,"
        " due {int} NOT NULL, claim {bytes} NOT NULL, claimed_until {real} NOT NULL, holds {bytes}) {strict}"
    ),
    sql(
        "CREATE TABLE IF NOT EXISTS key_epochs (slot {int} NOT NULL, epoch {int} NOT NULL, state {int} NOT NULL,"
        " material {bytes} NOT NULL, proof {text} NOT NULL, PRIMARY KEY (slot, epoch)) {strict}"
    ),
    sql("CREATE INDEX IF NOT EXISTS key_epochs_open ON key_epochs (slot, epoch) WHERE state IN (2, 3)"),
    # Clustered by slot: a rotation reads and writes one stretch of it.
    sql(
        "CREATE TABLE IF NOT EXISTS key_wraps (slot {int} NOT NULL, customer {bytes} NOT NULL,"
        " generation {int} NOT NULL, epoch {int} NOT NULL, first_epoch {int} NOT NULL,"
        " key_version {int} NOT NULL, wrapped {bytes} NOT NULL,"
        " PRIMARY KEY (slot, customer, generation)) {clustered}"
    ),
    sql(
        "CREATE TABLE IF NOT EXISTS key_trees (customer {bytes} NOT NULL, generation {int} NOT NULL,"
        " sealed {bytes} NOT NULL, PRIMARY KEY (customer, generation)) {strict}"
    ),
    sql(
        "CREATE TABLE IF NOT EXISTS key_tombstones (seq {int} NOT NULL PRIMARY KEY, customer {bytes} NOT NULL,"
        " generation {int} NOT NULL, at {text} NOT NULL, known {int} NOT NULL, slot {int} NOT NULL,"
        " first_epoch {int} NOT NULL, last_epoch {int} NOT NULL, chain {bytes} NOT NULL) {strict}"
    ),
    sql("CREATE UNIQUE INDEX IF NOT EXISTS key_tombstones_customer ON key_tombstones (customer, generation)"),
    sql(
        "CREATE TABLE IF NOT EXISTS key_log (one {int} NOT NULL PRIMARY KEY, length {int} NOT NULL,"
        " head {bytes} NOT NULL) {strict}"
    ),
    sql(
        "CREATE TABLE IF NOT EXISTS key_holds (customer {bytes} NOT NULL PRIMARY KEY, slot {int} NOT NULL,"
        " until {text} NOT NULL, reason {bytes} NOT NULL, since {text} NOT NULL, mac {bytes} NOT NULL) {strict}"
    ),
    sql("CREATE INDEX IF NOT EXISTS key_holds_slot ON key_holds (slot)"),
)

_SCHEMA_GET: Final = sql("SELECT value FROM key_meta WHERE name = 'schema'")
META_GET: Final = sql("SELECT value FROM key_meta WHERE name = ?")
META_PUT: Final = sql(
    "INSERT INTO key_meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
META_ADD: Final = sql("INSERT INTO key_meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING")
LOG_ADD: Final = sql("INSERT INTO key_log (one, length, head) VALUES (1, 0, ?) ON CONFLICT (one) DO NOTHING")

# A slot at epoch 0 has no root yet; `begin` makes it due for its first.
SLOT_ADD: Final = sql(
    "INSERT INTO key_slots (slot, epoch, due, claim, claimed_until) VALUES (?, 0, -1, ?, 0.0)"
    " ON CONFLICT (slot) DO NOTHING"
)
SLOT_BEGIN: Final = sql("UPDATE key_slots SET due = 0 WHERE slot = ? AND epoch = 0")
_SLOT: Final = "SELECT epoch, due, claim, claimed_until FROM key_slots WHERE slot = ?"
SLOT: Final = sql(_SLOT)
SLOT_SHARE: Final = sql(f"{_SLOT} {{share}}")
SLOT_UPDATE: Final = sql(f"{_SLOT} {{update}}")
SLOT_DUE: Final = sql("UPDATE key_slots SET due = epoch WHERE slot = ? AND due < epoch")
SLOTS_DUE_ALL: Final = sql("UPDATE key_slots SET due = epoch WHERE epoch > 0 AND due < epoch")
SLOT_ADVANCE: Final = sql("UPDATE key_slots SET epoch = ? WHERE slot = ?")
SLOT_CLAIM: Final = sql("UPDATE key_slots SET claim = ?, claimed_until = ? WHERE slot = ?")
SLOT_FREE: Final = sql("UPDATE key_slots SET claim = ?, claimed_until = 0.0 WHERE slot = ? AND claim = ?")
SLOT_RENEW: Final = sql("UPDATE key_slots SET claimed_until = ? WHERE slot = ? AND claim = ? RETURNING slot")
_LIVE: Final = (
    "SELECT s.slot, s.epoch, e.material FROM key_slots s JOIN key_epochs e ON e.slot = s.slot AND e.epoch = s.epoch"
)
SLOT_LIVE: Final = sql(f"{_LIVE} WHERE s.slot = ?")
SLOTS_LIVE: Final = sql(f"{_LIVE} ORDER BY s.slot")
SLOTS_BEGUN: Final = sql("SELECT slot FROM key_slots WHERE epoch = 0 AND due = 0 ORDER BY slot")
# Everything a rotation may have to do: a root to be made, or one to be seen off.
WORK: Final = sql(
    "SELECT slot FROM key_slots WHERE due >= epoch UNION SELECT slot FROM key_epochs WHERE state = 2 ORDER BY slot"
)

EPOCHS: Final = sql(
    "SELECT epoch, state, material FROM key_epochs WHERE slot = ? AND state IN (0, 1, 2) ORDER BY epoch"
)
EPOCHS_PENDING: Final = sql("SELECT slot, epoch, material FROM key_epochs WHERE state = 3 ORDER BY slot, epoch")
EPOCHS_BETWEEN: Final = sql(
    "SELECT count(*), SUM(CASE WHEN state = 4 THEN 1 ELSE 0 END), SUM(CASE WHEN state = 3 THEN 1 ELSE 0 END)"
    " FROM key_epochs WHERE slot = ? AND epoch >= ? AND epoch <= ?"
)
# The ends of the last epoch and of those still pending: what a receipt has to tell.
PROOFS: Final = sql(
    "SELECT proof FROM key_epochs WHERE slot = ? AND epoch >= ? AND epoch <= ? AND (state = 3 OR epoch = ?)"
    " ORDER BY epoch"
)
EPOCH_MAKING: Final = sql(
    "INSERT INTO key_epochs (slot, epoch, state, material, proof) VALUES (?, ?, 0, ?, '')"
    " ON CONFLICT (slot, epoch) DO NOTHING"
)
EPOCH_LIVE: Final = sql(
    "INSERT INTO key_epochs (slot, epoch, state, material, proof) VALUES (?, ?, 1, ?, '')"
    " ON CONFLICT (slot, epoch) DO UPDATE SET state = 1"
)
EPOCH_STATE: Final = sql("UPDATE key_epochs SET state = ?, proof = ? WHERE slot = ? AND epoch = ?")
EPOCH_NOTE: Final = sql("UPDATE key_epochs SET material = ? WHERE slot = ? AND epoch = ?")

WRAPS_ANY: Final = sql("SELECT 1 FROM key_wraps WHERE slot = ? LIMIT 1")
WRAPS_OF_SLOT: Final = sql(
    "SELECT customer, generation, epoch, key_version, wrapped FROM key_wraps WHERE slot = ?"
    " ORDER BY customer, generation"
)
WRAP_MOVE: Final = sql("UPDATE key_wraps SET epoch = ?, wrapped = ? WHERE slot = ? AND customer = ? AND generation = ?")
WRAP_ADD: Final = sql(
    "INSERT INTO key_wraps (slot, customer, generation, epoch, first_epoch, key_version, wrapped)"
    " VALUES (?, ?, ?, ?, ?, 1, ?) ON CONFLICT (slot, customer, generation) DO NOTHING RETURNING generation"
)
WRAP_REPLACE: Final = sql(
    "UPDATE key_wraps SET epoch = ?, key_version = ?, wrapped = ?"
    " WHERE slot = ? AND customer = ? AND generation = ? AND key_version = ? RETURNING generation"
)
WRAPS_DROP: Final = sql("DELETE FROM key_wraps WHERE slot = ? AND customer = ?")
LIVE_OF: Final = sql(
    "SELECT generation, first_epoch, key_version FROM key_wraps WHERE slot = ? AND customer = ? ORDER BY generation"
)
RECORD: Final = sql(
    "SELECT w.epoch, w.key_version, w.wrapped, t.sealed, s.epoch, e.material FROM key_wraps w"
    " LEFT JOIN key_trees t ON t.customer = w.customer AND t.generation = w.generation"
    " JOIN key_slots s ON s.slot = w.slot LEFT JOIN key_epochs e ON e.slot = s.slot AND e.epoch = s.epoch"
    " WHERE w.slot = ? AND w.customer = ? AND w.generation = ?"
)

RECORDS_OF_SLOT: Final = sql(
    "SELECT w.customer, w.generation, w.epoch, w.key_version, w.wrapped, t.sealed FROM key_wraps w"
    " LEFT JOIN key_trees t ON t.customer = w.customer AND t.generation = w.generation WHERE w.slot = ?"
    " ORDER BY w.customer, w.generation"
)
ORPHANS: Final = sql(
    "SELECT t.customer, t.generation FROM key_trees t LEFT JOIN key_wraps w"
    " ON w.customer = t.customer AND w.generation = t.generation WHERE w.slot IS NULL"
)
PUT_BACK: Final = sql(
    "SELECT w.customer, w.generation FROM key_wraps w JOIN key_tombstones d"
    " ON d.customer = w.customer AND d.generation >= w.generation"
)

TREE_PUT: Final = sql(
    "INSERT INTO key_trees (customer, generation, sealed) VALUES (?, ?, ?)"
    " ON CONFLICT (customer, generation) DO UPDATE SET sealed = excluded.sealed"
)
TREES_DROP: Final = sql("DELETE FROM key_trees WHERE customer = ?")

_TOMBSTONE: Final = (
    "SELECT seq, customer, generation, at, known, slot, first_epoch, last_epoch, chain FROM key_tombstones"
)
TOMBSTONE_OF: Final = sql(f"{_TOMBSTONE} WHERE customer = ? ORDER BY generation DESC LIMIT 1")
TOMBSTONES: Final = sql(f"{_TOMBSTONE} WHERE seq >= ? ORDER BY seq")
TOMBSTONE_AT: Final = sql(f"{_TOMBSTONE} WHERE seq = ?")
TOMBSTONE_ADD: Final = sql(
    "INSERT INTO key_tombstones (seq, customer, generation, at, known, slot, first_epoch, last_epoch, chain)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
LOG: Final = sql("SELECT length, head FROM key_log WHERE one = 1")
LOG_UPDATE: Final = sql("SELECT length, head FROM key_log WHERE one = 1 {update}")
LOG_SET: Final = sql("UPDATE key_log SET length = ?, head = ? WHERE one = 1")

HOLD_PUT: Final = sql(
    "INSERT INTO key_holds (slot, customer, until, reason, since, mac) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (customer) DO UPDATE SET slot = excluded.slot, until = excluded.until, reason = excluded.reason,"
    " since = excluded.since, mac = excluded.mac"
)
HOLDS_OF_SLOT: Final = sql("SELECT customer, until, reason, since, mac FROM key_holds WHERE slot = ? ORDER BY customer")
HOLDS_SEAL: Final = sql("SELECT holds FROM key_slots WHERE slot = ?")
HOLDS_SET_SEAL: Final = sql("UPDATE key_slots SET holds = ? WHERE slot = ?")
HELD_SLOTS: Final = sql(
    "SELECT slot FROM key_slots WHERE holds IS NOT NULL UNION SELECT slot FROM key_holds ORDER BY slot"
)
HOLD_DROP: Final = sql("DELETE FROM key_holds WHERE customer = ?")


def one(statement: Sql, *params: object) -> Plan[tuple[object, ...] | None]:
    """The first row of a query within the open transaction, or None."""
    (found,) = yield from run(Statement(statement, params))
    return found.rows[0] if found.rows else None


def set_up(zeros: bytes) -> Plan[None]:
    """Makes the tables where they are missing; where they are there, no right to make any is needed.

    Raises:
        SchemaVersionError: The key store was written by a newer version of this library.
    """
    yield Begin("write")
    _, tables = yield from run(Statement(LOCK_SCHEMA), Statement(LIST_TABLES))
    if ("key_meta",) not in tables.rows:
        yield from run(Statement(CREATE_SCHEMA), *(Statement(table) for table in _TABLES))
    yield from run(Statement(LOG_ADD, (zeros,)), Statement(META_ADD, ("schema", str(VERSION).encode())))
    row = yield from one(_SCHEMA_GET)
    yield Commit()
    found = bytes(row[0]).decode() if row and isinstance(row[0], bytes) else "?"
    if found != str(VERSION):
        raise SchemaVersionError(f"the key store has schema {found}, this library knows {VERSION}: upgrade the library")
