"""Everything that can be done with a deployment, in any order, against the model."""

from __future__ import annotations

import copy
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shredsaver import (
    ConfigurationError,
    CustomerRestrictedError,
    CustomerShreddedError,
    KeyNotFoundError,
    LegalHoldError,
    Shredder,
    ShredSaverError,
    UnsealError,
)
from shredsaver.kms.rootsfile import RootsFile
from shredsaver.kms.wrapping import Store, Wrapped, unseal_secret, unwrap
from tests.stateful.model import Person, Saved, Snapshot, restored
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import checkpoint_id, config, put
from tests.support.processes import RemoteError, Worker, get, write

CALL = Caller("sync")
NAMES = [f"c-{number}" for number in range(3)]
WHO, WHERE = st.sampled_from(NAMES), st.integers(0, 1)
SLOTS = 3
COPIES = 3


class Copied(NamedTuple):
    """A backup: of the database, of the key store, and of what should be in them."""

    database: Backend
    keys: Path
    model: Snapshot


class Deployment(RuleBasedStateMachine):
    """Two Shredders of this process and one of another, over one database."""

    backend: Backend
    home: Path
    copies_allowed = True

    def __init__(self) -> None:
        super().__init__()
        self.model: Snapshot = {name: Person() for name in NAMES}
        self.copies: list[Copied] = []
        self.directory = self.home / "keys"
        self.journal = self.home / "journal"
        self.keys = f"file:{self.directory}?slots={SLOTS}"
        self.texts: dict[str, tuple[str, int]] = {}
        self.counter = 0
        self.dead_before: set[tuple[bytes, int]] = set()
        self.other: Worker | None = None
        self.shredders: list[Shredder] = []

    @initialize()
    def begin(self) -> None:
        self.shredders = [self.open(), self.open()]

    def open(self) -> Shredder:
        return Shredder.open(self.backend.url, keys=self.keys, journal=self.journal)

    def teardown(self) -> None:
        self.close()

    def close(self) -> None:
        while self.shredders:
            self.shredders.pop().close()
        if self.other is not None:
            self.other.close()
            self.other = None

    # -- helpers ----------------------------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        """A text that nobody wrote before, and that tells whose it is."""
        self.counter += 1
        made = f"<{name} {self.model[name].generation} {self.counter}>"
        self.texts[made] = (name, self.model[name].generation)
        return made

    def refused(self, name: str, act: Callable[[], Any], *, held: bool = False, writes: bool = True) -> bool:
        """Does something with a customer. True where it must be, and was, refused."""
        person = self.model[name]
        expected: type[ShredSaverError] | None = None
        if person.shredded:
            expected = CustomerShreddedError
        elif person.state == "restricted" and writes:
            expected = CustomerRestrictedError
        elif held and person.held:
            expected = LegalHoldError
        if expected is None:
            act()
            return False
        try:
            act()
        except expected:
            return True
        raise AssertionError(f"{name} is {person.state}, held {person.held}, and was let in")

    def thread(self, name: str, number: int) -> str:
        return f"{name} t-{number}"

    # -- writing ----------------------------------------------------------------------------------------------------

    @rule(name=WHO, at=WHERE, number=WHERE, long=st.booleans(), known=st.booleans())
    def put(self, name: str, at: int, number: int, long: bool, known: bool) -> None:
        thread, person = self.thread(name, number), self.model[name]
        saved = person.threads.get(thread, {})
        parent = max(saved, default=None)
        before = saved[parent].values["x"] if parent else []
        values = {"x": [*before, self.text(name) * (30 if long else 1)], "n": self.counter}
        here = config(thread, name if not (known and saved) else None)
        if parent:
            here["configurable"]["checkpoint_id"] = parent
        made: list[Any] = []
        act = lambda: made.append(put(CALL, self.shredders[at].saver, here, values, version=self.counter))  # noqa: E731
        if not self.refused(name, act):
            person.seen()
            person.threads.setdefault(thread, {})[checkpoint_id(made[0])] = Saved(values, parent)

    @rule(name=WHO, at=WHERE, number=WHERE, task=WHERE, long=st.booleans())
    def put_writes(self, name: str, at: int, number: int, task: int, long: bool) -> None:
        thread, person = self.thread(name, number), self.model[name]
        saved = person.threads.get(thread)
        if not saved and not person.shredded:
            return
        latest = max(saved or {}, default="1")
        value = self.text(name) * (30 if long else 1)
        here = config(thread, name, checkpoint_id=latest)
        writes = [("x", value), ("__error__", value)]
        act = lambda: self.shredders[at].saver.put_writes(here, writes, f"task {task}")  # noqa: E731
        if not self.refused(name, act) and saved:
            there = saved[latest].writes
            there.setdefault((f"task {task}", 0), ("x", value))
            there[f"task {task}", -1] = ("__error__", value)

    @rule(name=WHO, at=WHERE, key=st.sampled_from("ab"), gone=st.booleans(), long=st.booleans())
    def put_item(self, name: str, at: int, key: str, gone: bool, long: bool) -> None:
        person, store = self.model[name], self.shredders[at].store
        value = {"said": self.text(name) * (30 if long else 1)}
        act = (lambda: store.delete(("users", name), key)) if gone else (lambda: store.put(("users", name), key, value))
        if not self.refused(name, act, held=gone):
            if gone:
                person.items.pop(key, None)
            else:
                person.seen()
                person.items[key] = value

    # -- threads ----------------------------------------------------------------------------------------------------

    @rule(name=WHO, at=WHERE, number=WHERE)
    def copy_thread(self, name: str, at: int, number: int) -> None:
        person, source = self.model[name], self.thread(name, number)
        target = f"{name} t-copy {self.counter}"
        if source not in person.threads or len(person.threads) > 3:
            return
        if not self.refused(name, lambda: self.shredders[at].saver.copy_thread(source, target)):
            person.threads[target] = copy.deepcopy(person.threads[source])
            self.counter += 1

    @rule(name=WHO, at=WHERE, number=WHERE)
    def prune(self, name: str, at: int, number: int) -> None:
        person, thread = self.model[name], self.thread(name, number)
        if thread not in person.threads:
            return
        act = lambda: self.shredders[at].saver.prune([thread], strategy="keep_latest")  # noqa: E731
        if not self.refused(name, act, held=True):
            latest = max(person.threads[thread])
            kept = person.threads[thread][latest]
            person.threads[thread] = {latest: Saved(kept.values, None, kept.writes)}

    @rule(name=WHO, at=WHERE, number=WHERE)
    def delete_thread(self, name: str, at: int, number: int) -> None:
        person, thread = self.model[name], self.thread(name, number)
        act = lambda: self.shredders[at].saver.delete_thread(thread)  # noqa: E731
        if person.shredded or thread not in person.threads:
            act()
        elif not self.refused(name, act, held=True, writes=False):
            del person.threads[thread]

    # -- customers --------------------------------------------------------------------------------------------------

    @rule(name=WHO, at=WHERE, purge=st.booleans())
    def shred(self, name: str, at: int, purge: bool) -> None:
        person = self.model[name]
        if person.held:
            try:
                self.shredders[at].shred(name, purge=purge)
            except LegalHoldError:
                return
            raise AssertionError(f"{name} is held, and was shredded")
        result = self.shredders[at].shred(name, purge=purge)
        assert result.state in ("destroyed", "purged")
        assert result.pending == ()
        assert result.receipt is not None
        if not person.shredded or person.keyed > person.dead:
            person.shred(purge=purge)

    @rule(name=WHO, at=WHERE)
    def enrol(self, name: str, at: int) -> None:
        person = self.model[name]
        if not person.shredded:
            try:
                self.shredders[at].enrol(name)
            except ConfigurationError:
                return
            raise AssertionError(f"{name} is {person.state}, and was enrolled")
        found = self.shredders[at].enrol(name)
        person.enrol()
        # A restored database may know of fewer generations than the key store.
        assert found.generation >= person.generation
        person.generation = found.generation

    @rule(name=WHO, at=WHERE, deed=st.sampled_from(["hold", "release", "restrict", "reinstate"]))
    def restrain(self, name: str, at: int, deed: str) -> None:
        person, shredder = self.model[name], self.shredders[at]
        if person.state == "unknown":
            return
        act = (lambda: shredder.hold(name, "a case")) if deed == "hold" else (lambda: getattr(shredder, deed)(name))
        if not self.refused(name, act, writes=False):
            match deed:
                case "hold" | "release":
                    person.held = deed == "hold"
                case "restrict":
                    person.state = "restricted"
                case _:
                    person.state = "live"

    @rule(name=st.none() | WHO, at=WHERE)
    def rotate(self, name: str | None, at: int) -> None:
        if name is None:
            self.shredders[at].rotate()
        elif self.model[name].state != "unknown":
            self.refused(name, lambda: self.shredders[at].rotate(name))

    # -- processes and copies ---------------------------------------------------------------------------------------

    @rule(at=WHERE)
    def restart(self, at: int) -> None:
        self.shredders[at].close()
        self.shredders[at] = self.open()
        assert not self.shredders[at].reconciliation.changed

    @rule(name=WHO, number=WHERE)
    def another_process(self, name: str, number: int) -> None:
        if self.other is None:
            self.other = Worker(self.backend.url, keys=self.keys, journal=str(self.journal))
        person, thread = self.model[name], self.thread(name, number)
        saved = person.threads.get(thread, {})
        latest = max(saved, default=None)
        try:
            found = self.other(get, config(thread, name))
        except RemoteError as error:
            self.was_right(error, person)
        else:
            assert person.state in ("live", "unknown")
            assert found == (saved[latest].values if latest else None)
        if person.state != "live":
            try:
                self.other(write, config(thread, name), {"x": ["late"]})
            except RemoteError as error:
                self.was_right(error, person)
            else:
                assert person.state == "unknown"
                person.seen()
                (tuple_,) = self.shredders[0].saver.list({"configurable": {"thread_id": thread}})
                person.threads[thread] = {checkpoint_id(tuple_.config): Saved({"x": ["late"]}, None)}

    @precondition(lambda self: self.copies_allowed and len(self.copies) < COPIES)
    @rule()
    def back_up(self) -> None:
        keys = self.home / f"keys copy {self.counter}"
        self.counter += 1
        subprocess.run(["cp", "-rp", self.directory, keys], check=True)
        self.copies.append(Copied(self.backend.copy(), keys, copy.deepcopy(self.model)))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def restore_the_database(self, data: st.DataObject) -> None:
        copied = data.draw(st.sampled_from(self.copies))
        for name, person in self.model.items():
            if person.held:  # the key store's holds stand, whatever a restored database says
                self.shredders[0].release(name)
        self.close()
        self.put_back(copied.database)
        self.model = restored(self.model, copied.model)
        first = self.open()
        assert first.reconciliation.forked
        for name, person in self.model.items():
            if person.shredded:  # nothing comes back before anybody decides anything
                self.nobody(first, name)
        first.reconcile(adopt="restore")
        self.shredders = [first, self.open()]
        for name, person in self.model.items():
            if person.held:
                first.hold(name, "a case")

    def put_back(self, copied: Backend) -> None:
        """A database's files in the place of ours."""
        ours, theirs = Path(self.backend.url), Path(copied.url)
        for file in ours.parent.glob(ours.name + "*"):
            file.unlink()
        for file in theirs.parent.glob(theirs.name + "*"):
            shutil.copy(file, ours.parent / file.name)

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), both=st.booleans())
    def drill(self, data: st.DataObject, both: bool) -> None:
        """An older key store with today's database, or with its own: on copies, with today's journal."""
        copied = data.draw(st.sampled_from(self.copies))
        keys, journal = self.home / "drill", self.home / "journal of the drill"
        shutil.copytree(copied.keys, keys)
        shutil.copy(self.journal, journal) if self.journal.exists() else None
        now = self.backend.copy() if not both else copied.database.copy()
        try:
            with Shredder.open(now.url, keys=f"file:{keys}", journal=journal) as shredder:
                shredder.reconcile(adopt="restore", confirm=True)
                self.drilled(shredder, self.model if not both else restored(self.model, copied.model))
        finally:
            shutil.rmtree(keys)
            journal.unlink(missing_ok=True)

    def drilled(self, shredder: Shredder, model: Snapshot) -> None:
        for name, person in model.items():
            if person.shredded:
                self.nobody(shredder, name)
                continue
            if person.state == "restricted":
                continue
            for thread, saved in person.threads.items():
                try:
                    self.equal(shredder, thread, saved)
                except KeyNotFoundError:
                    continue  # made, enrolled or rotated after the copy: that key store never had its keys

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        for shredder in self.shredders:
            for name, person in self.model.items():
                if person.shredded:
                    self.nobody(shredder, name)
                elif person.state == "live":
                    for thread, saved in person.threads.items():
                        self.equal(shredder, thread, saved)
                    found = shredder.store.search(("users", name))
                    assert {item.key: item.value for item in found} == person.items

    @invariant()
    def listings_show_the_living(self) -> None:
        for shredder in self.shredders[:1]:
            listed = {
                (found.config["configurable"]["thread_id"], checkpoint_id(found.config))
                for found in shredder.saver.list(None)
            }
            expected = {
                (thread, key)
                for person in self.model.values()
                if person.state == "live"
                for thread, saved in person.threads.items()
                for key in saved
            }
            assert listed == expected

    @invariant()
    def the_audit_counts_the_same(self) -> None:
        for shredder in self.shredders[1:]:
            for name, person in self.model.items():
                audit = shredder.audit(name)
                assert not audit.damaged
                if person.shredded:
                    assert audit.opens == 0
                    assert all(count.opens == 0 for count in audit.routes.values())
                else:
                    counts = {route: audit.routes[route] for route in person.rows}
                    assert {route: count.opens for route, count in counts.items()} == person.rows
                    assert person.left or {route: count.rows for route, count in counts.items()} == person.rows
                    assert audit.routes["resumable snapshots"].opens == person.rows["checkpoints"]

    @invariant()
    def tombstones_only_grow(self) -> None:
        for shredder in self.shredders[:1]:
            stones = {(one.customer, one.generation) for one in shredder._start().core.keys.tombstones()}
            assert stones >= self.dead_before
            self.dead_before = stones
            token = shredder._start().core.token
            for name, person in self.model.items():
                assert max((g for c, g in stones if c == token("customer", name)), default=0) == person.dead
            assert shredder.check_log() >= 0

    @invariant()
    def no_copy_of_the_keys_gives_a_dead_generation(self) -> None:
        """Every row of every copy of the key store, tried with every root there is today."""
        if not self.shredders:
            return
        dead = {(customer, generation) for customer, upto in self.dead_before for generation in range(1, upto + 1)}
        file = RootsFile(self.directory / "roots")
        roots = list(file.scan())
        file.close()
        living = {
            (self.shredders[0]._start().core.token("customer", name), person.generation)
            for name, person in self.model.items()
            if person.state in ("live", "restricted")
        }
        assert living <= obtainable(self.directory / "keys.db", roots)
        for keys in (self.directory, *(copied.keys for copied in self.copies)):
            assert not dead & obtainable(keys / "keys.db", roots)

    def was_right(self, error: RemoteError, person: Person) -> None:
        assert (error.name, person.state) in REFUSED, (error.name, person.state)

    def nobody(self, shredder: Shredder, name: str) -> None:
        """No public call gives anything of a shredded customer."""
        here = config(self.thread(name, 0), name)
        calls: list[Callable[[], Any]] = [
            lambda: shredder.saver.get_tuple(here),
            lambda: list(shredder.saver.list(here)),
            lambda: shredder.store.get(("users", name), "a"),
            lambda: shredder.store.search(("users", name)),
            lambda: list(shredder.export(name)),
        ]
        for act in calls:
            try:
                found = act()
            except (CustomerShreddedError, UnsealError):
                continue
            raise AssertionError(f"{name} was shredded, and a call gave {found!r}")

    def equal(self, shredder: Shredder, thread: str, saved: dict[str, Saved]) -> None:
        here = {"configurable": {"thread_id": thread}}
        found = {checkpoint_id(one.config): one for one in shredder.saver.list(here)}
        assert found.keys() == saved.keys()
        for key, one in found.items():
            assert one.checkpoint["channel_values"] == saved[key].values
            assert (checkpoint_id(one.parent_config) if one.parent_config else None) == saved[key].parent
            writes = sorted((task, channel, value) for (task, _), (channel, value) in saved[key].writes.items())
            assert sorted(one.pending_writes) == writes
        latest = shredder.saver.get_tuple(here)
        assert latest is not None
        assert checkpoint_id(latest.config) == max(saved)


REFUSED = {("CustomerShreddedError", "shredded"), ("CustomerRestrictedError", "restricted")}


def obtainable(store: Path, roots: Any) -> set[tuple[bytes, int]]:
    """The customers' generations whose secrets a copy of the key store gives with these roots."""
    with closing(sqlite3.connect(store)) as connection:
        meta = dict(connection.execute("SELECT name, value FROM key_meta"))
        rows = connection.execute(
            "SELECT w.slot, w.customer, w.generation, w.epoch, w.key_version, w.wrapped, t.sealed FROM key_wraps w"
            " JOIN key_trees t ON t.customer = w.customer AND t.generation = w.generation"
        ).fetchall()
    identity = Store(meta["store"], meta["deployment"])
    found = set()
    for slot, customer, generation, epoch, version, wrapped, sealed in rows:
        row = Wrapped(slot, customer, generation, epoch, version, wrapped)
        for root in roots:
            try:
                unseal_secret(identity, unwrap(identity, root.key, row), row, sealed)
            except UnsealError:
                continue
            found.add((customer, generation))
    return found
