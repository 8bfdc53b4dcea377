"""Calls that run side by side, one transaction at a time, in the order that a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shredsaver.db.base import Begin, Call, Commit, Plan, PlanFactory, Rollback, Run
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.db.sqlite import SqliteDatabase

SECONDS = 120
"""How long a step may take; a stopped call is left alone for much longer, as others go on meanwhile."""

_this = threading.local()


class Actor:
    """A call on a thread of its own that stops between its transactions, until it is told to go on.

    It never stops within a transaction or a call of the key service, so none waits for another that was stopped.
    """

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.outcome: Any = None
        self.error: Exception | None = None
        self.done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    def advance(self) -> bool:
        """Lets it take its next step. Gives whether it is done."""
        self._go.release()
        self._wait()
        return self.done

    def gate(self) -> None:
        self._stopped.release()
        if not self._go.acquire(timeout=30 * SECONDS):
            raise TimeoutError("nobody lets this call go on")

    def _wait(self) -> None:
        if not self._stopped.acquire(timeout=SECONDS):
            raise TimeoutError("a call waits for another one that was stopped")
        if self.done:
            self._thread.join(SECONDS)

    def _run(self) -> None:
        _this.actor = self
        try:
            self.outcome = self._act()
        except Exception as error:  # noqa: BLE001 - judged by whoever started it
            self.error = error
        finally:
            self.done = True
            self._stopped.release()


def _gated(plan: Plan[Any], gate: Callable[[], None]) -> Plan[Any]:
    resume: Callable[[Any], Any] = plan.send
    value: Any = None
    inside = False
    gate()
    while True:
        try:
            effect = resume(value)
        except StopIteration as stop:
            return stop.value
        inside = inside or isinstance(effect, Begin)
        _this.calling = isinstance(effect, Call)
        try:
            value = yield effect
        except BaseException as error:  # noqa: BLE001 - passed on to the plan, whatever it is
            resume, value, inside = plan.throw, error, False
        else:
            if isinstance(effect, Commit | Rollback) or (isinstance(effect, Run) and effect.commit):
                inside = False
            if not inside:
                gate()
            resume = plan.send
        finally:
            _this.calling = False


@contextmanager
def gates() -> Iterator[None]:
    """Within it, every call of an `Actor` stops between its transactions."""
    originals = {driver: driver.run for driver in (SqliteDatabase, PostgresDatabase)}

    def patched(original: Any) -> Any:
        def run(self: Any, factory: PlanFactory[Any]) -> Any:
            actor = getattr(_this, "actor", None)
            if actor is None or getattr(_this, "calling", False):
                return original(self, factory)
            return original(self, lambda: _gated(factory(), actor.gate))

        return run

    try:
        for driver, original in originals.items():
            driver.run = patched(original)  # type: ignore[method-assign]
        yield
    finally:
        for driver, original in originals.items():
            driver.run = original  # type: ignore[method-assign]
