"""Calls that meet at one moment, on both backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shredsaver import CustomerShreddedError
from shredsaver.kms.keystore import StoredKeyService
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.waiting import SECONDS, join

CALL = Caller("sync")


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Calls all at once, each on a thread, and gives what they return or raise, in order."""
    barrier = threading.Barrier(len(functions))
    outcomes: list[Any] = [None] * len(functions)

    def act(number: int, function: Callable[[], Any]) -> None:
        barrier.wait(SECONDS)
        try:
            outcomes[number] = function()
        except Exception as error:  # noqa: BLE001 - given back
            outcomes[number] = error

    threads = [threading.Thread(target=act, args=(n, function)) for n, function in enumerate(functions)]
    for thread in threads:
        thread.start()
    join(threads)
    return outcomes


def test_shreds_of_one_customer_at_once_are_one_erasure(backend: Backend, make_shredder: Callable[..., Any]) -> None:
    shredders = [make_shredder(), make_shredder()]
    rounds = 6
    for round_ in range(rounds):
        customer = f"c-{round_}"
        if round_ % 2:
            put(CALL, shredders[0].saver, config(f"t-{round_}", customer), {"x": 1})
        outcomes = together(*(partial(shredder.shred, customer) for shredder in shredders * 3))
        assert {getattr(outcome, "erasure_id", outcome) for outcome in outcomes} == {outcomes[0].erasure_id}
        assert {outcome.known for outcome in outcomes} == {bool(round_ % 2)}
    assert backend.count("erasures") == rounds


def test_a_first_write_and_a_shred_at_once_end_as_one_came_before_the_other(
    backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    shredders = [make_shredder(), make_shredder()]
    for round_ in range(12):
        here = config(f"t-{round_}", f"c-{round_}")
        written, result = together(
            lambda here=here: put(CALL, shredders[0].saver, here, {"x": "y" * 500}),
            lambda round_=round_: shredders[1].shred(f"c-{round_}"),
        )
        assert isinstance(written, dict | CustomerShreddedError), written
        assert result.state == "purged", result
        for shredder in shredders:
            assert isinstance(together(lambda s=shredder, h=here: s.saver.get_tuple(h))[0], CustomerShreddedError)
            again = together(lambda s=shredder, h=here: put(CALL, s.saver, h, {"x": 2}))[0]
            assert isinstance(again, CustomerShreddedError)
    for table in ("checkpoints", "parts", "writes"):
        assert backend.count(table) == 0


@pytest.mark.parametrize("late", ["shred", "resume", "reconcile"])
def test_who_comes_late_with_a_destruction_does_not_destroy_the_next_generation(
    late: str, make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_shredder(), make_shredder()
    here, values = config(), {"x": ["second life " * 30]}
    put(CALL, one.saver, here, {"x": 1})
    destroy, once = StoredKeyService.destroy, [True]

    def stalled(self: StoredKeyService, *args: Any) -> Any:
        if once:
            once.clear()
            if late == "reconcile":  # revoked in the database and not yet in the key store: that is put right there
                two.reconcile()
            if late == "resume":
                two.resume()
            two.shred("c-1")
            two.enrol("c-1")
            put(CALL, two.saver, here, values)
        return destroy(self, *args)

    monkeypatch.setattr(StoredKeyService, "destroy", stalled)
    assert one.shred("c-1").state == "purged"
    fresh = make_shredder()
    for shredder in (one, two, fresh):
        assert shredder.saver.get_tuple(here).checkpoint["channel_values"] == values
        assert shredder.status("c-1").generation == 2
    assert fresh.reconciliation.changed is False
    assert fresh.shred("c-1").generation == 2


def test_a_shred_reaches_keys_that_a_restored_database_does_not_know_of(
    backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    early = backend.copy()
    shredder.shred("c-1")
    shredder.enrol("c-1")
    put(CALL, shredder.saver, config(), {"x": 2})
    late = backend.copy()
    restored = make_shredder(early.url)
    restored.reconcile(adopt="restore")
    assert restored.shred("c-1").generation == 2
    (row,) = early.rows("customers")
    assert (row["generation"], row["state"], row["key_version"], row["held_until"]) == (2, "purged", 0, "")
    copied = make_shredder(late.url)
    with pytest.raises(CustomerShreddedError):
        copied.saver.get_tuple(config())
    assert restored.enrol("c-1").generation == 3


def test_what_is_left_of_a_customer_who_came_back_is_dead_and_not_damaged(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": ["first life " * 30]})
    shredder.shred("c-1", purge=False)
    shredder.enrol("c-1")
    put(CALL, shredder.saver, config("t-2"), {"x": 2})
    audit = shredder.audit("c-1")
    assert audit.damaged == ()
    assert (audit.routes["checkpoints"].rows, audit.routes["checkpoints"].opens) == (2, 1)


def test_a_restored_database_that_is_adopted_finishes_what_it_noted_in_quarantine(
    backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    early = backend.copy()
    shredder.shred("c-1")
    restored = make_shredder(early.url)
    assert restored.reconciliation.forked
    restored.reconcile(adopt="restore")
    assert restored.unfinished() == 0
    assert restored.status("c-1").state == "purged"
    assert restored.enrol("c-1").generation == 2


@pytest.mark.parametrize("purge", [True, False], ids=["purged", "not purged"])
@pytest.mark.parametrize("deed", ["put", "put_writes", "item"])
def test_a_write_is_the_first_that_a_warm_process_hears_of_a_shred(
    deed: str, purge: bool, backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    """No read has told it before: the fence in the writing transaction alone stands in its way."""
    shredder, warm = make_shredder(), make_shredder()
    at = put(CALL, warm.saver, config(), {"x": ["warm " * 60]})
    warm.store.put(("users", "c-1"), "key", {"said": "warm"})
    shredder.shred("c-1", purge=purge)
    before = {table: backend.count(table) for table in ("checkpoints", "writes", "parts", "items")}
    late: dict[str, Callable[[], Any]] = {
        "put": lambda: put(CALL, warm.saver, config(), {"x": ["warm " * 60, "late"]}),
        "put_writes": lambda: warm.saver.put_writes(at, [("x", "late")], "task"),
        "item": lambda: warm.store.put(("users", "c-1"), "another", {"said": "late"}),
    }
    with pytest.raises(CustomerShreddedError):
        late[deed]()
    assert {table: backend.count(table) for table in before} == before
