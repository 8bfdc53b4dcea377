"""Holds, deferred erasures, graces, restrictions: what protects, what waits, what can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shredsaver import (
    ConfigurationError,
    CustomerRestrictedError,
    CustomerShreddedError,
    LegalHoldError,
    ShredIncompleteError,
)
from shredsaver.receipts import verify
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Clock, Notes

CALL = Caller("sync")


def timed(make_shredder: Callable[..., Any], clock: Clock, **options: Any) -> Any:
    """A Shredder whose database side and whose key service go by one clock."""
    shredder = make_shredder(**options)
    core = shredder._start().core
    core.clock = clock
    core.keys._keys._clock = lambda: datetime.fromtimestamp(clock(), UTC)
    return shredder


def test_a_hold_protects_in_database_and_key_service(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    saver = shredder.saver
    put(call, saver, config(), {"x": 1})
    put(call, saver, config("t-9", "c-9"), {"x": 1})
    status = call(shredder, "hold", "c-1", "case 17, ask Ms Meier")
    assert status.held_until is not None
    before = backend.contents()
    with pytest.raises(LegalHoldError):
        call(shredder, "shred", "c-1")
    with pytest.raises(LegalHoldError):
        call(shredder, "shred_many", ["c-9", "c-1"])
    with pytest.raises(LegalHoldError):
        call(saver, "delete_thread", "t-1")
    with pytest.raises(LegalHoldError):
        call(saver, "prune", ["t-1"])
    assert backend.contents() == before, "nobody of the batch was touched"
    core = shredder._start().core
    with pytest.raises(LegalHoldError):
        core.keys.destroy([core.token("customer", "c-1")])
    assert len(list(shredder.export("c-1"))) == 3  # what it is, the checkpoint, and who decided what
    assert "Meier" not in str(before)
    call(shredder, "release", "c-1")
    assert call(shredder, "shred", "c-1").state == "purged"


def test_a_hold_that_only_the_database_knows_protects_a_batch(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    for name in ("c-1", "c-2"):
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": 1})
    shredder.hold("c-2", "case")
    core = shredder._start().core
    core.keys.release(core.token("customer", "c-2"))
    with pytest.raises(LegalHoldError):
        shredder.shred_many(["c-1", "c-2"])
    assert shredder.status("c-1").state == "live"


def test_a_deferred_erasure_waits_for_the_release(make_shredder: Callable[..., Any]) -> None:
    notes = Notes()
    shredder = make_shredder(targets=[notes])
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.hold("c-1", "case")
    waiting = shredder.shred("c-1", defer=True)
    assert (waiting.state, waiting.receipt, waiting.destroyed_at) == ("scheduled", None, None)
    with pytest.raises(CustomerRestrictedError):
        shredder.saver.get_tuple(config())
    assert shredder.status("c-1").due_at is not None
    assert shredder.resume() == []
    assert make_shredder(targets=[notes]).status("c-1").state == "restricted"
    assert notes.told == []
    shredder.release("c-1")
    (done,) = shredder.resume()
    assert (done.state, done.pending, done.erasure_id) == ("purged", (), waiting.erasure_id)
    assert notes.told[0].thread_ids == ("t-1",)


def test_a_hold_ends_by_itself_and_opening_destroys(make_shredder: Callable[..., Any]) -> None:
    clock = Clock()
    shredder = timed(make_shredder, clock)
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.hold("c-1", "case", datetime.now(UTC) + timedelta(days=30))
    shredder.shred("c-1", defer=True)
    clock.on(timedelta(days=29))
    assert shredder.resume() == []
    clock.on(timedelta(days=2))
    (done,) = shredder.resume()
    assert done.state == "purged"
    with pytest.raises(ConfigurationError):
        shredder.hold("c-2", "case", datetime(2030, 1, 1))  # noqa: DTZ001 -- without a time zone


def test_a_grace_can_be_cancelled_until_it_has_passed(make_shredder: Callable[..., Any], backend: Backend) -> None:
    clock = Clock()
    shredder = timed(make_shredder, clock, targets=[Notes()])
    put(CALL, shredder.saver, config(), {"x": 1})
    waiting = shredder.shred("c-1", grace=timedelta(days=7))
    assert waiting.state == "scheduled"
    assert list(shredder.receipts()) == []
    with pytest.raises(CustomerRestrictedError):
        put(CALL, shredder.saver, config(), {"x": 2})
    clock.on(timedelta(days=6))
    assert shredder.resume() == []
    shredder.reinstate("c-1")
    assert shredder.saver.get_tuple(config()).checkpoint["channel_values"] == {"x": 1}
    assert backend.rows("erasures")[0]["retry"] is None
    clock.on(timedelta(days=2))
    assert shredder.resume() == []
    again = shredder.shred("c-1", grace=timedelta(hours=1))
    assert again.erasure_id != waiting.erasure_id
    clock.on(timedelta(hours=2))
    (done,) = shredder.resume()
    said = verify(done.receipt, shredder.public_key()).payload
    assert said["state"] == "complete"
    assert said["when"]["requested"] < said["when"]["revoked"] <= said["when"]["verified"]
    with pytest.raises(CustomerShreddedError):
        shredder.reinstate("c-1")


def test_an_erasure_that_is_due_is_done_by_opening(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.shred("c-1", grace=timedelta(0))
    assert shredder.status("c-1").state == "restricted"
    assert make_shredder().status("c-1").state == "purged"


def test_what_is_due_and_fails_stops_no_opening(make_shredder: Callable[..., Any]) -> None:
    notes = Notes(failures=None)
    shredder = make_shredder(targets=[notes])
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.shred("c-1", grace=timedelta(0))
    opened = make_shredder(targets=[notes])
    assert opened.status("c-1").pending == ("target:notes",)
    put(CALL, opened.saver, config("t-2", "c-2"), {"x": 1})


def test_a_second_shred_without_a_grace_does_not_wait(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    waiting = shredder.shred("c-1", grace=timedelta(days=7))
    done = shredder.shred("c-1")
    assert (done.state, done.erasure_id) == ("purged", waiting.erasure_id)


def test_restriction_stops_use_and_can_be_taken_back(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(call, shredder.saver, config(), {"x": 1})
    call(shredder, "restrict", "c-1", reason="she objects to profiling", requested_by="dpo")
    for attempt in (shredder, make_shredder()):
        with pytest.raises(CustomerRestrictedError):
            call(attempt.saver, "get_tuple", config())
        with pytest.raises(CustomerRestrictedError):
            call(attempt.store, "put", ("users", "c-1"), "k", {"v": 1})
    assert "profiling" not in str(backend.contents())
    assert call(shredder, "reinstate", "c-1").state == "live"
    assert call(shredder.saver, "get_tuple", config()) is not None
    call(shredder, "restrict", "c-1")
    assert call(shredder, "shred", "c-1").state == "purged"


def test_a_hold_set_while_a_shred_runs_neither_saves_nor_blocks_it(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder, other = make_shredder(), make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    keys = other._start().core.keys
    real = keys.hold

    def late(*args: Any) -> Any:
        """The key service answers, and before the database does the customer is revoked."""
        answer = real(*args)
        monkeypatch.setattr(shredder._start().shredding, "_held", lambda _: iter_false())
        with pytest.raises(ShredIncompleteError):  # the hold in the key service is respected
            shredder.shred("c-1")
        monkeypatch.undo()
        return answer

    monkeypatch.setattr(keys, "hold", late)
    with pytest.raises(CustomerShreddedError):
        other.hold("c-1", "too late")
    assert shredder.status("c-1").state == "revoked"
    (done,) = shredder.resume()
    assert done.pending == ()


def iter_false() -> Any:
    """A plan that answers no."""
    yield from ()
    return False


def test_a_hold_left_behind_on_somebody_revoked_can_be_released(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    put(CALL, shredder.saver, config("t-2", "c-2"), {"x": 1})
    core = shredder._start().core
    token = core.token("customer", "c-1")
    plan = shredder._start().shredding.begin
    from shredsaver.shredding import Request

    core.database.run(lambda: plan(token, "c-1", Request()))
    core.keys.hold(token, None, b"x")
    with pytest.raises(ShredIncompleteError) as caught:
        shredder.shred_many(["c-2"]) and shredder.resume()
    assert caught.value.pending[0] == "destroyed"
    assert shredder.status("c-2").state == "purged"
    shredder.release("c-1")
    assert shredder.resume()[0].pending == ()


def test_without_a_customer_there_is_nothing_to_keep(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    for name in ("hold", "restrict", "reinstate", "release"):
        with pytest.raises(ConfigurationError):
            call(shredder, name, "nobody", **({"reason": "case"} if name == "hold" else {}))
    call(shredder, "shred", "nobody")
    with pytest.raises(CustomerShreddedError):
        call(shredder, "hold", "nobody", "case")
