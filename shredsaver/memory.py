"""What one process remembers of the threads it uses, so that an appended message costs one new part.

Filled only with what was committed, or read and authenticated. It holds bytes, never objects, and it is never trusted
for who may read: it only saves work. A thread's memory is void once the thread's epoch in the database is another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from shredsaver.fingerprints import Print
from shredsaver.parts import Entry, Value

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_THREADS: Final = 4096
_MANIFESTS: Final = 16
_ELEMENTS: Final = 512
_ELEMENT_BYTES: Final = 64 * 1024
_FREED_AT_ONCE: Final = 1024 * 1024
_FREED_AFTER: Final = 0.1


class Place(NamedTuple):
    """Where a thread stands, as its row says: what a write checks and allocates."""

    thread: bytes
    customer: bytes
    generation: int
    scope: int
    next_record: int
    next_part: int
    epoch: int

    @property
    def owner(self) -> tuple[bytes, int]:
        """Customer and generation."""
        return self.customer, self.generation

    def same_thread(self, other: Place) -> bool:
        """Whether what is known of one holds for the other."""
        return self[:4] == other[:4] and self.epoch == other.epoch


class Known(NamedTuple):
    """A channel in a checkpoint: its version and where its value is."""

    version: object
    entry: Entry


class ThreadMemory:
    """One thread. Changed only under the lock of `Memory`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.values: dict[tuple[str, str], Value] = {}
        self.prints: dict[tuple[str, str], Print] = {}
        self.manifests: OrderedDict[tuple[str, str], Mapping[str, Known]] = OrderedDict()
        self.elements: OrderedDict[bytes, int] = OrderedDict()
        self.runs: set[bytes] = set()
        self.size = 1024
        """About how many bytes it holds."""

    def add_value(self, ns: str, channel: str, value: Value, taken: Print | None) -> None:
        """Remembers a channel's latest value, with its print if it has one."""
        key = (ns, channel)
        before, old = self.values.get(key), self.prints.get(key)
        self.values[key] = value
        self.size += len(value.data) - (len(before.data) if before else 0)
        if taken is None and old is not None and old.data == value.data:
            return
        if old is not None:
            self.size -= self.prints.pop(key).size
        if taken is not None:
            # One copy of the bytes for both.
            self.prints[key] = taken if taken.data is value.data else taken._replace(data=value.data)
            self.size += taken.size

    def add_element(self, element: bytes, number: int) -> None:
        """Remembers a part by its content."""
        if len(element) <= _ELEMENT_BYTES and element not in self.elements:
            self.elements[element] = number
            self.size += len(element)
            if len(self.elements) > _ELEMENTS:
                self.size -= len(self.elements.popitem(last=False)[0])


class Memory:
    """The threads of one process, least recently used first out.

    Args:
        max_bytes: About the most bytes of opened values kept. They are plaintext in this process's memory.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._threads: OrderedDict[bytes, ThreadMemory] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self._total = 0

    def get(self, thread: bytes) -> ThreadMemory | None:
        """What is known of a thread. It is read without the lock: its dicts are only ever added to or replaced."""
        with self._lock:
            found = self._threads.get(thread)
            if found is not None:
                self._threads.move_to_end(thread)
            return found

    def at(self, place: Place) -> ThreadMemory:
        """The memory of a thread that stands at ``place``; what was known under another epoch is dropped."""
        with self._lock:
            return self._at(place)

    def _at(self, place: Place) -> ThreadMemory:
        found = self._threads.get(place.thread)
        if found is None or not found.place.same_thread(place):
            found = ThreadMemory(place)
            self._threads[place.thread] = found
        elif place.next_record >= found.place.next_record:
            found.place = place
        self._threads.move_to_end(place.thread)
        return found

    def remember(
        self,
        place: Place,
        *,
        ns: str,
        values: Mapping[str, Value],
        prints: Mapping[str, Print] | None = None,
        manifest: tuple[str, Mapping[str, Known]] | None = None,
        elements: Mapping[bytes, int] | None = None,
        run: bytes | None = None,
    ) -> None:
        """Adds what was committed or read: values by channel with their prints, a checkpoint's manifest, parts."""
        with self._lock:
            found = self._at(place)
            for channel, value in values.items():
                found.add_value(ns, channel, value, prints.get(channel) if prints else None)
            if manifest is not None:
                found.manifests[ns, manifest[0]] = manifest[1]
                if len(found.manifests) > _MANIFESTS:
                    found.manifests.popitem(last=False)
            for element, number in (elements or {}).items():
                found.add_element(element, number)
            if run is not None:
                found.runs.add(run)
            self._account(place.thread, found.size)

    def forget(self, thread: bytes) -> None:
        """Drops a thread."""
        with self._lock:
            self._drop(thread)

    def forget_customer(self, customer: bytes) -> None:
        """Drops every thread of a customer: nothing finds them from then on. A large memory is freed a moment later."""
        with self._lock:
            dropped = [found for found in self._threads.values() if found.place.customer == customer]
            for found in dropped:
                self._drop(found.place.thread)
        if sum(found.size for found in dropped) > _FREED_AT_ONCE:
            # It takes milliseconds, and whoever forgets a customer is on the way to destroy keys.
            freeing = threading.Timer(_FREED_AFTER, dropped.clear)
            freeing.daemon = True
            freeing.start()

    def _account(self, thread: bytes, size: int) -> None:
        self._total += size - self._sizes.get(thread, 0)
        self._sizes[thread] = size
        while self._threads and (self._total > self._max_bytes or len(self._threads) > MAX_THREADS):
            self._drop(next(iter(self._threads)))

    def _drop(self, thread: bytes) -> None:
        self._threads.pop(thread, None)
        self._total -= self._sizes.pop(thread, 0)
