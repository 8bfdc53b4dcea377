"""What should be there: customers with their threads and items as plain dicts."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Snapshot = dict[str, "Person"]


@dataclass
class Saved:
    """A checkpoint with the writes that are pending on it."""

    values: dict[str, Any]
    parent: str | None
    writes: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict)


@dataclass
class Person:
    """A customer. Generations up to ``dead`` are gone for good."""

    state: str = "unknown"
    generation: int = 1
    dead: int = 0
    held: bool = False
    threads: dict[str, dict[str, Saved]] = field(default_factory=dict)
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    keyed: int = 0
    """The last generation that was enrolled: a restored database may know of earlier ones only."""

    left: bool = False
    """Whether rows of a dead generation may still be there, unreadable."""

    @property
    def shredded(self) -> bool:
        return self.state == "shredded"

    def shred(self, *, purge: bool = True) -> None:
        """Use ends, and nothing of it comes back."""
        self.left = not purge
        self.dead = max(self.dead, self.generation, self.keyed)
        self.state, self.held = "shredded", False
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
        return {
            "checkpoints": len(saved),
            "writes": sum(len(one.writes) for one in saved),
            "items": len(self.items),
            "threads": len(self.threads),
        }


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
