"""Fresh keys for one customer, while others write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from shredsaver import ConfigurationError, CustomerShreddedError, DatabaseUnavailableError, Shredder, rotating
from shredsaver.keytree import KeyPuncturedError, KeyTree
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import put
from tests.support.steps import hooked
from tests.support.waiting import join

WHO = "c-1"


def here(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "customer_id": WHO}}


def scopes(backend: Backend) -> list[int]:
    return sorted({int(scope) for (scope,) in backend.execute("SELECT scope FROM checkpoints")})


def read(call: Caller, shredder: Shredder, thread: str) -> list[Any]:
    return [found.checkpoint["channel_values"] for found in call(shredder.saver, "list", here(thread))]


def tree(shredder: Shredder) -> KeyTree:
    core = shredder._start().core
    return KeyTree.from_bytes(core.keys.load(core.token("customer", WHO), 1).secret)


def test_new_writes_go_under_keys_that_the_old_tree_cannot_derive(
    make_shredder: Callable[..., Shredder], call: Caller, backend: Backend
) -> None:
    shredder, warm = make_shredder(), make_shredder()
    for one in (shredder, warm):
        put(call, one.saver, here("t"), {"x": "before"})
    old, before = tree(shredder), scopes(backend)
    assert call(shredder, "rotate", WHO) == 2
    new = tree(shredder)
    for one in (warm, shredder):
        put(call, one.saver, here("t"), {"x": "after"})
        put(call, one.saver, here("u"), {"x": "after"})
    fresh = [scope for scope in scopes(backend) if scope not in before]
    assert fresh
    for scope in before:
        assert old.derive(scope, 16) == new.derive(scope, 16)
    for scope in fresh:
        assert old.derive(scope, 16) != new.derive(scope, 16)
        with pytest.raises(KeyPuncturedError):
            new.puncture_scope(scope, scope).derive(scope, 16)
    assert [values["x"] for values in read(call, make_shredder(), "t")] == ["after", "after", "before", "before"]
    assert call(shredder, "audit", WHO).damaged == ()
    call(shredder, "shred", WHO)
    with pytest.raises(CustomerShreddedError):
        put(call, warm.saver, here("t"), {"x": "late"})


def test_nobody_loses_a_write_while_keys_change(make_shredder: Callable[..., Shredder]) -> None:
    writers = [make_shredder(), make_shredder()]
    caller = Caller("sync")
    done = threading.Event()
    written: dict[str, int] = {}
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            while not done.is_set():
                put(caller, writers[number % 2].saver, here(f"t{number}"), {"x": written.get(f"t{number}", 0)})
                written[f"t{number}"] = written.get(f"t{number}", 0) + 1
        except BaseException as error:
            errors.append(error)
            raise

    writers[0].store.put(("users", WHO), "so that the customer is known", {})
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            writers[0].rotate(WHO)
            writers[1].rotate()
    finally:
        done.set()
        join(threads)
    assert errors == []
    other = make_shredder()
    for thread_id, count in written.items():
        assert len(read(caller, other, thread_id)) == count > 0
    assert other.audit(WHO).damaged == ()


class Between:
    """Does something once, at the n-th step of what runs that lies outside a transaction."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.left = at
        self.action = action
        self.inside = self.acting = False

    def __call__(self, step: str) -> None:
        if self.acting:
            return
        self.inside = step in {"after Begin", "after Run"}
        if self.inside:
            return
        self.left -= 1
        if self.left == -1:
            self.acting = True
            self.action()
            self.acting = False

    @property
    def done(self) -> bool:
        return self.left < 0


def at_every_step(run: Callable[[], object], action: Callable[[], object], most: int = 60) -> int:
    for at in range(most):
        between = Between(at, action)
        with hooked(between):
            run()
        if not between.done:
            return at
    raise AssertionError(f"more than {most} steps")


def test_rotations_at_every_step_of_a_first_write(make_shredder: Callable[..., Shredder]) -> None:
    caller, (writer, rotator) = Caller("sync"), (make_shredder(), make_shredder())
    writer.store.put(("users", WHO), "so that the customer is known", {})
    count = 0

    def first_write() -> None:
        nonlocal count
        count += 1
        put(caller, writer.saver, here(f"t{count}"), {"x": count})
        put(caller, writer.saver, here(f"t{count}"), {"x": -count})

    assert at_every_step(first_write, lambda: rotator.rotate(WHO)) >= 6
    other = make_shredder()
    for number in range(1, count + 1):
        assert [values["x"] for values in read(caller, other, f"t{number}")] == [-number, number]
    assert other.audit(WHO).damaged == ()


@pytest.mark.parametrize("warm", [False, True], ids=["cold writer", "warm writer"])
def test_first_writes_at_every_step_of_a_rotation(warm: bool, make_shredder: Callable[..., Shredder]) -> None:
    caller, (writer, rotator) = Caller("sync"), (make_shredder(), make_shredder())
    writer.store.put(("users", WHO), "so that the customer is known", {})
    written: list[str] = []

    def first_write() -> None:
        saver = writer.saver if warm else make_shredder().saver
        written.append(f"t{len(written)}")
        put(caller, saver, here(written[-1]), {"x": written[-1]})

    assert at_every_step(lambda: rotator.rotate(WHO), first_write) >= 4
    other = make_shredder()
    for thread in written:
        assert [values["x"] for values in read(caller, other, thread)] == [thread]
        put(caller, other.saver, here(thread), {"x": "on"})
    assert other.audit(WHO).damaged == ()


class Crash(BaseException):
    """The process ends here."""


def crash() -> None:
    raise Crash


def test_a_rotation_that_ends_at_any_step_loses_nothing(
    make_shredder: Callable[..., Shredder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left half done, it lets threads begin up to its ceiling and no further, whatever keys their writers hold."""
    monkeypatch.setattr(rotating, "MARGIN", 8)
    caller = Caller("sync")
    written: list[str] = []
    stuck = 0

    def first_write(shredder: Shredder) -> bool:
        try:
            put(caller, shredder.saver, here(f"t{len(written)}"), {"x": len(written)})
        except DatabaseUnavailableError as error:
            if not error.retryable:
                raise
            return False
        written.append(f"t{len(written)}")
        return True

    warm, cold, rotator = make_shredder(), make_shredder(), make_shredder()
    warm.store.put(("users", WHO), "so that the customer is known", {})
    core = cold._start().core
    for at in range(60):
        for _ in range(2):
            between = Between(at, crash)
            with suppress(Crash), hooked(between):
                rotator.rotate(WHO)
            core.keyring.forget(core.token("customer", WHO), 1)
            outcomes = [first_write(one) for _ in range(4) for one in (warm, cold)]
            stuck += not all(outcomes)
        if not between.done:
            assert all(outcomes)
            break
        rotator.rotate(WHO)
        assert first_write(warm)
    assert stuck >= 2
    other = make_shredder()
    for number, thread in enumerate(written):
        assert [values["x"] for values in read(caller, other, thread)] == [number]
    assert other.audit(WHO).damaged == ()


def test_two_rotations_at_once(make_shredder: Callable[..., Shredder], backend: Backend) -> None:
    caller, shredders = Caller("sync"), [make_shredder() for _ in range(3)]
    shredders[0].store.put(("users", WHO), "so that the customer is known", {})
    written: list[str] = []

    def meanwhile() -> None:
        shredders[1].rotate(WHO)
        written.append(f"t{len(written)}")
        put(caller, shredders[2].saver, here(written[-1]), {"x": written[-1]})

    other = make_shredder()
    core = other._start().core

    def rotated() -> None:
        shredders[0].rotate(WHO)
        kept = core.keys.load(core.token("customer", WHO), 1).key_version
        assert [(kept,)] == [tuple(row) for row in backend.execute("SELECT key_version FROM customers")]

    assert at_every_step(rotated, meanwhile) >= 4
    for thread in written:
        assert [values["x"] for values in read(caller, other, thread)] == [thread]
    assert len({scope for (scope,) in backend.execute("SELECT scope FROM threads")}) == len(written)


def test_a_customer_that_is_not_there(shredder: Shredder) -> None:
    with pytest.raises(ConfigurationError):
        shredder.rotate("nobody")
    shredder.store.put(("users", WHO), "k", {})
    shredder.shred(WHO)
    with pytest.raises(CustomerShreddedError):
        shredder.rotate(WHO)


def test_a_later_database_keeps_its_threads_after_a_rotation_on_an_older_one(
    make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    """Whichever database is put back, and whichever of them rotates: neither loses what the other one wrote."""
    caller = Caller("sync")
    first = make_shredder()
    put(caller, first.saver, here("t"), {"x": "before"})
    older = backend.copy()
    for turn in range(2):
        first.rotate(WHO)
        put(caller, first.saver, here(f"later-{turn}"), {"x": turn})
    first.close()

    def use(url: str, thread: str) -> None:
        with make_shredder(url) as shredder:
            shredder.reconcile(adopt="restore")
            for turn in range(2):
                put(caller, shredder.saver, here(f"{thread}-{turn}"), {"x": thread})
                shredder.rotate(WHO)
                put(caller, shredder.saver, here(thread), {"x": f"{thread} again"})
            assert shredder.audit(WHO).damaged == ()

    for turn in range(2):
        use(older.url, f"older-{turn}")
        use(backend.url, f"current-{turn}")
    with make_shredder() as current:
        for turn in range(2):
            assert [values["x"] for values in read(caller, current, f"later-{turn}")] == [turn]


@pytest.mark.parametrize("at", [3, 4], ids=["before the keys were replaced", "after it"])
def test_an_older_database_with_a_rotation_half_done(
    at: int, make_shredder: Callable[..., Shredder], backend: Backend
) -> None:
    """It takes the rotation up, and no thread that a later database began since loses its keys."""
    caller = Caller("sync")
    first = make_shredder()
    put(caller, first.saver, here("t"), {"x": "before"})
    with pytest.raises(Crash), hooked(Between(at, crash)):
        first.rotate(WHO)
    assert tree(first).refreshed_from() == (0, 16 + 2 + rotating.MARGIN)[at == 4]
    older = backend.copy()
    first.rotate(WHO)
    put(caller, first.saver, here("later"), {"x": "later"})
    first.close()
    with make_shredder(older.url) as shredder:
        shredder.reconcile(adopt="restore")
        put(caller, shredder.saver, here("meanwhile"), {"x": "meanwhile"})
        shredder.rotate(WHO)
        put(caller, shredder.saver, here("meanwhile"), {"x": "meanwhile again"})
        assert shredder.audit(WHO).damaged == ()
    with make_shredder() as current:
        current.reconcile(adopt="restore")
        assert [values["x"] for values in read(caller, current, "later")] == ["later"]
        assert current.audit(WHO).damaged == ()
