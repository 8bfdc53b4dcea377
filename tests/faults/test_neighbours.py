"""Everything alike but its owner: whatever is done to one, its neighbours' rows stay, and reading gives its own only.

Two customers have two threads each, with the same checkpoint ids, namespaces, task ids and runs, and the same store
keys under two templates. So every element of a row's identity is all that tells some two rows apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import PutOp

from shredsaver import CUSTOMER, CustomerShreddedError, Shredder
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import put
from tests.support.targets import Clock

CALL = Caller("sync")
FIRST, SECOND = "1f000000-0000-6000-8000-000000000000", "1f000001-0000-6000-8000-000000000000"
NAMESPACES = [("users", CUSTOMER), ("teams", CUSTOMER)]
LONG = "text " * 60


def place(thread: str, ns: str = "", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "customer_id": thread[:3], **more}}


def said(*where: str) -> dict[str, Any]:
    return {"x": [LONG + "/".join(where)], "y": "/".join(where)}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def full(make_shredder: Callable[..., Shredder], clock: Clock) -> Shredder:
    shredder = make_shredder(namespaces=NAMESPACES)
    shredder._start().core.clock = clock
    for customer in ("c-1", "c-2"):
        for thread in (f"{customer}-a", f"{customer}-b"):
            for ns in ("", "child"):
                at = place(thread, ns)
                for key in (FIRST, SECOND):
                    at = put(CALL, shredder.saver, at, said(thread, ns, key), id=key, run_id=key)
                    for task in ("task-1", "task-2"):
                        written = [("x", said(thread, ns, key, task)), ("y", task)]
                        shredder.saver.put_writes({**at}, written, task, task_path=task)
        for template in ("users", "teams"):
            for label in ("notes", "plans"):
                for key in ("k-1", "k-2"):
                    value = {"said": f"{customer}/{template}/{label}/{key}"}
                    shredder.store.put((template, customer, label), key, value, ttl=60 if key == "k-1" else None)
    return shredder


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [True, False])
def test_reading_gives_what_was_put_there(warm: bool, full: Shredder, make_shredder: Callable[..., Shredder]) -> None:
    shredder = full if warm else make_shredder(namespaces=NAMESPACES)
    for customer in ("c-1", "c-2"):
        for thread in (f"{customer}-a", f"{customer}-b"):
            for ns in ("", "child"):
                for key in (FIRST, SECOND):
                    found = shredder.saver.get_tuple(place(thread, ns, checkpoint_id=key))
                    assert found is not None
                    assert found.checkpoint["channel_values"] == said(thread, ns, key)
                    assert list(found.pending_writes or ()) == [
                        one
                        for task in ("task-1", "task-2")
                        for one in ((task, "x", said(thread, ns, key, task)), (task, "y", task))
                    ]
                latest = shredder.saver.get_tuple(place(thread, ns))
                assert latest is not None
                assert latest.checkpoint["id"] == SECOND
                assert [one[2] for one in latest.pending_writes or () if one[1] == "x"] == [
                    said(thread, ns, SECOND, task) for task in ("task-1", "task-2")
                ]
                listed = list(shredder.saver.list(place(thread, ns)))
                assert [one.checkpoint["channel_values"] for one in listed] == [
                    said(thread, ns, key) for key in (SECOND, FIRST)
                ]
        for template in ("users", "teams"):
            for label in ("notes", "plans"):
                items = {item.key: item.value for item in shredder.store.search((template, customer, label))}
                assert items == {key: {"said": f"{customer}/{template}/{label}/{key}"} for key in ("k-1", "k-2")}
                for key in ("k-1", "k-2"):
                    item = shredder.store.get((template, customer, label), key)
                    assert item is not None
                    assert item.value == {"said": f"{customer}/{template}/{label}/{key}"}
            assert len(shredder.store.search((template, customer))) == 4
            assert len(shredder.store.search((template, customer), filter={"said": {"$ne": ""}})) == 4
            assert shredder.store.list_namespaces(prefix=(template, customer)) == [
                (template, customer, "notes"),
                (template, customer, "plans"),
            ]
    assert shredder.saver.get_tuple(place("c-1-c")) is None
    assert shredder.saver.get_tuple(place("c-1-a", "other")) is None
    assert shredder.store.get(("users", "c-1", "notes"), "k-3") is None


# -- writing ----------------------------------------------------------------------------------------------------------


def rotate(shredder: Shredder) -> None:
    shredder.rotate("c-1")
    put(CALL, shredder.saver, place("c-1-a"), said("moved"))


def come_back(shredder: Shredder) -> None:
    shredder.shred("c-1")
    shredder.enrol("c-1")
    put(CALL, shredder.saver, place("c-1-a"), said("new"))
    shredder.store.put(("users", "c-1", "notes"), "k-1", {"said": "new"})


def change_mind(shredder: Shredder) -> None:
    shredder.hold("c-1", "case")
    shredder.release("c-1")
    shredder.restrict("c-1")
    shredder.reinstate("c-1")
    shredder.shred("c-1", grace=timedelta(hours=1))
    shredder.reinstate("c-1")


OF_CUSTOMERS: dict[str, Callable[[Shredder], Any]] = {
    "shred": lambda shredder: shredder.shred("c-1"),
    "shred without purge": lambda shredder: shredder.shred("c-1", purge=False),
    "come back": come_back,
    "rotate": rotate,
    "change of mind": change_mind,
    "store": lambda shredder: shredder.store.put(("users", "c-1", "notes"), "k-3", {"said": "new"}),
    "replace": lambda shredder: shredder.store.put(("users", "c-1", "notes"), "k-1", {"said": "new"}),
    "delete": lambda shredder: [shredder.store.delete(("users", "c-1", "notes"), key) for key in ("k-1", "k-2")],
}
OF_THREADS: dict[str, Callable[[Shredder], Any]] = {
    "first write": lambda shredder: put(CALL, shredder.saver, place("c-1-c"), said("new")),
    "put": lambda shredder: put(CALL, shredder.saver, place("c-1-a"), said("new")),
    "put again": lambda shredder: put(CALL, shredder.saver, place("c-1-a"), said("new"), id=SECOND),
    "put writes": lambda shredder: shredder.saver.put_writes(
        place("c-1-a", checkpoint_id=SECOND), [("x", "new"), ("__error__", "odd")], "task-3"
    ),
    "put writes again": lambda shredder: shredder.saver.put_writes(
        place("c-1-a", checkpoint_id=SECOND), [("__error__", "odd"), ("__interrupt__", "asked")], "task-1"
    ),
    "delete": lambda shredder: shredder.saver.delete_thread("c-1-a"),
    "prune": lambda shredder: shredder.saver.prune(["c-1-a"]),
    "copy": lambda shredder: shredder.saver.copy_thread("c-1-a", "c-1-d"),
}


def rows_but(backend: Backend, **gone: bytes) -> dict[str, list[str]]:
    """Every row that names neither this thread nor this customer, in the tables that name one of them."""
    threads = {row["thread"]: row["customer"] for row in backend.rows("threads")}
    found: dict[str, list[str]] = {}
    for table in ("customers", "threads", "checkpoints", "writes", "parts", "items", "namespaces", "counters", "runs"):
        for row in backend.rows(table):
            mine = row.get("thread") == gone.get("thread")
            if "customer" in gone:
                mine = (row["customer"] if "customer" in row else threads.get(row["thread"])) == gone["customer"]
            elif "thread" not in row:
                continue
            if not mine and row.get("customer") != b"":
                found.setdefault(table, []).append(repr(sorted(row.items())))
    return {table: sorted(rows) for table, rows in found.items()}


@pytest.mark.parametrize("what", OF_CUSTOMERS)
def test_what_is_done_to_a_customer_changes_no_row_of_another(what: str, full: Shredder, backend: Backend) -> None:
    token = full._start().core.token("customer", "c-1")
    before = rows_but(backend, customer=token)
    assert set(before) == {
        *("customers", "threads", "checkpoints", "writes", "parts", "items", "namespaces", "counters", "runs")
    }
    OF_CUSTOMERS[what](full)
    assert rows_but(backend, customer=token) == before


def test_a_change_of_mind_leaves_a_customers_row_as_it_was(full: Shredder, backend: Backend) -> None:
    before = backend.contents()["customers"]
    change_mind(full)
    assert backend.contents()["customers"] == before


def test_who_is_dead_is_told_so_even_at_somebody_elses_thread(full: Shredder) -> None:
    full.shred("c-1")
    for thread in ("c-2-a", "c-1-a", "nobody's"):
        with pytest.raises(CustomerShreddedError):
            full.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": "", "customer_id": "c-1"}})


@pytest.mark.parametrize("what", OF_THREADS)
def test_what_is_done_to_a_thread_changes_no_row_of_another(what: str, full: Shredder, backend: Backend) -> None:
    core = full._start().core
    before = rows_but(backend, thread=core.token("thread", "c-1-a"))
    OF_THREADS[what](full)
    after = rows_but(backend, thread=core.token("thread", "c-1-a"))
    for table, rows in before.items():
        assert set(rows) <= set(after[table]), table
    new = core.token("thread", "c-1-c" if what == "first write" else "c-1-d")
    others = {table: [row for row in rows if repr(new) not in row] for table, rows in after.items()}
    assert others == before


def test_what_is_stored_again_or_deleted_is_one_item_only(full: Shredder, backend: Backend) -> None:
    before = {(row["customer"], row["template"], row["labels"], row["key"]): row for row in backend.rows("items")}
    full.store.put(("users", "c-1", "notes"), "k-2", {"said": "new"})
    after = {(row["customer"], row["template"], row["labels"], row["key"]): row for row in backend.rows("items")}
    assert before.keys() == after.keys()
    assert sum(before[place_] != after[place_] for place_ in before) == 1
    full.store.delete(("users", "c-1", "notes"), "k-2")
    assert backend.count("items") == len(before) - 1
    assert backend.count("namespaces") == 8
    full.store.delete(("users", "c-1", "notes"), "k-1")
    assert backend.count("namespaces") == 7


def test_namespaces_without_further_labels_are_told_apart_by_their_template(
    full: Shredder, backend: Backend, clock: Clock
) -> None:
    users, teams = ("users", "c-3"), ("teams", "c-3")
    full.store.put(users, "key", {"said": "user"}, ttl=60)
    full.store.put(teams, "key", {"said": "team"})
    for here in (users, teams):
        assert full.store.list_namespaces(prefix=here) == [here]
    clock.on(timedelta(minutes=61))
    assert full.store.list_namespaces(prefix=users) == []
    assert full.store.list_namespaces(prefix=teams) == [teams]
    full.store.delete(users, "key")
    token = full._start().core.token("customer", "c-3")
    assert [row["template"] for row in backend.rows("namespaces") if row["customer"] == token] == ["teams/CUSTOMER"]


def test_a_read_that_renews_renews_one_item(full: Shredder, backend: Backend, clock: Clock) -> None:
    before = {(row["customer"], row["template"], row["labels"], row["key"]): row for row in backend.rows("items")}
    clock.on(timedelta(minutes=30))
    full.store.get(("users", "c-1", "notes"), "k-1")
    full.store.get(("users", "c-1", "notes"), "k-2")
    after = {(row["customer"], row["template"], row["labels"], row["key"]): row for row in backend.rows("items")}
    (changed,) = (after[place_] for place_ in before if before[place_] != after[place_])
    assert changed["expires_at"] > max(row["expires_at"] or 0 for row in before.values())


def test_a_sweep_takes_what_has_expired_and_its_empty_namespaces(
    full: Shredder, backend: Backend, clock: Clock
) -> None:
    full.store.delete(("teams", "c-2", "plans"), "k-2")
    full.store.put(("users", "c-1", "notes"), "k-9", {"said": "long"}, ttl=600)
    full.hold("c-1", "case")
    clock.on(timedelta(minutes=61))
    assert full.store.sweep_ttl() == 4
    assert backend.count("namespaces") == 7
    full.release("c-1")
    assert full.store.sweep_ttl() == 4
    assert full.store.sweep_ttl() == 0
    assert {row["ttl"] for row in backend.rows("items")} == {None, 600 * 60_000}
    assert backend.count("items") == 8


def test_an_item_ends_at_its_time_and_not_before(full: Shredder, backend: Backend) -> None:
    at = float(int(Clock()())) + 1000
    core = full._start().core
    core.clock = lambda: at
    full.store.put(("users", "c-1", "timed"), "key", {"said": "soon"}, ttl=1000)
    here = ("users", "c-1", "timed")
    core.clock = lambda: at + 60_000 - 0.001
    assert full.store.get(here, "key", refresh_ttl=False) is not None
    before = full.store.search(here, refresh_ttl=False)
    assert [item.key for item in before] == ["key"]
    assert here in full.store.list_namespaces(prefix=("users", "c-1"))
    full.store.sweep_ttl()
    assert full.store.get(here, "key", refresh_ttl=False) is not None
    core.clock = lambda: at + 60_000
    assert full.store.get(here, "key", refresh_ttl=False) is None
    assert full.store.search(here, refresh_ttl=False) == []
    assert here not in full.store.list_namespaces(prefix=("users", "c-1"))
    full.store.put(here, "key", {"said": "again"}, ttl=999)
    assert {row["ttl"] for row in backend.rows("items")} == {None, 999 * 60_000}
    full.store.put(here, "key", {"said": "again"}, ttl=1000)
    (again,) = full.store.search(here, refresh_ttl=False)
    assert again.created_at == again.updated_at > before[0].created_at
    core.clock = lambda: at + 120_000
    assert full.store.sweep_ttl() == 1
    assert full.store.sweep_ttl() == 0


def test_a_process_that_begins_goes_on_with_a_run(
    full: Shredder, backend: Backend, make_shredder: Callable[..., Shredder]
) -> None:
    runs = backend.contents()["runs"]
    put(CALL, make_shredder(namespaces=NAMESPACES).saver, place("c-1-a"), said("new"), run_id=SECOND)
    assert backend.contents()["runs"] == runs
    full.saver.delete_for_runs([SECOND])
    assert [found.checkpoint["id"] for found in full.saver.list(place("c-1-a"))] == [FIRST]
    assert {row["run"] for row in backend.rows("runs")} <= {full._start().core.token("run", FIRST)}


def test_a_write_says_when_its_thread_was_touched(full: Shredder, backend: Backend, clock: Clock) -> None:
    thread = full._start().core.token("thread", "c-1-a")
    (before,) = (row["touched_at"] for row in backend.rows("threads") if row["thread"] == thread)
    clock.on(timedelta(hours=1))
    put(CALL, full.saver, place("c-1-a"), said("new"))
    (after,) = (row["touched_at"] for row in backend.rows("threads") if row["thread"] == thread)
    assert after - before >= 3_600_000
    assert abs(after - clock() * 1000) < 3_600_000


@pytest.mark.parametrize("gone", [False, True])
def test_what_has_moved_to_fresh_keys_is_read_beside_what_has_not(
    gone: bool, full: Shredder, backend: Backend, make_shredder: Callable[..., Shredder]
) -> None:
    """The same numbers, in another scope; whoever comes back later has nothing to do with that."""
    full.rotate("c-1")
    if gone:
        full.shred("c-1")
        full.enrol("c-1")
    for text in ("new", "newer"):
        put(CALL, full.saver, place("c-1-a"), said(text))
    thread = full._start().core.token("thread", "c-1-a")
    parts = [row for row in backend.rows("parts") if row["thread"] == thread]
    assert len({row["scope"] for row in parts}) == (1 if gone else 2)
    for shredder in (full, make_shredder(namespaces=NAMESPACES)):
        found = [one.checkpoint["channel_values"] for one in shredder.saver.list(place("c-1-a"))]
        assert found[:2] == [said("newer"), said("new")]
        assert found[2:] == ([] if gone else [said("c-1-a", "", key) for key in (SECOND, FIRST)])


# -- generations ------------------------------------------------------------------------------------------------------


def test_who_came_back_reads_nothing_of_before(
    full: Shredder, make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    """Nothing was purged, and what is new has the same identities."""
    erased = full.shred("c-1", purge=False)
    full.enrol("c-1")
    core = full._start().core
    former = (core.token("customer", "c-1"), 1)
    counters = [row for row in backend.rows("counters") if (row["customer"], row["generation"]) == former]
    assert counters
    for shredder in (full, make_shredder(namespaces=NAMESPACES)):
        saver, store = shredder.saver, shredder.store
        for ns in ("", "child"):
            assert saver.get_tuple(place("c-1-a", ns)) is None
            assert list(saver.list(place("c-1-a", ns))) == []
            with pytest.raises(CustomerShreddedError) as caught:
                saver.get_tuple(place("c-1-a", ns, checkpoint_id=FIRST))
            assert caught.value.erasure_id == erased.erasure_id
        assert store.get(("users", "c-1", "notes"), "k-1") is None
        assert store.search(("users", "c-1")) == []
        assert store.list_namespaces(prefix=("users", "c-1")) == []
    put(CALL, full.saver, place("c-1-b"), said("other"))  # so that the next has other scopes than it had
    full.saver.put_writes(place("c-1-a", checkpoint_id=FIRST), [("z", "new")], "task-1", task_path="elsewhere")
    parent = place("c-1-a", checkpoint_id="1e000000-0000-6000-8000-000000000000")
    put(CALL, full.saver, parent, said("new"), id=FIRST, step=7, source="fork", run_id="another")
    full.store.put(("users", "c-1", "notes"), "k-1", {"said": "new"})
    for shredder in (full, make_shredder(namespaces=NAMESPACES)):
        found = shredder.saver.get_tuple(place("c-1-a"))
        assert found is not None
        assert found.checkpoint["id"] == FIRST
        assert found.checkpoint["channel_values"] == said("new")
        assert found.pending_writes == [("task-1", "z", "new")]
        assert (found.metadata["step"], found.metadata["source"]) == (7, "fork")
        assert found.parent_config is not None
        assert found.parent_config["configurable"]["checkpoint_id"] == parent["configurable"]["checkpoint_id"]
        for wanted in (None, {"said": "new"}):
            assert [item.key for item in shredder.store.search(("users", "c-1"), filter=wanted)] == ["k-1"]
            assert [item.key for item in shredder.store.search(("users", "c-1", "notes"), filter=wanted)] == ["k-1"]
        assert shredder.store.list_namespaces(prefix=("users", "c-1")) == [("users", "c-1", "notes")]
    assert [row for row in backend.rows("counters") if (row["customer"], row["generation"]) == former] == counters


def test_a_namespace_of_who_came_back_has_its_name_under_the_new_keys(
    full: Shredder, make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    """One without further labels is the same row as before, if nothing was purged."""
    here = ("users", "c-1")
    full.store.put(here, "k-1", {"said": "old"})
    full.shred("c-1", purge=False)
    full.enrol("c-1")
    full.store.put(here, "k-1", {"said": "new"})
    rows = backend.contents()["namespaces"]
    full.store.put(here, "k-2", {"said": "new"})
    full.store.batch([PutOp(here, "k-1", None), PutOp(here, "k-2", {"said": "newer"})])
    assert backend.contents()["namespaces"] == rows, "named once"
    for shredder in (full, make_shredder(namespaces=NAMESPACES)):
        assert shredder.store.list_namespaces(prefix=here) == [here]
    full.store.delete(here, "k-2")
    assert full.store.list_namespaces(prefix=here) == []
