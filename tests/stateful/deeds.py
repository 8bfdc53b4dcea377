"""What a process can be told to do, each a function of a `Shredder`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from shredsaver import ShredSaverError
from tests.stateful.clock import CLOCK
from tests.support.calls import Caller
from tests.support.checkpoints import put as put_checkpoint

CALL = Caller("sync")


def put(shredder: Any, here: dict[str, Any], values: dict[str, Any], version: int, key: str) -> None:
    put_checkpoint(CALL, shredder.saver, here, values, version=version, id=key)


def put_writes(shredder: Any, here: dict[str, Any], writes: list[tuple[str, Any]], task: str) -> None:
    shredder.saver.put_writes(here, writes, task)


def put_item(shredder: Any, name: str, key: str, value: dict[str, Any], minutes: float | None) -> None:
    shredder.store.put(("users", name), key, value, ttl=minutes)


def delete_item(shredder: Any, name: str, key: str) -> None:
    shredder.store.delete(("users", name), key)


def get_item(shredder: Any, name: str, key: str, refresh: bool) -> Any:
    found = shredder.store.get(("users", name), key, refresh_ttl=refresh)
    return None if found is None else found.value


def sweep(shredder: Any) -> int:
    return int(shredder.store.sweep_ttl())


def copy_thread(shredder: Any, source: str, target: str) -> None:
    shredder.saver.copy_thread(source, target)


def prune(shredder: Any, thread: str) -> None:
    shredder.saver.prune([thread], strategy="keep_latest")


def delete_thread(shredder: Any, thread: str) -> None:
    shredder.saver.delete_thread(thread)


def shred(shredder: Any, name: str, purge: bool) -> tuple[str, tuple[str, ...], bool]:
    result = shredder.shred(name, purge=purge)
    return result.state, tuple(result.pending), result.receipt is not None


def enrol(shredder: Any, name: str) -> int:
    return int(shredder.enrol(name).generation)


def hold(shredder: Any, name: str, until: float | None) -> None:
    shredder.hold(name, "a case", None if until is None else datetime.fromtimestamp(until, UTC))


def release(shredder: Any, name: str) -> None:
    shredder.release(name)


def restrict(shredder: Any, name: str) -> None:
    shredder.restrict(name)


def reinstate(shredder: Any, name: str) -> None:
    shredder.reinstate(name)


def rotate(shredder: Any, name: str | None) -> None:
    shredder.rotate(name)


def resume(shredder: Any) -> None:
    shredder.resume()


def set_clock(_: Any, now: float) -> None:
    CLOCK.now = now


def told(shredder: Any, done: Callable[[Any], None], deed: Callable[..., Any], *args: Any) -> None:
    """For a process that may be killed: says what came of it."""
    try:
        done(("done", deed(shredder, *args)))
    except ShredSaverError as error:
        done(("refused", type(error).__name__))
