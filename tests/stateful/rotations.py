"""New keys for a customer while others write, step by step in any order; at times the customer is shredded as well."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shredsaver import CustomerShreddedError, DatabaseUnavailableError, Shredder
from shredsaver.keytree import KeyPuncturedError, KeyTree
from tests.stateful import deeds
from tests.stateful.actors import Actor, gates
from tests.stateful.checks import deciphered
from tests.stateful.databases import DatabasePlace
from tests.stateful.keyplaces import KeyPlace
from tests.support.checkpoints import checkpoint_id, config

WHO = "c-1"
WHERE, THREADS = st.integers(0, 1), st.integers(0, 2)
MOST = 3


@dataclass
class Task:
    """A call under way."""

    kind: str
    actor: Actor
    thread: str = ""
    key: str = ""
    value: Any = None
    before: tuple[bytes, ...] = ()
    """For a rotation: the secret that it replaces. For a write: those that were replaced before it began."""

    upset: bool = False
    """Whether a shred or a return began, went on or ended meanwhile: then it may be refused."""


@dataclass
class Known:
    """What was acknowledged."""

    threads: dict[str, dict[str, Any]] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    """Checkpoints and items that were under way when the customer was shredded or came back."""


class Rotations(RuleBasedStateMachine):
    """Two Shredders whose calls are stopped, and one that looks."""

    database: DatabasePlace
    keys: KeyPlace
    home: Path
    taken = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.shredders = [self.open() for _ in range(3)]
        self.looks = self.shredders[2]
        self.tasks: list[Task] = []
        self.known = Known()
        self.replaced: tuple[bytes, ...] = ()
        self.counter = 0
        self.dead = False
        self.looks.store.put(("users", WHO), "k-0", {"said": "so that the customer is known"})
        self.known.items["k-0"] = {"said": "so that the customer is known"}
        self.stack.enter_context(gates())

    def open(self) -> Shredder:
        keys = self.keys.open()
        self.stack.callback(keys.close)
        return self.stack.enter_context(Shredder.open(self.database.backend.url, keys=keys))

    def start(self, task: Task) -> None:
        task.upset = any(other.kind in ("shred", "enrol") for other in self.tasks)
        if task.kind in ("shred", "enrol"):
            for other in self.tasks:
                other.upset = True
        self.tasks.append(task)
        if task.actor.done:
            self.ended(self.tasks.index(task))

    def room(self) -> bool:
        return len(self.tasks) < MOST

    # -- calls ------------------------------------------------------------------------------------------------------

    @precondition(room)
    @rule(at=WHERE, thread=THREADS)
    def put(self, at: int, thread: int) -> None:
        self.counter += 1
        key, name = f"1f000000-0000-6000-8000-{self.counter:012x}", f"t-{thread}"
        # Short enough to be in the checkpoint's own record, and long enough for a part of its own.
        values = {"x": f"<c-1 1 {self.counter}>", "y": [f"<c-1 1 {self.counter}>" * 20]}
        saver = self.shredders[at]
        act = lambda: deeds.put(saver, config(name, WHO), values, self.counter, key)  # noqa: E731
        self.start(Task("put", Actor(act), name, key, values, self.replaced))

    @precondition(room)
    @rule(at=WHERE)
    def put_item(self, at: int) -> None:
        self.counter += 1
        key, value = f"k-{self.counter}", {"said": f"<c-1 1 {self.counter}>"}
        shredder = self.shredders[at]
        act = lambda: deeds.put_item(shredder, WHO, key, value, None)  # noqa: E731
        self.start(Task("item", Actor(act), "", key, value))

    @precondition(room)
    @rule(at=WHERE)
    def rotate(self, at: int) -> None:
        shredder = self.shredders[at]
        self.start(Task("rotate", Actor(lambda: shredder.rotate(WHO)), before=self.secrets()))

    @rule(at=WHERE)
    def rotate_everything(self, at: int) -> None:
        self.shredders[at].rotate()

    @precondition(room)
    @rule(at=WHERE, really=st.integers(0, 3))
    def shred_or_enrol(self, at: int, really: int) -> None:
        if really:  # else there would be little time to rotate in
            return
        shredder = self.shredders[at]
        if self.dead:
            self.start(Task("enrol", Actor(lambda: shredder.enrol(WHO))))
        elif not any(task.kind in ("shred", "enrol") for task in self.tasks):
            self.start(Task("shred", Actor(lambda: shredder.shred(WHO))))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def advance(self, data: st.DataObject, steps: int) -> None:
        index = data.draw(st.integers(0, len(self.tasks) - 1))
        for _ in range(steps):
            if self.step(index):
                return

    def step(self, index: int) -> bool:
        type(self).taken += 1
        done = self.tasks[index].actor.advance()
        if done:
            self.ended(index)
        return done

    def secrets(self) -> tuple[bytes, ...]:
        """What somebody who copies the customer's keys now gets hold of."""
        core = self.looks._start().core
        token = core.token("customer", WHO)
        generation = core.keys.current(token)
        return () if generation is None else (core.keys.load(token, generation).secret,)

    # -- outcomes ---------------------------------------------------------------------------------------------------

    def ended(self, index: int) -> None:
        task = self.tasks.pop(index)
        error = task.actor.error
        if task.kind in ("shred", "enrol"):
            for other in self.tasks:
                other.upset = True
        if error is not None:
            allowed: tuple[type[Exception], ...] = (CustomerShreddedError,) if task.upset or self.dead else ()
            if task.kind == "rotate":
                allowed += (DatabaseUnavailableError,)  # too busy: call again
            if not isinstance(error, allowed):
                raise AssertionError(f"{task.kind} failed") from error
            self.known.maybe.discard(task.key)
            return
        match task.kind:
            case "shred":
                self.known = Known(maybe={other.key for other in self.tasks})
                self.dead = True
            case "enrol":
                self.dead = False
            case "rotate":
                if not task.upset:
                    self.replaced += task.before
            case _ if task.upset:
                self.known.maybe.add(task.key)
            case "put":
                self.known.threads.setdefault(task.thread, {})[task.key] = task.value
                self.fresh(task)
            case "item":
                self.known.items[task.key] = task.value

    def fresh(self, task: Task) -> None:
        """No key that was replaced before a write began opens what it wrote; today's does."""
        rows = self.database.backend.execute(
            "SELECT scope, number, sealed FROM checkpoints WHERE checkpoint_id = ?", (task.key,)
        )
        (place,) = rows
        assert gives(self.secrets()[0], place, task.value["x"])
        for secret in task.before:
            assert not gives(secret, place, task.value["x"])

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def everything_acknowledged_reads_back(self) -> None:
        under_way = {task.kind for task in self.tasks}
        if self.dead and "enrol" not in under_way:
            for act in (lambda: self.looks.saver.get_tuple(config("t-0", WHO)), self.items):
                try:
                    found = act()
                except CustomerShreddedError:
                    continue
                raise AssertionError(f"the customer was shredded, and a call gave {found!r}")
            return
        if under_way & {"shred", "enrol"}:
            return
        writing = {task.key for task in self.tasks} | self.known.maybe
        for thread in ("t-0", "t-1", "t-2"):
            should = self.known.threads.get(thread, {})
            found = {
                checkpoint_id(one.config): one.checkpoint["channel_values"]
                for one in self.looks.saver.list({"configurable": {"thread_id": thread}})
            }
            assert all(found.get(key) == values for key, values in should.items())
            assert found.keys() <= should.keys() | writing
        items = self.items()
        assert all(items.get(key) == value for key, value in self.known.items.items())
        assert items.keys() <= self.known.items.keys() | writing
        assert not self.looks.audit(WHO).damaged

    def items(self) -> dict[str, Any]:
        found = self.looks.store.search(("users", WHO), limit=1000)
        return {item.key: item.value for item in found}

    def teardown(self) -> None:
        try:
            while self.tasks:
                self.step(len(self.tasks) - 1)
            self.everything_acknowledged_reads_back()
            assert not self.looks.check_keys().problems
        finally:
            self.stack.close()
            self.database.close()


def gives(secret: bytes, place: tuple[Any, ...], text: str) -> bool:
    """Whether a tree opens a record."""
    scope, number, sealed = place
    try:
        key = KeyTree.from_bytes(secret).derive(scope, number)
    except KeyPuncturedError:
        return False
    return text.encode() in deciphered(key, bytes(sealed))
