"""Lists of messages: with prints, the bytes and the objects are those of the serializer alone."""

from __future__ import annotations

import copy
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from http import HTTPStatus
from itertools import chain
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from shredsaver import fingerprints
from shredsaver.fingerprints import CHUNK, CLASSES, Print, applies, dump, load
from tests.support.messages import KINDS, alike, containers, lists, messages

TAG = "msgpack"
SERDE = JsonPlusSerializer()
STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)

# Every way in which a message that was saved may be another one when it is saved again.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "content": lambda message: setattr(message, "content", "changed"),
    "content to a list": lambda message: setattr(message, "content", [{"type": "text", "text": "changed"}]),
    "additional_kwargs in place": lambda message: message.additional_kwargs.__setitem__("changed", [1]),
    "additional_kwargs nested": lambda message: message.additional_kwargs.setdefault("list", []).append(2),
    "response_metadata in place": lambda message: message.response_metadata.__setitem__("changed", {"a": 1.5}),
    "name": lambda message: setattr(message, "name", "changed"),
    "id": lambda message: setattr(message, "id", "changed"),
    "extra": lambda message: setattr(message, "no_field", 1),
    "class": lambda message: object.__setattr__(
        message, "__class__", SystemMessage if type(message) is HumanMessage else HumanMessage
    ),
}
AI_CHANGES: dict[str, Callable[[Any], Any]] = {
    "tool_calls in place": lambda message: message.tool_calls.append({"name": "n", "args": {}, "id": "i"}),
    "tool call's arguments": lambda message: message.tool_calls[0]["args"].__setitem__("deep", [[1]]),
    "invalid_tool_calls": lambda message: message.invalid_tool_calls.append({"name": "n", "args": "", "id": "i"}),
    "usage_metadata": lambda message: message.usage_metadata.__setitem__("input_tokens", 7),
    "usage_metadata gone": lambda message: setattr(message, "usage_metadata", None),
}


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    field: int = 1


class Text(str):
    """A text that is none."""

    __slots__ = ()


def whole(value: Any) -> bytes:
    return SERDE.dumps_typed(value)[1]


def printed(value: Any) -> Print:
    _, found = dump(SERDE, value, None)
    assert found is not None
    return found


def saved(value: Any, before: Print | None) -> Print | None:
    """Saves a value and holds that its bytes are right."""
    expected = SERDE.dumps_typed(value)
    typed, found = dump(SERDE, value, before)
    assert typed == expected
    assert found is None or (found.data == expected[1] and found.classes == [type(message) for message in value])
    return found


def test_every_class_of_the_list_is_tried() -> None:
    assert set(KINDS) == CLASSES


@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: kind.__name__)
def test_every_class_is_one_that_any_serializer_revives(kind: type[BaseMessage]) -> None:
    message = kind.model_construct(content="c", id="i", role="r", name="n", tool_call_id="t")
    (revived,) = STRICT.loads_typed(STRICT.dumps_typed([message]))
    assert type(revived) is kind


@settings(max_examples=40, deadline=None)
@given(lists)
def test_the_bytes_depend_on_nothing_but_class_and_dict(value: list[Any]) -> None:
    packed = printed(value).packed
    rebuilt = []
    for message, content in zip(value, chain.from_iterable(map(ormsgpack.unpackb, packed)), strict=True):
        assert alike(content) == alike(message.__dict__)
        other = type(message).__new__(type(message))
        object.__setattr__(other, "__dict__", content)
        object.__setattr__(other, "__pydantic_fields_set__", set())
        object.__setattr__(other, "__pydantic_extra__", None)
        object.__setattr__(other, "__pydantic_private__", None)
        rebuilt.append(other)
    assert whole(rebuilt) == whole(value)


@settings(max_examples=40, deadline=None)
@given(st.lists(messages, max_size=18), st.data())
def test_growing_by_any_steps_gives_the_bytes_of_the_whole(value: list[Any], data: st.DataObject) -> None:
    taken = None
    count = 0
    while count < len(value):
        count = data.draw(st.integers(count, len(value)), label="length") if taken else min(1, len(value))
        taken = saved(value[:count], taken)
        assert taken is not None
        if data.draw(st.booleans(), label="stop"):
            break
    saved(value, taken)


@pytest.mark.parametrize("count", [14, 15, 16, 17, 65_534, 65_535, 65_536])
def test_headers_of_every_length(count: int) -> None:
    value: list[Any] = [RemoveMessage(id="1")] * count
    taken = saved(value, None)
    for more in (1, 2):
        taken = saved([*value, *[HumanMessage("tail")] * more], taken)


@settings(max_examples=50, deadline=None)
@given(st.lists(messages, min_size=1, max_size=4), lists, st.sampled_from(sorted(CHANGES)), st.data())
def test_a_message_changed_in_place_is_serialised_again(
    value: list[Any], more: list[Any], change: str, data: st.DataObject
) -> None:
    before = printed(value)
    CHANGES[change](value[data.draw(st.integers(0, len(value) - 1))])
    saved([*value, *more], before)


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 3 * CHUNK + 5])
@pytest.mark.parametrize("added", [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1])
def test_chunks_of_a_print(count: int, added: int) -> None:
    value: list[Any] = [HumanMessage(str(number), id=str(number)) for number in range(count + added)]
    before = printed(value[:count])
    after = saved(value, before)
    assert after is not None
    assert after == printed(value)
    shared = count // CHUNK
    assert all(one is other for one, other in zip(after.packed[:shared], before.packed[:shared], strict=True))
    for changed in {0, count - 1, count // 2}:
        was = value[changed].content
        value[changed].content = "changed"
        saved(value, before)
        value[changed].content = was
    taken = revived((TAG, after.data), after)
    assert taken is not None
    assert taken.revivable.messages == len(value)
    more = [*value, HumanMessage("more", id="more")]
    grown = saved(more, taken)
    assert grown is not None
    assert grown.revivable.messages == len(value)
    taken = revived((TAG, grown.data), grown)
    assert taken is not None
    assert taken.revivable.messages == len(more)
    revived((TAG, grown.data), taken)


@pytest.mark.parametrize("change", AI_CHANGES)
def test_every_field_of_an_answer_is_watched(change: str) -> None:
    answer = AIMessage(
        "text",
        tool_calls=[{"name": "n", "args": {"deep": [[]]}, "id": "1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    )
    value = [HumanMessage("q"), answer]
    before = printed(value)
    AI_CHANGES[change](answer)
    assert whole(value) != before.data
    saved([*value, HumanMessage("next")], before)


@settings(max_examples=30, deadline=None)
@given(lists, lists, st.data())
def test_removed_moved_and_replaced_messages(value: list[Any], other: list[Any], data: st.DataObject) -> None:
    before = printed(value)
    changed = data.draw(st.permutations([*value, *other]))
    saved(changed[: data.draw(st.integers(0, len(changed)))], before)


@pytest.mark.parametrize(
    "odd",
    [
        (1, 2), {1}, Text("t"), OrderedDict(a=1), {1: "number"}, datetime(2026, 1, 2, tzinfo=UTC), uuid.UUID(int=7),
        Colour.RED, Model(), 2**64, "\ud800", b"b", AIMessage("nested"), object, 1 + 2j,
    ],
    ids=repr,
)  # fmt: skip
def test_whatever_is_unusual_takes_the_long_way_or_is_told_apart(odd: Any) -> None:
    plain = [AIMessage("a"), ToolMessage("t", tool_call_id="1", artifact=[1, 2])]
    before = printed(plain)
    unusual = [AIMessage("a"), ToolMessage("t", tool_call_id="1")]
    object.__setattr__(unusual[1], "__dict__", {**unusual[1].__dict__, "artifact": odd})
    try:
        expected = SERDE.dumps_typed(unusual)
    except TypeError:
        with pytest.raises(TypeError):
            dump(SERDE, unusual, before)
        return
    typed, taken = dump(SERDE, unusual, before)
    assert typed == expected
    assert (taken is None) == (not isinstance(odd, bytes))


@pytest.mark.parametrize(
    "value",
    [
        [AIMessageChunk("chunk")],
        [type("Own", (HumanMessage,), {})("own")],
        (HumanMessage("in a tuple"),),
        type("OwnList", (list,), {})([HumanMessage("h")]),
        [HumanMessage("extra", favourite="blue")],
        ["text"],
        {"a": HumanMessage("h")},
        None,
    ],
    ids=repr,
)
def test_other_classes_have_no_print(value: Any) -> None:
    typed, taken = dump(SERDE, value, printed([HumanMessage("h")]))
    assert taken is None
    assert typed == SERDE.dumps_typed(value)


def test_a_message_changed_while_it_is_serialised_leaves_no_print(monkeypatch: pytest.MonkeyPatch) -> None:
    value: list[Any] = [HumanMessage("1"), HumanMessage("2")]
    before = printed(value)

    class Racing(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            typed = super().dumps_typed(obj)
            value[-1].content = "another thread was here"
            return typed

    value.append(HumanMessage("3"))
    assert dump(Racing(), value, before)[1] is None
    value[-1].content = "3"
    assert dump(Racing(), value, None)[1] is None


# -- reviving -------------------------------------------------------------------------------------------------------


def revived(typed: tuple[str, bytes], before: Print | None, *, again: bool = True) -> Print | None:
    """Revives twice over and holds that both are what the serializer gives, and fresh."""
    for serde in (SERDE, STRICT):
        expected = serde.loads_typed(typed)
        value, found = load(serde, typed, before, again=again)
        assert alike(value) == alike(expected)
        identities = containers(value)
        assert len(set(identities)) == len(identities)
    return found


@settings(max_examples=40, deadline=None)
@given(lists, lists)
def test_reviving_gives_what_the_serializer_gives(value: list[Any], more: list[Any]) -> None:
    typed, written = dump(SERDE, value, None)
    taken = revived(typed, written)
    taken = revived(typed, taken) or written
    typed, taken = dump(SERDE, [*value, *more], taken)
    taken = revived(typed, taken)
    revived(typed, taken)


@settings(max_examples=30, deadline=None)
@given(lists)
def test_reviving_without_a_print_of_the_writer(value: list[Any]) -> None:
    typed = SERDE.dumps_typed(value)
    assert revived(typed, None, again=False) is None
    taken = revived(typed, None)
    revived(typed, taken)
    if taken is not None:
        saved(SERDE.loads_typed(typed), taken)


def test_plain_messages_are_made_from_their_print() -> None:
    value: list[Any] = [HumanMessage("q", id="1"), AIMessage("a", id="2"), ToolMessage("t", tool_call_id="3", id="3")]
    typed, written = dump(SERDE, value, None)
    taken = revived(typed, written)
    assert taken is not None
    assert taken.revivable.messages == len(value)
    counted = Counting()
    load(counted, typed, taken, again=True)
    assert counted.loaded == 0


def test_what_was_given_is_not_what_is_given_next() -> None:
    typed = SERDE.dumps_typed([HumanMessage("q", additional_kwargs={"deep": [1]})])
    _, taken = load(SERDE, typed, None, again=True)
    assert taken is not None
    for _ in range(2):
        (message,), _ = load(SERDE, typed, taken, again=True)
        assert message.additional_kwargs == {"deep": [1]}
        message.additional_kwargs["deep"].append(2)
        message.content = "changed"


def test_what_an_allowlist_hides_is_not_remembered() -> None:
    value = [ToolMessage("t", tool_call_id="1", artifact=HTTPStatus.OK)]
    typed = SERDE.dumps_typed(value)
    hidden, taken = load(STRICT, typed, None, again=True)
    assert type(hidden[0].artifact) is int
    assert taken is None
    own = JsonPlusSerializer(allowed_msgpack_modules=[HTTPStatus])
    assert load(own, typed, taken, again=True)[0][0].artifact is HTTPStatus.OK


def test_bytes_that_are_not_those_of_the_print() -> None:
    one = SERDE.dumps_typed([HumanMessage("one")])
    _, taken = load(SERDE, one, None, again=True)
    other = SERDE.dumps_typed([HumanMessage("two")])
    assert load(SERDE, other, taken, again=False)[0][0].content == "two"
    assert load(SERDE, ("json", b"[1]"), taken, again=True)[0] == [1]


class Counting(JsonPlusSerializer):
    loaded = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.loaded += 1
        return super().loads_typed(data)


def hooked(code: int, data: bytes) -> Any:
    return None


def shadowed() -> JsonPlusSerializer:
    serde = JsonPlusSerializer()
    vars(serde)["dumps_typed"] = lambda obj: ("null", b"")
    return serde


@pytest.mark.parametrize(
    ("serde", "expected"),
    [
        (JsonPlusSerializer(), True),
        (STRICT, True),
        (STRICT.with_msgpack_allowlist([Model]), True),
        (copy.copy(SERDE), True),
        (Counting(), False),
        (JsonPlusSerializer(__unpack_ext_hook__=hooked), False),
        (shadowed(), False),
    ],
)
def test_only_the_serializer_itself(serde: JsonPlusSerializer, expected: bool) -> None:
    assert applies(serde) is expected


def test_a_patched_serializer_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonPlusSerializer, "dumps_typed", lambda self, obj: ("null", b""))
    assert not applies(JsonPlusSerializer())


def test_a_print_shows_no_payload() -> None:
    assert "secret" not in repr(printed([HumanMessage("secret")]))


def test_pydantic_keeps_state_where_prints_look() -> None:
    assert fingerprints.CLASSES, "pydantic keeps more state than prints know of: look at it before they are used"
