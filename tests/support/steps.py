"""Stopping at every step: around each effect of each plan, at each statement, at each step of a key service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shredsaver.db import sqlite
from shredsaver.db.base import Plan, PlanFactory
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.kms import _steps

Hook = Callable[[str], None]


def stepped(plan: Plan[Any], hook: Hook) -> Plan[Any]:
    """The same plan, with ``hook`` called before and after each of its effects."""
    resume: Callable[[Any], Any] = plan.send
    value: Any = None
    while True:
        try:
            effect = resume(value)
        except StopIteration as stop:
            return stop.value
        hook(f"before {type(effect).__name__}")
        try:
            value = yield effect
        except BaseException as error:  # noqa: BLE001 - passed on to the plan, whatever it is
            resume, value = plan.throw, error
        else:
            hook(f"after {type(effect).__name__}")
            resume = plan.send


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Calls ``hook`` at every step that this process takes towards a disk."""
    originals = {driver: driver.run for driver in (SqliteDatabase, PostgresDatabase)}
    execute = sqlite._execute

    def patched(original: Any) -> Any:
        def run(self: Any, factory: PlanFactory[Any]) -> Any:
            return original(self, lambda: stepped(factory(), hook))

        return run

    def statement(connection: Any, one: Any) -> Any:
        hook("before a statement")
        return execute(connection, one)

    try:
        for driver, original in originals.items():
            driver.run = patched(original)  # type: ignore[method-assign]
        sqlite._execute = statement
        _steps.hook = hook
        yield
    finally:
        for driver, original in originals.items():
            driver.run = original  # type: ignore[method-assign]
        sqlite._execute = execute
        _steps.hook = None
