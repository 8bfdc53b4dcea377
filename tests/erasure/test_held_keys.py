"""Holds in the key store that somebody alters, forges or takes away, past the library."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shredsaver import CustomerShreddedError, LegalHoldError
from shredsaver.db.base import Sql
from shredsaver.reconcile import Reconciliation
from shredsaver.restoring import HELD_PAGE
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.keyplaces import AWS, LOCAL, KeyPlace, places
from tests.support.targets import Clock

CALL = Caller("sync")
EDITS = {
    "until brought forward": "UPDATE key_holds SET until = '2020-01-01T00:00:00.000Z'",
    "reason": "UPDATE key_holds SET reason = x'00'",
    "mac": "UPDATE key_holds SET mac = zeroblob(32)",
    "customer": "UPDATE key_holds SET customer = zeroblob(16)",
    "slot": "UPDATE key_holds SET slot = 1 - slot",
    "taken away": "DELETE FROM key_holds",
    "forged": "INSERT INTO key_holds SELECT w.customer, w.slot, '', x'00', h.since, h.mac FROM key_wraps w, key_holds h"
    " WHERE w.customer <> h.customer AND w.slot = h.slot AND w.customer <> x''",
    "seal": "UPDATE key_slots SET holds = zeroblob(32) WHERE holds IS NOT NULL",
    "seal taken away": "UPDATE key_slots SET holds = NULL",
}
one_database = places([LOCAL[0], AWS[0]])


@pytest.fixture
def keys(place: KeyPlace) -> str:
    return place.uri


@pytest.fixture
def held(make_shredder: Callable[..., Any], place: KeyPlace) -> Any:
    """A deployment with one customer under a hold, and others in the same slot and in the other, whom nobody holds."""
    shredder = make_shredder()
    slots: dict[int, list[str]] = {0: [], 1: []}
    number = 0
    while min(map(len, slots.values())) < 2:  # which slot a customer is in is chance
        name = f"c-{number}"
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
        slots[int.from_bytes(bytes.fromhex(shredder.status(name).customer)[:2]) % 2].append(name)
        number += 1
    shredder.hold("c-0", "case 7")
    (_, neighbour, *_), (other, *_) = sorted(slots.values(), key=lambda names: "c-0" not in names)
    shredder.names = (neighbour, other)
    return shredder


@one_database
@pytest.mark.parametrize("edit", EDITS)
def test_what_does_not_verify_is_a_hold_for_all_of_its_slot(held: Any, place: KeyPlace, edit: str) -> None:
    neighbour, other = held.names
    place.execute(EDITS[edit])
    core = held._start().core
    token = core.token("customer", "c-0")
    before = place.counts()
    with pytest.raises(LegalHoldError, match="reconcile"):
        core.keys.destroy([token])
    with pytest.raises(LegalHoldError, match="reconcile"):
        core.keys.held(token)
    assert any("holds of slot" in problem for problem in held.check_keys().problems)
    with pytest.raises(LegalHoldError):
        held.shred("c-0")
    if edit != "slot":
        with pytest.raises(LegalHoldError, match="reconcile"):
            held.shred(neighbour)
        assert held.shred(neighbour, defer=True).state == "scheduled"  # out of use, and kept
    assert place.counts() == before
    if edit != "slot":
        assert held.shred(other).state == "purged"
    found = held.reconcile()
    assert found.holds == (2 if edit == "slot" else 1)
    assert not [problem for problem in held.check_keys().problems if "holds" in problem]
    with pytest.raises(LegalHoldError, match="is held"):
        core.keys.destroy([token])
    assert held.shred(neighbour).state == "purged"
    held.release("c-0")
    assert held.shred("c-0").state == "purged"


@one_database
def test_a_damaged_slot_stops_no_opening_and_no_new_hold(
    held: Any, place: KeyPlace, make_shredder: Callable[..., Any]
) -> None:
    neighbour, _ = held.names
    place.execute("DELETE FROM key_holds")
    held.shred(neighbour, defer=True)
    held.hold("c-0", "case 8")
    again = make_shredder()
    assert again.saver.get_tuple(config("t-c-0", "c-0")) is not None
    assert again.resume() == []
    again.reconcile()
    assert [one.state for one in again.resume()] == ["purged"]
    with pytest.raises(CustomerShreddedError):
        again.saver.get_tuple(config(f"t-{neighbour}", neighbour))


@one_database
def test_a_hold_that_ended_is_sealed_away_with_its_customer(held: Any, place: KeyPlace) -> None:
    core = held._start().core
    token = core.token("customer", "c-0")
    core.keys.hold(token, datetime.now(UTC) - timedelta(seconds=1), b"ended")
    assert core.keys.held(token) is None
    held.release("c-0")
    core.keys.hold(token, datetime.now(UTC) - timedelta(seconds=1), b"ended")
    assert held.shred("c-0").state == "purged"
    assert place.counts()["key_holds"] == 0
    assert held.check_keys().ok


@one_database
def test_holds_are_set_again_as_they_were_and_none_that_has_ended(
    make_shredder: Callable[..., Any], place: KeyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shredsaver.restoring.HELD_PAGE", Sql(*(one.replace("200", "2") for one in HELD_PAGE)))
    clock = Clock()
    shredder = make_shredder()
    core = shredder._start().core
    core.clock = clock
    core.keys._keys._clock = lambda: datetime.fromtimestamp(clock(), UTC)
    end = datetime(2100, 1, 2, 3, 4, 5, 678_000, UTC)
    ends = {"c-0": None, "c-1": end, "c-2": datetime.now(UTC) + timedelta(days=1), "c-3": None, "c-4": end, "c-5": None}
    for name, until in ends.items():
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
        shredder.hold(name, "case", until)
    put(CALL, shredder.saver, config("t-7", "c-7"), {"x": 7})
    shredder.restrict("c-3")
    shredder.release("c-5")
    clock.on(timedelta(days=2))
    place.execute("DELETE FROM key_holds")
    assert shredder.reconcile().holds in (1, 2)
    kept = {name: core.keys.held(core.token("customer", name)) for name in (*ends, "c-7")}
    assert {name: hold.until for name, hold in kept.items() if hold is not None} == {
        "c-0": None,
        "c-1": "2100-01-02T03:04:05.678Z",
        "c-3": None,
        "c-4": "2100-01-02T03:04:05.678Z",
    }
    assert place.counts()["key_holds"] == 4
    assert shredder.reconcile().holds == 0


@one_database
def test_a_copy_of_the_database_sets_no_holds(
    held: Any, place: KeyPlace, backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    copy = backend.copy()
    place.execute("DELETE FROM key_holds")
    staging = make_shredder(copy.url)
    assert staging.reconcile() == Reconciliation(forked=True)
    assert place.counts()["key_holds"] == 0
    assert held.reconcile() == Reconciliation(holds=1)
    assert place.counts()["key_holds"] == 1
