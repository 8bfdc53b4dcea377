"""Manifests: small however long a conversation gets, and refused when they are none."""

from __future__ import annotations

import copy
import tracemalloc
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shredsaver.errors import FormatError
from shredsaver.manifest import LENGTH_LIMIT, RANGES_KEPT, extend, runs, shortened
from shredsaver.parts import Entry, join, needed, pack_manifest, split, unpack_manifest
from tests.support.channels import INDEX_MARK, Channel, contents


def element(number: int) -> bytes:
    packed: bytes = msgpack.packb(f"{number:06d} " * 20)
    return packed


def appended(turns: int, each: int = 1, gap: int = 1) -> tuple[Channel, list[int]]:
    """A channel that grew by ``each`` elements a turn, other parts between; the size of its manifest after each."""
    channel = Channel(gap)
    body = b""
    sizes = []
    for turn in range(1, turns + 1):
        body += b"".join(element(number) for number in range((turn - 1) * each, turn * each))
        value, new = split("msgpack", b"\xdd" + (turn * each).to_bytes(4) + body, channel.value, {}, channel.next)
        assert len(contents(new)) == each
        channel.parts.update(enumerate(new, channel.next))
        channel.next += len(new) + gap
        channel.value = value
        sizes.append(len(msgpack.packb(pack_manifest({"messages": value.entry}))))
    return channel, sizes


def current(channel: Channel) -> Entry:
    assert channel.value is not None
    return channel.value.entry


def test_manifest_stays_small_over_two_thousand_turns_with_gaps() -> None:
    channel, sizes = appended(2000)
    assert channel.value is not None
    channel.check(channel.value, "msgpack", channel.value.data)
    assert max(sizes) <= 512
    levels = current(channel).levels
    assert len(levels) == 3
    assert all(len(ranges) <= 2 * RANGES_KEPT for ranges in levels)
    index = {number: part for number, part in channel.parts.items() if part.startswith(INDEX_MARK)}
    assert sum(map(len, index.values())) <= 10 * 2000
    assert sum(sizes[:1000]) * 2.5 > sum(sizes)


def test_reading_takes_a_round_for_each_level() -> None:
    channel, _ = appended(1000, each=2)
    entry = current(channel)
    have: dict[int, bytes] = {}
    rounds = []
    while ranges := needed(entry, have):
        assert all(one.stop < two.start for one, two in pairwise(ranges))
        rounds.append(ranges)
        have |= {number: channel.parts[number] for run in ranges for number in run}
    assert len(rounds) == len(entry.levels) == 3
    assert join(entry, have).data == channel.value.data if channel.value else False
    used = {number for ranges in rounds for run in ranges for number in run}
    assert used == have.keys()


@pytest.mark.parametrize("kept", [1999, 1000, 950, 100, 20])
def test_changes_far_back_keep_the_index_before_them(kept: int) -> None:
    channel, _ = appended(2000)
    body = b"".join(element(number) for number in range(kept))
    data = b"\xdd" + (kept + 1).to_bytes(4) + body + element(9999)
    before = {number for number, part in channel.parts.items() if part.startswith(INDEX_MARK)}
    new = channel.put(data)
    assert len(contents(new)) == 1
    assert len(new) <= 3
    assert channel.value is not None
    assert len(before & set(channel.value.indexes.values())) >= kept // 28 - 2


def test_a_channel_read_back_goes_on_as_the_one_in_memory() -> None:
    channel, _ = appended(1200)
    value = channel.value
    assert value is not None
    again = channel.read(value.entry)
    assert (again.bounds, again.numbers, again.indexed) == (value.bounds, value.numbers, value.indexed)
    data = b"\xdd" + (1201).to_bytes(4) + value.data[5:] + element(5000)
    assert split("msgpack", data, again, {}, 9000)[1] == split("msgpack", data, value, {}, 9000)[1] == [element(5000)]


def test_a_value_that_repeats_itself_repeats_no_index_part() -> None:
    channel, _ = appended(3, gap=1)
    body = channel.value.data[5:] * 1000 if channel.value else b""
    new = channel.put(b"\xdd" + (3000).to_bytes(4) + body)
    assert len(contents(new)) <= 3
    assert len(set(new)) == len(new)
    entry = current(channel)
    named = {number for ranges in entry.levels[1:] for run in runs(ranges) for number in run}
    assert channel.value is not None
    assert named <= set(channel.value.indexes.values())


@given(st.lists(st.integers(16, 40), max_size=60), st.integers(0, 60))
def test_ranges_name_the_numbers_they_were_made_of(numbers: list[int], count: int) -> None:
    ranges: list[int] = []
    extend(ranges, numbers[:30])
    extend(ranges, numbers[30:])
    assert [number for run in runs(ranges) for number in run] == numbers
    assert [number for run in runs(shortened(ranges, count)) for number in run] == numbers[:count]
    assert all(one.stop != two.start for one, two in pairwise(runs(ranges)))


# --- what is no manifest ------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "inline": ["msgpack", b"\x01"],
    "null": ["null", b""],
    "whole": ["bytes", b"", 5000, [16, 1]],
    "cut": ["msgpack", b"\x94", 4000, [17, 3, 40, 1]],
    "indexed": ["msgpack", b"\xdc\x01\x00", 400_000, [900, 20, 16, 4], [950, 1], [1000, 2, 4, 1][:2]],
}


def changed(name: str, *path: int, to: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(GOOD)
    place = manifest[name]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return manifest


NO_ENTRIES: tuple[Any, ...] = (None, 1, "ab", b"ab", {}, [], ["msgpack"], ["msgpack", b"", 5000])

MALFORMED: list[Any] = [
    None,
    [],
    b"",
    "text",
    {1: ["msgpack", b""]},
    {b"channel": ["msgpack", b""]},
    *({"a": entry} for entry in NO_ENTRIES),
    changed("inline", 0, to=b"msgpack"),
    changed("inline", 0, to=None),
    changed("inline", 1, to="text"),
    changed("inline", 1, to=bytearray(b"x")),
    changed("inline", 1, to=b"x" * 256),
    changed("whole", 3, to=[16, 2]),
    changed("whole", 3, to=[16, 1, 20, 1]),
    {"a": ["bytes", b"", 5000, [16, 1], [20, 1]]},
    *(changed("cut", 2, to=length) for length in (None, True, 4000.0, "4000", -1, 0, 1, 4, LENGTH_LIMIT + 1, 2**64)),
    changed("cut", 1, to=b"\x94" * 17),
    *(changed("cut", 3, to=ranges) for ranges in (None, 17, b"\x11\x03", "ab", {17: 3}, [], [17], [17, 3, 40])),
    *(changed("cut", 3, 0, to=first) for first in (15, 0, -1, 2**32 - 2, 2**64, True, None, 17.0, "17", b"")),
    *(changed("cut", 3, 1, to=count) for count in (0, -1, 2**32, True, None, 3.0, 23, 4000)),
    changed("indexed", 4, to=[]),
    changed("indexed", 5, 1, to=2**31),
    {"a": [*GOOD["indexed"], *([16, 1],) * 6]},
]


@pytest.mark.parametrize("obj", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_manifest_is_refused(obj: Any) -> None:
    with pytest.raises(FormatError) as caught:
        unpack_manifest(obj)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_good_manifest_comes_back() -> None:
    read = unpack_manifest(msgpack.unpackb(msgpack.packb(GOOD)))
    assert pack_manifest(read) == {name: tuple(map(_tupled, entry)) for name, entry in GOOD.items()}
    assert unpack_manifest(msgpack.unpackb(msgpack.packb(pack_manifest(read)))) == read
    assert unpack_manifest({}) == {}


def _tupled(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field


def test_no_message_shows_a_payload() -> None:
    for obj in ({"canary": ["msgpack", "canary"]}, {"canary": ["canary", b"canary", 3, ["canary", 1]]}, "canary"):
        with pytest.raises(FormatError) as caught:
            unpack_manifest(obj)
        assert "canary" not in str(caught.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**33) | st.text(max_size=3) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=20,
)
RANGES = st.lists(st.integers(10, 60), max_size=8)
NEAR = st.dictionaries(
    st.text(max_size=3),
    st.tuples(st.sampled_from(["msgpack", "bytes", b""]), st.binary(max_size=3), st.integers(0, 200)).flatmap(
        lambda head: st.lists(RANGES, max_size=9).map(lambda levels: [*head, *levels])
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(PLAIN | NEAR, st.dictionaries(st.integers(16, 60), st.binary(max_size=30), max_size=40))
@example(GOOD, {})
def test_anything_is_a_manifest_or_a_format_error(obj: Any, have: dict[int, bytes]) -> None:
    try:
        entries = unpack_manifest(obj)
    except FormatError:
        return
    for entry in entries.values():
        assert unpack_manifest({"a": entry})["a"] == entry
        try:
            for run in needed(entry, have):
                assert not have.keys() & set(run)
            value = join(entry, have)
        except (LookupError, ValueError):
            continue
        assert len(value.data) == entry.length


# --- index parts that are none ------------------------------------------------------------------------------------


def indexed(*content: bytes) -> tuple[Entry, dict[int, bytes]]:
    """A value of three parts (20, 21, 22), the first two named by an index part."""
    (entry,) = unpack_manifest({"a": ["msgpack", b"\x93", 304, [22, 1], [30, len(content)]]}).values()
    return entry, {**dict.fromkeys((20, 21, 22), b"x" * 101), **dict(enumerate(content, 30))}


def packed(*ranges: Any) -> bytes:
    content: bytes = msgpack.packb(list(ranges))
    return INDEX_MARK + content


def test_an_index_part_is_followed() -> None:
    entry, have = indexed(packed(20, 2))
    assert needed(entry) == [range(22, 23), range(30, 31)]
    assert needed(entry, {30: have[30]}) == [range(20, 23)]
    assert needed(entry, have) == []
    value = join(entry, have)
    assert value.data == b"\x93" + b"x" * 303
    assert value.numbers == array("Q", [20, 21, 22])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        INDEX_MARK,
        msgpack.packb([20, 2]),
        b"\xc0" + msgpack.packb([20, 2]),
        packed(20, 2)[:-1],
        packed(20, 2) + b"\0",
        packed(),
        packed(20),
        packed(15, 2),
        packed(20, 0),
        packed(20, 1, 21, 1),
        packed(20, True),
        packed(20, 2**31),
        packed(2**32 - 1, 2),
        INDEX_MARK + msgpack.packb({20: 2}),
        INDEX_MARK + b"\x91" * 3000,
    ],
)
@pytest.mark.parametrize("read", [join, needed])
def test_a_damaged_index_part_is_refused(content: bytes, read: Callable[[Entry, dict[int, bytes]], object]) -> None:
    entry, have = indexed(content)
    with pytest.raises(ValueError, match=r"range|index"):
        read(entry, have)


def test_a_missing_index_part_is_named() -> None:
    entry, have = indexed(packed(20, 2))
    del have[30]
    with pytest.raises(LookupError) as caught:
        join(entry, have)
    assert caught.value.args == (30,)


def test_hostile_sizes_take_no_memory() -> None:
    bomb = packed(*[30, 1, 40, 1] * 2000)
    manifests: list[Any] = [
        ["msgpack", b"\x93", LENGTH_LIMIT, [16, LENGTH_LIMIT - 16]],
        ["msgpack", b"\x93", 100_000, [22, 1], *[[30, 1]] * 7],
        ["msgpack", b"\x93", 100_000, *[[16, 90_000]] * 8],
    ]
    have = {30: bomb, 40: bomb, 16: b"x"}
    tracemalloc.start()
    try:
        for fields in manifests:
            (entry,) = unpack_manifest({"a": fields}).values()
            assert len(needed(entry)) <= 2
            with pytest.raises((LookupError, ValueError)):
                join(entry, have)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
