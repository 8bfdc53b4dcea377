"""Sealed records: the one module that calls an AEAD.

``version (0x01) || nonce (12) || ciphertext || tag (16)``, AES-256-GCM (NIST SP 800-38D) with a random nonce; the
plaintext ends in ISO/IEC 7816-4 padding. Every record is bound to its place by its associated data, so it opens nowhere
else.
`docs/format-v1.md` is the specification. Nothing here does I/O.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shredsaver.errors import FormatError, PayloadError, UnsealError

# Table codes: the last of the fixed elements of the associated data, telling what the columns behind it are.
CUSTOMER_NAME: Final = 1
THREAD_NAME: Final = 2
CHECKPOINT: Final = 3
PART: Final = 4
WRITE: Final = 5
ITEM: Final = 6
NAMESPACE: Final = 7
REASON: Final = 8
WRAPPED_KEY: Final = 9
SEALED_TREE: Final = 10
SERIALIZED: Final = 11

COLUMNS: Final[dict[int, tuple[str, ...]]] = {
    CUSTOMER_NAME: (),
    THREAD_NAME: ("thread",),
    CHECKPOINT: ("thread", "ns", "checkpoint_id", "parent_id", "run", "source", "step"),
    PART: ("thread",),
    WRITE: ("thread", "ns", "checkpoint_id", "task_id", "idx", "task_path", "channel"),
    ITEM: ("template", "labels", "key", "created_at", "updated_at"),
    NAMESPACE: ("template", "labels"),
    REASON: ("erasure",),
    WRAPPED_KEY: ("store", "slot", "epoch", "key_version"),
    SEALED_TREE: ("store", "key_version"),
    SERIALIZED: (),
}
"""What each table binds behind the fixed elements, in order."""

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD: Final = 1 + NONCE_BYTES + 1 + TAG_BYTES
"""What sealing adds to a plaintext in bytes, without extra padding: version, nonce, one byte of padding, tag."""

MAX_PLAINTEXT: Final = 2**31 - 1 - 32
"""The longest plaintext in bytes: the AEAD takes 2**31 - 1 at once, and a record's overhead fits in 32."""

_FORMAT: Final = 1
_BODY: Final = 1 + NONCE_BYTES
_END: Final = 2**64
_TEXTS: Final = frozenset({bytes, str})
_VERSION: Final = b"\x01"
_PADDING: Final = b"\x80"


def seal(key: bytes, plaintext: bytes, associated: bytes, *, pad_to: int = 1) -> bytes:
    """Seals a record.

    Args:
        key: The record key, 32 bytes.
        plaintext: At most `MAX_PLAINTEXT` bytes.
        associated: What the record is bound to, from `associated_data`.
        pad_to: The padded plaintext's length becomes a multiple of this many bytes, so that lengths can be hidden.

    Returns:
        The sealed record, `OVERHEAD` bytes longer than the plaintext if ``pad_to`` is 1.

    Raises:
        PayloadError: The plaintext is above the limit.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a record key has {KEY_BYTES} bytes, not {len(key)}")
    if pad_to < 1:
        raise ValueError(f"pad_to is {pad_to}; it must be at least 1")
    zeros = -(len(plaintext) + 1) % pad_to
    if len(plaintext) + zeros > MAX_PLAINTEXT:
        raise PayloadError(f"a value of {len(plaintext)} bytes is above the limit of {MAX_PLAINTEXT}; split it")
    padded = plaintext + _PADDING.ljust(1 + zeros, b"\x00")
    nonce = os.urandom(NONCE_BYTES)
    return b"".join((_VERSION, nonce, AESGCM(key).encrypt(nonce, padded, associated)))


def unseal(key: bytes, record: bytes, associated: bytes, where: tuple[object, ...]) -> bytes:
    """Opens a record.

    Args:
        key: The record key, 32 bytes.
        record: What `seal` gave.
        associated: What the record must be bound to.
        where: Table and row for the message of an error, ``("parts", thread, scope, number)``: bytes are shown in hex.
            It must hold nothing that is not stored in the clear.

    Raises:
        FormatError: Not a sealed record, or of a version from the future.
        UnsealError: Altered, moved, truncated, or sealed under another key: one class for every reason.
    """
    if record[:1] != _VERSION:
        start = f"starts with 0x{record[:1].hex()}" if record else "is empty"
        raise FormatError(f"{_place(where)} {start}: not a sealed record of version 1, so it is not read")
    if len(key) != KEY_BYTES:
        raise ValueError(f"a record key has {KEY_BYTES} bytes, not {len(key)}")
    if len(record) >= OVERHEAD:
        try:
            padded = AESGCM(key).decrypt(record[1 : 1 + NONCE_BYTES], memoryview(record)[1 + NONCE_BYTES :], associated)
        except InvalidTag:
            pass
        else:
            padded = padded.rstrip(b"\x00")
            if padded.endswith(_PADDING):
                return padded[:-1]
    raise UnsealError(f"{_place(where)} does not open: altered, moved, or sealed under another key")


def associated_data(
    table: int,
    deployment: bytes,
    customer: bytes,
    generation: int,
    scope: int,
    number: int,
    *columns: bytes | str | int,
) -> bytes:
    """Encodes what a record is bound to.

    It is msgpack of ``[1, deployment, customer, generation, scope, number, table, *columns]``. Injective: the array's
    length is fixed for each table, and bytes, text and numbers are encoded apart. Absent text is ``""`` and absent
    bytes are ``b""``; versions, times and numbers that may be negative are given as decimal strings.

    Args:
        table: A table code of this module.
        deployment: The deployment's id.
        customer: The customer's token.
        generation: The customer's generation.
        scope: The scope of the record key.
        number: The number of the record key.
        columns: One for each name in `COLUMNS`, in that order.

    Raises:
        ValueError: The table has no such code or another number of columns.
        FormatError: An element is no bytes, text or number from 0 to 2**64 - 1: the row is damaged.
    """
    names = COLUMNS.get(table)
    if names is None or len(columns) != len(names):
        raise ValueError(f"table {table} does not bind {len(columns)} columns")
    elements = (_FORMAT, deployment, customer, generation, scope, number, table, *columns)
    # This runs for every record, so the usual row is told at once and any other looked at element by element.
    usual = (
        _TEXTS.issuperset(map(type, columns))
        and type(deployment) is type(customer) is bytes
        and type(generation) is type(scope) is type(number) is int
        and 0 <= (generation | scope | number) < _END
    )
    if not usual:
        _check(table, elements)
    try:
        data: bytes = msgpack.packb(elements)
    except UnicodeEncodeError:
        raise FormatError(f"associated data of table {table}: a text is not valid Unicode") from None
    return data


def _check(table: int, elements: tuple[object, ...]) -> None:
    """Refuses what is no element of associated data: anything but bytes, text and numbers; a bool is no number here."""
    for position, element in enumerate(elements):
        if isinstance(element, (bytes, str)) or (type(element) is int and 0 <= element < _END):
            continue
        raise FormatError(f"associated data of table {table}: element {position} is not what a row can hold")


class Range(NamedTuple):
    """The associated data of records that differ by their number alone. See `associated_range`."""

    before: bytes
    behind: bytes

    def at(self, number: int) -> bytes:
        """What `associated_data` gives for a number, from 0 to 2**64 - 1."""
        packed: bytes = msgpack.packb(number)
        return self.before + packed + self.behind


def associated_range(
    table: int, deployment: bytes, customer: bytes, generation: int, scope: int, *columns: bytes | str | int
) -> Range:
    """As `associated_data`, for every number of a scope at once."""
    whole = associated_data(table, deployment, customer, generation, scope, 0, *columns)
    elements = (_FORMAT, deployment, customer, generation, scope)
    before = whole[:1] + b"".join(map(msgpack.packb, elements))  # every table has fewer than 16 elements: one byte
    return Range(before, whole[len(before) + 1 :])


def unseal_range(
    records: Iterable[tuple[int, bytes, bytes]], associated: Range, where: tuple[object, ...]
) -> dict[int, bytes]:
    """Opens records of one scope, given as number, record and key; all or none.

    Args:
        records: As `unseal` takes them.
        associated: What they must be bound to.
        where: As for `unseal`, without the number.

    Returns:
        Plaintexts by number.

    Raises:
        FormatError, UnsealError: As `unseal`.
    """
    opened: dict[int, bytes] = {}
    before, behind = associated
    pack = msgpack.Packer().pack  # one for all: making one costs more than a number
    for number, record, key in records:
        if len(record) >= OVERHEAD and record[0] == _FORMAT and len(key) == KEY_BYTES:
            try:
                padded = AESGCM(key).decrypt(record[1:_BODY], record[_BODY:], before + pack(number) + behind)
            except InvalidTag:
                padded = b"\x00"
            if padded[-1] == _PADDING[0]:  # nothing hides the length: the usual case
                opened[number] = padded[:-1]
                continue
        opened[number] = unseal(key, record, associated.at(number), (*where, number))
    return opened


def _place(where: tuple[object, ...]) -> str:
    return "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in where)
