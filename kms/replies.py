"""What a key service over tables refuses, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from shredsaver.errors import (
    ConfigurationError,
    CustomerShreddedError,
    KeyServiceUnavailableError,
    KeyVersionError,
)
from shredsaver.kms.base import MAX_SECRET
from shredsaver.kms.wrapping import Entry

_MAX_TOKEN: Final = 64


def text(moment: datetime) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check(customer: object, secret: object = b"x") -> None:
    """Refuses what can be no customer's token, or no secret."""
    if not isinstance(customer, bytes) or not 0 < len(customer) <= _MAX_TOKEN:
        raise ConfigurationError(f"a customer is named by a token of 1 to {_MAX_TOKEN} bytes")
    if not isinstance(secret, bytes) or not 0 < len(secret) <= MAX_SECRET:
        raise ConfigurationError(f"a secret has 1 to {MAX_SECRET} bytes")


def shredded(dead: Entry) -> CustomerShreddedError:
    """The error for a customer with this tombstone."""
    return CustomerShreddedError(
        f"the keys of customer {dead.customer.hex()} up to generation {dead.generation} were destroyed",
        shredded_at=datetime.fromisoformat(dead.at),
    )


def conflict(found: int, expected: int) -> KeyVersionError:
    """The error for a key that somebody else replaced."""
    return KeyVersionError(f"the key is at version {found}, not {expected}: load it again and retry", retryable=True)


def busy() -> KeyServiceUnavailableError:
    """The error for a slot that does not keep still."""
    return KeyServiceUnavailableError("the slot's root was rotated again and again meanwhile; call again")
