"""Serialised values to parts and back.

A value is serialised whole by the checkpointer's serializer and then cut as bytes, so its meaning is the serializer's,
and joining its parts gives the same bytes back. The rules:

1. A msgpack array or map is cut between its elements (a map's element is a key with its value); so is the one in
   LangGraph's snapshot of a delta channel. The header goes into the manifest. Any other value is one element, and so
   is an array of nothing but numbers.
2. An element of `ELEMENT_PART` bytes or more is a part of its own, wherever it stands and however small the value
   around it: every chat message is that long, so a message is one part in every checkpoint and write that holds it,
   and can be erased from all of them at once.
3. Smaller elements between such parts are grouped to about `GROUP_SIZE` bytes. Only a value that has no element of
   rule 2 is inline, in the manifest itself, while it is under 256 bytes in all.

A new version of a value reuses the parts of the one before: the longest equal beginning and end are found by comparing
bytes (one `memcmp` for an appended message), elements that only moved are found by content. Any cut joins to the same
bytes, so reuse is decided by bytes alone and never by what they mean.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from shredsaver.elements import ELEMENT_PART, GROUP_SIZE, Shape, ends_of, is_group, shape_of
from shredsaver.errors import PayloadError
from shredsaver.manifest import (
    INLINE_LIMIT,
    LENGTH_LIMIT,
    PART_START,
    Entry,
    extend,
    index,
    needed,
    pack_manifest,
    resolve,
    runs,
    shortened,
    unpack_manifest,
)

__all__ = ["PART_START", "Entry", "Value", "join", "needed", "pack_manifest", "split", "unpack_manifest"]

_NO_INDEXES: Final[Mapping[bytes, int]] = {}


@dataclass(slots=True, eq=False)  # not frozen, which would cost as much as all else here: nobody changes one
class Value:
    """A serialised channel value with where its parts are. Its repr shows no payload.

    Attributes:
        tag: The serializer's type tag: ``"msgpack"``, ``"bytes"``, ``"null"``, ``"pickle"``, …
        data: The whole serialised bytes.
        entry: What the manifest keeps.
        bounds: Where each part ends, in bytes after the header; empty for an inline value.
        numbers: Each part's number.
        indexed: How many of the parts are named by index parts.
        indexes: The index parts, by content.
    """

    tag: str
    data: bytes = field(repr=False)
    entry: Entry
    bounds: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    numbers: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    indexed: int = field(default=0, repr=False)
    indexes: Mapping[bytes, int] = field(default_factory=lambda: _NO_INDEXES, repr=False)


class _Kept(NamedTuple):
    """Parts of the previous version that stay, at the beginning and at the end, and the bytes of the new between."""

    head: int
    tail: int
    start: int
    stop: int


def split(
    tag: str, data: bytes | bytearray, previous: Value | None, known: Mapping[bytes, int], next_part: int
) -> tuple[Value, list[bytes]]:
    """Cuts a value, reusing what exists.

    Args:
        tag: The serializer's type tag.
        data: The serialised value; a ``bytearray`` is copied.
        previous: The channel's previous version, whose parts are reused.
        known: Other parts that may be reused (those of pending writes), content to number.
        next_part: The number of the first new part.

    Returns:
        The value, and its new parts: they take the numbers ``next_part``, ``next_part + 1``, … without gaps.

    Raises:
        PayloadError: The value is above 2**31 - 1 bytes.
    """
    if len(data) > LENGTH_LIMIT:
        msg = f"A value of {len(data)} bytes is above the limit of {LENGTH_LIMIT}. Keep a reference to it in the state."
        raise PayloadError(msg)
    data = bytes(data)
    if previous is not None and previous.tag == tag and previous.data == data:
        return previous, []
    shape = shape_of(data) if tag == "msgpack" and len(data) >= ELEMENT_PART else None
    if _is_inline(data, shape):
        return Value(tag, data, Entry((tag, data))), []
    cutter = _Cutter(tag, data, previous, known, next_part)
    if shape is not None:
        kept, ends = _compared(data, shape, previous)
        if ends is not None:
            return cutter.cut(shape.header, kept, ends)
    return cutter.cut(0, _Kept(0, 0, 0, len(data)), [len(data)])


def join(entry: Entry, parts: Mapping[int, bytes]) -> Value:
    """Puts a value together from its parts, those that `needed` asked for.

    Raises:
        LookupError: A part is missing; the argument is its number.
        ValueError: The parts do not make up the value that the entry speaks of.
    """
    if entry.inline:
        return Value(entry.tag, entry.header, entry)
    ranges, indexed, indexes = resolve(entry, parts)
    numbers = array("Q")
    pieces: list[bytes] = []
    for run in runs(ranges):
        pieces += map(parts.__getitem__, run)  # stops at the first that is missing, however many are named
        numbers.extend(run)
    bounds = array("Q", accumulate(map(len, pieces)))
    if len(entry.header) + bounds[-1] != entry.length:
        msg = f"{len(pieces)} parts hold {bounds[-1]} bytes where {entry.length - len(entry.header)} belong"
        raise ValueError(msg)
    return Value(entry.tag, b"".join([entry.header, *pieces]), entry, bounds, numbers, indexed, indexes)


class _Cutter:
    """One split: collects new parts and gives them numbers."""

    def __init__(
        self, tag: str, data: bytes, previous: Value | None, known: Mapping[bytes, int], next_part: int
    ) -> None:
        self.tag = tag
        self.data = data
        self.previous = previous
        self.known = known
        self.next_part = next_part
        self.new: list[bytes] = []

    def add(self, content: bytes) -> int:
        self.new.append(content)
        return self.next_part + len(self.new) - 1

    def cut(self, header: int, kept: _Kept, ends: list[int]) -> tuple[Value, list[bytes]]:
        """Makes the value whose parts between those kept end at ``ends``, in bytes of the data."""
        old = self.previous
        fresh = self.numbers(kept, ends)
        if old is None or not (kept.head or kept.tail):
            bounds, numbers = array("Q"), array("Q", fresh)
            bounds.extend([end - header for end in ends])
        else:
            bounds, numbers = old.bounds[: kept.head], old.numbers[: kept.head]
            bounds.extend([end - header for end in ends])
            numbers.extend(fresh)
            if kept.tail:
                stop = len(old.bounds) - kept.tail
                shift = len(self.data) - header - old.bounds[-1]
                bounds.extend([end + shift for end in old.bounds[stop:]])
                numbers.extend(old.numbers[stop:])
        if old is not None and not kept.tail and kept.head > old.indexed:
            indexed, indexes = old.indexed, old.indexes
            levels = [list(ranges) for ranges in old.entry.levels]
            if kept.head < len(old.bounds):
                levels[0] = shortened(levels[0], kept.head - indexed)
            extend(levels[0], fresh)
        else:
            indexed, indexes = 0, _NO_INDEXES
            levels = [[]]
            extend(levels[0], numbers)
        moved, filled = index(levels, old.indexes if old is not None else _NO_INDEXES, self.add)
        indexes = {**indexes, **filled} if filled else indexes
        entry = Entry((self.tag, self.data[:header], len(self.data), *map(tuple, levels)))
        return Value(self.tag, self.data, entry, bounds, numbers, indexed + moved, indexes), self.new

    def numbers(self, kept: _Kept, ends: list[int]) -> list[int]:
        """The numbers of the pieces that end at ``ends``: of equal parts that exist, or new ones."""
        movable = self.movable(kept) if ends else {}
        numbers: list[int] = []
        start = kept.start
        for end in ends:
            content = self.data[start:end]
            number = movable.get(content)
            if number is None:
                number = self.known.get(content)
            if number is None:
                number = movable[content] = self.add(content)
            numbers.append(number)
            start = end
        return numbers

    def movable(self, kept: _Kept) -> dict[bytes, int]:
        """The previous version's other parts by content: an element that is not where it was may only have moved."""
        old = self.previous
        if old is None or kept.head + kept.tail == len(old.bounds):
            return {}
        header = len(old.data) - old.bounds[-1]
        start = header + (old.bounds[kept.head - 1] if kept.head else 0)
        found: dict[bytes, int] = {}
        for i in range(kept.head, len(old.bounds) - kept.tail):
            end = header + old.bounds[i]
            found[old.data[start:end]] = old.numbers[i]
            start = end
        return found


def _is_inline(data: bytes, shape: Shape | None) -> bool:
    if len(data) < ELEMENT_PART:
        return True
    if len(data) >= INLINE_LIMIT or shape is None:
        return False
    ends = ends_of(data, shape.header, len(data), shape.step)
    return ends is not None and len(ends) == 1 and is_group(data, shape.header, shape.step)


def _compared(data: bytes, shape: Shape, previous: Value | None) -> tuple[_Kept, list[int] | None]:
    """What stays of the previous version, and where the pieces between end; None if they are no msgpack elements."""
    nothing = _Kept(0, 0, shape.header, len(data))
    if previous is None or not previous.bounds or not previous.entry.header:
        return nothing, ends_of(data, shape.header, len(data), shape.step)
    before = shape_of(previous.data)
    if before is None or before.step != shape.step:
        return nothing, ends_of(data, shape.header, len(data), shape.step)
    kept = _equal(data, shape.header, previous)
    ends = ends_of(data, kept.start, kept.stop, shape.step)
    if ends is None and kept.tail:
        # The end is equal by bytes, but begins inside an element of the new value.
        kept = kept._replace(tail=0, stop=len(data))
        ends = ends_of(data, kept.start, kept.stop, shape.step)
    if ends and kept.head:
        kept = _regrouped(data, shape.step, previous, kept, ends[0])
    return kept, ends


def _equal(data: bytes, header: int, previous: Value) -> _Kept:
    """Compares by whole parts, from both sides."""
    bounds = previous.bounds
    parts = len(bounds)
    old = memoryview(previous.data)[len(previous.entry.header) :]
    if data.startswith(old, header):  # the usual case: something was appended
        return _Kept(parts, 0, header + bounds[-1], len(data))
    shift = len(data) - header - bounds[-1]

    def begins(least: int, most: int) -> bool:
        first, last = bounds[least - 1] if least else 0, bounds[most - 1]
        return data.startswith(old[first:last], header + first)

    head = _most(parts, begins)
    start = bounds[head - 1] if head else 0

    def ends(least: int, most: int) -> bool:
        first, last = bounds[parts - most - 1] if most < parts else 0, bounds[parts - least - 1]
        return first + shift >= start and data.startswith(old[first:last], header + first + shift)

    tail = _most(parts - head, ends)
    stop = bounds[parts - tail - 1] + shift if tail < parts else shift
    return _Kept(head, tail, header + start, header + stop)


def _most(count: int, holds: Callable[[int, int], bool]) -> int:
    """The most parts up to ``count`` that are equal, where ``holds(m, n)`` says whether parts m to n are."""
    least = 0
    if count and holds(0, count):
        return count
    while least < count:
        middle = (least + count + 1) // 2
        if holds(least, middle):
            least = middle
        else:
            count = middle - 1
    return least


def _regrouped(data: bytes, step: int, previous: Value, kept: _Kept, end: int) -> _Kept:
    """Merges the groups before a new group into it, as a binary counter carries.

    So a list of small elements that grows one by one is read back from few parts, while each element is written again
    no more than a logarithm of times.
    """
    header = kept.start - previous.bounds[kept.head - 1]
    head, start = kept.head, kept.start
    while head:
        begin = header + (previous.bounds[head - 2] if head > 1 else 0)
        if end - begin > GROUP_SIZE or start - begin > end - start:
            break
        if not (is_group(data, begin, step) and is_group(data, start, step)):
            break
        head, start = head - 1, begin
    return kept._replace(head=head, start=start)
