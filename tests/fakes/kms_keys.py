"""What the fake of AWS KMS remembers of a key: its states over time, its material, and ciphertexts bound to both.

Nothing here knows HTTP or boto3; `tests.fakes.kms_server` says which behaviour of AWS each part stands for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DAY: Final = 86_400.0
ACCOUNT: Final = "111122223333"


class KmsError(Exception):
    """An answer that is an error: its code as AWS names it, a message, an HTTP status."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code, self.text, self.status = code, message, status


class Clock:
    """Seconds since the epoch, running, and moved on by the test."""

    def __init__(self) -> None:
        self._offset = 0.0

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Moves the clock on; windows end, tokens expire, changes become visible."""
        self._offset += seconds


@dataclass(frozen=True)
class Version:
    """What is true of a key from one change to the next."""

    state: str
    material: bytes | None
    deletion_at: float | None = None
    window_days: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Key:
    """A KMS key: what never changes, and its versions, each with the time from which every node shows it."""

    key_id: str
    arn: str
    origin: str
    multi_region: bool
    description: str
    created_at: float
    account: str = ACCOUNT
    known_material: bytes | None = None
    known_material_id: str = ""
    versions: list[tuple[float, Version]] = field(default_factory=list)

    @property
    def latest(self) -> Version:
        """What is true once every change has spread."""
        return self.versions[-1][1]

    def visible(self, now: float, *, ahead: bool = False) -> Version | None:
        """What a node shows at a time; None where the key is not there yet. ``ahead`` nodes know everything."""
        shown = None
        for since, version in self.versions:
            if since <= now or ahead:
                shown = version
        if shown and shown.state == "PendingDeletion" and shown.deletion_at is not None and shown.deletion_at <= now:
            return replace(shown, state="deleted", material=None)
        return shown

    def change(self, visible_at: float, **changes: Any) -> None:
        """Adds a version; times of visibility never run backwards."""
        if self.versions:
            visible_at = max(visible_at, self.versions[-1][0])
            self.versions.append((visible_at, replace(self.latest, **changes)))
        else:
            self.versions.append((visible_at, Version(**changes)))


def material_id(key_id: str, material: bytes) -> str:
    """AWS computes it "based on the KMS key ID and the imported key material"."""
    return hashlib.sha256(key_id.encode() + material).hexdigest()


def context_bytes(context: Mapping[str, str]) -> bytes:
    """An encryption context as associated data: sorted, each text with its length before it, so no two are alike."""
    out = bytearray()
    for text in (part for pair in sorted(context.items()) for part in pair):
        data = text.encode()
        out += struct.pack(">I", len(data)) + data
    return bytes(out)


class Ciphertexts:
    """Symmetric ciphertext blobs that carry the key's id, as those of AWS do, under a header nobody can alter."""

    def __init__(self) -> None:
        self._header_key = os.urandom(32)

    def _tag(self, header: bytes) -> bytes:
        return hmac.digest(self._header_key, header, "sha256")[:16]

    def seal(self, key: Key, material: bytes, plaintext: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypts under the key's material, the context bound as associated data."""
        header = key.arn.encode()
        header = struct.pack(">BH", 1, len(header)) + header
        nonce = os.urandom(12)
        body = AESGCM(material).encrypt(nonce, plaintext, header + context_bytes(context))
        return header + self._tag(header) + nonce + body

    def key_of(self, blob: bytes) -> tuple[str, bytes]:
        """The ARN of the key a blob was made with, and where its nonce begins."""
        if len(blob) < 3 or blob[0] != 1:
            raise KmsError("InvalidCiphertextException")
        end = 3 + struct.unpack(">H", blob[1:3])[0]
        header, tag = blob[:end], blob[end : end + 16]
        if not hmac.compare_digest(tag, self._tag(header)):
            raise KmsError("InvalidCiphertextException")
        return header[3:].decode(), header

    def open(self, material: bytes, blob: bytes, context: Mapping[str, str]) -> bytes:
        """Decrypts, or InvalidCiphertextException whatever is wrong."""
        _, header = self.key_of(blob)
        body = blob[len(header) + 16 :]
        try:
            return AESGCM(material).decrypt(body[:12], body[12:], header + context_bytes(context))
        except (InvalidTag, ValueError):
            raise KmsError("InvalidCiphertextException") from None


_wrapping: dict[int, rsa.RSAPrivateKey] = {}
_wrapping_lock = threading.Lock()


def wrapping_key(bits: int) -> rsa.RSAPrivateKey:
    """The RSA pair of a size. One for the whole process: making 4,096 bits takes longer than many a test."""
    with _wrapping_lock:
        if bits not in _wrapping:
            _wrapping[bits] = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        return _wrapping[bits]
