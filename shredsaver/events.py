"""What happens to customers, told as structured events: to `logging`, to a callback, and to OpenTelemetry.

An event names a customer by the token that the database holds, and holds no id and no text. Each is one record of the
logger ``shredsaver`` whose attribute ``event`` is the `Event`; a callback gets the same. Counters and spans appear
where ``opentelemetry-api`` is installed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from shredsaver.db.base import Database, PlanFactory, T
from shredsaver.errors import CustomerRestrictedError, CustomerShreddedError, KeyServiceUnavailableError


def _companion(name: str) -> Any:
    """A module that need not be there: without it nothing is counted."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


_metrics: Final = _companion("opentelemetry.metrics")
_trace: Final = _companion("opentelemetry.trace")
_log: Final = logging.getLogger("shredsaver")
_log.addHandler(logging.NullHandler())  # silent until the application sets logging up, as libraries should be

KINDS: Final = (
    "created",
    "enrolled",
    "revoked",
    "destroyed",
    "purged",
    "verified",
    "incomplete",
    "scheduled",
    "restricted",
    "reinstated",
    "hold set",
    "hold released",
    "refused read",
    "refused write",
    "reconciled",
    "key unavailable",
    "signing key renewed",
)
"""Every kind of event."""

_WARNINGS: Final = frozenset({"incomplete", "refused read", "refused write", "reconciled", "key unavailable"})
_SPANS: Final = frozenset({"shred", "resume", "reconcile", "audit"})
_READS: Final = frozenset(
    {"_get", "_page", "_history", "_owner", "_threads", "_items", "_events", "pending", "audit", "page", "status"}
)
_TOKEN: Final = re.compile(r"\bcustomer ([0-9a-f]{32})\b")


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        kind: One of `KINDS`.
        customer: The customer's token in hexadecimal; None where it concerns no single one.
        fields: What else is known: text, numbers and booleans, never an id or a payload.
    """

    kind: str
    customer: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


class Events:
    """Where events go.

    Args:
        callback: Called with each event on the thread where it happened; it must be quick. What it raises is logged by
            its type and stops nothing.
    """

    def __init__(self, callback: Callable[[Event], None] | None = None) -> None:
        self._callback = callback
        self._counter = (
            None
            if _metrics is None
            else _metrics.get_meter("shredsaver").create_counter("shredsaver.events", description="events by kind")
        )

    def emit(self, kind: str, customer: bytes | str | None = None, **fields: Any) -> None:
        """Tells an event. Never raises."""
        token = customer.hex() if isinstance(customer, bytes) else customer
        event = Event(kind, token, {name: value for name, value in fields.items() if value is not None})
        level = logging.WARNING if kind in _WARNINGS else logging.INFO
        if _log.isEnabledFor(level):
            said = " ".join(f"{name}={value}" for name, value in event.fields.items())
            _log.log(level, "%s customer=%s %s", kind, token or "-", said, extra={"event": event})
        if self._counter is not None:
            self._counter.add(1, {"kind": kind})
        if self._callback is not None:
            try:
                self._callback(event)
            except Exception as error:  # noqa: BLE001 -- foreign code, which must not stop an erasure
                _log.error("the callback for events raised %s", type(error).__name__)


def _span(name: str) -> AbstractContextManager[object]:
    if _trace is None:
        return nullcontext()
    tracer = _trace.get_tracer("shredsaver")
    # An exception's text stays out of the span: it is for whoever called, not for whoever collects traces.
    span: AbstractContextManager[object] = tracer.start_as_current_span(
        f"shredsaver.{name}", record_exception=False, set_status_on_exception=False
    )
    return span


class WatchedDatabase:
    """A driver that tells what was refused, and times what is worth a span.

    Args:
        database: The driver.
        events: Where refusals and outages are told.
    """

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    @property
    def location(self) -> str:
        """See `Database`."""
        return self._database.location

    def run(self, factory: PlanFactory[T]) -> T:
        """See `Database`."""
        try:
            if _name(factory) not in _SPANS:
                return self._database.run(factory)
            with _span(_name(factory)):
                return self._database.run(factory)
        except (CustomerShreddedError, CustomerRestrictedError, KeyServiceUnavailableError) as error:
            self._tell(factory, error)
            raise

    async def arun(self, factory: PlanFactory[T]) -> T:
        """See `Database`."""
        try:
            if _name(factory) not in _SPANS:
                return await self._database.arun(factory)
            with _span(_name(factory)):
                return await self._database.arun(factory)
        except (CustomerShreddedError, CustomerRestrictedError, KeyServiceUnavailableError) as error:
            self._tell(factory, error)
            raise

    def fingerprint(self) -> str:
        """See `Database`."""
        return self._database.fingerprint()

    def close(self) -> None:
        """See `Database`."""
        self._database.close()

    async def aclose(self) -> None:
        """See `Database`."""
        await self._database.aclose()

    def _tell(self, factory: PlanFactory[Any], error: Exception) -> None:
        # Our own messages name a customer by its token and by nothing else.
        named = _TOKEN.search(str(error))
        token = named[1] if named else None
        if isinstance(error, KeyServiceUnavailableError):
            self._events.emit("key unavailable", token, error=type(error).__name__)
            return
        erasure_id = getattr(error, "erasure_id", None)
        kind = "refused read" if _reads(factory) else "refused write"
        self._events.emit(kind, token, error=type(error).__name__, erasure=erasure_id)


def _name(factory: PlanFactory[Any]) -> str:
    function = getattr(factory, "func", factory)
    return str(getattr(function, "__name__", ""))


def _reads(factory: PlanFactory[Any]) -> bool:
    name = _name(factory)
    if name == "batch":
        return not factory.args[0].puts  # type: ignore[attr-defined]
    return name in _READS
