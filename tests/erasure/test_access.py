"""While use is restricted a person can still be told what is held: exports and audits work, and nothing else does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from shredsaver import CustomerRestrictedError, CustomerShreddedError, LegalHoldError, Shredder, ShredIncompleteError
from shredsaver.journal import Journal
from shredsaver.reconcile import Dead
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, checkpoint, config, metadata, put
from tests.support.targets import Notes

CALL = Caller("sync")
RUN = UUID(int=7)
NS = ("users", "c-1")
ITEMS = 5


def filled(shredder: Any, customer: str = "c-1") -> list[Any]:
    """Two threads, one with a subgraph's namespace and a write whose checkpoint never came; and items."""
    saver, stored = shredder.saver, []
    for name in (f"{customer}-a", f"{customer}-b"):
        here = config(name, customer)
        stored += chain(CALL, saver, here, [{"x": [f"{n} of {name}"], "run": n} for n in range(4)])
        put(CALL, saver, config(name, customer, checkpoint_ns="inner:1"), {"y": f"inner of {name}"}, run_id=str(RUN))
        saver.put_writes(stored[-1], [("x", f"pending of {name}"), ("y", f"second of {name}")], "task")
    early = config(f"{customer}-a", customer, checkpoint_id="1f0c0000-0000-6000-8000-000000000000")
    saver.put_writes(early, [("x", "first without a checkpoint"), ("x", "second without a checkpoint")], "task-2")
    for number in range(ITEMS):
        shredder.store.put(("users", customer), f"k-{number}", {"v": f"item {number} of {customer}"})
    return stored


def exported(lines: list[str]) -> tuple[list[Any], Counter[str]]:
    """An export's lines but for its header, and how much of each route they hold."""
    found = [json.loads(line) for line in lines[1:]]
    counts = Counter(line["type"] + "s" for line in found if line["type"] != "writes")
    counts["writes"] = sum(len(line.get("writes", ())) for line in found)
    return found, counts


def audited(shredder: Any, customer: str = "c-1") -> Counter[str]:
    """What an audit counts as opening."""
    routes = shredder.audit(customer).routes
    return Counter({route: routes[route].opens for route in ("checkpoints", "writes", "items", "events")})


def restricted(shredder: Any) -> None:
    shredder.restrict("c-1")


def in_its_grace(shredder: Any) -> None:
    assert shredder.shred("c-1", grace=timedelta(days=7)).state == "scheduled"


def deferred(shredder: Any) -> None:
    shredder.hold("c-1", "case 7")
    assert shredder.shred("c-1", defer=True).state == "scheduled"


@pytest.mark.parametrize("stop", [restricted, in_its_grace, deferred])
def test_an_export_is_the_same_as_before_and_what_audit_counts(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend, stop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shredsaver.exporting.PAGE", 2)
    shredder = make_shredder()
    filled(shredder)
    filled(shredder, "c-2")
    before, _ = exported(call(shredder, "export", "c-1"))
    stop(shredder)
    fresh = make_shredder()
    kept = backend.contents()
    for one in (shredder, fresh):  # a process that has the keys opened, and one that has not
        found, counts = exported(call(one, "export", "c-1"))
        assert [line for line in found if line["type"] != "event"] == before
        events = 0 if stop is in_its_grace else 1
        assert counts == audited(one) == Counter(checkpoints=10, writes=6, items=ITEMS, events=events)
    for text in ("without a checkpoint", "inner of c-1-b", "item 4 of c-1", "3 of c-1-a", "second of c-1-b"):
        assert text in str(before)
    assert "of c-2" not in str(before)  # ids of checkpoints are hexadecimal, with hyphens
    assert counts["checkpoints"] == backend.count("checkpoints") // 2
    assert counts["writes"] == backend.count("writes") // 2
    assert backend.contents() == kept


def test_what_is_shown_is_what_is_planned_and_erased(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    filled(shredder)
    filled(shredder, "c-2")
    shown = exported(call(shredder, "export", "c-1"))[1]
    audit, plan = call(shredder, "audit", "c-1"), call(shredder, "plan", "c-1")
    before = {table: backend.count(table) for table in ("checkpoints", "writes", "items")}
    result = call(shredder, "shred", "c-1")
    for table, rows in before.items():
        counts = {shown[table], audit.routes[table].rows, audit.routes[table].opens, plan.counts[table]}
        assert counts | {result.before[table], rows - backend.count(table)} == {rows // 2}, table
    assert {route: audit.routes[route].rows for route in plan.counts} == plan.counts == result.before


def calls(stored: list[Any]) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Every call that reads, writes or deletes data of the customer: on the saver or the store, with its arguments."""
    here = config("c-1-a")
    return {
        "get": ("saver", (here,)),
        "get_tuple": ("saver", (here,)),
        "list": ("saver", (here,)),
        "get_delta_channel_history": ("saver", ()),
        "put": ("saver", (here, checkpoint({"x": 1}), metadata(), {"x": 1})),
        "put_writes": ("saver", (stored[-1], [("x", 1)], "task-3")),
        "delete_thread": ("saver", ("c-1-a",)),
        "delete_for_runs": ("saver", ([str(RUN)],)),
        "copy_thread": ("saver", ("c-1-a", "c-1-c")),
        "prune": ("saver", (["c-1-a"],)),
        "store.get": ("store", (NS, "k-1")),
        "store.search": ("store", (NS,)),
        "store.put": ("store", (NS, "k-9", {"v": 1})),
        "store.delete": ("store", (NS, "k-1")),
    }


NO_USE = {"config_specs", "get_next_version", "with_allowlist", "serde", "supports_ttl", "ttl_config"}
"""What LangGraph's bases have besides, and what touches no data."""


@pytest.mark.parametrize("stop", [restricted, in_its_grace, deferred])
def test_every_other_call_is_refused(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend, stop: Any
) -> None:
    shredder = make_shredder()
    stored = filled(shredder)
    fresh = make_shredder()
    serializer = shredder.serializer_for("c-1")
    sealed = serializer.dumps_typed("text")
    lines = list(shredder.export("c-1"))
    stop(shredder)
    kept = backend.contents()
    for one in (shredder, fresh):
        for name, (where, arguments) in calls(stored).items():
            more = {"config": config("c-1-a"), "channels": ["x"]} if "delta" in name else {}
            with pytest.raises((CustomerRestrictedError, LegalHoldError)):
                call(getattr(one, where), name.rpartition(".")[2], *arguments, **more)
        for refused in (
            lambda one=one: one.saver.prune(["c-1-a"], strategy="delete"),
            lambda one=one: one.saver.get_tuple(config("c-1-a", None)),
            lambda one=one: one.store.list_namespaces(prefix=NS),
            lambda one=one: one.rotate("c-1"),
            lambda one=one: one.import_(lines),
            lambda: serializer.loads_typed(sealed),
            lambda: serializer.dumps_typed("text"),
        ):
            with pytest.raises(CustomerRestrictedError):
                refused()
        assert list(one.saver.list(None)) == []
        # Exporting opens it to no one else, whatever it left opened in this process.
        assert len(list(one.export("c-1"))) >= len(lines)
        with pytest.raises(CustomerRestrictedError):
            one.saver.get_tuple(config("c-1-a"))
        with pytest.raises(CustomerRestrictedError):
            one.store.get(NS, "k-1")
        assert list(one.saver.list(None)) == []
    assert backend.contents() == kept


def test_no_call_of_langgraph_is_left_out(shredder: Shredder) -> None:
    known = {name.rpartition(".")[2] for name in calls([None])} | NO_USE | {"batch", "list_namespaces"}
    for base in (BaseCheckpointSaver, BaseStore):
        public = {name for name in dir(base) if not name.startswith("_")}
        blocking = {name for name in public if not (name.startswith("a") and name[1:] in public)}
        assert blocking - known - {"start_ttl_sweeper", "stop_ttl_sweeper", "sweep_ttl"} == set()


def test_a_sweep_leaves_what_is_restricted(make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    for customer in ("c-1", "c-2"):
        shredder.store.put(("users", customer), "k", {"v": customer}, ttl=0.0001)
    shredder.restrict("c-1")
    backend.execute("UPDATE items SET expires_at = 1")
    assert shredder.store.sweep_ttl() == 1
    assert exported(list(shredder.export("c-1")))[1]["items"] == 1
    shredder.reinstate("c-1")
    assert shredder.store.sweep_ttl() == 1


def begun(shredder: Any) -> None:
    with pytest.raises(ShredIncompleteError):
        shredder.shred("c-1")


@pytest.mark.parametrize("shred", [begun, lambda one: one.shred("c-1", purge=False), lambda one: one.shred("c-1")])
def test_of_the_dead_nothing_is_exported(call: Caller, make_shredder: Callable[..., Any], shred: Any) -> None:
    shredder = make_shredder(targets=[Notes(failures=None)] if shred is begun else [])
    shredder._start().outside._sleep = lambda _: None
    filled(shredder)
    shredder.restrict("c-1")
    shred(shredder)
    with pytest.raises(CustomerShreddedError):
        call(shredder, "export", "c-1")


def test_a_shred_under_an_open_export_of_somebody_restricted(make_shredder: Callable[..., Any]) -> None:
    shredder, other = make_shredder(), make_shredder()
    filled(shredder)
    shredder.restrict("c-1")
    lines = shredder.export("c-1")
    next(lines)
    assert "checkpoint" in next(lines)
    other.shred("c-1", purge=False)
    with pytest.raises(CustomerShreddedError):
        list(lines)


def test_whom_another_record_knows_as_dead_is_not_shown_until_that_is_settled(
    make_shredder: Callable[..., Any], home: Path
) -> None:
    journal = home / "journal"
    shredder = make_shredder(journal=journal)
    names = [f"c-{number}" for number in range(11)]
    for name in names:
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
    assert shredder.shred("c-2", grace=timedelta(days=7)).state == "scheduled"
    assert len(list(shredder.export("c-2"))) == 2
    core = shredder._start().core
    told = Journal(journal, core.secrets.log_key)
    told.append(*(Dead(core.token("customer", name), 1, "2026-01-01T00:00:00.000+00:00") for name in names))
    careful = make_shredder(journal=journal)
    assert careful.reconciliation.unconfirmed == 11
    for name in ("c-1", "c-2", "c-10"):
        with pytest.raises(CustomerRestrictedError, match="another record"):
            list(careful.export(name))
    careful.reinstate("c-1")
    assert len(list(careful.export("c-1"))) == 3, "with the word that it was wrong"


def test_writes_without_a_checkpoint_come_back(make_shredder: Callable[..., Any], home: Path) -> None:
    shredder = make_shredder()
    filled(shredder)
    lines = list(shredder.export("c-1"))
    other = make_shredder(str(home / "other.sqlite"), keys=f"file:{home / 'other-keys'}")
    assert other.import_(lines) == len(lines)
    assert exported(list(other.export("c-1")))[1] == exported(lines)[1]
    assert audited(other) == audited(shredder)
