"""Erasure targets that keep count, fail as they are told to, and a clock that is moved by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from shredsaver.targets import ErasureContext


class Notes:
    """Notes of customers somewhere else.

    Args:
        name: The target's name.
        failures: Calls of ``erase`` that raise before one works; None: every one does.
    """

    def __init__(
        self, name: str = "notes", *, failures: int | None = 0, after: Literal["revoked", "verified"] = "revoked"
    ) -> None:
        self.name = name
        self.after: Literal["revoked", "verified"] = after
        self.failures = failures
        self._lock = threading.Lock()
        self.kept: dict[str, int] = {}
        self.told: list[ErasureContext] = []
        self.at_erase: Callable[[ErasureContext], None] = lambda _: None

    def erase(self, context: ErasureContext) -> None:
        self.told.append(context)
        with self._lock:  # erasures at once must not count one failure twice
            fails = self.failures is None or self.failures > 0
            if self.failures:
                self.failures -= 1
        if fails:
            raise OSError(f"no answer about {context.customer_id}")
        self.at_erase(context)
        self.kept.pop(context.customer_id, None)

    def remaining(self, context: ErasureContext) -> int:
        return self.kept.get(context.customer_id, 0)


class Clock:
    """Seconds since the epoch, moved on by hand."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def on(self, by: timedelta) -> None:
        self._ahead += by.total_seconds()
