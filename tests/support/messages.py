"""Messages as users make them, and everything that can be told of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

words = st.text(max_size=20)
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | words | st.binary(max_size=8)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)
maps = st.dictionaries(words, trees, max_size=3)
contents = words | st.lists(words | maps, max_size=3)
calls = st.builds(dict, name=words, args=maps, id=st.none() | words, type=st.just("tool_call"))
bad_calls = st.builds(
    dict, name=words, args=words, id=words, error=st.none() | words, type=st.just("invalid_tool_call")
)
counts = st.integers(0, 10**6)
usages = st.none() | st.fixed_dictionaries(
    {"input_tokens": counts, "output_tokens": counts, "total_tokens": counts},
    optional={"input_token_details": st.fixed_dictionaries({}, optional={"cache_read": counts})},
)
common = {
    "content": contents,
    "id": st.none() | words,
    "name": st.none() | words,
    "additional_kwargs": maps,
    "response_metadata": maps,
}


def of(kind: type[BaseMessage], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of one class, made as users make them."""
    return st.fixed_dictionaries(fields).map(lambda chosen: kind(**chosen))


KINDS: dict[type[BaseMessage], st.SearchStrategy[Any]] = {
    HumanMessage: of(HumanMessage, **common),
    SystemMessage: of(SystemMessage, **common),
    FunctionMessage: of(FunctionMessage, **{**common, "name": words}),
    ChatMessage: of(ChatMessage, **common, role=words),
    RemoveMessage: of(RemoveMessage, id=words),
    ToolMessage: of(
        ToolMessage, **common, tool_call_id=words, artifact=trees, status=st.sampled_from(["success", "error"])
    ),
    AIMessage: of(
        AIMessage,
        **common,
        tool_calls=st.lists(calls, max_size=2),
        invalid_tool_calls=st.lists(bad_calls, max_size=1),
        usage_metadata=usages,
    ),
}
messages = st.one_of(*KINDS.values())
lists = st.lists(messages, max_size=5)


def alike(value: Any) -> tuple[Any, ...]:
    """Everything that can be told of an object, its class and pydantic's state too."""
    if isinstance(value, BaseModel):
        state = (value.__dict__, value.__pydantic_fields_set__, value.__pydantic_extra__, value.__pydantic_private__)
        return (type(value), *map(alike, state))
    if isinstance(value, list | tuple):
        return (type(value), *map(alike, value))
    if isinstance(value, dict):
        return (dict, *((key, alike(inner)) for key, inner in value.items()))
    if isinstance(value, set):
        return set, *sorted(value)
    return type(value), repr(value)


def containers(value: Any) -> list[int]:
    """The identities of all mutable objects in a value."""
    if isinstance(value, BaseModel):
        return [id(value), *containers(value.__dict__)]
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return [id(value), *(found for one in inner for found in containers(one))]
    return []
