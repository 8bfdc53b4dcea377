"""Plans begun before it is known that they may go on, so that what they ask first goes out with the fence's question.

What the fence asks and what a plan asks first are then one round trip. The answers are used only once the fence has
let everybody through who was taken for granted.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic

from shredsaver.db.base import Effect, Plan, Result, Run, Statement, T


class Begun(Generic[T]):
    """A plan that runs within a transaction, stopped at its first statements. Until then it must change nothing.

    Attributes:
        statements: What it asks first, for whoever runs other statements in the same transaction.
    """

    def __init__(self, plan: Plan[T]) -> None:
        self.statements: Sequence[Statement] = ()
        self._plan: Generator[Effect, Any, T] = plan
        self._pending: Effect | None = None
        self._ended: StopIteration | None = None
        try:
            effect = next(plan)
        except StopIteration as stop:
            self._ended = stop
            return
        if isinstance(effect, Run) and not effect.commit:
            self.statements = effect.statements
        else:
            self._pending = effect

    def go_on(self, results: list[Result]) -> Plan[T]:
        """The rest of the plan, given the answers to `statements`."""
        if self._ended is not None:
            ended: T = self._ended.value
            return ended
        plan = self._plan
        try:
            effect = plan.send(results) if self._pending is None else self._pending
            while True:
                try:
                    answer = yield effect
                except BaseException as error:  # noqa: BLE001 - the plan's to see; it comes back out
                    effect = plan.throw(error)
                else:
                    effect = plan.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def drop(self) -> None:
        """Gives the plan up."""
        self._plan.close()
