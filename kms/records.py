"""What a key service hands out: immutable values. No repr of these shows a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class KeyRecord:
    """The secret of one generation of a customer.

    Attributes:
        customer: The customer's token (never a name or an id).
        generation: 1 for the first, one more for each return after an erasure.
        key_version: 1 at creation, one more for each replacement of the secret within the generation.
        secret: The bytes that were stored: for this library, a serialised key tree.
    """

    customer: bytes
    generation: int
    key_version: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class DeploymentSecrets:
    """Secrets of a whole deployment: made once, destroyed by no shred. They open no customer's data.

    Attributes:
        deployment: Random id of the deployment, 16 bytes; not secret.
        lookup_key: HMAC key of tokens, 32 bytes.
        log_key: HMAC key of the tombstone log and of rows' authenticators, 32 bytes.
        receipt_key: HMAC key that salts commitments in receipts, 32 bytes.
        signing_key: Ed25519 seed (RFC 8032) that signs receipts, 32 bytes.
    """

    deployment: bytes
    lookup_key: bytes = field(repr=False)
    log_key: bytes = field(repr=False)
    receipt_key: bytes = field(repr=False)
    signing_key: bytes = field(repr=False)


@dataclass(frozen=True)
class Tombstone:
    """An entry of the log of the dead. It holds what prevents a return, and nothing else.

    Attributes:
        seq: Position in the log, from 1 without gaps.
        customer: The customer's token.
        generation: The last generation that died; all before it are dead too.
        at: When, as ISO 8601 in UTC.
        chain: HMAC-SHA-256 under the log key over the entry before and this one, 32 bytes.
    """

    seq: int
    customer: bytes
    generation: int
    at: str
    chain: bytes


@dataclass(frozen=True)
class Destruction:
    """What became of a customer's keys, for the receipt.

    Attributes:
        customer: The customer's token.
        generation: The last generation destroyed.
        known: False if the key service never held a key of this customer: the tombstone prevents one from now on.
        state: ``"destroyed"``: every root the customer's keys were ever wrapped under is proven dead. ``"pending"``:
            out of use for good, but a root can still be brought back by whoever runs the key service, until
            ``pending_until``.
        method: How roots are destroyed, in a few words; "" where there was nothing to destroy.
        slot: The slot the token belongs to.
        old_epoch: The last epoch the customer's keys were wrapped under; None if never wrapped.
        new_epoch: The slot's epoch now; None if the slot was never used.
        key_ids: Names of the destroyed keys in the key service, such as ARNs; empty where they have none.
        assurance: How strong the destruction is.
        tombstone: Position in the log of the dead.
        revoked_at: When the tombstone was committed, ISO 8601 in UTC.
        destroyed_at: When the last root was proven dead, ISO 8601 in UTC; None while pending, or if never wrapped.
        pending_until: When a pending destruction becomes final, ISO 8601 in UTC.
        cached_until: Until when a process may still hold the dead root in memory, ISO 8601 in UTC; None if nowhere.
        details: More of the same for the receipt: text, numbers and booleans only.
    """

    customer: bytes
    generation: int
    known: bool
    state: Literal["destroyed", "pending"]
    method: str
    slot: int
    old_epoch: int | None
    new_epoch: int | None
    key_ids: tuple[str, ...]
    assurance: str
    tombstone: int
    revoked_at: str
    destroyed_at: str | None
    pending_until: str | None = None
    cached_until: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hold:
    """A duty to keep a customer's keys.

    Attributes:
        customer: The customer's token.
        until: When it ends by itself, ISO 8601 in UTC; None: when it is released.
        reason_commitment: Commitment to the reason, which is kept elsewhere, sealed.
        since: When it was set, ISO 8601 in UTC.
    """

    customer: bytes
    until: str | None
    reason_commitment: bytes
    since: str


@dataclass(frozen=True)
class Report:
    """What `KeyService.verify` found.

    Attributes:
        customers: Live customers whose key was opened.
        slots: Slots in use.
        tombstones: Entries of the log of the dead, all verified unless `problems` says otherwise.
        problems: One sentence for each thing that is wrong, naming rows by token; empty if all is well.
    """

    customers: int
    slots: int
    tombstones: int
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
