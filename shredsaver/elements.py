"""Where the elements of a msgpack container begin and end, and which of them make up a piece.

Bytes are only skipped over, never decoded: nothing here depends on what a value means, or can be made to build one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

ELEMENT_PART: Final = 128
"""Bytes from which an element is a piece of its own."""

GROUP_SIZE: Final = 1024
"""Bytes at which a group of smaller elements is full."""

_MAP: Final = 2

# Bytes of the header and values an element takes, by the header's first byte (arrays and maps of the msgpack format).
_HEADERS: Final = {
    **dict.fromkeys(range(0x90, 0xA0), (1, 1)),
    **dict.fromkeys(range(0x80, 0x90), (1, _MAP)),
    0xDC: (3, 1),
    0xDD: (5, 1),
    0xDE: (3, _MAP),
    0xDF: (5, _MAP),
}
# Width of the length of an extension value, by its first byte, and the type of LangGraph's delta channel snapshot:
# a serialised value of its own, nothing before it and nothing behind.
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_DELTA_SNAPSHOT: Final = 7

# Bytes that a number, boolean or nil takes, by its first byte.
_NUMBERS: Final = {
    **dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], 1),
    **dict(zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True)),
}
_WIDEST_NUMBER: Final = 9


class Shape(NamedTuple):
    """A container that is worth cutting.

    Attributes:
        header: Bytes before the first element.
        step: Values that an element takes: 1 in an array, 2 in a map.
    """

    header: int
    step: int


def shape_of(data: bytes) -> Shape | None:
    """The container that serialised bytes are, or None: no container, or an array of nothing but numbers."""
    at = 0
    width = _EXTENSIONS.get(data[0])
    if width and data[1 + width] == _DELTA_SNAPSHOT:
        at = 2 + width
    found = _HEADERS.get(data[at])
    if found is None:
        return None
    size, step = found
    header = at + size
    if step == 1:
        count = data[at] & 0x0F if size == 1 else int.from_bytes(data[at + 1 : header])
        if len(data) - header <= _WIDEST_NUMBER * count and _only_numbers(data, header):
            return None
    return Shape(header, step)


def ends_of(data: bytes, start: int, stop: int, step: int) -> list[int] | None:
    """Where the pieces of the elements between two offsets end; None when the bytes there are no whole elements."""
    size = stop - start
    if size <= 0:
        return []
    unpacker = msgpack.Unpacker(None, max_buffer_size=size)
    unpacker.feed(memoryview(data)[start:stop])
    skip, tell = unpacker.skip, unpacker.tell
    ends: list[int] = []
    piece = element = 0
    try:
        while element < size:
            skip()
            if step == _MAP:
                skip()
            end = tell()
            if end - element >= ELEMENT_PART:
                if piece < element:
                    ends.append(start + element)
                ends.append(start + end)
                piece = end
            elif end - piece >= GROUP_SIZE:
                ends.append(start + end)
                piece = end
            element = end
    except (msgpack.UnpackException, ValueError):
        return None
    if piece < size:
        ends.append(stop)
    return ends


def is_group(data: bytes, at: int, step: int) -> bool:
    """Whether the piece that begins there is a group: its first element is a small one."""
    unpacker = msgpack.Unpacker(None, max_buffer_size=ELEMENT_PART)
    unpacker.feed(memoryview(data)[at : at + ELEMENT_PART])
    try:
        for _ in range(step):
            unpacker.skip()
    except (msgpack.UnpackException, ValueError):
        return False
    small: bool = unpacker.tell() < ELEMENT_PART
    return small


def _only_numbers(data: bytes, at: int) -> bool:
    size = _NUMBERS.get
    while at < len(data):
        width = size(data[at])
        if width is None:
            return False
        at += width
    return True
