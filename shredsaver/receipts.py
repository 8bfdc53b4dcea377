"""Receipts: signed statements of an erasure, chained, that anyone can check with the file and a public key.

A receipt is a compact JWS (RFC 7515) with ``alg: Ed25519`` (RFC 9864); its ``kid`` is the public key's thumbprint (RFC
7638, RFC 8037). Each holds the SHA-256 of the one before, so that a gap, a reorder or a forgery shows. It holds neither
ids nor text: the customer is a salted commitment that the operator can open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from shredsaver.errors import ReceiptError

ALGORITHM: Final = "Ed25519"
TYPE: Final = "shredsaver-receipt+jws"
SEED_BYTES: Final = 32
MAX_RECEIPT: Final = 1024 * 1024
"""Bytes of a receipt at most: whatever is longer was not made here."""


@dataclass(frozen=True)
class VerifiedReceipt:
    """A receipt whose signature is right.

    Attributes:
        payload: What it says, see ``docs/reference/receipts.md``.
        key_id: The thumbprint of the key that signed it.
        digest: The SHA-256 of the receipt in hexadecimal, as the next one holds it.
    """

    payload: Mapping[str, Any]
    key_id: str
    digest: str


def sign(payload: Mapping[str, Any], seed: bytes) -> str:
    """Signs a receipt with an Ed25519 seed of 32 bytes (RFC 8032). Gives a compact JWS."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    header = {"alg": ALGORITHM, "kid": thumbprint(_raw(key.public_key())), "typ": TYPE}
    signed = f"{_encode(_json(header))}.{_encode(_json(payload))}"
    return f"{signed}.{_encode(key.sign(signed.encode('ascii')))}"


def verify(receipt: str, public_key: str | bytes) -> VerifiedReceipt:
    """Checks a receipt's signature.

    Args:
        receipt: The compact JWS.
        public_key: The key: PEM, or 32 raw bytes.

    Raises:
        ReceiptError: It is no receipt, or that key did not sign it.
    """
    header, payload, signed, signature = _taken_apart(receipt)
    key = load_public_key(public_key)
    identifier = thumbprint(_raw(key))
    if header.get("alg") != ALGORITHM or header.get("typ") != TYPE or "crit" in header:
        raise ReceiptError("the receipt's header is not that of a receipt of this library")
    if header.get("kid") != identifier:
        raise ReceiptError("the receipt was signed with another key than the given one: compare their key ids")
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        raise ReceiptError("the receipt's signature is wrong: it was altered, or forged") from None
    return VerifiedReceipt(payload, identifier, digest(receipt))


def verify_chain(receipts: Sequence[str], public_keys: Sequence[str | bytes]) -> list[VerifiedReceipt]:
    """Checks receipts in their order: each signature, and that each follows the one before.

    A receipt that changes the signing key counts if the old key signed it and it carries the new key's own signature;
    from there on the new key is good.

    Args:
        receipts: All of a chain, oldest first; the first may be any, and then nothing is said about those before it.
        public_keys: The keys that are trusted.

    Raises:
        ReceiptError: One does not verify, is missing, out of order, or has a sibling; the message says which and how.
    """
    keys = {thumbprint(_raw(load_public_key(key))): key for key in public_keys}
    verified: list[VerifiedReceipt] = []
    for position, receipt in enumerate(receipts, 1):
        identifier = _taken_apart(receipt)[0].get("kid")
        if not isinstance(identifier, str) or identifier not in keys:
            raise ReceiptError(
                f"receipt {position} of the chain was signed with a key that is not among the given ones"
            )
        one = verify(receipt, keys[identifier])
        if verified:
            _follows(verified[-1], one, position)
        if "new_key" in one.payload:
            raw = _changed_key(one, position)
            keys[thumbprint(raw)] = raw
        verified.append(one)
    return verified


def _follows(before: VerifiedReceipt, one: VerifiedReceipt, position: int) -> None:
    number, last = one.payload.get("number"), before.payload.get("number")
    if type(number) is not int or type(last) is not int:
        raise ReceiptError(f"receipt {position} of the chain, or the one before, has no number")
    expected = last + 1
    if one.payload.get("previous") == before.digest and number == expected:
        return
    if number == expected:
        raise ReceiptError(f"receipt {position} has the right number but another predecessor: the chain was forked")
    if number > expected:
        raise ReceiptError(
            f"before receipt {position} of the chain {number - expected} are missing: {expected} comes next"
        )
    raise ReceiptError(
        f"receipt {position} of the chain is out of order: it has number {number}, {expected} comes next"
    )


def key_change(payload: Mapping[str, Any], old_seed: bytes, new_seed: bytes) -> str:
    """Signs a receipt that replaces the signing key: by the old key, over the new key's own signature."""
    key = Ed25519PrivateKey.from_private_bytes(new_seed)
    raw = _raw(key.public_key())
    proof = key.sign(_proof_message(payload, raw))
    return sign({**payload, "new_key": _encode(raw), "new_key_proof": _encode(proof)}, old_seed)


def _changed_key(one: VerifiedReceipt, position: int) -> bytes:
    payload = dict(one.payload)
    try:
        raw, proof = _decode(payload.pop("new_key")), _decode(payload.pop("new_key_proof"))
        Ed25519PublicKey.from_public_bytes(raw).verify(proof, _proof_message(payload, raw))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        raise ReceiptError(f"receipt {position} changes the signing key, but the new key did not sign that") from None
    return raw


def _proof_message(payload: Mapping[str, Any], raw: bytes) -> bytes:
    return b"shredsaver/v1/new-signing-key\x00" + raw + _json(payload)


# -- who -------------------------------------------------------------------------------------------------------------


def salt(receipt_key: bytes, erasure_id: str) -> bytes:
    """The salt of an erasure's commitments: who has it can test a guessed id against the receipt."""
    return hmac.digest(receipt_key, b"salt\x00" + erasure_id.encode("ascii"), hashlib.sha256)


def commitment(salt_: bytes, kind: str, text: str) -> str:
    """The commitment to an id or a reason: HMAC-SHA-256 under the salt, base64url."""
    return _encode(hmac.digest(salt_, f"{kind}\x00{text}".encode(), hashlib.sha256))


# -- keys and forms --------------------------------------------------------------------------------------------------


def public_key(seed: bytes) -> str:
    """The public key of a seed, as PEM."""
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def load_public_key(public_key_: str | bytes) -> Ed25519PublicKey:
    """A public key from PEM or from 32 raw bytes.

    Raises:
        ReceiptError: It is no Ed25519 key.
    """
    data = public_key_.encode("utf-8") if isinstance(public_key_, str) else public_key_
    try:
        if len(data) == SEED_BYTES:
            return Ed25519PublicKey.from_public_bytes(data)
        key = load_pem_public_key(data)
    except ValueError:
        raise ReceiptError(
            "the public key is not readable: give the PEM file that `shredsaver public-key` prints"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ReceiptError("the public key is no Ed25519 key")
    return key


def thumbprint(raw: bytes) -> str:
    """A key's id: the JWK thumbprint (RFC 7638) of an Ed25519 key (RFC 8037), base64url."""
    jwk = {"crv": "Ed25519", "kty": "OKP", "x": _encode(raw)}
    return _encode(hashlib.sha256(_json(jwk)).digest())


def digest(receipt: str) -> str:
    """What the next receipt holds of this one: its SHA-256 in hexadecimal."""
    return hashlib.sha256(receipt.strip().encode("utf-8", "replace")).hexdigest()


def _taken_apart(receipt: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    try:
        if len(receipt) > MAX_RECEIPT:
            raise ValueError
        head, body, signature = receipt.strip().split(".")
        header, payload = json.loads(_decode(head)), json.loads(_decode(body))
        if type(header) is not dict or type(payload) is not dict:
            raise ValueError
        return header, payload, f"{head}.{body}".encode("ascii"), _decode(signature)
    except (ValueError, RecursionError):
        raise ReceiptError(
            "this is no receipt: a receipt is one line of three base64url parts with dots between"
        ) from None


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64url") from None
    if _encode(data) != text:  # one form only, so that a receipt cannot be changed without changing what it says
        raise ValueError("not the one form of base64url")
    return data
