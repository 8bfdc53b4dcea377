"""What the shredder answers: immutable values without any id, key or payload in their repr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class CustomerStatus:
    """Where a customer stands.

    Attributes:
        customer: The customer's token in hexadecimal: the name that database, log and receipt use.
        known: Whether the database has ever seen the customer.
        state: ``"live"``, ``"restricted"``, ``"revoked"``, ``"destroyed"`` or ``"purged"``;
            ``"unknown"`` if never seen.
        generation: 1 for the first, one more for each `Shredder.enrol`; 0 if never seen.
        held_until: Until when a hold is in force, or None.
        erasure_id: The last erasure's id, or None.
        shredded_at: When the last revocation was committed, or None.
        due_at: When an erasure that waits for a grace or a hold goes on at the earliest, or None.
        pending: The steps of the last erasure that are still to be done, erasure targets among them.
        customer_id: The id itself, for listings of live customers; None otherwise. Not in the repr.
    """

    customer: str
    known: bool
    state: str
    generation: int
    held_until: str | None = None
    erasure_id: str | None = None
    shredded_at: datetime | None = None
    due_at: str | None = None
    pending: tuple[str, ...] = ()
    customer_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ShredPlan:
    """What a shred would reach, counted without changing anything.

    Attributes:
        status: Where the customer stands.
        counts: Rows by route: ``threads``, ``checkpoints``, ``writes``, ``parts``, ….
    """

    status: CustomerStatus
    counts: Mapping[str, int]


@dataclass(frozen=True)
class ShredResult:
    """What a shred did, step by step. Times are ISO 8601 in UTC, None for what has not happened.

    Attributes:
        erasure_id: The erasure's id.
        customer: The customer's token in hexadecimal.
        generation: The last generation that was erased.
        known: False if the id had never been seen: then only a tombstone was set.
        state: ``"revoked"``, ``"destroyed"`` or ``"purged"``; ``"scheduled"`` while a grace or a hold lasts, and
            ``"cancelled"`` if `Shredder.reinstate` ended that.
        requested_at: When it was asked for.
        due_at: When a scheduled erasure goes on, at the earliest.
        revoked_at: When use ended, in every process.
        destroyed_at: When the keys were proven destroyed.
        purged_at: When the rows were deleted.
        verified_at: When everything was counted again.
        before: Rows by route before the purge.
        after: Rows by route when it was verified.
        destruction: What the key service says of the keys: method, slot, epochs, assurance, and so on.
        targets: What became of each erasure target.
        receipt: The signed receipt (a compact JWS), None before there is one.
        pending: The steps that are still to be done.
        verification: How many records of what is left were ``sampled``, by route, and how many keys each was tried
            with (``keys_tried``); none opened.
    """

    erasure_id: str
    customer: str
    generation: int
    known: bool
    state: str
    requested_at: str
    due_at: str | None
    revoked_at: str | None
    destroyed_at: str | None
    purged_at: str | None
    verified_at: str | None
    before: Mapping[str, int]
    after: Mapping[str, int]
    destruction: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    receipt: str | None = None
    pending: tuple[str, ...] = ()
    verification: Mapping[str, Any] = field(default_factory=dict)
