"""Values as bytes, before anything is sealed or written: what cannot be stored is refused here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver import sealing
from shredsaver.db.base import T
from shredsaver.errors import PayloadError
from shredsaver.records import Typed


def serialise(serde: SerializerProtocol, value: Any, what: str) -> Typed:
    """The serializer's tag and bytes of a value.

    Raises:
        PayloadError: As `attempt`, or it is above the limit.
    """
    tag, data = attempt(partial(serde.dumps_typed, value), value, what)
    check_size(data, what)
    return tag, bytes(data)


def check_size(data: bytes, what: str) -> None:
    """Refuses a value above the limit before anything is written.

    Raises:
        PayloadError: It is.
    """
    if len(data) > sealing.MAX_PLAINTEXT:
        raise PayloadError(f"{what} has {len(data)} bytes, above the limit of {sealing.MAX_PLAINTEXT}: split it")


def attempt(function: Callable[[], T], value: Any, what: str) -> T:
    """Calls what serialises a value.

    Raises:
        PayloadError: The serializer cannot take it. Its own error is not chained: it may quote the value.
    """
    try:
        return function()
    except Exception as error:  # noqa: BLE001 -- a serializer may raise anything
        raise PayloadError(
            f"{what} cannot be serialised: a {type(value).__name__} raised {type(error).__name__}. Keep plain data, "
            "messages, dataclasses or pydantic models in the state, or give a serializer that knows the type"
        ) from None
