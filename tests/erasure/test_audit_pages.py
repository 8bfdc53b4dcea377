"""An audit counts every row, also where two generations have numbered theirs alike."""

from __future__ import annotations

from langgraph.store.base import PutOp

from shredsaver import Shredder
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

NS = ("users", "c-1")


def test_items_of_two_generations_are_all_counted(shredder: Shredder) -> None:
    for _ in range(2):
        shredder.store.batch([PutOp(NS, str(number), {"n": number}) for number in range(100)])
        if shredder.status("c-1").generation == 1:
            shredder.shred("c-1", purge=False)
            shredder.enrol("c-1")
    items = shredder.audit("c-1").routes["items"]
    assert (items.rows, items.opens) == (200, 100)


def test_parts_of_two_generations_are_all_counted_and_none_is_damaged(shredder: Shredder) -> None:
    said = [f"{number}".rjust(200) for number in range(100)]
    for _ in range(2):
        put(Caller("sync"), shredder.saver, config("t", "c-1"), {"x": said})
        if shredder.status("c-1").generation == 1:
            assert shredder.audit("c-1").routes["parts"].rows == 100
            shredder.shred("c-1", purge=False)
            shredder.enrol("c-1")
    audit = shredder.audit("c-1")
    assert audit.damaged == ()
    assert (audit.routes["parts"].rows, audit.routes["parts"].opens) == (200, 100)
