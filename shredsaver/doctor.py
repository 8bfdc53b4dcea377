"""Checks of an opened deployment: what is wrong, what would not survive a restore, and what to do."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final, Literal, NamedTuple

from shredsaver.errors import ReceiptError, RevocationLogDamagedError
from shredsaver.receipts import verify_chain
from shredsaver.shredder import Shredder

Verdict = Literal["good", "warning", "bad"]
_EARLIEST_CLOCK: Final = 1_700_000_000
"""A clock before this (November 2023) is wrong: this library is younger."""


class Check(NamedTuple):
    """One finding."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""


def examine(shredder: Shredder) -> list[Check]:
    """Runs every check. Nothing is changed."""
    return [*_versions(), *_clock(), *_keys(shredder), *_log(shredder), *_receipts(shredder), *_erasures(shredder)]


def _versions() -> Iterator[Check]:
    names = ("shredsaver", "langgraph-checkpoint", "cryptography", "msgpack")
    found = ", ".join(f"{name} {version(name)}" for name in names)
    yield Check("versions", "good", f"{found}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")


def _clock() -> Iterator[Check]:
    now = time.time()
    if now < _EARLIEST_CLOCK:
        yield Check("clock", "bad", "it is set to the past", "Set it: holds, times to live and receipts depend on it")
    else:
        yield Check("clock", "good", "plausible")


def _keys(shredder: Shredder) -> Iterator[Check]:
    report = shredder.check_keys()
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
        chain = verify_chain(list(shredder.receipts()), shredder.public_keys()[:1])
    except ReceiptError as error:
        yield Check("receipts", "bad", str(error), "Compare with the receipts that were handed out")
    else:
        yield Check("receipts", "good", f"{len(chain)} verify and follow each other")


def _erasures(shredder: Shredder) -> Iterator[Check]:
    open_ = shredder.unfinished()
    if open_:
        yield Check("erasures", "warning", f"{open_} are not complete", "Run resume")
    else:
        yield Check("erasures", "good", "all are complete")
