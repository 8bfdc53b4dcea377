"""LangChain's messages from their serialised form, without validating again what the serializer wrote.

`JsonPlusSerializer` revives a message by calling its class with the fields it had, and pydantic validates each of them:
most of the time of reading a long thread. Where every field has already exactly the type that validating would give
it, validating changes nothing, and the message is put together from the fields as they are. That is decided for a
closed list of exact classes, all of which any serializer may revive, by rules that name every field; a message for
which they do not hold, and anything that is no message, is revived by the serializer's own hook.

`docs/adr/0007-prints-of-messages.md` has the argument; property tests hold that both ways give the same, for messages
as they are made and for fields of any type. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

# Where pydantic keeps a model's state: a version with anything more is left to the serializer.
_STATE: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
STATE_IS_KNOWN: Final = tuple(BaseModel.__slots__) == _STATE

# What pydantic itself does with a validated model, without its watch over assignments.
_new: Final = object.__new__
_set: Final = object.__setattr__
_set_fields, _set_extra, _set_private = (vars(BaseModel)[name].__set__ for name in _STATE[1:])

Fields = Mapping[str, Any]
Hook = Callable[[int, bytes], Any]

_TAG: Final = "msgpack"
_PYDANTIC: Final = 5
"""The type of the extension value that a message is."""
_OPTION: Final = ormsgpack.OPT_NON_STR_KEYS
_TEXT: Final = (str, type(None))
_ITEMS: Final = frozenset({str, dict})
_TEXTS: Final = frozenset({str})
_COUNTS: Final = frozenset({int})
_CALL: Final = ("name", "args", "id", "type")
_USAGE: Final = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = ("input_token_details", "output_token_details")
_INPUT: Final = ("audio", "cache_creation", "cache_read")
_OUTPUT: Final = ("audio", "reasoning")


def _some(names: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Some of the names, none or all, in their order: what a dict of optional fields is validated to."""
    return frozenset(chosen for count in range(len(names) + 1) for chosen in combinations(names, count))


_SOME_DETAILS: Final = {_USAGE + chosen for chosen in _some(_DETAILS)}
_SOME_COUNTS: Final = {"input_token_details": _some(_INPUT), "output_token_details": _some(_OUTPUT)}


class _Kind(NamedTuple):
    """A class whose messages are put together here."""

    cls: type[BaseModel]
    fields: tuple[str, ...]  # all of them, in the order in which they are validated
    name: str  # what its field ``type`` must be
    usual: Callable[[Fields], bool]  # whether validating leaves the class's own fields as they are


def loads(serde: SerializerProtocol, typed: tuple[str, bytes]) -> Any:
    """Revives a value as ``serde.loads_typed`` does.

    Args:
        serde: A serializer for which `shredsaver.fingerprints.applies` holds.
        typed: The tag and bytes, authenticated.
    """
    tag, data = typed
    hook: Hook | None = getattr(serde, "_unpack_ext_hook", None)
    if tag != _TAG or hook is None:
        return serde.loads_typed(typed)
    return ormsgpack.unpackb(data, ext_hook=partial(_revived, hook), option=_OPTION)


def _revived(otherwise: Hook, code: int, data: bytes) -> Any:
    if code == _PYDANTIC:
        for length, kinds in _BEGINNINGS:
            kind = kinds.get(data[:length])
            if kind is not None:
                message = _message(kind, data)
                return otherwise(code, data) if message is None else message
    return otherwise(code, data)


def _message(kind: _Kind, data: bytes) -> Any | None:
    """The message, or None where validating might change a field."""
    cls, names, name, usual = kind
    try:
        # Without a hook: what holds anything but plain data goes the other way.
        _, _, fields, _ = ormsgpack.unpackb(data, option=_OPTION)
    except ValueError:
        return None
    if type(fields) is not dict or tuple(fields) != names:
        return None
    content = fields["content"]
    if not (
        (type(content) is str or (type(content) is list and _ITEMS.issuperset(map(type, content))))
        and type(fields["additional_kwargs"]) is type(fields["response_metadata"]) is dict
        and fields["type"] == name
        and type(fields["name"]) in _TEXT
        and type(fields["id"]) in _TEXT
        and usual(fields)
    ):
        return None
    return rebuilt(cls, fields)


def rebuilt(cls: type, fields: dict[str, Any]) -> Any:
    """A model with these fields, all of them set, and nothing besides. The dict becomes its own."""
    model: Any = _new(cls)
    _set(model, "__dict__", fields)
    _set_fields(model, set(fields))
    _set_extra(model, {})
    _set_private(model, None)
    return model


def _nothing(_fields: Fields) -> bool:
    return True


def _named(fields: Fields) -> bool:
    return type(fields["name"]) is str


def _role(fields: Fields) -> bool:
    return type(fields["role"]) is str


def _answer(fields: Fields) -> bool:
    calls = fields["tool_calls"]
    return (
        type(calls) is list
        and all(map(_call, calls))
        and fields["invalid_tool_calls"] == []
        # Calls there are turned into tool calls where the message has none.
        and (bool(calls) or not fields["additional_kwargs"].get("tool_calls"))
        and _usage(fields["usage_metadata"])
    )


def _call(call: Any) -> bool:
    return (
        type(call) is dict
        and tuple(call) == _CALL
        and type(call["name"]) is str
        and type(call["args"]) is dict
        and _TEXTS.issuperset(map(type, call["args"]))
        and type(call["id"]) in _TEXT
        and call["type"] == "tool_call"
    )


def _usage(usage: Any) -> bool:
    if usage is None:
        return True
    if type(usage) is not dict:
        return False
    if tuple(usage) == _USAGE:
        return _COUNTS.issuperset(map(type, usage.values()))
    if tuple(usage) not in _SOME_DETAILS or any(type(usage[name]) is not int for name in _USAGE):
        return False
    return all(
        type(details) is dict
        and tuple(details) in _SOME_COUNTS[name]
        and _COUNTS.issuperset(map(type, details.values()))
        for name, details in usage.items()
        if name in _SOME_COUNTS
    )


def _result(fields: Fields) -> bool:
    return type(fields["tool_call_id"]) is str and fields["status"] in ("success", "error")


_COMMON: Final = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_KINDS: Final = (
    _Kind(AIMessage, (*_COMMON, "tool_calls", "invalid_tool_calls", "usage_metadata"), "ai", _answer),
    _Kind(HumanMessage, _COMMON, "human", _nothing),
    _Kind(ToolMessage, (*_COMMON, "tool_call_id", "artifact", "status"), "tool", _result),
    _Kind(SystemMessage, _COMMON, "system", _nothing),
    _Kind(ChatMessage, (*_COMMON, "role"), "chat", _role),
    _Kind(FunctionMessage, _COMMON, "function", _named),
)


# -- whether the rules hold for the classes as they are installed ---------------------------------------------------

_VALIDATORS: Final[Mapping[type, set[str]]] = {
    AIMessage: {"_backwards_compat_tool_calls"},
    ToolMessage: {"coerce_args"},
}
_OWN: Final[Mapping[type, Sequence[Fields]]] = {
    AIMessage: (
        {"tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None},
        {
            "tool_calls": [{"name": "n", "args": {"a": {"b": [1]}}, "id": i, "type": "tool_call"} for i in ("i", None)],
            "invalid_tool_calls": [],
            "usage_metadata": {
                **dict.fromkeys(_USAGE, 1), "input_token_details": dict.fromkeys(_INPUT, 2),
                "output_token_details": dict.fromkeys(_OUTPUT, 3),
            },
        },
    ),
    ToolMessage: tuple(
        {"tool_call_id": "t", "artifact": artifact, "status": status}
        for artifact, status in ((None, "success"), ({"a": [1.5, b"b"]}, "error"))
    ),
    ChatMessage: ({"role": "r"},),
}  # fmt: skip


def _holds(kind: _Kind) -> bool:
    """Whether a class has the fields and validators that the rules know, and examples are revived alike both ways."""
    validators = kind.cls.__pydantic_decorators__
    if (
        not STATE_IS_KNOWN
        or tuple(kind.cls.model_fields) != kind.fields
        or set(validators.model_validators) != _VALIDATORS.get(kind.cls, set())
        or validators.field_validators
    ):
        return False
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    for content in ("text", ["text", {"type": "text", 1: None}]):
        common: Fields = {
            "content": content,
            "additional_kwargs": {"tool_calls": []},
            "response_metadata": {"a": [{1: 2}]},
        }
        for own in _OWN.get(kind.cls, ({},)):
            fields = {**common, "type": kind.name, "name": "n", "id": "i", **own}
            data = ormsgpack.packb(
                (kind.cls.__module__, kind.cls.__name__, fields, "model_validate_json"), option=_OPTION
            )
            if not data.startswith(_beginning(kind)):
                return False
            message = _message(kind, data)
            expected = strict.loads_typed((_TAG, ormsgpack.packb(ormsgpack.Ext(_PYDANTIC, data))))
            if message is None or type(message) is not type(expected) or _state(message) != _state(expected):
                return False
    return True


def _state(message: Any) -> tuple[Any, ...]:
    return repr(message.__dict__), *(getattr(message, name) for name in _STATE[1:])


def _beginning(kind: _Kind) -> bytes:
    """How the serialised form begins, up to the name of the first field."""
    pack = ormsgpack.packb
    names = (kind.cls.__module__, kind.cls.__name__)
    return b"".join((b"\x94", *map(pack, names), bytes((0x80 | len(kind.fields),)), pack(kind.fields[0])))


def _by_length(kinds: Iterable[_Kind]) -> tuple[tuple[int, dict[bytes, _Kind]], ...]:
    found: dict[int, dict[bytes, _Kind]] = {}
    for kind in kinds:
        beginning = _beginning(kind)
        found.setdefault(len(beginning), {})[beginning] = kind
    return tuple(found.items())


_BEGINNINGS: Final = _by_length(filter(_holds, _KINDS))
REBUILT: Final = frozenset(kind.cls for _, kinds in _BEGINNINGS for kind in kinds.values())
"""The exact classes whose messages are put together here; a version of LangChain that differs leaves them out."""
