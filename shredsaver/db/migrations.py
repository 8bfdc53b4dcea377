"""The schema, as numbered migrations, and the plan that brings a database up to date.

Sealed columns are called ``sealed`` or ``name``; everything else is in the closed list of what stays in the clear.
Tables whose rows stay under about 1 KB are clustered by their key; the others keep a rowid, because
SQLite spills long rows of a clustered table to pages of their own.
"""

from __future__ import annotations

from typing import Final

from shredsaver.db.base import Begin, Commit, Plan, Rollback, Sql, Statement, run, sql
from shredsaver.errors import ConfigurationError, SchemaVersionError

MIGRATIONS: Final[tuple[tuple[Sql, ...], ...]] = (
    (
        sql(
            "CREATE TABLE customers (customer {bytes} NOT NULL PRIMARY KEY, generation {int} NOT NULL, "
            "state {text} NOT NULL, key_version {int} NOT NULL, held_until {text} NOT NULL, mac {bytes} NOT NULL, "
            "name {bytes}) {clustered}"
        ),
        sql(
            "CREATE TABLE counters (customer {bytes} NOT NULL, generation {int} NOT NULL, scope {int} NOT NULL, "
            "next {int} NOT NULL, PRIMARY KEY (customer, generation, scope)) {clustered}"
        ),
        sql(
            "CREATE TABLE threads (thread {bytes} NOT NULL PRIMARY KEY, customer {bytes} NOT NULL, "
            "generation {int} NOT NULL, scope {int} NOT NULL, next_record {int} NOT NULL, next_part {int} NOT NULL, "
            "epoch {int} NOT NULL, uses_delta {int} NOT NULL, name {bytes}, touched_at {int} NOT NULL, "
            "expires_at {int}) {clustered}"
        ),
        sql("CREATE INDEX threads_of_customer ON threads (customer, generation)"),
        sql(
            "CREATE TABLE checkpoints (thread {bytes} NOT NULL, ns {text} NOT NULL, checkpoint_id {text} NOT NULL, "
            "generation {int} NOT NULL, parent_id {text} NOT NULL, run {bytes} NOT NULL, source {text} NOT NULL, "
            "step {text} NOT NULL, scope {int} NOT NULL, number {int} NOT NULL, sealed {bytes} NOT NULL, "
            "PRIMARY KEY (thread, ns, checkpoint_id)) {strict}"
        ),
        sql(
            "CREATE TABLE parts (thread {bytes} NOT NULL, generation {int} NOT NULL, scope {int} NOT NULL, "
            "number {int} NOT NULL, sealed {bytes} NOT NULL, PRIMARY KEY (thread, generation, scope, number)) {strict}"
        ),
        sql(
            "CREATE TABLE writes (thread {bytes} NOT NULL, ns {text} NOT NULL, checkpoint_id {text} NOT NULL, "
            "task_id {text} NOT NULL, idx {int} NOT NULL, generation {int} NOT NULL, task_path {text} NOT NULL, "
            "channel {text} NOT NULL, scope {int} NOT NULL, number {int} NOT NULL, sealed {bytes} NOT NULL, "
            "PRIMARY KEY (thread, ns, checkpoint_id, task_id, idx)) {clustered}"
        ),
        sql(
            "CREATE TABLE items (customer {bytes} NOT NULL, template {text} NOT NULL, labels {bytes} NOT NULL, "
            "key {bytes} NOT NULL, generation {int} NOT NULL, scope {int} NOT NULL, number {int} NOT NULL, "
            "sealed {bytes} NOT NULL, vectors {bytes}, created_at {int} NOT NULL, updated_at {int} NOT NULL, "
            "ttl {int}, expires_at {int}, PRIMARY KEY (customer, template, labels, key)) {strict}"
        ),
        sql("CREATE INDEX items_by_age ON items (customer, template, updated_at, number)"),
        sql("CREATE INDEX items_that_expire ON items (expires_at)"),
        sql(
            "CREATE TABLE namespaces (customer {bytes} NOT NULL, template {text} NOT NULL, labels {bytes} NOT NULL, "
            "generation {int} NOT NULL, scope {int} NOT NULL, number {int} NOT NULL, sealed {bytes} NOT NULL, "
            "PRIMARY KEY (customer, template, labels)) {clustered}"
        ),
        sql("CREATE TABLE runs (run {bytes} NOT NULL, thread {bytes} NOT NULL, PRIMARY KEY (run, thread)) {clustered}"),
        sql("CREATE INDEX runs_of_thread ON runs (thread)"),
        sql(
            "CREATE TABLE erasures (seq {int} NOT NULL PRIMARY KEY, erasure_id {text} NOT NULL UNIQUE, "
            "customer {bytes} NOT NULL, generation {int} NOT NULL, state {text} NOT NULL, record {bytes} NOT NULL, "
            "mac {bytes} NOT NULL, chain {bytes} NOT NULL, retry {bytes}) {strict}"
        ),
        sql(
            "CREATE TABLE receipts (number {int} NOT NULL PRIMARY KEY, erasure_id {text} NOT NULL, "
            "jws {text} NOT NULL) {strict}"
        ),
        sql("CREATE INDEX receipts_of_erasure ON receipts (erasure_id, number)"),
        sql(
            "CREATE TABLE events (seq {int} NOT NULL PRIMARY KEY, at {text} NOT NULL, kind {text} NOT NULL, "
            "customer {bytes} NOT NULL, generation {int} NOT NULL, until {text} NOT NULL, number {int} NOT NULL, "
            "sealed {bytes}, chain {bytes} NOT NULL) {strict}"
        ),
        sql("CREATE INDEX events_of_customer ON events (customer, seq)"),
        sql("CREATE INDEX erasures_of_customer ON erasures (customer, generation)"),
    ),
    (
        # Holds all that tells which items a search looks at, and in which order.
        sql(
            "CREATE INDEX items_by_place ON items (customer, template, labels, updated_at, number, generation, "
            "expires_at)"
        ),
        sql("CREATE INDEX items_by_number ON items (customer, number)"),
    ),
    (
        # To PostgreSQL an index that begins like the primary key can look as good, for what it knows of the values on
        # average, and it would walk all of a large customer's items to get one. So those that are for walking begin
        # otherwise, each in its way, and serve only who writes the customer so (`selecting`).
        Sql("SELECT 1", "DROP INDEX items_by_age, items_by_place, items_by_number"),
        Sql(
            "SELECT 1",
            "CREATE INDEX items_by_age ON items ((customer || ''::bytea), template, updated_at, number)",
        ),
        Sql(
            "SELECT 1",
            "CREATE INDEX items_by_place ON items ((''::bytea || customer), template, labels, updated_at, number, "
            "generation, expires_at)",
        ),
        Sql("SELECT 1", "CREATE INDEX items_by_number ON items (substr(customer, 1), number)"),
        # Few items expire: the others need not be in it.
        sql("DROP INDEX items_that_expire"),
        sql("CREATE INDEX items_that_expire ON items (expires_at) WHERE expires_at IS NOT NULL"),
    ),
)

_TABLES: Final = frozenset(
    {"customers", "counters", "threads", "checkpoints", "parts", "writes", "runs", "erasures", "items", "namespaces"}
    | {"receipts", "events"}
)

# The first name of the search path: current_schema() leaves out a schema that the role may not use.
_OUR_SCHEMA: Final = "(parse_ident(current_setting('search_path'), false))[1]"
DIGITS: Final = 9
"""Most digits a schema version can have."""
LIST_TABLES: Final = Sql(
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    f"SELECT tablename FROM pg_tables WHERE schemaname = {_OUR_SCHEMA}",
)
LOCK_SCHEMA: Final = Sql("SELECT 1", "SELECT 1 FROM pg_advisory_xact_lock(7310015874411)")
# Not IF NOT EXISTS: that asks for the right to create schemas even where there is nothing to do.
CREATE_SCHEMA: Final = Sql(
    "SELECT 1",
    f"DO $$ DECLARE name text := {_OUR_SCHEMA}; BEGIN "
    "IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = name) THEN "
    "EXECUTE 'CREATE SCHEMA ' || quote_ident(name); END IF; END $$",
)
CREATE_META: Final = sql("CREATE TABLE meta (key {text} NOT NULL PRIMARY KEY, value {bytes} NOT NULL) {clustered}")
GET_META: Final = sql("SELECT value FROM meta WHERE key = ?")
PUT_META: Final = sql(
    "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def migrate(location: str, *, auto_setup: bool) -> Plan[None]:
    """Creates the tables, or brings them up to this library's version, in one transaction under a lock.

    Args:
        location: Where the database is, for messages.
        auto_setup: Whether tables may be created and altered; otherwise they must be there and current.

    Raises:
        ConfigurationError: The database belongs to another program.
        SchemaVersionError: Its schema is newer than this library, or older with ``auto_setup=False``.
    """
    yield Begin("write" if auto_setup else "read")
    if auto_setup:
        yield from run(Statement(LOCK_SCHEMA), Statement(CREATE_SCHEMA))
    (listed,) = yield from run(Statement(LIST_TABLES))
    tables = {row[0] for row in listed.rows}
    found = 0
    if "meta" in tables:
        (version,) = yield from run(Statement(GET_META, ("schema_version",)))
        if not version.rows:
            raise ConfigurationError(f"{location} has a table meta of another program: use a database of its own")
        text = bytes(version.rows[0][0])
        if not text.isdigit() or len(text) > DIGITS or not int(text):
            raise SchemaVersionError(f"{location} has no schema version that could be one: restore its table meta")
        found = int(text)
    elif clash := sorted(tables & _TABLES):
        raise ConfigurationError(
            f"{location} belongs to another program: it already has the tables {', '.join(clash)}. "
            "Use a database (on PostgreSQL: or a schema) of its own"
        )
    if found > len(MIGRATIONS):
        raise SchemaVersionError(
            f"{location} has schema version {found}, this library knows {len(MIGRATIONS)}: upgrade shredsaver"
        )
    if found == len(MIGRATIONS):
        yield Rollback()
        return
    if not auto_setup:
        raise SchemaVersionError(
            f"{location} has schema version {found}, {len(MIGRATIONS)} is needed: run `shredsaver init` with a role "
            "that may create tables"
        )
    pending = [Statement(statement) for step in MIGRATIONS[found:] for statement in step]
    if found == 0:
        pending.insert(0, Statement(CREATE_META))
    version_now = str(len(MIGRATIONS)).encode("ascii")
    yield from run(*pending, Statement(PUT_META, ("schema_version", version_now)))
    yield Commit()
