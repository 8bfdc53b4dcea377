"""Every error this library raises, drawn as a tree.

    ShredSaverError
    ├── ConfigurationError
    │   ├── CustomerUnresolvedError
    │   ├── ThreadOwnershipError
    │   ├── NamespaceUnmatchedError
    │   ├── MissingDependencyError
    │   └── UnknownKeySchemeError
    ├── PayloadError
    ├── CustomerShreddedError
    ├── CustomerRestrictedError
    ├── LegalHoldError
    ├── UnsealError
    ├── FormatError
    ├── KeyServiceError
    │   ├── KeyServiceUnavailableError
    │   ├── KeyAccessDeniedError
    │   ├── KeyNotFoundError
    │   ├── KeyVersionError
    │   └── KeyStoreStaleError
    ├── DatabaseUnavailableError
    ├── DatabaseForkedError
    ├── RevocationLogDamagedError
    ├── ShredIncompleteError
    ├── ReceiptError
    └── SchemaVersionError

No message holds a payload, a key or a customer's id: a customer is named by the token that the database holds too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shredsaver.results import ShredResult


class ShredSaverError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigurationError(ShredSaverError):
    """The library is set up or called in a way that cannot work. No retry helps: change what the message names."""


class CustomerUnresolvedError(ConfigurationError):
    """A first write names no customer, or names one by something that is no id.

    A retry does not help: give ``configurable["customer_id"]`` (or whatever ``customer=`` says) a non-empty string.
    """


class ThreadOwnershipError(ConfigurationError):
    """The call names a customer and a thread that belong to different customers.

    A retry does not help: a thread belongs to the customer that first wrote it, for ever. Use another ``thread_id``.
    """


class NamespaceUnmatchedError(ConfigurationError):
    """A store namespace matches no template, so nobody can say whose data it is. The message shows how to add one."""


class MissingDependencyError(ConfigurationError):
    """An optional dependency is not installed. The message gives the ``pip install`` that brings it."""


class UnknownKeySchemeError(ConfigurationError):
    """The key URI has a scheme that no key service has registered. The message lists the known ones."""


class PayloadError(ShredSaverError):
    """A value cannot be serialised, or is above the limit of 2**31 - 1 bytes. Nothing was written; no retry helps."""


class CustomerShreddedError(ShredSaverError):
    """The customer was shredded: use has stopped for good. A retry never helps; `Shredder.enrol` starts afresh, empty.

    Attributes:
        shredded_at: When the revocation was committed, or None where only the key service knows.
        erasure_id: The erasure's id, as in its receipt, or None where only the key service knows.
    """

    def __init__(self, message: str, *, shredded_at: datetime | None = None, erasure_id: str | None = None) -> None:
        super().__init__(message)
        self.shredded_at = shredded_at
        self.erasure_id = erasure_id


class CustomerRestrictedError(ShredSaverError):
    """Use of the customer's data is stopped, data and keys are kept. `Shredder.reinstate` ends it; then a retry helps.

    What is held can still be exported and erased.
    """


class LegalHoldError(ShredSaverError):
    """The customer is under a hold, so nothing may be erased. Release the hold, or shred with ``defer=True``."""


class UnsealError(ShredSaverError):
    """A record did not open: altered, moved, missing, or sealed under another key. One class, no sub-reason.

    A retry does not help. The message names the table and the row, never the content. Restore the row from a backup,
    or treat it as tampered with.
    """


class FormatError(ShredSaverError):
    """Bytes that should be a sealed record are not one, or have a format version from the future."""


class KeyServiceError(ShredSaverError):
    """Base of what goes wrong in a key service. None of its kinds ever means that a customer was shredded.

    Attributes:
        retryable: Whether the same call can succeed later without anyone changing anything.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class KeyServiceUnavailableError(KeyServiceError):
    """The key service cannot be reached, throttles, or is busy. Nothing is lost; retry when ``retryable`` is true."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class KeyAccessDeniedError(KeyServiceError):
    """The key service refuses: permissions, a disabled key, or a wrong passphrase. Ask whoever administers the keys."""


class KeyNotFoundError(KeyServiceError):
    """The key service has no such key and no tombstone for it: wrong key store, or a lost one. Never an erasure."""


class KeyVersionError(KeyServiceError):
    """The key was replaced by someone else in the meantime. Nothing was changed: load it again, and retry."""


class KeyStoreStaleError(KeyServiceError):
    """The key store is older than its roots, or lacks what they say it must have. Restore a current copy or mirror.

    Where there is none, ``shredsaver keys adopt`` takes the older one into use for the slots that still open.
    """


class DatabaseUnavailableError(ShredSaverError):
    """The database cannot be opened, reached, read or written.

    Attributes:
        retryable: Whether the same call can succeed later without anyone changing anything.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class DatabaseForkedError(ShredSaverError):
    """This database is a copy or a restore of the one the keys belong to; nothing that changes keys is allowed.

    Run `Shredder.reconcile` with ``adopt="restore"`` (this is now the database) or ``adopt="fork"`` (it stays a copy).
    """


class RevocationLogDamagedError(ShredSaverError):
    """The record of who was shredded does not verify, so what it concerns stays shut. Run `Shredder.reconcile`."""


class ShredIncompleteError(ShredSaverError):
    """A step of a shred failed after the customer was put out of use. `Shredder.resume` or another ``shred`` goes on.

    Attributes:
        pending: The steps that are still to be done, first one first.
        results: How far each erasure of the call has come, receipts included, where that could be read.
    """

    results: Sequence[ShredResult]

    def __init__(self, message: str, *, pending: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.pending = tuple(pending)
        self.results = ()


class ReceiptError(ShredSaverError):
    """A receipt does not verify: none at all, another key's, altered, or out of its chain. A retry does not help."""


class SchemaVersionError(ShredSaverError):
    """The database's schema is newer than this library, or older with ``auto_setup=False``. Upgrade either."""
