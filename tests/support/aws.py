"""A key service on the fake of AWS KMS: opened, crashed, copied, and looked into."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from shredsaver.kms.aws import AwsKeyService
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_registry import CLEARED, LOST, USED
from tests.fakes.kms_server import KmsServer
from tests.support.waiting import SECONDS

FAST: dict[str, Any] = {"window": 0.08, "spares": 0, "slots": 2, "settle": 0.4, "lease": 0.5}
"""Options that keep a test quick; the proof still takes several looks."""


class Time:
    """A monotonic clock that only moves when a caller sleeps, or the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def token(number: int) -> bytes:
    """A customer's token; with two slots, even numbers are in the first."""
    return number.to_bytes(2) + bytes(14)


def secret(number: int) -> bytes:
    """What is kept for a customer."""
    return b"secret of %d" % number


class World:
    """A fake of AWS KMS and one key store.

    Args:
        kms: The server.
        directory: Where the key store is.
        connect: Makes the connection to AWS KMS; its environment is already set.
    """

    def __init__(self, kms: KmsServer, directory: Path, connect: Callable[[], KmsCalls] = KmsCalls) -> None:
        self.kms = kms
        self.store = directory / "keys.db"
        # Making boto3's clients takes longer than what most tests do with them.
        self.calls = connect()
        self.opened: list[AwsKeyService] = []

    def open(self, store: Path | str | None = None, **options: Any) -> AwsKeyService:
        """Opens the key store, or a copy of it."""
        arguments = {**FAST, "calls": self.calls, **options}
        if options.get("slot") == "customer":
            del arguments["slots"]
        service = AwsKeyService(str(store or self.store), **arguments)
        self.opened.append(service)
        return service

    def close(self) -> None:
        """Closes all that was opened."""
        while self.opened:
            self.opened.pop().close()

    def copy(self, name: str) -> Path:
        """Copies the key store, as a backup would."""
        target = self.store.with_name(name)
        source = sqlite3.connect(self.store)
        copied = sqlite3.connect(target)
        with source, copied:
            source.backup(copied)
        source.close()
        copied.close()
        shutil.copymode(self.store, target)
        return target

    def query(self, statement: str, store: Path | None = None) -> list[tuple[Any, ...]]:
        """Reads the key store's tables."""
        connection = sqlite3.connect(store or self.store, timeout=SECONDS)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def root_of(self, slot: int, store: Path | None = None) -> tuple[str, bytes]:
        """ARN and encrypted root of a slot's live epoch."""
        rows = self.query(
            "SELECT material FROM key_epochs e JOIN key_slots s ON s.slot = e.slot AND s.epoch = e.epoch "
            f"WHERE e.slot = {slot}",
            store,
        )
        _, arn, wrapped, _, _ = msgpack.unpackb(rows[0][0])
        return arn, wrapped

    def live_roots(self) -> set[str]:
        """ARNs that the key store's live epochs name."""
        rows = self.query("SELECT material FROM key_epochs e JOIN key_slots s ON s.slot = e.slot AND s.epoch = e.epoch")
        return {msgpack.unpackb(row[0])[1] for row in rows}

    def assert_no_orphans(self) -> None:
        """Every key that costs money is a live root, and every key there ever was is recorded."""
        assert {key.arn for key in self.kms.live_keys().values()} == self.live_roots()
        recorded = {bytes(nonce).hex(): state for nonce, state in self.query("SELECT nonce, state FROM key_kms")}
        made = {key.latest.tags["shredsaver:nonce"] for key in self.kms.keys.values()}
        assert made <= set(recorded)
        assert {recorded[nonce] for nonce in made} <= {USED, CLEARED}
        assert {recorded[nonce] for nonce in set(recorded) - made} <= {LOST}  # intended, and never made
