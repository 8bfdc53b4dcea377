"""Cutting serialised values and joining them: the same bytes back, and only what is new stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import ormsgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from shredsaver import parts
from shredsaver.elements import ELEMENT_PART, GROUP_SIZE
from shredsaver.errors import PayloadError
from shredsaver.parts import PART_START, join, needed, split
from tests.support.channels import Channel, contents
from tests.support.types import CORPUS, Opaque

SERDE = JsonPlusSerializer()


def message(number: int, size: int = 600) -> AIMessage:
    return AIMessage(f"{number:06d} " * (size // 7), id=f"{number:036d}")


def dumps(value: Any) -> bytes:
    tag, data = SERDE.dumps_typed(value)
    assert tag == "msgpack"
    return data


# --- the same bytes back ------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.integers(100, 1500).map("t".__mul__),
    st.binary(max_size=300),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=200)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 99), inner, max_size=20)
        | st.lists(inner, max_size=6).map(lambda items: msgpack.ExtType(7, msgpack.packb(items)))
    ),
    max_leaves=40,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4))
def test_any_msgpack_value_joins_to_the_same_bytes(values: list[Any]) -> None:
    channel = Channel(gap=1)
    for value in values:
        channel.put(msgpack.packb(value))


HEADERS = st.sampled_from(
    b"|\x80|\x85|\x90|\x9f|\xc1|\xdc\x00\x14|\xdd\0\0\1\0|\xde\0\2|\xdf\xff\xff\xff\xff"
    b"|\xc7\xff\x07\x91|\xc8\x00\xff\x07\xdc\0\1|\xc9\0\0\0\xff\x07\x80".split(b"|")
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(HEADERS, st.binary(max_size=700)), min_size=1, max_size=3), st.sampled_from(["msgpack", "x"]))
@example([(b"\x91" * 4000, b"")], "msgpack")  # nested deeper than an unpacker follows
@example([(b"\xc9", b"\x07" * 200)], "msgpack")
def test_arbitrary_bytes_join_to_the_same_bytes(versions: list[tuple[bytes, bytes]], tag: str) -> None:
    channel = Channel()
    for header, body in versions:
        channel.put(header + body, tag)


@pytest.mark.parametrize("wrap", [list, dict, _DeltaSnapshot], ids=["array", "map", "delta snapshot"])
@pytest.mark.parametrize("limit", [15, 65_535])
@pytest.mark.parametrize("size", [1, 200])
def test_header_that_grows_costs_no_more_than_the_new_element(
    wrap: Callable[[Any], Any], limit: int, size: int
) -> None:
    def version(count: int) -> bytes:
        items = [f"{i:06d}" * size for i in range(count)]
        return dumps(dict.fromkeys(items) if wrap is dict else wrap(items))

    if limit * size > 2**20:
        size = 22  # 132 bytes: a part each, and fast
    channel = Channel()
    for count in (limit - 1, limit):
        channel.put(version(count))
    before = channel.value
    assert before is not None
    sizes = [len(part) for part in contents(channel.put(version(limit + 1)))]
    if not before.entry.inline:
        assert len(sizes) == 1
        assert sizes[0] <= max(GROUP_SIZE, 6 * size + 10)
    assert len(contents(channel.put(version(limit)))) <= 1


@pytest.mark.parametrize("tag", ["null", "bytes", "bytearray", "pickle", "json", "msgpack", "future"])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 255, 256, 257, 5000])
def test_every_tag_and_length(tag: str, length: int) -> None:
    channel = Channel()
    channel.put(b"\xc0" * length, tag)
    assert channel.value is not None
    assert channel.value.entry.inline == (length < ELEMENT_PART)
    assert len(channel.value.numbers) == (length >= ELEMENT_PART)


def test_a_bytearray_is_copied() -> None:
    data = bytearray(b"x" * 200)
    value, new = split("bytearray", data, None, {}, PART_START)
    data[0] = 0
    assert value.data == new[0] == b"x" * 200
    assert type(value.data) is type(new[0]) is bytes


def test_a_value_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LENGTH_LIMIT", 1000)
    split("bytes", b"x" * 1000, None, {}, PART_START)
    with pytest.raises(PayloadError, match="1001 bytes is above the limit of 1000"):
        split("bytes", b"x" * 1001, None, {}, PART_START)


# --- only what is new ---------------------------------------------------------------------------------------------


class Edit(NamedTuple):
    kind: str
    at: int
    item: str


ITEMS = st.one_of(
    st.integers(0, 9).map(lambda i: f"{i} large " * 40), st.text(max_size=10), st.integers(100, 140).map("m".__mul__)
)
EDITS = st.builds(
    Edit,
    st.sampled_from(["append", "append", "append", "insert", "replace", "remove", "truncate", "rotate", "repeat"]),
    st.integers(0, 10**6),
    ITEMS,
)


def edited(items: list[str], edit: Edit) -> list[str]:
    at = edit.at % (len(items) + 1)
    changes: dict[str, Callable[[], list[str]]] = {
        "append": lambda: [*items, edit.item],
        "insert": lambda: [*items[:at], edit.item, *items[at:]],
        "replace": lambda: [*items[:at], edit.item, *items[at + 1 :]],
        "remove": lambda: [*items[:at], *items[at + 1 :]],
        "truncate": lambda: items[:at],
        "rotate": lambda: [*items[at:], *items[:at]],
        "repeat": lambda: [*items, *items[:at]],
    }
    return changes[edit.kind]()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EDITS, max_size=40), st.integers(0, 2), st.booleans(), st.integers(0, 120))
def test_any_history_of_a_channel_stores_only_what_is_new(
    edits: list[Edit], gap: int, as_map: bool, before: int
) -> None:
    channel = Channel(gap)
    items = [f"{i:05d} message " * 20 for i in range(before)]
    stored: set[bytes] = set()
    for edit in [Edit("rotate", 0, ""), *edits]:
        items = edited(items, edit)
        data = ormsgpack.packb({str(i): item for i, item in enumerate(items)} if as_map else items)
        new = contents(channel.put(data))
        assert len(set(new)) == len(new)
        if not as_map:
            # Only a further copy of an element that also stays where it is may be stored again.
            large = {packed for item in items if len(packed := ormsgpack.packb(item)) >= ELEMENT_PART}
            copies = {"append": 1, "insert": 1, "replace": 1, "repeat": len(large)}
            assert len(large & set(new) & stored) <= copies.get(edit.kind, 0)
        assert channel.value is not None
        stored = {channel.parts[number] for number in channel.value.numbers}


def test_an_appended_message_is_one_part() -> None:
    channel = Channel(gap=2)
    messages: list[AnyMessage] = []
    for i in range(300):
        messages.append(message(i))
        new = contents(channel.put(dumps(messages)))
        assert new == [dumps(message(i))]


@pytest.mark.parametrize(
    ("change", "new"),
    [
        (lambda items: items[:50], 0),
        (lambda items: items[1:], 0),
        (lambda items: items[:40] + items[41:], 0),
        (lambda items: items[:10] + items[90:], 0),
        (lambda items: items[::-1], 0),
        (lambda items: items[60:] + items[:60], 0),
        (lambda items: [*items[:40], message(1000), *items[41:]], 1),
        (lambda items: [*items[:40], message(1000, 70), *items[41:]], 1),
        (lambda items: [*items[:40], message(1000), *items[40:]], 1),
        (lambda items: [message(1000), *items[90:], message(1001)], 2),
        (lambda items: [message(1000), message(1000)], 1),
    ],
    ids=["truncate", "first", "remove", "trim", "reverse", "rotate", "edit", "shorten", "insert", "summarise", "twice"],
)
@pytest.mark.parametrize("gap", [0, 1])
def test_a_change_costs_what_changed(change: Callable[[list[AIMessage]], list[AIMessage]], new: int, gap: int) -> None:
    channel = Channel(gap)
    messages: list[AIMessage] = []
    for i in range(100):
        messages.append(message(i))
        channel.put(dumps(messages))
    assert len(contents(channel.put(dumps(change(messages))))) == new


def test_a_changed_entry_of_a_map_is_one_part() -> None:
    channel = Channel()
    files = {f"/docs/{i}.md": f"{i} text " * 250 for i in range(200)}
    assert len(channel.put(dumps(files))) == 200
    files["/docs/120.md"] = "another text"
    assert len(contents(channel.put(dumps(files)))) == 1
    del files["/docs/7.md"], files["/docs/9.md"]
    assert contents(channel.put(dumps(files))) == []


def test_a_written_message_and_the_checkpoints_share_their_part() -> None:
    channel = Channel()
    for i, write in enumerate([[HumanMessage("Hi", id="1")], AIMessage("Hello", id="2")]):
        value, new = split("msgpack", dumps(write), None, {}, channel.next)
        assert len(new) == len(value.numbers) == 1
        assert not value.entry.inline
        channel.parts[channel.next] = new[0]
        channel.known[new[0]] = channel.next
        channel.next += 1
        messages = [HumanMessage("Hi", id="1"), AIMessage("Hello", id="2")][: i + 1]
        assert channel.put(dumps(messages)) == []
        assert channel.value is not None
        assert list(channel.value.numbers) == list(range(PART_START, PART_START + i + 1))


def test_an_unchanged_value_is_the_same_object() -> None:
    value, _ = split("msgpack", dumps([message(0)]), None, {}, PART_START)
    again, new = split("msgpack", dumps([message(0)]), value, {}, 99)
    assert again is value
    assert new == []
    other, _ = split("bytes", value.data, value, {}, 99)
    assert other.tag == "bytes"


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        (["short"] * 20, 0),
        (["short"] * 60, 1),
        (["short"] * 600, 4),
        ({"a": 1, "b": "x" * 100, "c": "y" * 100}, 0),
        ([HumanMessage("Hi")], 1),
        ([1, "two", HumanMessage("Hi"), 3], 3),
        ([0.5] * 1536, 1),
        (list(range(-1000, 5000)), 1),
        ([None, True, False, -1, -33, -(2**10), -(2**20), -(2**63) + 0xA1A1A1A1A1] * 50, 1),
        ([1, 0xA1, 0xA1A1, 0xA1A1A1A1, 0xA1A1A1A1A1A1, -1.9372846e-9] * 50, 1),
        ([*range(500), "text"], 2),
        ([[0.5] * 100] * 3, 3),
        ("x" * 100_000, 1),
        ([], 0),
        ({}, 0),
    ],
)
def test_what_is_cut(value: Any, cut: int) -> None:
    channel = Channel()
    channel.put(dumps(value))
    assert channel.value is not None
    assert len(channel.value.numbers) == cut


def test_an_element_is_a_part_from_128_bytes_on() -> None:
    for size, cut in ((127, 1), (128, 2)):
        element = "e" * (size - 2)
        assert len(ormsgpack.packb(element)) == size
        channel = Channel()
        channel.put(ormsgpack.packb([element, "rest " * 20]))
        assert channel.value is not None
        assert (len(channel.value.numbers) or 1) == cut


def test_an_element_that_is_a_part_is_not_merged_with_what_follows() -> None:
    channel = Channel()
    channel.put(ormsgpack.packb(["e" * 126, "e" * 126]))
    new = channel.put(ormsgpack.packb(["e" * 126, "e" * 126, "f" * 100, "g" * 100]))
    assert new == [ormsgpack.packb("f" * 100) + ormsgpack.packb("g" * 100)]


def test_one_small_element_changes() -> None:
    channel = Channel()
    items = [f"{i:05d} short" for i in range(1000)]
    parts_before = len(channel.put(dumps(items)))
    items[500] = "another, longer one"
    assert len(channel.put(dumps(items))) <= 2
    del items[200]
    assert len(channel.put(dumps(items))) <= 1
    items.insert(700, "a new one")
    assert len(channel.put(dumps(items))) <= 2
    assert channel.value is not None
    assert len(channel.value.numbers) <= parts_before + 2


def test_an_end_that_is_equal_but_inside_an_element() -> None:
    channel = Channel()
    one, two, three = (f"{i} text " * 40 for i in range(3))
    channel.put(dumps([one, two]))
    assert channel.put(dumps([one, [three, two]])) == [dumps([three, two])]
    channel.put(dumps([three, two]))
    assert channel.put(dumps([[one, three, two]])) == [dumps([one, three, two])]


def test_a_map_and_an_array_of_the_same_bytes() -> None:
    channel = Channel()
    words = [f"{i} word " * 30 for i in range(6)]
    assert len(channel.put(dumps(dict(zip(words[::2], words[1::2], strict=True))))) == 3
    assert len(channel.put(dumps(words))) == 6


@pytest.mark.parametrize("size", [10, 60, 110])
def test_small_elements_appended_one_by_one(size: int) -> None:
    channel = Channel()
    items: list[str] = []
    written = 0
    for i in range(500):
        items.append(f"{i:0{size}d}")
        written += sum(map(len, contents(channel.put(dumps(items)))))
    assert channel.value is not None
    total = len(channel.value.data)
    assert len(channel.value.numbers) <= 2 * total / GROUP_SIZE + 10
    assert written <= 6 * total


# --- what a value means is the serializer's -----------------------------------------------------------------------


HELD = {
    **CORPUS,
    "delta snapshot": _DeltaSnapshot([HumanMessage("Hi", id="1")]),
    "tuple keys": {(2, 3): "v" * 300, 1: "int"},
    "pickled": Opaque(),
    "all in a list": [value for name, value in CORPUS.items() if name != "bytearray"],
    "all in a dict": {name: value for name, value in CORPUS.items() if name != "bytearray"},
}


@pytest.mark.parametrize("name", HELD)
def test_values_equal_the_stock_serializers(name: str) -> None:
    serde = JsonPlusSerializer(pickle_fallback=True)
    tag, data = serde.dumps_typed(HELD[name])
    channel = Channel()
    channel.put(bytes(data), tag)
    assert channel.value is not None
    read = channel.read(channel.value.entry)
    ours, stock = serde.loads_typed((read.tag, read.data)), serde.loads_typed((tag, data))
    assert type(ours) is type(stock)
    assert serde.dumps_typed(ours) == serde.dumps_typed(stock)


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_missing_part_is_named() -> None:
    value, new = split("msgpack", dumps([message(i) for i in range(5)]), None, {}, 100)
    have = dict(enumerate(new, 100))
    del have[103]
    assert needed(value.entry, have) == [range(103, 104)]
    with pytest.raises(LookupError) as caught:
        join(value.entry, have)
    assert caught.value.args == (103,)


def test_parts_of_another_length_are_refused() -> None:
    value, new = split("msgpack", dumps([message(i) for i in range(5)]), None, {}, 100)
    for wrong in (b"", new[2][:-1], new[2] + b"\0"):
        with pytest.raises(ValueError, match="5 parts hold") as caught:
            join(value.entry, dict(enumerate(new, 100)) | {102: wrong})
        assert "000" not in str(caught.value)


def test_no_repr_shows_a_payload() -> None:
    for value in (["canary"], ["canary " * 100], "canary"):
        cut, _ = split("msgpack", dumps(value), None, {}, PART_START)
        assert "canary" not in repr(cut) + str(cut.entry) + f"{cut.entry!s}"
