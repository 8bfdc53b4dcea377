"""Types that people keep in a graph's state."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import pickle
import re
import uuid
from collections import deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel


class Address(BaseModel):
    street: str
    number: int = 1
    tags: list[str] = []


class Person(BaseModel):
    name: str
    home: Address | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: float
    label: str = ""


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Size(enum.IntEnum):
    SMALL = 1


class Outer:
    class Inner(enum.Enum):
        NESTED = "nested"


class Pair(NamedTuple):
    left: Any
    right: Any


Plain = namedtuple("Plain", "a b")  # noqa: PYI024 - the untyped kind is met in the wild


class Ghost(BaseModel):
    """Its class disappears between writing and reading."""

    secret: str


class Runs:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (pathlib.Path.touch, (self.path,))

    def pickled(self) -> bytes:
        return pickle.dumps(self)


class Opaque:
    """Only pickle takes it."""

    __slots__ = ()


_CALL = {"name": "look_up", "args": {"order": "A-1"}, "id": "call-1", "type": "tool_call"}

CORPUS: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": 7,
    "big int": 2**63 - 1,
    "negative": -(2**31),
    "float": 1.5,
    "text": "ünïcødé \u2028 \U0001f512",
    "nul": "x\x00y",
    "empty text": "",
    "long text": "lorem ipsum " * 500,
    "bytes": b"\x00\xff" * 10,
    "long bytes": bytes(range(256)) * 40,
    "bytearray": bytearray(b"mutable"),
    "empty bytes": b"",
    "list": [1, "two", 3.0, None, [True, {"k": []}]],
    "empty list": [],
    "fifteen": list(range(15)),
    "sixteen": list(range(16)),
    "many": ["element " * 20 + str(n) for n in range(300)],
    "floats": [n / 7 for n in range(1000)],
    "dict": {"a": 1, "b": {"c": [1, 2]}},
    "keys of any kind": {1: "int", "1": "text", 2.5: "float", None: "none"},
    "ordered": {"z": 1, "a": 2, "m": 3},
    "files": {f"file {n}": "contents " * 300 for n in range(20)},
    "tuple": (1, "two", (3,)),
    "long tuple": tuple("element " * 30 + str(n) for n in range(20)),
    "set": {1, 2, 3},
    "frozenset": frozenset({"a", "b"}),
    "deque": deque([1, 2, 3]),
    "named tuple": Pair(1, [2]),
    "plain named tuple": Plain(1, 2),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "decimal": Decimal("1.100"),
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "naive datetime": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - people do keep them
    "offset": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "zone": ZoneInfo("Europe/Paris"),
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5, 6),
    "timedelta": timedelta(days=1, microseconds=5),
    "path": Path("/tmp/some where"),
    "pattern": re.compile("a+b", re.IGNORECASE),
    "ip": ip_address("::1"),
    "enum": Colour.BLUE,
    "str enum": Level.HIGH,
    "int enum": Size.SMALL,
    "nested enum": Outer.Inner.NESTED,
    "dataclass": Point(1, 2.5, "p"),
    "pydantic": Address(street="Main"),
    "nested pydantic": Person(name="Ada", home=Address(street="Main", number=3, tags=["x"])),
    "models in a list": [Address(street="a" * 200), Point(1, 2), Level.LOW, Colour.RED],
    "numpy": np.arange(12, dtype=np.float32).reshape(3, 4),
    "numpy fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "numpy in a list": [np.zeros(100), "between", np.ones(3)],
    "human": HumanMessage("hello", id="1", name="ada"),
    "chat": [
        SystemMessage("be kind", id="0"),
        HumanMessage([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x" * 300}}], id="1"),
        AIMessage("", tool_calls=[_CALL], id="2", additional_kwargs={"k": [1]}, response_metadata={"m": None}),
        ToolMessage("found", tool_call_id="call-1", id="3", artifact={"raw": [1, 2]}, status="error"),
        AIMessage("done " * 100, id="4", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
        AIMessageChunk("chunk", id="5"),
    ],
    "document": Document("page", metadata={"source": "x"}, id="d"),
    "send": Send("node", {"arg": [1]}),
    "sends": [Send("node", {"n": n}) for n in range(3)],
    "interrupt": Interrupt(value={"question": "?"}, id="i-1"),
    "command": Command(update={"x": 1}, goto="next", resume={"a": 1}),
}
