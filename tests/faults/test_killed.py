"""A process killed at any step loses nothing that was acknowledged, and whoever tries again comes to the same end.

Every deed runs in a process that is killed (SIGKILL) at its first step, then at its second, until it comes to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6

from shredsaver import CustomerShreddedError, Shredder
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config, put
from tests.support.processes import killed_at

CALL = Caller("sync")
STATES = [{"x": ["text " * 60], "n": 1}, {"x": ["text " * 60, "more " * 60], "n": 2}]
MOST_STEPS = 400


def values(shredder: Any, here: dict[str, Any]) -> Any:
    found = shredder.saver.get_tuple(here)
    return None if found is None else found.checkpoint["channel_values"]


def stored(shredder: Any, here: dict[str, Any]) -> list[Any]:
    return [(t.config, t.checkpoint, t.metadata, t.parent_config, t.pending_writes) for t in shredder.saver.list(here)]


class Bystander:
    """Another customer, with a thread that must come through everything unchanged."""

    def __init__(self, shredder: Any) -> None:
        self.here = config("bystander's thread", "bystander")
        stored_configs = chain(CALL, shredder.saver, self.here, STATES)
        shredder.saver.put_writes(stored_configs[-1], [("x", "pending " * 40)], "task")
        self.expected = stored(shredder, self.here)

    def check(self, shredder: Any) -> None:
        assert stored(shredder, self.here) == self.expected
        put(CALL, shredder.saver, config("bystander's other thread", "bystander"), {"x": 1})


def rounds(
    backend: Backend,
    keys: str,
    deed: Callable[..., None],
    prepare: Callable[[int], tuple[Any, ...]],
    check: Callable[..., None],
    *,
    within_keys: bool = False,
) -> int:
    """Kills the deed at each of its steps in turn; returns how many steps it has."""
    for step in range(1, MOST_STEPS):
        args = prepare(step)
        acknowledged, finished = killed_at(step, backend.url, {"keys": keys}, deed, *args, keys=within_keys)
        with Shredder.open(backend.url, keys=keys) as fresh:
            check(step, acknowledged, fresh, *args)
        if finished:
            return step - 1
    raise AssertionError("it does not end")


WITHIN = pytest.mark.parametrize(
    "within_keys",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["steps of the database", "steps of the key service too"],
)


def put_twice(shredder: Any, done: Callable[[Any], None], here: dict[str, Any], ids: list[str]) -> None:
    for key, state in zip(ids, STATES, strict=True):
        put(CALL, shredder.saver, here, state, id=key)
        done(key)


def put_writes(shredder: Any, done: Callable[[Any], None], here: dict[str, Any], task: str) -> None:
    shredder.saver.put_writes(here, [("x", "value " * 60), ("y", 1), ("__interrupt__", "ask")], task, "path")
    done(task)


def shred(shredder: Any, done: Callable[[Any], None], customer: str, purge: bool) -> None:
    done(shredder.shred(customer, purge=purge).erasure_id)


def enrol(shredder: Any, done: Callable[[Any], None], customer: str) -> None:
    shredder.enrol(customer)
    done(customer)
    put(CALL, shredder.saver, config(f"t-{customer}", customer), {"x": "new"})
    done("put")


def delete_thread(shredder: Any, done: Callable[[Any], None], thread: str) -> None:
    shredder.saver.delete_thread(thread)
    done(thread)


def copy_thread(shredder: Any, done: Callable[[Any], None], source: str, target: str) -> None:
    shredder.saver.copy_thread(source, target)
    done(target)


def prune(shredder: Any, done: Callable[[Any], None], thread: str) -> None:
    shredder.saver.prune([thread])
    done(thread)


def delete_run(shredder: Any, done: Callable[[Any], None], run: str) -> None:
    shredder.saver.delete_for_runs([run])
    done(run)


@pytest.mark.parametrize("first", ["thread there", "first write of a thread", "first write of a customer"])
@WITHIN
def test_put(first: str, within_keys: bool, backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)

    def prepare(step: int) -> tuple[Any, ...]:
        customer = f"c-{step}" if first == "first write of a customer" else "c"
        here = config("t" if first == "thread there" else f"t-{step}", customer)
        if first != "first write of a customer":
            put(CALL, shredder.saver, here if first == "thread there" else config("other", "c"), {"x": ["before"]})
        return here, [str(uuid6(clock_seq=-1)) for _ in STATES]

    def check(step: int, acknowledged: list[Any], fresh: Any, here: dict[str, Any], ids: list[str]) -> None:
        for attempt in (shredder, fresh):
            assert len(stored(attempt, here)) >= len(acknowledged)
            for key, state in zip(ids, STATES, strict=True):
                at = {"configurable": {**here["configurable"], "checkpoint_id": key}}
                found = values(attempt, at)
                assert found == state if key in acknowledged else found in (None, state)
            bystander.check(attempt)
        for key, state in zip(ids, STATES, strict=True):
            put(CALL, shredder.saver, here, state, id=key)
            assert values(shredder, {"configurable": {**here["configurable"], "checkpoint_id": key}}) == state

    assert rounds(backend, keys, put_twice, prepare, check, within_keys=within_keys) > 8


def test_put_writes(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)
    here = put(CALL, shredder.saver, config(), {"x": 1})
    whole = {("x", "value " * 60), ("y", 1), ("__interrupt__", "ask")}

    def check(step: int, acknowledged: list[Any], fresh: Any, here: dict[str, Any], task: str) -> None:
        for expected in ([whole] if acknowledged else [whole, set()], [whole]):
            found = {(c, v) for t, c, v in fresh.saver.get_tuple(here).pending_writes if t == task}
            assert found in expected
            put_writes(shredder, lambda _: None, here, task)
        bystander.check(fresh)

    assert rounds(backend, keys, put_writes, lambda step: (here, f"task {step}"), check) > 3


@pytest.mark.parametrize("purge", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["purge", "no purge"])
@WITHIN
def test_shred(purge: bool, within_keys: bool, backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)

    def prepare(step: int) -> tuple[Any, ...]:
        for thread in range(2):
            chain(CALL, shredder.saver, config(f"t-{step}-{thread}", f"c-{step}"), STATES)
        return f"c-{step}", purge

    def check(step: int, acknowledged: list[Any], fresh: Any, customer: str, purge: bool) -> None:
        here = config(f"t-{step}-0", customer)
        for attempt in (shredder, fresh):
            try:
                alive = values(attempt, here)
            except CustomerShreddedError:
                alive = None
            assert alive in (None, STATES[-1])
            assert not (acknowledged and alive)
            bystander.check(attempt)
        result = fresh.shred(customer, purge=purge)
        assert not acknowledged or acknowledged == [result.erasure_id]
        for attempt in (shredder, fresh):
            for at in (here, config(f"t-{step}-1", None)):
                with pytest.raises(CustomerShreddedError):
                    attempt.saver.get_tuple(at)
            with pytest.raises(CustomerShreddedError):
                put(CALL, attempt.saver, config("new thread", customer), {"x": 1})
            bystander.check(attempt)
        if purge:
            tokens = {bytes(r["thread"]) for r in backend.rows("threads") if r["name"] is None}
            assert not tokens & {bytes(r["thread"]) for r in backend.rows("checkpoints")}
            assert not tokens & {bytes(r["thread"]) for r in backend.rows("parts")}

    assert rounds(backend, keys, shred, prepare, check, within_keys=within_keys) > 15


def test_resume_finishes_what_a_crash_left(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)

    def prepare(step: int) -> tuple[Any, ...]:
        chain(CALL, shredder.saver, config(f"t-{step}", f"c-{step}"), STATES)
        return f"c-{step}", True

    def check(step: int, acknowledged: list[Any], fresh: Any, customer: str, purge: bool) -> None:
        revoked = any(row["state"] == "revoked" or row["state"] == "destroyed" for row in backend.rows("customers"))
        fresh.resume()
        states = {row["state"] for row in backend.rows("customers")}
        assert states <= {"live", "purged"}
        if revoked:
            with pytest.raises(CustomerShreddedError):
                fresh.saver.get_tuple(config(f"t-{step}", customer))
        fresh.shred(customer)
        bystander.check(fresh)

    assert rounds(backend, keys, shred, prepare, check) > 15


def test_enrol(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)

    def prepare(step: int) -> tuple[Any, ...]:
        put(CALL, shredder.saver, config(f"t-c-{step}", f"c-{step}"), {"x": "old"})
        shredder.shred(f"c-{step}")
        return (f"c-{step}",)

    def check(step: int, acknowledged: list[Any], fresh: Any, customer: str) -> None:
        here = config(f"t-{customer}", customer)
        try:
            found = values(fresh, here)
        except CustomerShreddedError:
            assert not acknowledged
            fresh.enrol(customer)
            found = values(fresh, here)
        assert found == {"x": "new"} if "put" in acknowledged else found in (None, {"x": "new"})
        put(CALL, fresh.saver, here, {"x": "newer"})
        assert values(fresh, here) == {"x": "newer"}
        bystander.check(fresh)

    assert rounds(backend, keys, enrol, prepare, check) > 5


def test_delete_thread(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)

    def prepare(step: int) -> tuple[Any, ...]:
        chain(CALL, shredder.saver, config(f"t-{step}", "c"), STATES)
        return (f"t-{step}",)

    def check(step: int, acknowledged: list[Any], fresh: Any, thread: str) -> None:
        here = config(thread, "c")
        for attempt in (shredder, fresh):
            assert len(stored(attempt, here)) in ((0,) if acknowledged else (0, 2))
            bystander.check(attempt)
        shredder.saver.delete_thread(thread)
        assert stored(shredder, here) == []
        put(CALL, shredder.saver, here, {"x": "again"})
        assert values(fresh, here) == {"x": "again"}
        shredder.saver.delete_thread(thread)

    assert rounds(backend, keys, delete_thread, prepare, check) > 2
    kept = {bytes(row["thread"]) for row in backend.rows("threads")}
    assert {bytes(row["thread"]) for row in backend.rows("parts")} <= kept


@pytest.mark.parametrize("deed", [copy_thread, prune, delete_run])
def test_upkeep(deed: Callable[..., None], backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    bystander = Bystander(shredder)
    before: dict[str, list[Any]] = {}

    def prepare(step: int) -> tuple[Any, ...]:
        name = f"t-{step}"
        put(CALL, shredder.saver, config(name, "c"), {"x": ["first " * 60]}, run_id=f"run of {name}")
        chain(CALL, shredder.saver, config(name, "c"), STATES)
        before[name] = stored(shredder, config(name, "c"))
        if deed is copy_thread:
            return name, f"copy of {name}"
        return (name,) if deed is prune else (f"run of {name}",)

    def check(step: int, acknowledged: list[Any], fresh: Any, *args: str) -> None:
        name = f"t-{step}"
        deed(shredder, lambda _: None, *args)
        for attempt in (shredder, fresh):
            now = stored(attempt, config(name, "c"))
            if deed is copy_thread:
                assert now == before[name]
                copied = stored(attempt, config(args[1], "c"))
                assert [c for _, c, *_ in copied] == [c for _, c, *_ in before[name]]
            elif deed is prune:
                assert [c["channel_values"] for _, c, *_ in now] == [STATES[-1]]
            else:
                assert [c["channel_values"] for _, c, *_ in now] == STATES[::-1]
            bystander.check(attempt)

    assert rounds(backend, keys, deed, prepare, check) > 2


def test_opening_for_the_first_time(home: Path, make_shredder: Callable[..., Any]) -> None:
    for step in range(1, MOST_STEPS):
        place = home / str(step)
        place.mkdir()
        database, options = str(place / "atlas.sqlite"), {"keys": f"file:{place / 'keys'}"}
        _, finished = killed_at(step, database, options, None)
        shredder = make_shredder(database, **options)
        bystander = Bystander(shredder)
        bystander.check(make_shredder(database, **options))
        assert SqliteBackend(Path(database)).count("customers") == 1
        if finished:
            assert step > 10
            return
    raise AssertionError("it does not end")


def test_the_killing_kills(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    """The step counted last is the commit: killed before it, nothing is there; after it, all is."""
    shredder = make_shredder()
    seen = set()
    for step in range(1, MOST_STEPS):
        here, key = config(f"t-{step}", f"c-{step}"), str(uuid6(clock_seq=-1))
        acknowledged, finished = killed_at(step, backend.url, {"keys": keys}, put_twice, here, [key, key])
        seen.add((values(shredder, here) is not None, bool(acknowledged)))
        if finished:
            break
    assert seen == {(False, False), (True, False), (True, True)}
