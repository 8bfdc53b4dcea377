"""Rules: what an application does with threads and items."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.stateful import deeds
from tests.stateful.clock import CLOCK
from tests.stateful.machine import HERE, NAMES, STOPPED, WAYS, WHERE, WHO, Deployment, Way
from tests.stateful.model import Kept, Person, Saved, alike, expected, latest, observed
from tests.stateful.talks import Noted, go_on, graph, turn
from tests.support.checkpoints import config

LINES = ("0", "1")
KEYS, PICK = st.sampled_from("ab"), st.integers(0, 3)
MOST_THREADS = 4


class Writing(Deployment):
    """Threads by single calls and by graphs, items with and without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[tuple[str, int], list[str]] = {}

    def some(self) -> None:
        """So that there is something to act on from the first step."""
        for number in LINES:
            for long in (True, False):
                self.put("c-0", Way(), number, long, known=False, fork=False, again=False)
        self.put("c-1", Way(1), "0", long=False, known=False, fork=False, again=False)
        self.put_writes("c-1", Way(), "0", 0, long=True)
        self.put_item("c-0", Way(), "a", long=False, minutes=1.5)

    @rule(
        name=WHO,
        way=WAYS,
        number=st.sampled_from(LINES),
        long=st.booleans(),
        known=st.booleans(),
        fork=st.booleans(),
        again=st.booleans(),
    )
    def put(self, name: str, way: Way, number: str, long: bool, known: bool, fork: bool, again: bool) -> None:
        thread = self.thread(name, number)
        saved = self.model[name].threads.get(thread, {})
        newest = latest(saved)
        parent = min(key for _, key in saved) if fork and newest else newest
        before = (saved["", parent].values or {})["x"] if parent else []
        said = self.said.setdefault((name, self.model[name].generation), [])
        fresh = self.text(name, 30 if long else 1)
        # What was said before may be stored already, or have been deleted since.
        values = {"x": [*before, said[self.counter % len(said)] if again and said else fresh], "n": self.counter}
        said.append(fresh)
        key = f"1f000000-0000-6000-8000-{self.counter:012x}"
        here = config(thread, name if not (known and newest) else None)
        if parent:
            here["configurable"]["checkpoint_id"] = parent

        def change(person: Person) -> None:
            person.seen()
            person.threads.setdefault(thread, {})["", key] = Saved(values, parent)

        self.do(name, way, deeds.put, here, values, self.counter, key, change=change)

    @rule(name=WHO, way=WAYS, number=st.sampled_from(LINES), task=WHERE, long=st.booleans())
    def put_writes(self, name: str, way: Way, number: str, task: int, long: bool) -> None:
        thread, person = self.thread(name, number), self.model[name]
        saved = person.threads.get(thread, {})
        newest = latest(saved)
        if newest is None and not person.shredded:
            return
        key = newest or "1"
        value = self.text(name, 30 if long else 1)
        writes = [("x", value), ("__error__", value)]

        def change(person: Person) -> None:
            there = person.threads[thread]["", key]
            there.write(f"task {task}", 0, "x", value)
            there.write(f"task {task}", -1, "__error__", value)

        here = config(thread, name, checkpoint_id=key)
        self.do(name, way, deeds.put_writes, here, writes, f"task {task}", change=change)

    # -- graphs -----------------------------------------------------------------------------------------------------

    @rule(
        name=WHO,
        way=HERE | STOPPED,
        durability=st.sampled_from(["sync", "async", "exit"]),
        deed=st.sampled_from(["turn", "turn", "update", "back"]),
    )
    def talk(self, name: str, way: Way, durability: str, deed: str) -> None:
        thread, person = self.thread(name, "talk"), self.model[name]
        here = config(thread, name)
        before = person.threads.get(thread, {})
        text = self.text(name)
        act = partial(turn, here=here, text=text, durability=durability)
        roots = sorted(key for (ns, key), one in before.items() if not ns and one.values is not None)
        if deed != "turn" and not roots:
            return
        if deed == "update":
            act = lambda flow: flow.update_state(here, {"items": [text]}, as_node="hear")  # noqa: E731
        elif deed == "back":
            old = config(thread, None, checkpoint_id=roots[len(roots) // 2])
            act = lambda flow: flow.invoke(None, old, durability=durability)  # noqa: E731
        after = copy.deepcopy(person)
        after.seen()
        saved = after.threads.setdefault(thread, {})

        def run(flow_of: Any, shredder: Any) -> None:
            noted.append(Noted(shredder.saver, saved))
            flow_of(graph(noted[-1].saver))

        noted: list[Noted] = []
        error = self.refusal(person, held=False, writes=True)
        outcome = self.attempt(way, lambda shredder: run(act, shredder))
        if outcome is None:
            self.settled(name, after, thread, noted)
            if way.again:
                self.shredders[way.at].close()
                self.shredders[way.at] = self.open()
            if error is None:
                self.model[name] = after
                if deed == "turn":
                    act = partial(go_on, here=here, text=text, durability=durability)
            outcome = self.attempt(Way(way.at), lambda shredder: run(act, shredder))
        elif any(one.doubts for one in noted):  # LangGraph tells nobody of a put that fails as a subgraph waits
            self.settled(name, after, thread, noted)
        if error is not None:
            assert outcome == ("refused", error), (person.state, outcome)
            return
        assert outcome is not None
        assert outcome[0] == "done", outcome
        self.model[name] = after
        if deed == "turn":
            found = self.shredders[0].saver.get_tuple(here)
            assert found is not None
            assert any(text in item for item in found.checkpoint["channel_values"]["items"])

    def settled(self, name: str, after: Person, thread: str, noted: list[Noted]) -> None:
        """Finds out what of an interrupted run is there; all that was acknowledged must be."""
        token = self.shredders[0]._start().core.token("thread", thread)
        for one in noted:
            for doubt in one.doubts:
                if doubt.stored(self.database.backend, token):
                    doubt.settle(after.threads[thread])
            one.doubts.clear()
        if self.refusal(self.model[name], held=False, writes=True) is None:
            if not after.threads[thread] and self.model[name].state == "unknown":
                return
            found = observed(self.shredders[0], self.threads, NAMES)
            alike(found, expected({**self.model, name: after}, CLOCK.now))

    # -- threads ----------------------------------------------------------------------------------------------------

    def existing(self, name: str, pick: int) -> str | None:
        """One of a customer's threads that have checkpoints."""
        there = sorted(thread for thread, saved in self.model[name].threads.items() if latest(saved))
        return there[pick % len(there)] if there else None

    @rule(name=WHO, way=WAYS, pick=PICK)
    def copy_thread(self, name: str, way: Way, pick: int) -> None:
        source = self.existing(name, pick)
        if source is None or len(self.model[name].threads) > MOST_THREADS:
            return
        self.counter += 1
        target = self.thread(name, f"copy {self.counter}")

        def change(person: Person) -> None:
            person.threads[target] = copy.deepcopy(person.threads[source])

        self.do(name, way, deeds.copy_thread, source, target, change=change)

    @rule(name=WHO, way=WAYS, number=st.sampled_from(LINES), then=st.booleans())
    def prune(self, name: str, way: Way, number: str, then: bool) -> None:
        thread = self.thread(name, number)
        if not latest(self.model[name].threads.get(thread, {})):
            return

        def change(person: Person) -> None:
            saved = person.threads[thread]
            newest = latest(saved)
            assert newest is not None
            kept = saved["", newest]
            person.threads[thread] = {("", newest): Saved(kept.values, None, kept.writes)}

        self.do(name, way, deeds.prune, thread, change=change, held=True)
        if then:  # by somebody who may remember what is gone
            self.put(name, Way(1 - way.at), number, long=True, known=True, fork=False, again=True)

    @rule(name=WHO, way=WAYS, pick=PICK)
    def delete_thread(self, name: str, way: Way, pick: int) -> None:
        thread = self.existing(name, pick)
        if thread is None:
            gone = self.thread(name, "0")
            if not self.model[name].threads.get(gone):
                assert self.attempt(Way(way.at), deeds.delete_thread, gone) == ("done", None)
            return
        self.do(name, way, deeds.delete_thread, thread, change=lambda person: person.threads.pop(thread), held=True)

    # -- items ------------------------------------------------------------------------------------------------------

    @rule(name=WHO, way=WAYS, key=KEYS, long=st.booleans(), minutes=st.sampled_from([None, None, 1.5, 3.5]))
    def put_item(self, name: str, way: Way, key: str, long: bool, minutes: float | None) -> None:
        value = {"said": self.text(name, 30 if long else 1)}
        seconds = None if minutes is None else minutes * 60

        def change(person: Person) -> None:
            person.seen()
            person.items[key] = Kept(value, seconds, None if seconds is None else CLOCK.now + seconds)

        self.do(name, way, deeds.put_item, name, key, value, minutes, change=change)

    @rule(name=WHO, way=WAYS, key=KEYS)
    def delete_item(self, name: str, way: Way, key: str) -> None:
        self.do(name, way, deeds.delete_item, name, key, change=lambda person: person.items.pop(key, None), held=True)

    @rule(name=WHO, way=WAYS, key=KEYS, refresh=st.booleans())
    def get_item(self, name: str, way: Way, key: str, refresh: bool) -> None:
        item = self.model[name].items.get(key)
        there = item is not None and item.there(CLOCK.now)

        def change(person: Person) -> None:
            if there and refresh and (seconds := person.items[key].seconds) is not None:
                person.items[key].expires = CLOCK.now + seconds

        def check(found: Any) -> None:
            assert found == (item.value if there and item is not None else None)

        self.do(name, way, deeds.get_item, name, key, refresh, change=change, check=check)

    @rule(at=WHERE)
    def sweep(self, at: int) -> None:
        going = {
            (name, key)
            for name, person in self.model.items()
            if not person.keeps(CLOCK.now) and person.state != "restricted"
            for key, item in person.items.items()
            if not item.there(CLOCK.now)
        }
        swept = deeds.sweep(self.shredders[at])
        left = any(person.left for person in self.model.values())
        assert swept == len(going) or (left and swept > len(going)), (swept, going)
        for name, key in going:
            del self.model[name].items[key]
