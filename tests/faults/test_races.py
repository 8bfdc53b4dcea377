"""Calls that meet at one moment, on both backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from shredsaver import CustomerShreddedError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

CALL = Caller("sync")


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Calls all at once, each on a thread, and gives what they return or raise, in order."""
    barrier = threading.Barrier(len(functions))
    outcomes: list[Any] = [None] * len(functions)

    def act(number: int, function: Callable[[], Any]) -> None:
        barrier.wait(30)
        try:
            outcomes[number] = function()
        except Exception as error:  # noqa: BLE001 - given back
            outcomes[number] = error

    threads = [threading.Thread(target=act, args=(n, function)) for n, function in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
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
