"""Nothing that is logged, told or handed out holds a customer's text or id; and everything that happens is told."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from shredsaver import (
    CustomerRestrictedError,
    CustomerShreddedError,
    Event,
    KeyServiceUnavailableError,
    ShredIncompleteError,
    ShredSaverError,
)
from shredsaver.certificate import page
from shredsaver.receipts import verify
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Notes

CALL = Caller("sync")
CUSTOMER, THREAD, TEXT, REASON, WHO = (
    f"canary of {n} zq{n}" for n in ("customer", "thread", "text", "reason", "asked by")
)
CANARIES = (CUSTOMER, THREAD, TEXT, REASON, WHO)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that any logger of this process says, with tracebacks."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(args)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield out
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def a_whole_life(make_shredder: Callable[..., Any], say: Callable[[str], None], **options: Any) -> list[str]:
    """Everything that can happen to a customer; gives the receipts."""
    log = logging.getLogger("test")

    def refused(call: Callable[[], Any], error: type[Exception]) -> None:
        with pytest.raises(error) as caught:
            call()
        say(repr(caught.value))
        log.debug("refused", exc_info=caught.value)

    notes = Notes(failures=3)
    notes.kept[CUSTOMER] = 1
    shredder = make_shredder(targets=[notes], **options)
    shredder._start().outside._sleep = lambda _: None
    saver, store = shredder.saver, shredder.store
    here = config(THREAD, CUSTOMER)
    stored = put(CALL, saver, here, {"x": TEXT})
    saver.put_writes(stored, [("x", TEXT)], "task")
    store.put(("users", CUSTOMER), TEXT, {"v": TEXT})
    assert saver.get_tuple(here) is not None
    say(repr(shredder.status(CUSTOMER)) + repr(shredder.audit(CUSTOMER)) + repr(shredder.plan(CUSTOMER)))
    shredder.rotate(CUSTOMER)
    shredder.restrict(CUSTOMER, reason=REASON, requested_by=WHO)
    refused(lambda: saver.get_tuple(here), CustomerRestrictedError)
    shredder.reinstate(CUSTOMER)
    shredder.hold(CUSTOMER, REASON, requested_by=WHO)
    refused(lambda: shredder.shred(CUSTOMER), ShredSaverError)
    refused(lambda: saver.delete_thread(THREAD), ShredSaverError)
    shredder.release(CUSTOMER)
    shredder.shred(CUSTOMER, grace=timedelta(days=1), reason=REASON)
    shredder.reinstate(CUSTOMER)
    refused(lambda: shredder.shred(CUSTOMER, reason=REASON, requested_by=WHO), ShredIncompleteError)
    refused(lambda: saver.get_tuple(here), CustomerShreddedError)
    refused(lambda: put(CALL, saver, here, {"x": TEXT}), CustomerShreddedError)
    refused(lambda: store.get(("users", CUSTOMER), TEXT), CustomerShreddedError)
    refused(lambda: store.put(("users", CUSTOMER), TEXT, {"v": TEXT}), CustomerShreddedError)
    say(repr(shredder.resume()))
    shredder.enrol(CUSTOMER)
    put(CALL, saver, here, {"x": TEXT})
    say(repr(shredder.shred(CUSTOMER)))
    return list(shredder.receipts())


def test_logs_results_and_receipts_hold_neither_text_nor_id(
    make_shredder: Callable[..., Any], logged: io.StringIO
) -> None:
    said: list[str] = []
    receipts = a_whole_life(make_shredder, said.append)
    text = logged.getvalue() + "\n".join(said)
    assert "revoked customer=" in text
    public = make_shredder().public_key()
    for receipt in receipts:
        verified = verify(receipt, public)
        text += json.dumps(dict(verified.payload)) + page(verified, receipt)
    for canary in CANARIES:
        assert canary not in text, canary


def test_each_kind_of_event_is_told(make_shredder: Callable[..., Any]) -> None:
    told: list[Event] = []
    a_whole_life(make_shredder, lambda _: None, on_event=told.append)
    kinds = [event.kind for event in told]
    token = make_shredder().status(CUSTOMER).customer
    for kind in (
        *("created", "restricted", "refused read", "reinstated", "hold set", "hold released", "scheduled", "revoked"),
        *("destroyed", "purged", "verified", "refused write", "enrolled"),
    ):
        assert kind in kinds, kind
        assert {event.customer for event in told if event.kind == kind} == {token}, kind
    for canary in CANARIES:
        assert canary not in repr(told)
    order = [kind for kind in kinds if kind in ("revoked", "destroyed", "purged", "verified")]
    once = ["revoked", "destroyed", "purged", "verified"]
    assert order == [*once, "verified", *once]


def test_a_callback_that_raises_stops_nothing(make_shredder: Callable[..., Any], logged: io.StringIO) -> None:
    def broken(event: Event) -> None:
        raise ValueError(f"no room for {event} of {CUSTOMER}")

    shredder = make_shredder(on_event=broken)
    put(CALL, shredder.saver, config(THREAD, CUSTOMER), {"x": 1})
    assert shredder.shred(CUSTOMER).pending == ()
    assert CUSTOMER not in logged.getvalue()
    assert "ValueError" in logged.getvalue()


def test_what_a_restore_brought_back_is_told(make_shredder: Callable[..., Any], backend: Backend) -> None:
    told: list[Event] = []
    shredder = make_shredder()
    put(CALL, shredder.saver, config(THREAD, CUSTOMER), {"x": 1})
    old = backend.copy()
    shredder.shred(CUSTOMER)
    make_shredder(old.url, on_event=told.append)
    (found,) = [event for event in told if event.kind == "reconciled"]
    assert found.fields["revoked"] == 1


def test_a_key_service_that_is_away_is_told(make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise KeyServiceUnavailableError("the key service does not answer")

    told: list[Event] = []
    shredder = make_shredder(on_event=told.append)
    monkeypatch.setattr(shredder._start().core.keys._keys, "create", away)
    with pytest.raises(KeyServiceUnavailableError):
        put(CALL, shredder.saver, config(THREAD, CUSTOMER), {"x": 1})
    assert [event.kind for event in told] == ["key unavailable"]


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)  # providers can be set once in a process
def test_spans_and_counters_where_opentelemetry_is(make_shredder: Callable[..., Any]) -> None:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    a_whole_life(make_shredder, lambda _: None)
    names = [span.name for span in spans.get_finished_spans()]
    for name in ("shred", "resume", "reconcile", "audit"):
        assert f"shredsaver.{name}" in names
    text = str(reader.get_metrics_data()) + str([span.to_json() for span in spans.get_finished_spans()])
    assert "shredsaver.events" in text
    for canary in CANARIES:
        assert canary not in text
