"""An audit counts every row, also where two generations have numbered theirs alike."""

from __future__ import annotations

from langgraph.store.base import PutOp

from shredsaver import Shredder

NS = ("users", "c-1")


def test_items_of_two_generations_are_all_counted(shredder: Shredder) -> None:
    for _ in range(2):
        shredder.store.batch([PutOp(NS, str(number), {"n": number}) for number in range(100)])
        if shredder.status("c-1").generation == 1:
            shredder.shred("c-1", purge=False)
            shredder.enrol("c-1")
    items = shredder.audit("c-1").routes["items"]
    assert (items.rows, items.opens) == (200, 100)
