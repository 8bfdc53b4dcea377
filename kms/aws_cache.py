"""Unwrapped roots in memory: asked for again each minute, kept for a bounded outage, dropped when unused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from shredsaver.errors import KeyServiceUnavailableError


@dataclass
class _Entry:
    root: bytes = field(repr=False)
    asked: float
    used: float
    pause_until: float = 0.0


class RootCache:
    """Opened roots by name.

    Args:
        keep: Seconds until a root in use is asked for again, and until one that is not used is forgotten.
        outage: Seconds since it was last opened for which a root serves while the key service cannot be reached.
        pause: Seconds between two attempts to reach it during an outage.
        clock: Monotonic seconds.
    """

    def __init__(
        self, keep: float, outage: float, *, pause: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep, self._outage, self._pause, self._clock = keep, outage, pause, clock
        self._entries: dict[Hashable, _Entry] = {}
        self._loading: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def horizon(self) -> float:
        """Seconds after which no process can still hold a root that has died."""
        return max(self._keep, self._outage)

    def get(self, name: Hashable, load: Callable[[], bytes], *, fresh: bool = False) -> bytes:
        """A root, from memory or from ``load``; threads that ask for one root at once share one load.

        Raises:
            KeyServiceUnavailableError: It cannot be loaded, and the time to serve it through an outage is over.
        """
        if not fresh and (root := self._recent(name)) is not None:
            return root
        with self._lock:
            loading = self._loading.setdefault(name, threading.Lock())
        with loading:
            if not fresh and (root := self._recent(name)) is not None:
                return root
            try:
                root = load()
            except KeyServiceUnavailableError as error:
                if not fresh and error.retryable and (stale := self._through_outage(name)) is not None:
                    return stale
                raise
            except BaseException:
                self.forget(name)
                raise
            self._put(name, root)
            return root

    def _recent(self, name: Hashable) -> bytes | None:
        now = self._clock()
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or (now - entry.asked > self._keep and now > entry.pause_until):
                return None
            if now - entry.asked > self.horizon:
                del self._entries[name]
                return None
            entry.used = now
            return entry.root

    def _through_outage(self, name: Hashable) -> bytes | None:
        now = self._clock()
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return None
            if now - entry.asked > self._outage:
                del self._entries[name]
                return None
            entry.used, entry.pause_until = now, now + self._pause
            return entry.root

    def _put(self, name: Hashable, root: bytes) -> None:
        now = self._clock()
        with self._lock:
            if not self._closed:
                self._entries[name] = _Entry(root, now, now)
                self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._entries:
            self._timer = threading.Timer(max(self._keep / 4, 0.05), self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        now = self._clock()
        with self._lock:
            self._timer = None
            for name in [name for name, entry in self._entries.items() if now - entry.used > self._keep * 3 / 4]:
                del self._entries[name]
            if not self._closed:
                self._arm()

    def forget(self, name: Hashable) -> None:
        """Drops a root."""
        with self._lock:
            self._entries.pop(name, None)

    def close(self) -> None:
        """Drops every root and takes no more."""
        with self._lock:
            self._closed = True
            self._entries.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
