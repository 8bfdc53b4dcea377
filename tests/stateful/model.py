"""What should be there: customers with their threads and items as plain dicts."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Snapshot = dict[str, "Person"]
Key = tuple[str, str]
"""A checkpoint's namespace and id."""

Thread = dict[Key, "Saved"]
SHREDDED, RESTRICTED = "CustomerShreddedError", "CustomerRestrictedError"


@dataclass
class Saved:
    """A checkpoint with the writes that are pending on it; ``values`` are None while there are writes only."""

    values: dict[str, Any] | None = None
    parent: str | None = None
    writes: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict)

    def write(self, task: str, index: int, channel: str, value: Any) -> None:
        """A write: below 0 it replaces, from 0 on the first one stays."""
        if index < 0 or (task, index) not in self.writes:
            self.writes[task, index] = (channel, value)


@dataclass
class Kept:
    """A store item, and when it goes."""

    value: dict[str, Any]
    seconds: float | None = None
    expires: float | None = None

    def there(self, now: float) -> bool:
        return self.expires is None or self.expires > now


@dataclass
class Person:
    """A customer. Generations up to ``dead`` are gone for good."""

    state: str = "unknown"
    generation: int = 1
    dead: int = 0
    held: float | None = None
    threads: dict[str, Thread] = field(default_factory=dict)
    items: dict[str, Kept] = field(default_factory=dict)
    keyed: int = 0
    """The last generation that was enrolled: a restored database may know of earlier ones only."""

    left: bool = False
    """Whether rows of a dead generation may still be there, unreadable."""

    @property
    def shredded(self) -> bool:
        return self.state == "shredded"

    @property
    def shut(self) -> str | None:
        """The error for whoever asks."""
        return {"shredded": SHREDDED, "restricted": RESTRICTED}.get(self.state)

    def keeps(self, now: float) -> bool:
        """Whether a hold is in force."""
        return self.held is not None and now < self.held

    def shred(self, *, purge: bool = True) -> None:
        """Use ends, and nothing of it comes back."""
        self.left = not purge
        self.dead = max(self.dead, self.generation, self.keyed)
        self.state, self.held = "shredded", None
        self.threads, self.items = {}, {}

    def enrol(self) -> None:
        """Comes back, empty."""
        self.generation = self.keyed = self.dead + 1
        self.state = "live"

    def seen(self) -> None:
        """A first write makes a customer."""
        if self.state == "unknown":
            self.state = "live"

    @property
    def rows(self) -> dict[str, int]:
        """How many rows there should be, by route."""
        saved = [one for thread in self.threads.values() for one in thread.values()]
        put = sum(one.values is not None for one in saved)
        return {
            "checkpoints": put,
            "resumable snapshots": put,
            "writes": sum(len(one.writes) for one in saved),
            "items": len(self.items),
            "namespaces": int(bool(self.items)),
            "threads": len(self.threads),
        }


def latest(thread: Thread, ns: str = "") -> str | None:
    """The newest checkpoint of a namespace."""
    return max((key for (where, key), one in thread.items() if where == ns and one.values is not None), default=None)


def restored(now: Snapshot, then: Snapshot) -> Snapshot:
    """What a database of ``then`` should serve, where the keys know all that was shredded until ``now``."""
    result = copy.deepcopy(then)
    for name, person in result.items():
        person.dead = max(person.dead, now[name].dead)
        if person.dead >= person.generation:
            person.generation, person.keyed = person.dead, 0
            person.shred()
        person.keyed = now[name].keyed
        person.left = person.left or now[name].left
    return result


def seen(thread: Thread) -> dict[Key, tuple[Any, ...]]:
    """A thread as a caller sees it."""
    return {
        key: (one.values, one.parent, _sorted((task, *write) for (task, _), write in one.writes.items()))
        for key, one in thread.items()
        if one.values is not None
    }


def _sorted(writes: Any) -> list[tuple[str, str, Any]]:
    return sorted(writes, key=repr)


def expected(model: Snapshot, now: float) -> dict[str, Any]:
    """What `observed` should give: by customer either the error for whoever asks, or threads and items."""
    answer: dict[str, Any] = {}
    for name, person in model.items():
        if person.shut:
            answer[name] = person.shut
            continue
        threads = {thread: shown for thread, saved in person.threads.items() if (shown := seen(saved))}
        items = {key: item.value for key, item in person.items.items() if item.there(now)}
        answer[name] = (threads, items)
    return answer


def shown(found: Any) -> dict[Key, tuple[Any, ...]]:
    """A checkpoint as a saver gives it, in the form of `seen`."""
    here = found.config["configurable"]
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    values = found.checkpoint["channel_values"]
    return {(here["checkpoint_ns"], here["checkpoint_id"]): (values, parent, _sorted(found.pending_writes))}


def observed(shredder: Any, threads: dict[str, str], names: list[str]) -> dict[str, Any]:
    """What a deployment shows of customers; any process can be told to look.

    Args:
        threads: Every thread that was ever written, with its customer: none of them may give more than it should.
    """
    listed: dict[str, dict[str, Any]] = {name: {} for name in names}
    for one in shredder.saver.list(None):
        thread = one.config["configurable"]["thread_id"]
        listed[threads[thread]].setdefault(thread, {}).update(shown(one))
    answer: dict[str, Any] = {}
    for name in names:
        try:
            items = shredder.store.search(("users", name), limit=100, refresh_ttl=False)
        except Exception as error:  # noqa: BLE001 - compared with the error there should be
            answer[name] = type(error).__name__
        else:
            answer[name] = (listed[name], {item.key: item.value for item in items})
    for thread, name in threads.items():
        here = {"configurable": {"thread_id": thread, "customer_id": name}}
        try:
            found = shredder.saver.get_tuple(here)
        except Exception as error:
            if answer[name] != type(error).__name__:
                raise AssertionError(f"{thread} raises {error!r}, {name} shows {answer[name]!r}") from error
            continue
        assert isinstance(answer[name], tuple), (thread, answer[name])
        newest = max((key for ns, key in listed[name].get(thread, ()) if not ns), default=None)
        given = None if found is None else found.config["configurable"]["checkpoint_id"]
        assert given == newest, thread
        if found is not None:
            values = listed[name][thread]["", newest][0]
            assert found.checkpoint["channel_values"] == values
    return answer


def alike(found: dict[str, Any], should: dict[str, Any]) -> None:
    """Compares what is shown with what should be; tells where they differ, as pytest rewrites no assertion here."""
    for name, right in should.items():
        given, wanted = found[name], right
        if given == wanted:
            continue
        if isinstance(given, tuple) and isinstance(wanted, tuple):
            pairs = zip(("threads", "items"), given, wanted, strict=True)
            raise AssertionError(f"{name} (shown, expected): { ({what: _differing(a, b) for what, a, b in pairs}) }")
        raise AssertionError(f"{name} shows {given!r}, expected {wanted!r}")


def _differing(one: dict[Any, Any], two: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    found = {}
    for key in {*one, *two}:
        a, b = one.get(key), two.get(key)
        if a != b:
            found[key] = _differing(a, b) if isinstance(a, dict) and isinstance(b, dict) else (a, b)
    return found
