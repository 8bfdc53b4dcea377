"""Fresh keys for one customer, while others write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import ConfigurationError, CustomerShreddedError, Shredder
from shredsaver.keytree import KeyPuncturedError, KeyTree
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import put

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
        for thread in threads:
            thread.join()
    assert errors == []
    other = make_shredder()
    for thread_id, count in written.items():
        assert len(read(caller, other, thread_id)) == count > 0
    assert other.audit(WHO).damaged == ()


def test_a_customer_that_is_not_there(shredder: Shredder) -> None:
    with pytest.raises(ConfigurationError):
        shredder.rotate("nobody")
    shredder.store.put(("users", WHO), "k", {})
    shredder.shred(WHO)
    with pytest.raises(CustomerShreddedError):
        shredder.rotate(WHO)
