"""A passphrase over the file of roots: how its key is derived and checked."""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

from shredsaver.errors import ConfigurationError, FormatError, KeyAccessDeniedError, MissingDependencyError

NONE: Final = 0
ARGON2ID: Final = 1
PBKDF2: Final = 2
KDFS: Final = {"argon2id": ARGON2ID, "pbkdf2": PBKDF2}
# Iterations, memory in KiB, lanes: RFC 9106, section 4, second recommendation; OWASP's for PBKDF2, threefold.
_COSTS: Final = {"argon2id": (3, 64 * 1024, 4), "pbkdf2": (600_000, 0, 0)}

_LAYOUT: Final = struct.Struct(">BIIB16s32s")  # kdf, iterations, memory in KiB, lanes, salt, check
PARAMETERS_BYTES: Final = _LAYOUT.size
_DERIVED: Final = 64  # bytes: the key, then the check value
_MAX_MEMORY: Final = 4 * 1024 * 1024  # KiB; a damaged or hostile header must not exhaust the machine
_MAX_ITERATIONS: Final = 10_000_000


@dataclass(frozen=True)
class Parameters:
    """How the key over a file of roots comes from a passphrase; it is no secret."""

    kdf: int = NONE
    iterations: int = 0
    memory: int = 0
    lanes: int = 0
    salt: bytes = bytes(16)
    check: bytes = bytes(32)

    def pack(self) -> bytes:
        """As bytes of the header."""
        return _LAYOUT.pack(self.kdf, self.iterations, self.memory, self.lanes, self.salt, self.check)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """From bytes of the header.

        Raises:
            FormatError: They ask for more than any passphrase needs, or for an unknown function.
        """
        found = cls(*_LAYOUT.unpack(data))
        if found.kdf not in (NONE, *KDFS.values()):
            raise FormatError(f"the file of roots uses key derivation {found.kdf}, which this library does not know")
        if found.memory > _MAX_MEMORY or found.iterations > _MAX_ITERATIONS:
            raise FormatError("the file of roots asks for an absurd amount of key derivation: its header is damaged")
        return found


def protect(passphrase: str, kdf: str) -> tuple[Parameters, bytes]:
    """Chooses parameters for a new file: argon2id (RFC 9106), or PBKDF2 (SP 800-132).

    Args:
        passphrase: At least 8 characters.
        kdf: ``"argon2id"``, or ``"pbkdf2"`` (HMAC-SHA-512) where only approved algorithms may be used.

    Returns:
        The parameters and the key, 32 bytes.

    Raises:
        ConfigurationError: The passphrase is too short, or the function unknown.
    """
    if len(passphrase) < 8:  # noqa: PLR2004
        raise ConfigurationError("the passphrase has fewer than 8 characters; use a long one, or a generated one")
    if kdf not in KDFS:
        raise ConfigurationError(f"kdf is {kdf!r}; it must be one of {', '.join(sorted(KDFS))}")
    chosen = Parameters(KDFS[kdf], *_COSTS[kdf], os.urandom(16))
    derived = _derive(passphrase, chosen)
    fields = (chosen.kdf, chosen.iterations, chosen.memory, chosen.lanes, chosen.salt)
    return Parameters(*fields, derived[32:]), derived[:32]


def unlock(passphrase: str | None, parameters: Parameters) -> bytes | None:
    """The key over a file of roots, 32 bytes; None where it has no passphrase.

    Raises:
        KeyAccessDeniedError: The passphrase is missing or wrong.
        ConfigurationError: One was given where the file has none.
    """
    if parameters.kdf == NONE:
        if passphrase is not None:
            raise ConfigurationError("a passphrase was given, but the file of roots was made without one")
        return None
    if passphrase is None:
        raise KeyAccessDeniedError(
            "the file of roots needs a passphrase: file:DIR?passphrase-env=NAME names the variable that holds it"
        )
    derived = _derive(passphrase, parameters)
    if not hmac.compare_digest(derived[32:], parameters.check):
        raise KeyAccessDeniedError("the passphrase is wrong")
    return derived[:32]


def _derive(passphrase: str, parameters: Parameters) -> bytes:
    secret = passphrase.encode()
    derivation: Callable[[bytes], bytes]
    if parameters.kdf == PBKDF2:
        derivation = PBKDF2HMAC(SHA512(), _DERIVED, parameters.salt, parameters.iterations).derive
    else:
        try:
            derivation = Argon2id(
                salt=parameters.salt,
                length=_DERIVED,
                iterations=parameters.iterations,
                lanes=parameters.lanes,
                memory_cost=parameters.memory,
            ).derive
        except UnsupportedAlgorithm as error:
            raise MissingDependencyError(
                "argon2id needs a cryptography package built with OpenSSL 3.2 or later: pip install -U cryptography"
            ) from error
    return derivation(secret)
