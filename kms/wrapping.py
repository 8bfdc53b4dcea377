"""Wrapping customers' keys under a root and sealing secrets under those: pure, over the record format of `sealing`."""

from __future__ import annotations

import hmac
import os
from typing import Final, NamedTuple

import msgpack

from shredsaver import sealing
from shredsaver.errors import UnsealError

KEY_BYTES: Final = sealing.KEY_BYTES
ZEROS: Final = bytes(32)

_TOMBSTONE_LABEL: Final = b"shredsaver/v1/tombstone"


class Store(NamedTuple):
    """The key store that rows belong to: its own random id, and the deployment's."""

    store: bytes
    deployment: bytes


class Wrapped(NamedTuple):
    """A row of ``key_wraps``: where the wrapped key stands, and the bytes."""

    slot: int
    customer: bytes
    generation: int
    epoch: int
    key_version: int
    wrapped: bytes


def new_key() -> bytes:
    """A random key-encrypting key, 32 bytes."""
    return os.urandom(KEY_BYTES)


def wrap(store: Store, root: bytes, key: bytes, row: Wrapped) -> Wrapped:
    """The row with ``key`` wrapped under ``root``, bound to everything else the row says."""
    return row._replace(wrapped=sealing.seal(root, key, _key_data(store, row)))


def unwrap(store: Store, root: bytes, row: Wrapped) -> bytes:
    """The key of a row.

    Raises:
        UnsealError: The row was altered, moved, or wrapped under another root.
        FormatError: It is no wrapped key.
    """
    where = ("key_wraps", row.customer, row.generation)
    key = sealing.unseal(root, row.wrapped, _key_data(store, row), where)
    if len(key) != KEY_BYTES:
        raise UnsealError(f"key_wraps/{row.customer.hex()}/{row.generation} does not hold a key of {KEY_BYTES} bytes")
    return key


def seal_secret(store: Store, key: bytes, row: Wrapped, secret: bytes) -> bytes:
    """Seals a customer's secret under the customer's key, bound to customer, generation and version."""
    return sealing.seal(key, secret, _tree_data(store, row))


def unseal_secret(store: Store, key: bytes, row: Wrapped, sealed: bytes) -> bytes:
    """Opens a customer's secret.

    Raises:
        UnsealError, FormatError: It is not the secret of that row.
    """
    return sealing.unseal(key, sealed, _tree_data(store, row), ("key_trees", row.customer, row.generation))


class Entry(NamedTuple):
    """A row of ``key_tombstones``; the epochs are 0 where nothing was ever wrapped."""

    seq: int
    customer: bytes
    generation: int
    at: str
    known: int
    slot: int
    first_epoch: int
    last_epoch: int
    chain: bytes


def chain(log_key: bytes, before: bytes, entry: Entry) -> bytes:
    """The chain value of an entry: HMAC-SHA-256 (RFC 2104) over the one before and all that the entry says."""
    said = msgpack.packb([before, *entry[:-1]])
    return hmac.digest(log_key, _TOMBSTONE_LABEL + said, "sha256")


def chained(log_key: bytes, before: bytes, entry: Entry) -> bool:
    """Whether an entry follows the one whose chain value is ``before``."""
    return hmac.compare_digest(chain(log_key, before, entry), entry.chain)


def _key_data(store: Store, row: Wrapped) -> bytes:
    return sealing.associated_data(
        sealing.WRAPPED_KEY,
        store.deployment,
        row.customer,
        row.generation,
        0,
        0,
        store.store,
        row.slot,
        row.epoch,
        str(row.key_version),
    )


def _tree_data(store: Store, row: Wrapped) -> bytes:
    return sealing.associated_data(
        sealing.SEALED_TREE,
        store.deployment,
        row.customer,
        row.generation,
        0,
        0,
        store.store,
        str(row.key_version),
    )
