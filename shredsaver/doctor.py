"""Checks of an opened deployment: what is wrong, what would not survive a restore, and what to do."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from shredsaver.db.base import Begin, Commit, Plan, Sql, Statement, run
from shredsaver.db.migrations import GET_META, MIGRATIONS
from shredsaver.errors import ReceiptError, RevocationLogDamagedError, ShredSaverError
from shredsaver.receipts import verify_chain
from shredsaver.shredder import Shredder

Verdict = Literal["good", "warning", "bad"]
_EARLIEST_CLOCK: Final = 1_700_000_000
"""A clock before this (November 2023) is wrong: this library is younger."""

_SKEW: Final = 5.0
"""Seconds that the clocks of this host and of a database server may differ."""

_SETTINGS: Final = Sql(
    "SELECT (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous), "
    "(julianday('now') - 2440587.5) * 86400.0",
    "SELECT current_setting('fsync'), current_setting('synchronous_commit'), extract(epoch FROM clock_timestamp())",
)


class Check(NamedTuple):
    """One finding."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""


def examine(shredder: Shredder) -> list[Check]:
    """Runs every check. Nothing is changed."""
    return [
        *_versions(),
        *_database(shredder),
        *_permissions(shredder),
        *_keys(shredder),
        *_log(shredder),
        *_receipts(shredder),
        *_erasures(shredder),
        *_restores(shredder),
    ]


def _versions() -> Iterator[Check]:
    names = ("shredsaver", "langgraph-checkpoint", "cryptography", "msgpack")
    found = ", ".join(f"{name} {version(name)}" for name in names)
    yield Check("versions", "good", f"{found}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")


def _settings() -> Plan[tuple[str, str, float, int]]:
    yield Begin("read")
    settings, schema = yield from run(Statement(_SETTINGS), Statement(GET_META, ("schema_version",)))
    yield Commit()
    mode, durable, clock = settings.rows[0]
    return str(mode), str(durable), float(clock), int(bytes(schema.rows[0][0]))


def _database(shredder: Shredder) -> Iterator[Check]:
    core = shredder._start().core
    mode, durable, clock, schema = core.database.run(_settings)
    now = time.time()
    if now < _EARLIEST_CLOCK:
        yield Check("clock", "bad", "it is set to the past", "Set it: holds, times to live and receipts depend on it")
    elif abs(clock - now) > _SKEW:
        finding = f"this host and the database server differ by {abs(clock - now):.0f} s"
        yield Check("clock", "warning", finding, "Set both by a time service: hosts must agree on when holds end")
    else:
        yield Check("clock", "good", "plausible, and the database's agrees")
    yield Check("schema", "good", f"version {schema} of {len(MIGRATIONS)}")
    if mode in ("wal", "delete", "truncate", "persist"):
        sound = durable in ("2", "3")
        advice = "" if sound else "Open it by this library alone, which sets synchronous=FULL"
        yield Check("durability", "good" if sound else "bad", f"journal_mode={mode}, synchronous={durable}", advice)
    else:
        sound = mode == "on" and durable not in ("off", "local")
        advice = "" if sound else "Set fsync=on and synchronous_commit=on: a revocation must survive a power cut"
        yield Check("durability", "good" if sound else "bad", f"fsync={mode}, synchronous_commit={durable}", advice)


def _permissions(shredder: Shredder) -> Iterator[Check]:
    file = _file(shredder._start().core.database.location)
    if file is None:
        yield Check("permissions", "good", "the database is a server's; the key service checks its own")
        return
    open_to = [path.name for path in sorted(file.parent.glob(f"{file.name}*")) if path.stat().st_mode & 0o022]
    if open_to:
        finding = f"others on this host can write to {', '.join(open_to)}"
        yield Check("permissions", "bad", finding, f"Run chmod go-w {file}*: whoever writes there can delete records")
    else:
        yield Check("permissions", "good", "only the owner can write to the database; the key service checks its own")


def _file(location: str) -> Path | None:
    """The database's file, or None where it is a server's."""
    if "://" not in location:
        return Path(location)
    url = urlsplit(location)
    return Path(unquote(url.path)) if url.scheme == "sqlite" else None


def _keys(shredder: Shredder) -> Iterator[Check]:
    try:
        report = shredder.check_keys()
    except ShredSaverError as error:
        yield Check("keys", "bad", str(error), "Restore a current copy or mirror of the key store")
        return
    if report.ok:
        yield Check("keys", "good", f"{report.customers} customers in {report.slots} slots, every key opens")
    else:
        yield Check("keys", "bad", "; ".join(report.problems), "Restore a current copy or mirror of the key store")


def _log(shredder: Shredder) -> Iterator[Check]:
    try:
        entries = shredder.check_log()
    except RevocationLogDamagedError as error:
        yield Check("log of erasures", "bad", str(error), "Run reconcile with a source that verifies")
    else:
        yield Check("log of erasures", "good", f"{entries} entries, the chain holds")


def _receipts(shredder: Shredder) -> Iterator[Check]:
    try:
        # The first key is enough: each further one must have been introduced by the chain itself.
        chain = verify_chain(list(shredder.receipts()), shredder.public_keys()[:1])
    except ReceiptError as error:
        yield Check("receipts", "bad", str(error), "Compare with the receipts that were handed out")
        return
    if chain and chain[0].payload.get("number") != 1:
        finding = f"the first is number {chain[0].payload.get('number')}: earlier ones are missing"
        yield Check("receipts", "bad", finding, "Compare with the receipts that were handed out")
    else:
        yield Check("receipts", "good", f"{len(chain)} verify and follow each other")


def _erasures(shredder: Shredder) -> Iterator[Check]:
    open_ = shredder.unfinished()
    if open_:
        advice = "Run resume, in a process that has the erasure targets; those that wait for a grace or a hold stay"
        yield Check("erasures", "warning", f"{open_} are not complete", advice)
    else:
        yield Check("erasures", "good", "all are complete")


def _restores(shredder: Shredder) -> Iterator[Check]:
    started = shredder._start()
    found = started.reconciliation
    if found.forked:
        yield Check(
            "restores",
            "bad",
            "this database is a copy or a restore of the one that the keys belong to",
            "Run adopt restore if it is the database now, adopt fork if it is a copy",
        )
    elif found.unconfirmed:
        advice = "Run reconcile --confirm if the other record is right, reinstate for each customer it is wrong about"
        yield Check("restores", "bad", f"{found.unconfirmed} keys wait for somebody's word", advice)
    else:
        yield Check("restores", "good", "every record of who was erased agrees")
    if started.journal is None:
        yield Check(
            "journal",
            "warning",
            "there is none: database and keys restored together to before an erasure would undo it",
            "Open with journal=, or set SHREDSAVER_JOURNAL, to a file that no backup of either takes back",
        )
    else:
        beside = _file(started.core.database.location)
        near = beside is not None and os.path.samefile(started.journal.path.resolve().parent, beside.resolve().parent)
        yield Check(
            "journal",
            "warning" if near else "good",
            "it lies beside the database" if near else "kept outside",
            "Keep it where a restore of the database does not reach" if near else "",
        )
    copies = started.guarded.copies
    if copies == 1:
        yield Check(
            "copies of keys",
            "warning",
            "one: if it is lost, all data is lost with it",
            "Run keys mirror with a directory on another disk, and keys escrow for the deployment's secrets",
        )
    else:
        yield Check(
            "copies of keys", "good", "kept by the key service" if copies is None else f"{copies}, always alike"
        )
