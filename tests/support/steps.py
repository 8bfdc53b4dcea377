"""Stopping at every step: around each effect of each plan, and at each step of a key service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shredsaver.db.base import Call, Plan, PlanFactory, Run
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.kms import _steps

Hook = Callable[[str], None]


_inside = threading.local()


def stepped(plan: Plan[Any], hook: Hook) -> Plan[Any]:
    """The same plan, with ``hook`` called before its first effect and after each."""
    resume: Callable[[Any], Any] = plan.send
    value: Any = None
    name = "begun"
    while True:
        try:
            effect = resume(value)
        except StopIteration as stop:
            return stop.value
        if name == "begun":
            hook(name)
        name = "Run and commit" if isinstance(effect, Run) and effect.commit else type(effect).__name__
        calling, _inside.call = getattr(_inside, "call", False), isinstance(effect, Call)
        try:
            value = yield effect
        except BaseException as error:  # noqa: BLE001 - passed on to the plan, whatever it is
            _inside.call = calling
            resume, value = plan.throw, error
        else:
            _inside.call = calling
            hook(f"after {name}")
            resume = plan.send


@contextmanager
def hooked(hook: Hook, *, keys: bool = False) -> Iterator[None]:
    """Calls ``hook`` at every step that this process takes towards a disk.

    Args:
        hook: Called with the step's name. It may end the process, wait, or raise.
        keys: Also within calls of the key service, at the steps of its own plans and files.
    """
    originals = {driver: driver.run for driver in (SqliteDatabase, PostgresDatabase)}

    def patched(original: Any) -> Any:
        def run(self: Any, factory: PlanFactory[Any]) -> Any:
            if getattr(_inside, "call", False) and not keys:
                return original(self, factory)
            return original(self, lambda: stepped(factory(), hook))

        return run

    try:
        for driver, original in originals.items():
            driver.run = patched(original)  # type: ignore[method-assign]
        _steps.hook = hook if keys else None
        yield
    finally:
        for driver, original in originals.items():
            driver.run = original  # type: ignore[method-assign]
        _steps.hook = None
