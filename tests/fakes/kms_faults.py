"""What can go wrong between a caller and AWS KMS, to be switched on by a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.fakes.kms_keys import Clock, KmsError

When = Literal["before", "after"]


class ConnectionLostError(Exception):
    """The connection ends without an answer."""


@dataclass
class _Fault:
    operation: str | None
    when: When
    act: Callable[[], None]
    skip: int
    times: int
    key: str | None


class Faults:
    """Faults by operation (None: every one), each for the next ``times`` calls after ``skip`` calls are let through.

    ``before`` an operation nothing has happened yet; ``after`` it, everything has, and only the answer is missing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []

    def hook(
        self,
        operation: str | None,
        act: Callable[[], None],
        *,
        when: When = "before",
        skip: int = 0,
        times: int = 1,
        key: str | None = None,
    ) -> None:
        """Calls ``act`` on the server's thread at that point; what it raises becomes the answer."""
        with self._lock:
            self._faults.append(_Fault(operation, when, act, skip, times, key))

    def fail(self, operation: str | None, code: str, *, status: int = 400, skip: int = 0, times: int = 1) -> None:
        """Answers with an error, having done nothing."""

        def act() -> None:
            raise KmsError(code, "injected", status)

        self.hook(operation, act, skip=skip, times=times)

    def throttle(self, operation: str | None, *, skip: int = 0, times: int = 1) -> None:
        """Answers ThrottlingException: "You have exceeded the rate at which you may call KMS"."""
        self.fail(operation, "ThrottlingException", skip=skip, times=times)

    def deny(self, operation: str | None, *, key: str | None = None) -> None:
        """Answers AccessDeniedException to every call, or to those for one key (its ARN), until `clear`."""

        def act() -> None:
            raise KmsError("AccessDeniedException", f"not authorized to perform: kms:{operation or '*'}")

        self.hook(operation, act, times=1 << 60, key=key)

    def expire_credentials(self) -> None:
        """Answers ExpiredTokenException to every call until `clear`."""
        self.fail(None, "ExpiredTokenException", times=1 << 60)

    def lose(self, operation: str | None, *, skip: int = 0, times: int = 1) -> None:
        """Carries the operation out, then closes the connection before the answer."""
        self.hook(operation, _cut, when="after", skip=skip, times=times)

    def drop(self, operation: str | None, *, skip: int = 0, times: int = 1) -> None:
        """Closes the connection before anything is done."""
        self.hook(operation, _cut, skip=skip, times=times)

    def outage(self) -> None:
        """Drops every connection until `clear`."""
        self.drop(None, times=1 << 60)

    def delay(self, operation: str | None, seconds: float, *, times: int = 1 << 60) -> None:
        """Waits before the operation, in real seconds."""
        self.hook(operation, lambda: time.sleep(seconds), times=times)

    def clear(self) -> None:
        """Ends every fault."""
        with self._lock:
            self._faults.clear()

    def run(self, operation: str, key: str | None, when: When) -> None:
        """Called by the server around each operation."""
        due: list[Callable[[], None]] = []
        with self._lock:
            for fault in self._faults:
                if fault.when != when or fault.operation not in (None, operation) or fault.key not in (None, key):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    due.append(fault.act)
        for act in due:
            act()


def _cut() -> None:
    raise ConnectionLostError


class Rates:
    """Requests per second by operation; the burst is one second's worth, or one call where that is less."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._limits: dict[str, float] = {}
        self._tokens: dict[str, tuple[float, float]] = {}

    def limit(self, operation: str, per_second: float) -> None:
        """Sets a quota; the real one of GetParametersForImport is 0.25."""
        with self._lock:
            self._limits[operation] = per_second
            self._tokens.pop(operation, None)

    def take(self, operation: str) -> None:
        """Counts a request, or answers ThrottlingException."""
        with self._lock:
            rate = self._limits.get(operation)
            if rate is None:
                return
            now, burst = self._clock.now(), max(1.0, rate)
            tokens, since = self._tokens.get(operation, (burst, now))
            tokens = min(burst, tokens + (now - since) * rate)
            enough = tokens >= 1.0
            self._tokens[operation] = (tokens - 1.0 if enough else tokens, now)
        if not enough:
            raise KmsError("ThrottlingException", "You have exceeded the rate at which you may call KMS.")
