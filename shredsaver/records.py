"""What is inside a sealed record: plaintexts of checkpoints and pending writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from shredsaver.errors import FormatError
from shredsaver.manifest import Entry, pack_manifest, unpack_manifest

Typed = tuple[str, bytes]
"""A serialised value: the serializer's type tag and its bytes."""


class CheckpointRecord(NamedTuple):
    """A checkpoint without its channel values, its metadata, and where the values are."""

    checkpoint: Typed
    metadata: Typed
    manifest: Mapping[str, Entry]


def pack_checkpoint(record: CheckpointRecord) -> bytes:
    """Encodes ``[checkpoint tag, checkpoint, metadata tag, metadata, manifest]``."""
    packed: bytes = msgpack.packb((*record.checkpoint, *record.metadata, pack_manifest(record.manifest)))
    return packed


def unpack_checkpoint(data: bytes) -> CheckpointRecord:
    """Decodes what `pack_checkpoint` gave.

    Raises:
        FormatError: It is anything else.
    """
    match unpack(data):
        case [str() as tag, bytes() as checkpoint, str() as metadata_tag, bytes() as metadata, manifest]:
            return CheckpointRecord((tag, checkpoint), (metadata_tag, metadata), unpack_manifest(manifest))
    raise FormatError("a checkpoint record opens to something that is no checkpoint")


def pack_write(entry: Entry) -> bytes:
    """Encodes where a pending write's value is."""
    packed: bytes = msgpack.packb(entry)
    return packed


def unpack_write(data: bytes) -> Entry:
    """Decodes what `pack_write` gave.

    Raises:
        FormatError: It is anything else.
    """
    return unpack_manifest({"": unpack(data)})[""]


def unpack(data: bytes) -> Any:
    """Decodes the msgpack inside a record; text may hold lone surrogates.

    Raises:
        FormatError: It is none.
    """
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass")
    except ValueError:  # every error of msgpack's about malformed or oversized input is one
        raise FormatError("a record opens to bytes that are no msgpack") from None
