"""An audit counts every row, also where two generations have numbered theirs alike."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from langgraph.store.base import PutOp

from shredsaver import CUSTOMER, Shredder, audit
from tests.support.backends import Backend, PostgresBackend
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


def test_names_of_namespaces_are_all_counted_and_tried(
    make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    shredder = make_shredder(namespaces=(("users", CUSTOMER), ("notes", CUSTOMER)))
    places = [("users", "c-1"), *(("users", "c-1", f"l-{number}") for number in range(70))]
    places += [("notes", "c-1", "of", f"l-{number}") for number in range(30)]
    for _ in range(2):
        shredder.store.batch([PutOp(place, "k", {"n": 1}) for place in places])
        if shredder.status("c-1").generation == 1:
            shredder.shred("c-1", purge=False)
            shredder.enrol("c-1")
    found = shredder.audit("c-1")
    # The namespace without further labels is one row, whatever the generation.
    assert (found.routes["namespaces"].rows, found.routes["namespaces"].opens) == (2 * len(places) - 1, len(places))
    assert (backend.count("namespaces"), found.damaged) == (2 * len(places) - 1, ())
    backend.execute(
        "UPDATE namespaces SET sealed = (SELECT sealed FROM namespaces WHERE generation = 2 AND number = "
        "(SELECT min(number) FROM namespaces WHERE generation = 2)) WHERE generation = 2 AND number = "
        "(SELECT max(number) FROM namespaces WHERE generation = 2)"
    )
    found = shredder.audit("c-1")
    assert (found.routes["namespaces"].opens, len(found.damaged)) == (len(places) - 1, 1)
    assert found.damaged[0].startswith("namespaces/")
    result = shredder.shred("c-1")
    assert (result.before["namespaces"], result.after["namespaces"]) == (2 * len(places) - 1, 0)


def test_parts_of_two_generations_are_all_counted_and_none_is_damaged(shredder: Shredder) -> None:
    said = [f"{number}".rjust(200) for number in range(100)]
    for _ in range(2):
        put(Caller("sync"), shredder.saver, config("t", "c-1"), {"x": said})
        if shredder.status("c-1").generation == 1:
            assert shredder.audit("c-1").routes["parts"].rows == 100
            shredder.shred("c-1", purge=False)
            shredder.enrol("c-1")
    found = shredder.audit("c-1")
    assert found.damaged == ()
    assert (found.routes["parts"].rows, found.routes["parts"].opens) == (200, 100)


PAGES = {
    "checkpoints": (audit.CHECKPOINTS, (b"t", "", "1f", 64)),
    "parts": (audit.PARTS, (b"t", 1, 17, 16, 64)),
    "items": (audit.ITEMS, (b"c", 16, 1, 64)),
    "namespaces": (audit.NAMESPACES, (b"c", "users/CUSTOMER", b"l", 64)),
}


@pytest.mark.parametrize("table", PAGES)
def test_a_page_begins_in_the_index_where_the_one_before_ended(
    table: str, make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    """Else every page would walk, or sort, all of the pages before it."""
    make_shredder().plan("c-1")
    statement, params = PAGES[table]
    if isinstance(backend, PostgresBackend):
        with psycopg.connect(backend.url, autocommit=True, options="-c search_path=shredsaver") as connection:
            for way in ("seqscan", "bitmapscan"):  # tables are empty here, so that any way is good enough
                connection.execute(f"SET enable_{way} = off")  # type: ignore[arg-type]
            rows = connection.execute(f"EXPLAIN (COSTS OFF) {statement.postgres}", params).fetchall()  # type: ignore[arg-type]
        plan = [line.strip().removeprefix("->").strip() for (line,) in rows]
        assert "Sort" not in plan
        assert [line for line in plan if line.startswith("Index Cond") and ">" in line], plan
    else:
        plan = [row[3] for row in backend.execute(f"EXPLAIN QUERY PLAN {statement.sqlite}", params)]
        assert "USE TEMP B-TREE FOR ORDER BY" not in plan
        assert ">" in plan[0], plan
