"""Values that would be recognised anywhere, in whatever form they were written."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np


def word(label: str) -> str:
    """A text that occurs nowhere else. Its label is in no form of it, so that a hit can be told."""
    return "Zq" + uuid.uuid5(uuid.NAMESPACE_OID, label).hex[:22] + "qZ"


def _base64_forms(data: bytes) -> set[bytes]:
    """What of ``data`` shows in base64, whatever stands before and after it."""
    forms = set()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data + b"\0" * 3)
        forms.add(encoded[-(-8 * shift // 6) : 8 * (shift + len(data)) // 6])  # the digits that data alone decides
    return {form for one in forms for form in (one, one.replace(b"+", b"-").replace(b"/", b"_"))}


def _text_forms(text: str) -> set[bytes]:
    raw = text.encode()
    forms = {raw, text.encode("utf-16-le"), text.encode("utf-16-be"), text.encode("utf-32-le"), quote(text).encode()}
    for one in (raw, text.encode("utf-16-le")):
        forms |= {one.hex().encode(), one.hex().upper().encode(), one[::-1]} | _base64_forms(one)
    return forms


def forms(value: Any) -> set[bytes]:
    """Every byte string whose presence would mean that ``value`` was written in the clear."""
    match value:
        case str():
            return _text_forms(value)
        case bytes():
            return {value, value.hex().encode(), value.hex().upper().encode(), value[::-1]} | _base64_forms(value)
        case bool():
            raise TypeError("nothing can be told from a truth value")
        case int():
            return _text_forms(str(value)) | forms(value.to_bytes(8, "big")) | {value.to_bytes(8, "little")}
        case float():
            return _text_forms(repr(value)) | {struct.pack(">d", value), struct.pack("<d", value)}
        case uuid.UUID():
            return _text_forms(str(value)) | forms(value.bytes) | _text_forms(value.hex)
        case Decimal():
            return _text_forms(str(value))
        case datetime():
            return _text_forms(value.isoformat())
    raise TypeError(type(value).__name__)


def values_of_every_type(label: str) -> dict[str, Any]:
    """One canary for each type, by name."""
    number = uuid.uuid5(uuid.NAMESPACE_OID, label).int
    return {
        f"{label}: text": word(f"{label} text"),
        f"{label}: bytes": uuid.uuid5(uuid.NAMESPACE_OID, f"{label} bytes").bytes,
        f"{label}: int": 2**62 + number % 2**61,
        f"{label}: float": 1e200 + (number % 10**15) * 1e186,
        f"{label}: uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"{label} uuid"),
        f"{label}: decimal": Decimal(number),
        f"{label}: datetime": datetime(2091, 7, 13, 23, 41, 59, 123_000 + number % 999, tzinfo=UTC),
    }


def _starts(data: bytes) -> set[int]:
    """The eight bytes at each offset, as numbers."""
    found: set[int] = set()
    for offset in range(min(8, len(data))):
        found.update(np.frombuffer(data, "<u8", (len(data) - offset) // 8, offset).tolist())
    return found


def search(places: Mapping[str, bytes], canaries: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Which canary is found where: pairs of label and place."""
    wanted = [(label, form) for label, value in canaries.items() for form in forms(value)]
    assert min(len(form) for _, form in wanted) >= 8
    found = set()
    for place, data in places.items():
        # Most forms begin with eight bytes that occur nowhere: only the others are looked for at length.
        starts = _starts(data)
        for label, form in wanted:
            if int.from_bytes(form[:8], "little") in starts and form in data:
                found.add((label, place))
    return found


def labels(found: Iterable[tuple[str, str]]) -> set[str]:
    return {label for label, _ in found}
