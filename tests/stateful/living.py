"""Rules: what happens to customers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.stateful import deeds
from tests.stateful.clock import CLOCK
from tests.stateful.databases import records
from tests.stateful.machine import WAYS, WHO, Deployment, Way
from tests.stateful.model import Person

FOREVER = float("inf")


class Living(Deployment):
    """Shreds, returns, holds, restrictions, new keys."""

    @rule(name=WHO, way=WAYS, purge=st.booleans())
    def shred(self, name: str, way: Way, purge: bool) -> None:
        def change(person: Person) -> None:
            if not person.shredded or person.keyed > person.dead:
                person.shred(purge=purge)

        def check(found: Any) -> None:
            state, pending, receipt = found
            assert state in ("destroyed", "purged")
            assert pending == ()
            assert receipt

        refused = "LegalHoldError" if self.model[name].keeps(CLOCK.now) else None
        if self.do(name, way, deeds.shred, name, purge, change=change, refused=refused, check=check) and not purge:
            self.attack(records(self.database.backend))

    @rule(name=WHO, way=WAYS)
    def enrol(self, name: str, way: Way) -> None:
        if not self.model[name].shredded:
            self.do(name, way, deeds.enrol, name, refused="ConfigurationError")
            return
        generations: list[int] = []
        if self.do(
            name, way, deeds.enrol, name, refused=None, change=lambda person: person.enrol(), check=generations.append
        ):
            # A restored database may know of fewer generations than the key store.
            assert generations[0] >= self.model[name].generation
            self.model[name].generation = generations[0]

    @rule(name=WHO, way=WAYS, seconds=st.sampled_from([90.0, FOREVER]))
    def hold(self, name: str, way: Way, seconds: float) -> None:
        until = CLOCK.now + seconds

        def change(person: Person) -> None:
            person.held = until

        if self.model[name].state != "unknown":
            end = None if until == FOREVER else until
            self.do(name, way, deeds.hold, name, end, change=change, writes=False)

    @rule(name=WHO, way=WAYS, deed=st.sampled_from([deeds.release, deeds.restrict, deeds.reinstate]))
    def restrain(self, name: str, way: Way, deed: Any) -> None:
        def change(person: Person) -> None:
            if deed is deeds.release:
                person.held = None
            else:
                person.state = "restricted" if deed is deeds.restrict else "live"

        if self.model[name].state != "unknown":
            self.do(name, way, deed, name, change=change, writes=False)

    @rule(name=WHO, way=WAYS)
    def rotate(self, name: str, way: Way) -> None:
        if self.model[name].state != "unknown":
            self.do(name, way, deeds.rotate, name)

    @rule(way=WAYS)
    def rotate_everything(self, way: Way) -> None:
        self.do("c-0", way, deeds.rotate, None, refused=None)
