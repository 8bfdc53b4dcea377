"""What is said of an erasure, to the word: the receipt, the result, the events, the entry of the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import pytest

from shredsaver import Event, Shredder, ShredIncompleteError
from shredsaver.receipts import commitment, digest, salt, verify
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Notes

CALL = Caller("sync")
AT = 1_790_000_000.0
WHEN = "2026-09-21T14:13:20.000+00:00"
NOTHING = {"threads": 0, "checkpoints": 0, "writes": 0, "parts": 0, "items": 0, "namespaces": 0}
FILLED = {"threads": 1, "checkpoints": 1, "writes": 1, "parts": 1, "items": 1, "namespaces": 1}


def at_one_time(make_shredder: Callable[..., Any], **options: Any) -> Shredder:
    """A Shredder for which no time passes."""
    shredder: Shredder = make_shredder(**options)
    shredder._start().core.clock = lambda: AT
    shredder._start().outside._sleep = lambda _: None
    return shredder


def fill(shredder: Shredder, name: str = "c-1") -> None:
    stored = put(CALL, shredder.saver, config(f"t-{name}", name), {"x": ["text " * 100]})
    shredder.saver.put_writes(stored, [("x", 1)], "task")
    shredder.store.put(("users", name), "key", {"said": 1})


def test_a_receipt(make_shredder: Callable[..., Any]) -> None:
    shredder = at_one_time(make_shredder, targets=[Notes()])
    nobody = shredder.shred("nobody")
    assert (nobody.known, nobody.generation, nobody.before) == (False, 1, NOTHING)
    first = nobody.receipt
    fill(shredder)
    result = shredder.shred("c-1", reason="art-17", requested_by="Ms Meier")
    core = shredder._start().core
    mine = salt(core.secrets.receipt_key, result.erasure_id)
    said = dict(verify(result.receipt, shredder.public_key()).payload)
    how = {name: value for name, value in result.destruction.items() if name not in ("customer", "known", "tombstone")}
    destroyed = datetime.fromisoformat(how["destroyed_at"]).astimezone(UTC).isoformat(timespec="milliseconds")
    assert set(how) == {
        *("generation", "state", "method", "slot", "old_epoch", "new_epoch", "key_ids", "assurance", "revoked_at"),
        *("destroyed_at", "pending_until", "cached_until", "details"),
    }
    assert (how["state"], result.destruction["customer"]) == ("destroyed", result.customer)
    done = {"status": "erased", "attempts": 1, "remaining": 0, "after": "revoked", "at": WHEN}
    assert said == {
        "format": "shredsaver-erasure/1",
        "tool": f"shredsaver {version('shredsaver')}",
        "deployment": core.deployment.hex(),
        "number": 2,
        "previous": digest(first),
        "issued_at": WHEN,
        "erasure": result.erasure_id,
        "who": {"commitment": commitment(mine, "customer", "c-1"), "generation": 1, "known": True},
        "why": {
            "reason": {"code": "art-17"},
            "requested_by": {"commitment": commitment(mine, "requested_by", "Ms Meier")},
        },
        "state": "complete",
        "when": {"requested": WHEN, "revoked": WHEN, "destroyed": destroyed, "purged": WHEN, "verified": WHEN},
        "what": {"before": FILLED, "after": NOTHING, "purge": True, "threads_unnamed": 0},
        "how": how,
        "verification": result.verification,
        "targets": {"notes": done},
        "pending": [],
        "out_of_scope": [
            "copies of plaintext that were made elsewhere, backups of them included",
            "what model and embedding providers keep",
            "traces, logs and analytics of the application",
            "tables of an agent server's own, and node caches",
        ],
    }
    told = (result.known, result.state, result.generation, result.pending, result.before, result.after, result.targets)
    assert told == (True, "purged", 1, (), FILLED, NOTHING, {"notes": done})
    times = (result.requested_at, result.due_at, result.revoked_at, result.destroyed_at, result.purged_at)
    assert (*times, result.verified_at) == (WHEN, None, WHEN, destroyed, WHEN, WHEN)
    assert set(result.verification) == {"sampled", "keys_tried"}


def test_the_receipt_of_what_is_not_complete(make_shredder: Callable[..., Any]) -> None:
    shredder = at_one_time(make_shredder, targets=[Notes(failures=None), Notes("late", after="verified")])
    fill(shredder)
    with pytest.raises(ShredIncompleteError) as caught:
        shredder.shred("c-1", purge=False)
    (result,) = caught.value.results
    assert (result.state, result.purged_at, result.after) == ("destroyed", None, FILLED)
    assert result.pending == caught.value.pending == ("target:notes",)
    assert result.receipt is not None
    said = verify(result.receipt, shredder.public_key()).payload
    assert (said["state"], said["pending"], said["why"]) == (
        "pending",
        ["target:notes"],
        {"reason": None, "requested_by": None},
    )
    assert said["what"] == {"before": FILLED, "after": FILLED, "purge": False, "threads_unnamed": 0}
    assert (said["when"]["purged"], said["when"]["verified"]) == (None, WHEN)


def test_the_events_of_an_erasure(make_shredder: Callable[..., Any]) -> None:
    told: list[Event] = []
    targets = [Notes(failures=3), Notes("others", failures=3)]
    shredder = at_one_time(make_shredder, targets=targets, on_event=told.append)
    fill(shredder)
    del told[:]
    waiting = shredder.shred("c-1", grace=timedelta(minutes=1))
    shredder._start().core.clock = lambda: AT + 60
    due = "2026-09-21T14:14:20.000+00:00"
    assert waiting.due_at == due
    with pytest.raises(ShredIncompleteError):
        shredder.resume()
    assert shredder.resume()[0].pending == ()
    said = {"erasure": waiting.erasure_id}
    assert {event.customer for event in told} == {waiting.customer}
    assert [(event.kind, event.fields) for event in told] == [
        ("scheduled", {**said, "due": due}),
        ("revoked", {**said, "due": due}),
        ("destroyed", said),
        ("purged", said),
        ("verified", {**said, "pending": "target:notes, target:others"}),
        ("verified", said),
    ]


def test_what_is_due_at_opening_and_fails_is_told(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shredsaver.outside.FIRST_DELAY", 0)
    shredder = make_shredder(targets=[Notes(failures=None), Notes("others", failures=None)])
    fill(shredder)
    shredder.shred("c-1", grace=timedelta(0))
    told: list[Event] = []
    make_shredder(targets=[Notes(failures=None), Notes("others", failures=None)], on_event=told.append)
    (found,) = [event for event in told if event.kind == "incomplete"]
    assert (found.customer, found.fields) == (None, {"pending": "target:notes, target:others"})
