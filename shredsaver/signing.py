"""Which key signs receipts, and how it is replaced.

The first key is the deployment's own; each further one is derived from it by number, so that a key service keeps one
secret whatever the number. A renewal is a receipt of the chain, signed by the old key over the new key's signature; how
many of those there are says which key is in use.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.metadata import version
from typing import Any, Final

from shredsaver import erasures, receipts
from shredsaver.core import Core
from shredsaver.db.base import Begin, Commit, Plan, Statement, run, sql

FORMAT: Final = "shredsaver-key-change/1"
MARK: Final = "signing-key"
"""Stands in the place of an erasure's id for receipts that change the key."""

RENEWALS: Final = sql("SELECT count(*) FROM receipts WHERE erasure_id = ?")


def seed(signing_key: bytes, number: int) -> bytes:
    """The Ed25519 seed of 32 bytes that is in use after so many renewals: HMAC-SHA-256 under the first one."""
    if not number:
        return signing_key
    return hmac.digest(signing_key, f"shredsaver/v1/signing-key/{number}".encode("ascii"), hashlib.sha256)


def current(core: Core) -> Plan[bytes]:
    """The seed in use, within the open transaction."""
    (found,) = yield from run(Statement(RENEWALS, (MARK,)))
    return seed(core.secrets.signing_key, int(found.rows[0][0]))


def public_keys(core: Core) -> Plan[list[str]]:
    """Every public key so far, oldest first, as PEM."""
    yield Begin("read")
    (found,) = yield from run(Statement(RENEWALS, (MARK,)))
    yield Commit()
    seeds = (seed(core.secrets.signing_key, number) for number in range(int(found.rows[0][0]) + 1))
    return [receipts.public_key(each) for each in seeds]


def renew(core: Core) -> Plan[str]:
    """Replaces the key. Gives the receipt that says so."""
    yield Begin("write")
    number, previous = yield from erasures.next_receipt()
    (found,) = yield from run(Statement(RENEWALS, (MARK,)))
    old = int(found.rows[0][0])
    said: dict[str, Any] = {
        "format": FORMAT,
        "tool": f"shredsaver {version('shredsaver')}",
        "deployment": core.deployment.hex(),
        "number": number,
        "previous": previous,
        "issued_at": erasures.now(core),
    }
    first = core.secrets.signing_key
    receipt = receipts.key_change(said, seed(first, old), seed(first, old + 1))
    yield from run(Statement(erasures.ADD_RECEIPT, (number, MARK, receipt)), commit=True)
    core.events.emit("signing key renewed", number=old + 1)
    return receipt
