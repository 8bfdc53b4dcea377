"""Audits of everybody, of erasure targets, and of what was decided about a customer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import CUSTOMER, SHARED, ShredIncompleteError, UnsealError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Notes

CALL = Caller("sync")
TABLES = ("checkpoints", "writes", "parts", "items", "namespaces", "events")


def lived(shredder: Any) -> None:
    for customer in ("c-1", "c-2", "c-3", "c-4"):
        stored = put(CALL, shredder.saver, config(f"t-{customer}", customer), {"x": ["text " * 100] * 3})
        shredder.saver.put_writes(stored, [("x", 1)], "task")
        shredder.store.put(("users", customer), "k", {"v": customer})
    shredder.store.put(("policies", "all"), "k", {"v": "nobody's"})
    shredder.restrict("c-2", reason="she objects")
    shredder.shred("c-3", purge=False)
    shredder.shred("c-4")


def test_everybody_is_the_sum_of_each(call: Caller, make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder(namespaces=(("users", CUSTOMER), ("policies", SHARED)))
    lived(shredder)
    everybody = call(shredder, "audit")
    assert everybody.status is None
    for table in TABLES:
        assert everybody.routes[table].rows == backend.count(table), table
    assert everybody.routes["tombstones"].rows == 2
    each = call(shredder, "audits")
    assert len(each) == 5
    assert everybody.opens == sum(one.opens for one in each)
    dead = shredder.audit("c-3")
    assert (dead.opens, dead.routes["checkpoints"].rows) == (0, 1)
    named = [shredder.audit(customer) for customer in ("c-1", "c-2", "c-3", "c-4")]
    assert everybody.opens == sum(one.opens for one in named) + 2, "and the shared item and namespace"
    assert everybody.damaged == []


def test_an_audit_of_nobody(call: Caller, make_shredder: Callable[..., Any]) -> None:
    found = call(make_shredder(), "audit")
    assert found.opens == 0
    assert found.routes["live state"].rows == 0


def test_targets_are_asked_before_during_and_after(call: Caller, make_shredder: Callable[..., Any]) -> None:
    early, late = Notes("early", failures=3), Notes("late", after="verified")
    shredder = make_shredder(targets=[early, late])
    shredder._start().outside._sleep = lambda _: None
    for customer in ("c-1", "c-2"):
        put(CALL, shredder.saver, config(f"t-{customer}", customer), {"x": 1})
        early.kept[customer], late.kept[customer] = 3, 1
    told: list[Any] = []
    real = early.remaining

    def remaining(context: Any) -> int:
        told.append(context)
        return real(context)

    early.remaining = remaining  # type: ignore[method-assign]

    def left(customer: str | None = "c-1") -> tuple[int, int]:
        routes = (call(shredder, "audit", customer) if customer else call(shredder, "audit")).routes
        for name in ("target early", "target late"):
            assert routes[name].rows == routes[name].opens
        return routes["target early"].rows, routes["target late"].rows

    assert (left(), left(None)) == ((3, 1), (6, 2))
    assert {context.thread_ids for context in told[-2:]} == {("t-c-1",), ("t-c-2",)}
    shredder.restrict("c-1")
    assert left(None) == (6, 2), "the id of whom is restricted is known too"
    with pytest.raises(ShredIncompleteError):
        shredder.shred("c-1")
    assert (left(), left(None)) == ((3, 0), (6, 1)), "an unfinished erasure keeps what its targets need"
    assert {context.thread_ids for context in told[-2:]} == {("t-c-1",), ("t-c-2",)}
    (done,) = shredder.resume()
    assert done.pending == ()
    assert (left(), left(None)) == ((0, 0), (3, 1))


def test_a_target_that_does_not_answer_is_named_and_not_counted(
    call: Caller, make_shredder: Callable[..., Any]
) -> None:
    notes = Notes()
    notes.remaining = lambda _: 1 // 0  # type: ignore[method-assign]
    shredder = make_shredder(targets=[notes])
    put(CALL, shredder.saver, config(), {"x": 1})
    for found in (call(shredder, "audit", "c-1"), call(shredder, "audit")):
        assert found.unanswered == ("notes",)
        assert "target notes" not in found.routes


def test_who_decided_what_and_why_is_in_the_log_and_only_there_to_read_while_the_customer_lives(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.hold("c-1", "case 17, ask Ms Meier", requested_by="legal department")
    shredder.release("c-1", reason="settled")
    shredder.restrict("c-1", requested_by="she herself")
    events = [json.loads(line) for line in call(shredder, "export", "c-1") if json.loads(line)["type"] == "event"]
    assert [(one["kind"], one["reason"], one["requested_by"]) for one in events] == [
        ("hold", "case 17, ask Ms Meier", "legal department"),
        ("release", "settled", None),
        ("restrict", None, "she herself"),
    ]
    assert events[0]["until"].startswith("9999")
    assert events[0]["at"] <= events[1]["at"] <= events[2]["at"]
    assert "Meier" not in str(backend.contents())
    assert shredder.audit("c-1").routes["events"].opens == 3
    backend.execute("UPDATE events SET sealed = (SELECT sealed FROM events WHERE seq = 3) WHERE seq = 2")
    found = shredder.audit("c-1")
    assert (found.routes["events"].rows, found.routes["events"].opens, len(found.damaged)) == (3, 2, 1)
    with pytest.raises(UnsealError):
        list(shredder.export("c-1"))
    shredder.shred("c-1")
    dead = shredder.audit("c-1").routes["events"]
    assert (dead.rows, dead.opens) == (3, 0)
    shredder.enrol("c-1")
    put(CALL, shredder.saver, config(), {"x": 2})
    assert len(list(shredder.export("c-1"))) == 2, "what was decided about the generation before is gone with it"
