"""A deployment that anybody may do anything with: how a deed is done, and compared with the model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from shredsaver import Shredder
from tests.stateful import deeds
from tests.stateful.clock import CLOCK
from tests.stateful.databases import DatabasePlace, Record
from tests.stateful.keyplaces import KeyPlace, Owner
from tests.stateful.model import SHREDDED, Person, Snapshot, expected, observed
from tests.stateful.opening import prepare
from tests.support.processes import RemoteError, Worker, killed_at
from tests.support.steps import hooked

NAMES = [f"c-{number}" for number in range(3)]
WHO, WHERE = st.sampled_from(NAMES), st.integers(0, 1)
Deed = Callable[..., Any]
Change = Callable[[Person], None]


ONCE = {deeds.enrol: "ConfigurationError", deeds.copy_thread: "LegalHoldError"}
"""The error of those that cannot be done twice; a copy under a hold may not replace one."""


class StoppedError(Exception):
    """Raised between two steps, where a process would have died."""


@dataclass(frozen=True)
class Way:
    """Who does something, and what comes in between.

    Attributes:
        at: Which `Shredder` of this process.
        how: ``"here"``; ``"there"``: another process that stays; ``"stopped"``: here, with an error raised at a step;
            ``"killed"``: another process that dies at a step.
        step: The step: around each effect of each plan, and at each step of the key service. There may be fewer.
        again: After an error: whether the `Shredder` is opened again, or goes on with what it remembers.
    """

    at: int = 0
    how: str = "here"
    step: int = 1
    again: bool = False


STEPS = st.integers(1, 12) | st.integers(1, 90)
HERE = st.builds(Way, WHERE)
STOPPED = st.builds(Way, WHERE, st.just("stopped"), STEPS, st.booleans())
ELSEWHERE = st.builds(Way, WHERE, st.just("there")) | st.builds(Way, WHERE, st.just("killed"), STEPS)
WAYS = HERE | HERE | STOPPED | STOPPED | ELSEWHERE


class Deployment(RuleBasedStateMachine):
    """Two Shredders of this process and one of another, over one database."""

    database: DatabasePlace
    keys: KeyPlace
    home: Path
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.model: Snapshot = {name: Person() for name in NAMES}
        self.journal = self.home / "journal"
        self.threads: dict[str, str] = {}
        self.counter = 0
        self.stones: set[Owner] = set()
        self.other: Worker | None = None
        self.shredders: list[Shredder] = []

    @initialize()
    def begin(self) -> None:
        self.shredders = [self.open(), self.open()]
        self.some()

    def some(self) -> None:
        """Something to act on from the first step."""

    def open(self) -> Shredder:
        keys = self.keys.open()
        try:
            return Shredder.open(self.database.backend.url, keys=keys, journal=self.journal)
        except BaseException:
            keys.close()
            raise

    def teardown(self) -> None:
        self.close()
        self.database.close()

    def close(self) -> None:
        while self.shredders:
            self.shredders.pop().close()
        if self.other is not None:
            self.other.close()
            self.other = None

    def attack(self, found: list[Record]) -> None:
        """Tries to open sealed records with every key that any copy of the key store yields."""
        raise NotImplementedError

    # -- names ------------------------------------------------------------------------------------------------------

    def text(self, name: str, times: int = 1) -> str:
        """A text that nobody wrote before, and that tells whose it is."""
        self.counter += 1
        return f"<{name} {self.model[name].generation} {self.counter}>" * times

    def thread(self, name: str, number: int | str) -> str:
        made = f"{name} t-{number}"
        self.threads[made] = name
        return made

    def token(self, name: str) -> bytes:
        return self.shredders[0]._start().core.token("customer", name)

    # -- doing ------------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        """How another process opens the deployment."""
        given = {"journal": str(self.journal)}
        return {
            "prepare": partial(prepare, self.keys.kind, self.keys.directory, self.keys.environment, CLOCK.now, given)
        }

    def refusal(self, person: Person, *, held: bool, writes: bool) -> str | None:
        """The error that a deed must end in."""
        if person.shredded:
            return SHREDDED
        if person.shut and writes:
            return person.shut
        return "LegalHoldError" if held and person.keeps(CLOCK.now) else None

    def do(
        self,
        name: str,
        way: Way,
        deed: Deed,
        *args: Any,
        change: Change = lambda _: None,
        refused: str | None = "usual",
        held: bool = False,
        writes: bool = True,
        check: Callable[[Any], None] = lambda _: None,
    ) -> bool:
        """Does something with a customer, and changes the model alike.

        Args:
            name: The customer.
            way: Who does it, and how.
            deed: What is done: a function of a `Shredder` and ``args``.
            args: More arguments, the same when it is done again.
            change: What it does to the model.
            refused: The error it must end in, or None; by default the customer's state and the next two arguments say.
            held: Whether a hold forbids it.
            writes: Whether a restriction forbids it.
            check: Looks at its result.

        Returns:
            Whether it was done. False where it was to be refused, and was.
        """
        person = self.model[name]
        error = self.refusal(person, held=held, writes=writes) if refused == "usual" else refused
        after = copy.deepcopy(person)
        if error is None:
            change(after)
        outcome = self.attempt(way, deed, *args)
        if outcome is None:  # nobody knows what came of it
            if way.how == "stopped" and way.again:
                self.shredders[way.at].close()
                self.shredders[way.at] = self.open()
            self.either(name, person, after)
            outcome = self.attempt(Way(way.at), deed, *args)
            if error is None and outcome == ("refused", ONCE.get(deed)):  # it was done before
                outcome = ("done", self.shredders[0].status(name).generation)
            assert outcome is not None
        if error is None:
            assert outcome[0] == "done", (name, deed.__name__, person.state, outcome)
            check(outcome[1])
            self.model[name] = after
            return True
        assert outcome == ("refused", error), (name, deed.__name__, person.state, error, outcome)
        return False

    def either(self, name: str, before: Person, after: Person) -> None:
        """After an interruption things are as before or as after it, and nowhere in between."""
        found = observed(self.shredders[0], self.threads, NAMES)
        allowed = [expected({**self.model, name: person}, CLOCK.now) for person in (before, after)]
        assert found in allowed, (found, allowed)

    def attempt(self, way: Way, deed: Deed, *args: Any) -> tuple[str, Any] | None:
        """Has something done. Gives what came of it, or None where that is not known."""
        type(self).steps += 1
        if way.how == "there":
            try:
                return "done", self.elsewhere()(deed, *args)
            except RemoteError as error:
                return "refused", error.name
        if way.how == "killed":
            url, options = self.database.backend.url, self.options()
            told, finished = killed_at(way.step, url, options, deeds.told, deed, *args, keys=True)
            return told[0] if finished else None
        if way.how == "stopped":
            return self.stopped(way, deed, *args)
        try:
            return "done", deed(self.shredders[way.at], *args)
        except Exception as error:  # noqa: BLE001 - compared with the error there should be
            return self.told(error)

    @staticmethod
    def told(error: Exception) -> tuple[str, str]:
        if not type(error).__module__.startswith("shredsaver"):
            raise error
        return "refused", type(error).__name__

    def stopped(self, way: Way, deed: Deed, *args: Any) -> tuple[str, Any] | None:
        left, reached = way.step, False
        lock = threading.Lock()

        def hook(_: str) -> None:
            nonlocal left, reached
            if threading.current_thread().name == "shredsaver-aws":
                return  # makes keys ahead: what it leaves behind is another test's
            with lock:
                left -= 1
                fire = left == 0
                reached |= fire
            if fire:
                raise StoppedError

        try:
            with hooked(hook, keys=True):
                done = deed(self.shredders[way.at], *args)
        except Exception as error:  # noqa: BLE001 - whatever the interruption became on its way up
            return None if reached else self.told(error)
        return "done", done

    def elsewhere(self) -> Worker:
        """The other process, which keeps what it has opened."""
        if self.other is None:
            self.other = Worker(self.database.backend.url, **self.options())
        self.other(deeds.set_clock, CLOCK.now)
        return self.other
