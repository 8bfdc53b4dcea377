"""Messages put together without validating: the same as the serializer gives, or left to the serializer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
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
    ToolMessage,
)
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel, Field, field_validator, model_validator

from shredsaver import rebuilding
from shredsaver.fingerprints import CLASSES
from shredsaver.rebuilding import REBUILT, loads
from tests.support.messages import KINDS, alike, containers, lists, maps, trees

SERDE = JsonPlusSerializer()
STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)


def agreed(typed: tuple[str, bytes]) -> Any:
    """Revives both ways, with two serializers, and holds that nothing tells them apart."""
    value = None
    for serde in (STRICT, SERDE):
        value = loads(serde, typed)
        assert alike(value) == alike(serde.loads_typed(typed))
        identities = containers(value)
        assert len(set(identities)) == len(identities)
    return value


def stored(kind: type[BaseMessage], fields: Any) -> tuple[str, bytes]:
    """A list of one message as the serializer writes it, with fields that no message may have."""
    option = ormsgpack.OPT_NON_STR_KEYS
    data = ormsgpack.packb((kind.__module__, kind.__name__, fields, "model_validate_json"), option=option)
    return "msgpack", ormsgpack.packb([ormsgpack.Ext(EXT_PYDANTIC_V2, data)])


def rebuilt(typed: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the serializer's hook is not asked for anything."""
    asked = []
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    monkeypatch.setattr(serde, "_unpack_ext_hook", lambda code, data: asked.append(code))
    loads(serde, typed)
    return not asked


def test_every_class_that_keeps_its_fields_is_rebuilt() -> None:
    assert CLASSES - {RemoveMessage} == REBUILT, "a class of LangChain's has changed: look at its fields and validators"


@settings(max_examples=40, deadline=None)
@given(lists)
def test_messages_as_they_are_made(value: list[Any]) -> None:
    agreed(SERDE.dumps_typed(value))


@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_fields_of_any_type(kind: type[BaseMessage], data: st.DataObject) -> None:
    fields = data.draw(KINDS[kind]).model_dump()
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2), label="changed"):
        fields[name] = data.draw(trees, label=name)
    agreed(stored(kind, fields))


PLAIN: list[Any] = [None, True, 0, 7, 2**63, -1, 1.0, 1.5, "", "7", "text", b"", b"b", [], ["a"], {}, {"a": 1}, {1: 2}]
CALL: dict[str, Any] = {"name": "look", "args": {"deep": [{"a": 1}]}, "id": "1", "type": "tool_call"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
RAW_CALLS = [{"id": "i", "function": {"name": "n", "arguments": '{"a": 1}'}, "type": "function"}]
DETAILS = {
    "input_token_details": {"audio": 1, "cache_creation": 2, "cache_read": 3},
    "output_token_details": {"audio": 1, "reasoning": 2},
}


def altered(usual: dict[str, Any]) -> list[dict[str, Any]]:
    """A dict with each of its values replaced, each left out, one more, and in another order."""
    return [
        *({**usual, name: plain} for name in usual for plain in PLAIN),
        *({key: value for key, value in usual.items() if key != name} for name in usual),
        {**usual, "more": 1},
        dict(reversed(usual.items())),
    ]


ODD: dict[str, list[Any]] = {
    "content": [[plain] for plain in PLAIN] + [["a", {"type": "text", 1: None}]],
    "additional_kwargs": [{"tool_calls": RAW_CALLS}, {"tool_calls": []}],
    "tool_calls": [[one] for one in [*PLAIN, *altered(CALL), *({**CALL, "args": {key: 1}} for key in (1, b"b", "a"))]],
    "invalid_tool_calls": [[one] for one in [*PLAIN, {**CALL, "error": "e", "type": "invalid_tool_call"}]],
    "usage_metadata": [
        *altered(USAGE),
        *altered({**USAGE, **DETAILS}),
        *({**USAGE, name: odd} for name, usual in DETAILS.items() for odd in altered(usual)),
        {**DETAILS, **USAGE},
    ],
    "status": ["error", "success", "other"],
    "type": ["ai", "human", "tool", "system", "chat", "function", b"ai", b"human"],
}


@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: kind.__name__)
def test_every_rule_of_every_field(kind: type[BaseMessage]) -> None:
    made: dict[str, Any] = {"content": "c", "id": "i", "name": "n", "role": "r", "tool_call_id": "t"}
    if kind is RemoveMessage:
        made = {"id": "i"}
    usual = kind(**{name: value for name, value in made.items() if name in kind.model_fields}).model_dump()
    for name in usual:
        for odd in (*PLAIN, *ODD.get(name, ())):
            agreed(stored(kind, {**usual, name: odd}))
    if kind is AIMessage:
        # Calls among the additional arguments are parsed only where there are no others.
        agreed(stored(kind, {**usual, "tool_calls": [CALL], "additional_kwargs": {"tool_calls": RAW_CALLS}}))


@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_fields_that_are_missing_added_or_moved(kind: type[BaseMessage], data: st.DataObject) -> None:
    fields = list(data.draw(KINDS[kind]).model_dump().items())
    fields = data.draw(st.permutations([*fields, *data.draw(maps).items()]))
    agreed(stored(kind, dict(fields[: data.draw(st.integers(0, len(fields)))])))
    agreed(stored(kind, data.draw(trees)))


def outcome(revive: Callable[[tuple[str, bytes]], Any], typed: tuple[str, bytes]) -> Any:
    try:
        return alike(revive(typed))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("message", [HumanMessage("q", id="1"), ToolMessage("t", tool_call_id="1")], ids=repr)
def test_bytes_that_are_damaged(message: BaseMessage) -> None:
    whole = bytearray(SERDE.dumps_typed([message])[1])
    for position, byte in enumerate(whole):
        for other in {0, 0x81, 0xC7, 0xFF, byte ^ 1, byte ^ 0x20}:
            whole[position] = other
            typed = ("msgpack", bytes(whole))
            assert outcome(partial(loads, STRICT), typed) == outcome(STRICT.loads_typed, typed)
        whole[position] = byte


USUAL: list[BaseMessage] = [
    HumanMessage("q", id="1"),
    HumanMessage([{"type": "text", "text": "q"}, "and more"], name="n", additional_kwargs={"a": [1]}),
    AIMessage("a", response_metadata={"finish_reason": "stop"}, usage_metadata=USAGE),
    AIMessage("", tool_calls=[CALL, {**CALL, "id": None}]),
    AIMessage("", additional_kwargs={"tool_calls": [{"id": "1"}]}, tool_calls=[CALL]),
    AIMessage(
        "a",
        usage_metadata={
            **USAGE, "input_token_details": {"audio": 0, "cache_read": 1}, "output_token_details": {"reasoning": 2}
        },
    ),
    ToolMessage("t", tool_call_id="1", artifact={"a": [1.5, None]}, status="error"),
]  # fmt: skip


@pytest.mark.parametrize("message", USUAL, ids=lambda message: message.type)
def test_usual_messages_are_rebuilt(message: BaseMessage, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = SERDE.dumps_typed([message])
    agreed(typed)
    assert rebuilt(typed, monkeypatch)
    assert rebuilt(SERDE.dumps_typed({"deep": [message]}), monkeypatch)


UNUSUAL: list[Any] = [
    HumanMessage("q", favourite="blue"),
    HumanMessage("q", additional_kwargs={"status": HTTPStatus.OK}),
    AIMessage("", invalid_tool_calls=[{"name": "n", "args": "", "id": "i", "error": "e", "type": "invalid_tool_call"}]),
    AIMessageChunk("chunk"),
    RemoveMessage(id="1"),
    ToolMessage("t", tool_call_id="1", artifact=[HTTPStatus.OK]),
    Send("node", [HumanMessage("sent")]),
]


@pytest.mark.parametrize("value", UNUSUAL, ids=repr)
def test_whatever_is_unusual_is_left_to_the_serializer(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = SERDE.dumps_typed([value])
    agreed(typed)
    assert not rebuilt(typed, monkeypatch)


def test_calls_among_the_additional_arguments_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    message = AIMessage("", tool_calls=[CALL])
    typed = stored(
        AIMessage, {**message.model_dump(), "tool_calls": [], "additional_kwargs": {"tool_calls": RAW_CALLS}}
    )
    (found,) = agreed(typed)
    assert found.tool_calls[0]["args"] == {"a": 1}


def test_what_an_allowlist_hides_stays_hidden_and_is_told_once() -> None:
    typed = SERDE.dumps_typed([ToolMessage("t", tool_call_id="1", artifact=HTTPStatus.OK)])
    told: list[Any] = []
    unregister = register_serde_event_listener(told.append)
    try:
        (hidden,) = loads(STRICT, typed)
    finally:
        unregister()
    assert type(hidden.artifact) is int
    assert [event["kind"] for event in told] == ["msgpack_blocked"]
    own = JsonPlusSerializer(allowed_msgpack_modules=[HTTPStatus])
    assert loads(own, typed)[0].artifact is HTTPStatus.OK


def test_other_tags_and_serializers_without_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loads(SERDE, ("null", b"")) is None
    assert loads(SERDE, ("bytes", b"b")) == b"b"
    assert loads(SERDE, ("json", b"[1]")) == [1]
    serde = JsonPlusSerializer()
    typed = serde.dumps_typed([HumanMessage("q")])
    vars(serde).pop("_unpack_ext_hook")
    monkeypatch.setattr(JsonPlusSerializer, "loads_typed", lambda self, typed: "its own way")
    assert loads(serde, typed) == "its own way"


class Validated(HumanMessage):
    @model_validator(mode="before")
    @classmethod
    def _more(cls, values: Any) -> Any:
        return values


class ValidatedField(HumanMessage):
    @field_validator("content")
    @classmethod
    def _upper(cls, value: str) -> str:
        return value


class MoreFields(HumanMessage):
    mood: str = "good"


class OtherClass(HumanMessage):
    pass


class Lengthened(HumanMessage):
    content: str = Field(max_length=1)


@pytest.mark.parametrize("cls", [Validated, ValidatedField, MoreFields, OtherClass, Lengthened])
def test_a_class_that_differs_is_left_to_the_serializer(cls: type[BaseModel]) -> None:
    (human,) = (kind for kind in rebuilding._KINDS if kind.cls is HumanMessage)
    assert rebuilding._holds(human)
    assert not rebuilding._holds(human._replace(cls=cls))


def test_a_pydantic_that_keeps_more_state_is_left_to_the_serializer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "STATE_IS_KNOWN", False)
    assert not any(map(rebuilding._holds, rebuilding._KINDS))


def test_an_example_that_comes_out_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = HumanMessage.__init__

    def other(self: HumanMessage, **fields: Any) -> None:
        changed(self, **{**fields, "name": "another"})

    monkeypatch.setattr(HumanMessage, "__init__", other)
    (human,) = (kind for kind in rebuilding._KINDS if kind.cls is HumanMessage)
    assert not rebuilding._holds(human)
