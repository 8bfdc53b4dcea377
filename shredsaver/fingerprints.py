"""Lists of messages, serialised and revived without doing again what was done before.

A conversation grows at its end, yet serialising it builds every message anew. For a closed list of exact classes
without extra or private attributes, what `JsonPlusSerializer` writes for a message depends on nothing but its class and
``__dict__``. So a list's *print* (the classes, and msgpack of the ``__dict__``s, which is far cheaper) tells which
messages are what they were, even those that were changed in place: only the others are serialised, and the bytes are
put together. They are the bytes of serialising the whole list.

The print is one to one with what it stands for: it is taken without a hook, of exact text, numbers, booleans, None,
bytes, lists and dicts with text as keys. Whatever holds anything else has no print and is serialised as a whole. For
the same reason messages can be made again from a print, once it is known that this is what reviving gives.

`docs/adr/0007-prints-of-messages.md` has the argument; property tests hold its assumptions. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shredsaver.rebuilding import STATE_IS_KNOWN, loads, rebuilt

Typed = tuple[str, bytes]

# With more state than that of a model of today, a print would not tell all.
CLASSES: Final[frozenset[type]] = frozenset(
    {AIMessage, ChatMessage, FunctionMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage}
    if STATE_IS_KNOWN
    else ()
)
"""The exact classes that have prints. All of them are among those that every `JsonPlusSerializer` revives."""

_DUMPS: Final = JsonPlusSerializer.dumps_typed
_LOADS: Final = JsonPlusSerializer.loads_typed
CHUNK: Final = 32
_OWN_METHODS: Final = ("dumps_typed", "loads_typed")
_TAG: Final = "msgpack"
_FIXED: Final = 16  # elements from which an array's header is longer than a byte
_EXACT: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_content: Final = attrgetter("__dict__")
_extra: Final = attrgetter("__pydantic_extra__")
_private: Final = attrgetter("__pydantic_private__")


class Revivable(NamedTuple):
    """How much of a list is known to be revived to what its print says."""

    messages: int
    """How many, from the first."""
    data: int
    """Their bytes in the serialised list, without its header."""


_NOTHING: Final = Revivable(0, 0)


class Print(NamedTuple):
    """A list of messages that was serialised. Its repr shows no payload.

    Attributes:
        classes: Each message's class.
        packed: msgpack of the lists of their ``__dict__``s, `CHUNK` messages at a time: what is short stays in the
            processor's cache, and equal chunks of two prints are one object.
        data: What the serializer makes of the list.
        revivable: How much of it can be made again from ``packed``.
    """

    classes: list[type]
    packed: tuple[bytes, ...]
    data: bytes
    revivable: Revivable = _NOTHING

    @property
    def size(self) -> int:
        """Bytes that it holds beside ``data``."""
        return sum(map(len, self.packed))

    def __repr__(self) -> str:
        return f"Print({len(self.classes)} messages, {len(self.data)} bytes)"


def applies(serde: SerializerProtocol) -> bool:
    """Whether a serializer is LangGraph's own, unchanged: with any other, nothing is known of what it writes."""
    kind = type(serde)
    return (
        kind is JsonPlusSerializer
        and kind.dumps_typed is _DUMPS
        and kind.loads_typed is _LOADS
        and not getattr(serde, "_custom_unpack_ext_hook", True)
        and vars(serde).keys().isdisjoint(_OWN_METHODS)
    )


def dump(serde: SerializerProtocol, value: Any, before: Print | None) -> tuple[Typed, Print | None]:
    """Serialises a value as ``serde.dumps_typed`` does.

    Args:
        serde: A serializer to which prints apply.
        value: Any value; only lists of messages gain.
        before: The print of an earlier value.

    Returns:
        The tag and bytes, and the value's print if it has one.
    """
    taken = _taken(value, before.packed if before is not None else ())
    if taken is None:
        return serde.dumps_typed(value), None
    classes, packed = taken
    if before is None or not _continues(classes, packed, before):
        typed = serde.dumps_typed(value)
        # Taken again: a message that somebody changed meanwhile must not be remembered with bytes of its old content.
        return typed, Print(classes, packed, typed[1]) if _taken(value, packed) == taken else None
    count = len(before.classes)
    if count == len(classes):
        return (_TAG, before.data), before
    added = value[count:]
    tail = serde.dumps_typed(added)[1]
    data = b"".join((_header(len(classes)), _body(before.data, count), _body(tail, len(added))))
    now = Print(classes, packed, data, before.revivable)
    return ((_TAG, data), now) if _holds(now, value, count) else (serde.dumps_typed(value), None)


def load(serde: SerializerProtocol, typed: Typed, before: Print | None, *, again: bool) -> tuple[Any, Print | None]:
    """Revives a value as ``serde.loads_typed`` does: fresh objects, whatever was done to those given earlier.

    Args:
        serde: A serializer to which prints apply.
        typed: The tag and bytes.
        before: The print of these bytes, if there is one.
        again: Whether these bytes have been revived before, so that it pays to take a print of what they give.

    Returns:
        The value, and the print to keep for it.
    """
    if before is None or typed != (_TAG, before.data):
        value = loads(serde, typed)
        return value, _of_revived(serde, value, typed) if again else None
    known, data = before.revivable
    total = len(before.classes)
    value = _made(before, known)
    if known == total:
        return value, before
    value += loads(serde, (_TAG, _header(total - known) + _body(before.data, total)[data:]))
    if _revivable(value[known:]) and _holds(before, value, known):
        before = before._replace(revivable=_all(total, before.data))
    return value, before


def _of_revived(serde: SerializerProtocol, value: Any, typed: Typed) -> Print | None:
    """The print of revived messages, if serialising them gives the same bytes: then it serves both ways."""
    taken = _taken(value)
    if taken is None or not value or not _revivable(value) or serde.dumps_typed(value) != typed:
        return None
    classes, packed = taken
    return Print(classes, packed, typed[1], _all(len(classes), typed[1]))


def _made(of: Print, count: int) -> list[Any]:
    """The first messages made from a print, as reviving made them."""
    contents = chain.from_iterable(map(ormsgpack.unpackb, of.packed[: -(-count // CHUNK)]))
    return [rebuilt(cls, content) for cls, content in zip(of.classes[:count], contents, strict=False)]


def _taken(value: Any, before: tuple[bytes, ...] = ()) -> tuple[list[type], tuple[bytes, ...]] | None:
    """Classes and packed content of a list of messages that has a print; chunks equal to those before are those."""
    if type(value) is not list or not CLASSES.issuperset(map(type, value)):
        return None
    packed = []
    try:
        if any(map(_extra, value)) or any(map(_private, value)):
            return None
        contents = list(map(_content, value))
        for number, start in enumerate(range(0, len(contents), CHUNK)):
            chunk = ormsgpack.packb(contents[start : start + CHUNK], option=_EXACT)
            packed.append(before[number] if number < len(before) and before[number] == chunk else chunk)
    except (AttributeError, ormsgpack.MsgpackEncodeError):
        return None
    return list(map(type, value)), tuple(packed)


def _revivable(value: Sequence[Any]) -> bool:
    """Whether the state of revived messages outside their ``__dict__`` is what `_made` gives."""
    return all(
        type(message) in CLASSES
        and message.__pydantic_fields_set__ == message.__dict__.keys()
        and message.__pydantic_extra__ == {}
        and message.__pydantic_private__ is None
        for message in value
    )


def _continues(classes: list[type], packed: tuple[bytes, ...], before: Print) -> bool:
    """Whether a list begins with the one that was printed before."""
    count = len(before.classes)
    if classes[:count] != before.classes:
        return False
    whole, rest = divmod(count, CHUNK)
    if packed[:whole] != before.packed[:whole]:
        return False
    header = _header(min(len(classes) - whole * CHUNK, CHUNK))
    return not rest or packed[whole].startswith(_body(before.packed[whole], rest), len(header))


def _holds(of: Print, messages: list[Any], start: int) -> bool:
    """Whether messages from a place on are what their print says."""
    chunk = start // CHUNK
    first = chunk * CHUNK
    return _taken(messages[first:]) == (of.classes[first:], of.packed[chunk:])


def _all(count: int, data: bytes) -> Revivable:
    return Revivable(count, len(_body(data, count)))


def _header(count: int) -> bytes:
    """The msgpack header of an array."""
    if count < _FIXED:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def _body(data: bytes, count: int) -> memoryview:
    """An array of ``count`` elements without its header."""
    return memoryview(data)[len(_header(count)) :]
