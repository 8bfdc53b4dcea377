"""Erasures that meet each other, an enrolment, or many at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shredsaver import ConfigurationError, CustomerShreddedError, ShredIncompleteError
from shredsaver.receipts import verify_chain
from tests.faults.test_races import together
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Notes

CALL = Caller("sync")


def test_shreds_and_resumes_with_targets_at_once_end_as_one(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    targets = [Notes("early"), Notes("late", after="verified")]
    shredders = [make_shredder(targets=targets), make_shredder(targets=targets)]
    for shredder in shredders:
        shredder._start().outside._sleep = lambda _: None
    for round_ in range(4):
        customer = f"c-{round_}"
        put(CALL, shredders[0].saver, config(f"t-{round_}", customer), {"x": 1})
        for target in targets:
            target.kept[customer] = 1
            target.failures = round_ % 2
        calls = [partial(shredder.shred, customer) for shredder in shredders]
        outcomes = together(*calls, *(shredder.resume for shredder in shredders), *calls)
        assert not [one for one in outcomes if isinstance(one, Exception)], outcomes
        assert shredders[0].shred(customer).pending == ()
        assert all(target.kept == {} for target in targets)
    assert {row["state"] for row in backend.rows("erasures")} == {"complete"}
    assert {row["retry"] for row in backend.rows("erasures")} == {None}
    chain = verify_chain(list(shredders[0].receipts()), [shredders[0].public_key()])
    complete = [one.payload["erasure"] for one in chain if one.payload["state"] == "complete"]
    assert len(complete) == len(set(complete)) == 4


def test_a_shred_while_the_customer_is_enrolled_again(make_shredder: Callable[..., Any]) -> None:
    shredders = [make_shredder(), make_shredder()]
    for round_ in range(6):
        customer, here = f"c-{round_}", config(f"t-{round_}", f"c-{round_}")
        put(CALL, shredders[0].saver, here, {"x": "old"})
        shredders[0].shred(customer)
        enrolled, shredded = together(partial(shredders[0].enrol, customer), partial(shredders[1].shred, customer))
        assert not isinstance(shredded, Exception), shredded
        status = shredders[0].status(customer)
        if isinstance(enrolled, Exception):
            assert isinstance(enrolled, CustomerShreddedError | ShredIncompleteError | ConfigurationError), enrolled
        if status.state == "live":
            assert status.generation == 2
            assert shredders[1].saver.get_tuple(here) is None
        else:
            assert shredded.pending == ()
            with pytest.raises(CustomerShreddedError):
                shredders[1].saver.get_tuple(here)


def test_a_purge_leaves_alone_what_came_after_the_customer_was_enrolled_again(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder, other = make_shredder(), make_shredder()
    put(CALL, shredder.saver, config(), {"x": "old"})
    shredding = shredder._start().shredding
    real = shredding._destroyed

    def then_enrolled(*args: Any) -> Any:
        one = yield from real(*args)
        other.enrol("c-1")
        put(CALL, other.saver, config(), {"x": "new"})
        return one

    monkeypatch.setattr(shredding, "_destroyed", then_enrolled)
    result = shredder.shred("c-1")
    assert result.pending == ()
    assert other.saver.get_tuple(config()).checkpoint["channel_values"] == {"x": "new"}
    assert other.status("c-1").generation == 2
    monkeypatch.undo()
    assert shredder.shred("c-1").generation == 2


def test_a_customer_never_seen(call: Caller, make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    result = call(shredder, "shred", "nobody")
    assert (result.known, result.state, result.pending) == (False, "purged", ())
    (row,) = backend.rows("customers")
    assert (row["generation"], row["state"], row["key_version"], row["held_until"]) == (1, "purged", 0, "")
    assert call(shredder, "shred", "nobody") == result
    said = verify_chain([result.receipt], [shredder.public_key()])[0].payload
    assert said["who"]["known"] is False
    assert said["how"]["method"] == ""
    assert sum(said["what"]["before"].values()) == 0
    assert call(shredder, "audit", "nobody").routes["tombstones"].rows == 1


def batch(make_shredder: Callable[..., Any], backend: Backend, size: int, known: int) -> None:
    shredder = make_shredder()
    for number in range(known):
        put(CALL, shredder.saver, config(f"t-{number}", f"c-{number}"), {"x": number})
    put(CALL, shredder.saver, config("t", "other"), {"x": "other"})
    results = shredder.shred_many([f"c-{number}" for number in range(size)])
    assert len(results) == size
    assert sum(result.known for result in results) == known
    assert all(result.pending == () for result in results)
    assert len({result.destruction["new_epoch"] for result in results if result.known}) <= 2, "one rotation for all"
    assert backend.count("checkpoints") == 1
    chain = verify_chain(list(shredder.receipts()), [shredder.public_key()])
    assert len(chain) == size
    assert shredder.saver.get_tuple(config("t", "other")) is not None
    again = make_shredder()
    assert not again.reconciliation.changed
    assert len(again.shred_many([f"c-{number}" for number in range(min(size, 50))])) == min(size, 50)


def test_sixty_in_one_batch(make_shredder: Callable[..., Any], backend: Backend) -> None:
    batch(make_shredder, backend, 60, 20)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_ten_thousand_in_one_batch(make_shredder: Callable[..., Any], backend: Backend) -> None:
    batch(make_shredder, backend, 10_000, 1_000)
