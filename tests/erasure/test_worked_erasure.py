"""The worked erasure: twenty locations before, none after, and a receipt that an independent count agrees with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import OKPKey

from shredsaver.demo.experiment import TURNS
from shredsaver.demo.person import Person
from shredsaver.demo.sides import Opened
from tests.support.backends import Backend
from tests.support.calls import Caller

SECRET = "MARKER-5f1c"
COUNTS = {
    "threads": "SELECT count(*) FROM threads WHERE customer = ? AND name IS NOT NULL",
    "checkpoints": "SELECT count(*) FROM checkpoints k JOIN threads t ON t.thread = k.thread WHERE t.customer = ?",
    "writes": "SELECT count(*) FROM writes k JOIN threads t ON t.thread = k.thread WHERE t.customer = ?",
    "parts": "SELECT count(*) FROM parts k JOIN threads t ON t.thread = k.thread WHERE t.customer = ?",
    "items": "SELECT count(*) FROM items WHERE customer = ?",
    "namespaces": "SELECT count(*) FROM namespaces WHERE customer = ?",
}
"""A count of our own, with nothing of the library's."""


def counted(backend: Backend, token: str) -> dict[str, int]:
    return {route: int(backend.execute(sql, (bytes.fromhex(token),))[0][0]) for route, sql in COUNTS.items()}


def conversations(shredder: Any) -> tuple[Person, Person]:
    """The demo's customer whose secret compaction leaves behind, and another one."""
    opened = Opened(shredder.saver, shredder.store)
    ana, ben = Person(opened, "anastasia-77"), Person(opened, "ben")
    ana.say(f"My diagnosis is {SECRET}.")
    ana.remember(SECRET)
    ben.say("I like chess.")
    ben.remember("chess")
    for turn in range(1, TURNS):
        ana.say(f"Question {turn}?")
    ana.clear()
    return ana, ben


def read_by_another_library(receipt: str, public_key: str) -> dict[str, Any]:
    """What a receipt says, its signature checked by joserfc."""
    key = OKPKey.import_key(public_key)
    found = jws.deserialize_compact(receipt, key, algorithms=["Ed25519"])
    assert found.headers()["kid"] == key.thumbprint()
    said = json.loads(found.payload)
    assert isinstance(said, dict)
    return said


def test_twenty_locations_then_none(make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    ana, ben = conversations(shredder)
    before = ana.count(SECRET)
    assert before.locations == 20
    assert before.resumable > 0
    token = shredder.status("anastasia-77").customer
    rows, others = counted(backend, token), counted(backend, shredder.status("ben").customer)
    assert min(rows.values()) > 0
    audit = shredder.audit("anastasia-77")
    assert {route: audit.routes[route].rows for route in rows} == rows
    assert audit.opens == sum(rows[route] for route in rows if route != "threads")
    assert shredder.plan("anastasia-77").counts == rows

    result = shredder.shred("anastasia-77", reason="art-17/2026-118")

    after = ana.count(SECRET)
    assert after.locations == after.resumable == 0
    assert counted(backend, token) == dict.fromkeys(rows, 0)
    assert counted(backend, shredder.status("ben").customer) == others
    said = read_by_another_library(result.receipt, shredder.public_key())
    assert said["what"]["before"] == rows
    assert said["what"]["after"] == dict.fromkeys(rows, 0)
    assert said["state"] == "complete"
    assert said["pending"] == []
    assert said["why"]["reason"] == {"code": "art-17/2026-118"}
    when = said["when"]
    assert when["requested"] <= when["revoked"] <= when["purged"] <= when["verified"]
    assert ben.knows("chess")
    assert shredder.audit("anastasia-77").opens == 0
    assert shredder.audit("anastasia-77").routes["tombstones"].rows == 1


def test_ciphertext_left_in_place_is_counted_and_does_not_open(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    ana, _ = conversations(shredder)
    token = shredder.status("anastasia-77").customer
    rows = counted(backend, token)
    result = shredder.shred("anastasia-77", purge=False)
    assert ana.count(SECRET).locations == 0
    audit = shredder.audit("anastasia-77")
    assert audit.opens == 0
    assert audit.routes["checkpoints"].rows == rows["checkpoints"]
    assert not audit.damaged
    said = read_by_another_library(result.receipt, shredder.public_key())
    assert said["what"]["before"] == said["what"]["after"] == rows == counted(backend, token)
    assert said["when"]["purged"] is None
    assert said["state"] == "complete"


@pytest.mark.parametrize("purge", [True, False])
def test_a_receipt_names_nobody(make_shredder: Callable[..., Any], purge: bool) -> None:
    shredder = make_shredder()
    conversations(shredder)
    token = shredder.status("anastasia-77").customer
    free_text = "anastasia-77 wrote to us on Monday"
    result = shredder.shred("anastasia-77", reason=free_text, requested_by="she herself", purge=purge)
    said = json.dumps(read_by_another_library(result.receipt, shredder.public_key()))
    for text in ("anastasia-77", "wrote to us", "herself", SECRET, token):
        assert text not in said, text
    assert "commitment" in json.loads(said)["why"]["reason"]


def test_the_demo_counts_the_same_both_ways(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    ana, _ = conversations(shredder)
    assert call(shredder, "audit", "anastasia-77") == shredder.audit("anastasia-77")
    call(shredder, "shred", "anastasia-77")
    assert ana.count(SECRET).locations == 0
