"""The manifest of a checkpoint: for every value either its bytes, or where its parts are.

An entry is plain data for msgpack, in one of two forms:

    inline   (tag, data)
    cut      (tag, header, length, ranges, index ranges, index ranges of the index, …)

Ranges are flat: first, count, first, count, …; they name part numbers in the order of the value. A conversation whose
parts are interleaved with others' gets a new range a turn, and a manifest that names them all in every checkpoint grows
with the square of the turns. So when there are more than `RANGES_KEPT`, the oldest `RANGES_INDEXED` become the content
of an *index part*, and the entry names that part one level up, where the same happens again. An entry thus stays within
`RANGES_KEPT` ranges a level, and all index parts together grow with the number of turns.

The order of a value is: what the topmost level's parts name, expanded level by level, each followed by that level's own
ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NoReturn

import msgpack

from shredsaver.errors import FormatError

PART_START: Final = 16
"""The first number a part can have: 0 to 15 of every scope are reserved."""

NUMBER_END: Final = 2**32
"""One above the last number a part can have."""

INLINE_LIMIT: Final = 256
"""Bytes from which no value is inline."""

LENGTH_LIMIT: Final = 2**31 - 1
"""Bytes a value can have at most."""

RANGES_KEPT: Final = 32
"""Ranges an entry names itself, at each level, before the oldest move into an index part."""

RANGES_INDEXED: Final = 28
"""Ranges that move into one index part. What stays is what the next changes touch most."""

_INLINE_FIELDS: Final = 2
_CUT_FIELDS: Final = 3  # before the levels
_HEADER_LIMIT: Final = 16
_LEVELS_LIMIT: Final = 8
_INDEX_MARK: Final = b"\xc1"  # no msgpack value begins with it, so no element of a value is ever taken for an index

Ranges = Sequence[int]


class Entry(tuple[Any, ...]):
    """What the manifest keeps of one value; see the module for its two forms. Its repr shows no payload."""

    __slots__ = ()

    @property
    def tag(self) -> str:
        """The serializer's type tag."""
        tag: str = self[0]
        return tag

    @property
    def inline(self) -> bool:
        """Whether the entry holds the value itself."""
        return len(self) == _INLINE_FIELDS

    @property
    def header(self) -> bytes:
        """The container's header, empty when one part is the whole value; the data of an inline value."""
        header: bytes = self[1]
        return header

    @property
    def length(self) -> int:
        """Bytes of the whole value."""
        length: int = len(self[1]) if self.inline else self[2]
        return length

    @property
    def levels(self) -> Sequence[Ranges]:
        """The value's own ranges, then those of each level of index parts; empty for an inline value."""
        return self[_CUT_FIELDS:]

    def __repr__(self) -> str:
        return f"Entry({self.tag!r}, {self.length} bytes, {'inline' if self.inline else 'cut'})"


def needed(entry: Entry, have: Mapping[int, bytes] | None = None) -> list[range]:
    """What must be fetched next before `shredsaver.parts.join` can put the value together.

    Call it again with what came, until it gives nothing: one round suffices without index parts, and one more for each
    of their levels.

    Args:
        entry: The value's entry.
        have: Parts already at hand (a cache, or earlier rounds).

    Returns:
        Ranges of part numbers, ascending, disjoint and not touching.

    Raises:
        ValueError: An index part in ``have`` is none, or names more parts than the value can have.
    """
    parts: Mapping[int, bytes] = have or {}
    wanted: list[tuple[int, int]] = []
    inner: Ranges = ()
    for depth in reversed(range(len(entry.levels))):
        ranges = [*inner, *entry.levels[depth]]
        wanted += _absent(ranges, parts)
        if depth:
            inner = _inner(_present(ranges, parts), entry.length, parts.__getitem__)
    return _merged(wanted)


def resolve(entry: Entry, parts: Mapping[int, bytes]) -> tuple[Ranges, int, dict[bytes, int]]:
    """Opens a cut value's index parts.

    Returns:
        The ranges of the value's parts in order; how many of them index parts name; the index parts by content.

    Raises:
        LookupError: An index part is missing; the argument is its number.
        ValueError: An index part is none, or names more parts than the value can have.
    """
    indexes: dict[bytes, int] = {}

    def fetch(number: int) -> bytes:
        content = parts[number]
        indexes[content] = number
        return content

    inner: Ranges = ()
    for depth in reversed(range(1, len(entry.levels))):
        inner = _inner(chain.from_iterable(runs([*inner, *entry.levels[depth]])), entry.length, fetch)
    return [*inner, *entry.levels[0]], sum(inner[1::2]), indexes


def runs(ranges: Ranges) -> Iterator[range]:
    """The part numbers that flat ranges name, range by range, in order."""
    return (range(first, first + count) for first, count in zip(ranges[::2], ranges[1::2], strict=True))


def extend(ranges: list[int], numbers: Iterable[int]) -> None:
    """Adds part numbers at the end of flat ranges, lengthening the last one where they follow it."""
    end = ranges[-2] + ranges[-1] if ranges else -1
    for number in numbers:
        if number == end:
            ranges[-1] += 1
        else:
            ranges += (number, 1)
        end = number + 1


def shortened(ranges: Ranges, count: int) -> list[int]:
    """The flat ranges of the first ``count`` numbers."""
    kept: list[int] = []
    for i in range(0, len(ranges), 2):
        if count <= 0:
            break
        kept += (ranges[i], min(ranges[i + 1], count))
        count -= ranges[i + 1]
    return kept


def index(
    levels: list[list[int]], existing: Mapping[bytes, int], add: Callable[[bytes], int]
) -> tuple[int, dict[bytes, int]]:
    """Moves the oldest ranges of levels that have grown too long into index parts. Changes ``levels``.

    Args:
        levels: The value's own ranges, then those of each level of index parts.
        existing: Index parts of the previous version by content, to be used again.
        add: Makes a new part of some bytes and gives its number.

    Returns:
        How many further parts of the value index parts now name, and the index parts that were filled, by content.
    """
    moved = 0
    filled: dict[bytes, int] = {}
    depth = 0
    while depth < len(levels):
        ranges = levels[depth]
        while len(ranges) > 2 * RANGES_KEPT:
            oldest = ranges[: 2 * RANGES_INDEXED]
            del ranges[: 2 * RANGES_INDEXED]
            content = _INDEX_MARK + msgpack.packb(oldest)
            if content not in filled:
                number = existing.get(content)
                filled[content] = add(content) if number is None else number
            if depth + 1 == len(levels):
                levels.append([])
            extend(levels[depth + 1], (filled[content],))
            moved += 0 if depth else sum(oldest[1::2])
        depth += 1
    return moved, filled


def pack_manifest(entries: Mapping[str, Entry]) -> object:
    """A manifest as plain data for msgpack: a map from channel to entry."""
    return dict(entries)


def unpack_manifest(obj: object) -> dict[str, Entry]:
    """Reads what `pack_manifest` gave, after msgpack. Takes memory in proportion to ``obj``, whatever numbers it names.

    Raises:
        FormatError: It is no manifest. The message shows no payload.
    """
    if not isinstance(obj, dict):
        msg = f"A manifest is a map, not {type(obj).__name__}. The record was written by something else."
        raise FormatError(msg)
    entries: dict[str, Entry] = {}
    for position, (channel, fields) in enumerate(obj.items()):
        try:
            if type(channel) is not str:
                _refuse("the channel's name is no text")
            entries[channel] = _entry(fields)
        except ValueError as error:
            msg = f"Entry {position} of a manifest is malformed: {error}. The record was written by something else."
            raise FormatError(msg) from None
    return entries


def _entry(fields: object) -> Entry:
    if not isinstance(fields, list | tuple) or not (
        len(fields) == _INLINE_FIELDS or 1 <= len(fields) - _CUT_FIELDS <= _LEVELS_LIMIT
    ):
        _refuse("an entry has two fields, or four and more")
    tag, head, *rest = fields
    if type(tag) is not str or type(head) is not bytes:
        _refuse("tag and header or data are text and bytes")
    if not rest:
        if len(head) >= INLINE_LIMIT:
            _refuse("an inline value is too long")
        return Entry((tag, head))
    length, *levels = rest
    if type(length) is not int or not len(head) < length <= LENGTH_LIMIT or len(head) > _HEADER_LIMIT:
        _refuse("length and header do not fit")
    room = length - len(head)
    checked = tuple(_ranges(ranges, room) for ranges in levels)
    if not head and (len(checked) > 1 or checked[0][1:] != (1,)):
        _refuse("a value without a header is one part")
    return Entry((tag, head, length, *checked))


def _ranges(obj: object, room: int) -> tuple[int, ...]:
    """Checks flat ranges that may name ``room`` parts at most."""
    if not isinstance(obj, list | tuple) or not obj or len(obj) % 2 or any(type(number) is not int for number in obj):
        _refuse("ranges are pairs of integers")
    end = -1
    for first, count in zip(obj[::2], obj[1::2], strict=True):
        if first < PART_START or count < 1 or first + count > NUMBER_END or first == end:
            _refuse("a range is empty, out of bounds, or continues the one before")
        end = first + count
        room -= count
    if room < 0:
        _refuse("the ranges name more parts than the value has bytes")
    return tuple(obj)


def _present(ranges: Ranges, parts: Mapping[int, bytes]) -> Iterator[int]:
    """The numbers of flat ranges that are at hand, without a walk over all that a range claims."""
    for run in runs(ranges):
        yield from (n for n in run if n in parts) if len(run) <= len(parts) else sorted(n for n in parts if n in run)


def _inner(numbers: Iterable[int], room: int, fetch: Callable[[int], bytes]) -> list[int]:
    """The ranges that index parts hold, joined."""
    inner: list[int] = []
    for number in numbers:
        content = fetch(number)
        found = _unindexed(content, room)
        room -= sum(found[1::2])
        inner += found
    return inner


def _unindexed(content: bytes, room: int) -> tuple[int, ...]:
    if content[:1] != _INDEX_MARK:
        _refuse("a part that should be an index is none")
    try:
        obj = msgpack.unpackb(content[1:])
    except (msgpack.UnpackException, ValueError):
        obj = None
    return _ranges(obj, room)


def _absent(ranges: Ranges, have: Mapping[int, bytes]) -> Iterator[tuple[int, int]]:
    """What is not in ``have``, as (first, end)."""
    for run in runs(ranges):
        if not have:
            yield run.start, run.stop
            continue
        start = run.start
        for number in run:
            if number in have:
                if start < number:
                    yield start, number
                start = number + 1
        if start < run.stop:
            yield start, run.stop


def _merged(wanted: list[tuple[int, int]]) -> list[range]:
    merged: list[range] = []
    for first, end in sorted(wanted):
        if merged and first <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(end, merged[-1].stop))
        else:
            merged.append(range(first, end))
    return merged


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
