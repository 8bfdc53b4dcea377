"""Rules: processes that come and go, time, backups, and what is made of them."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from shredsaver import KeyNotFoundError, KeyStoreStaleError, Shredder
from tests.stateful import deeds
from tests.stateful.clock import CLOCK
from tests.stateful.databases import Record
from tests.stateful.machine import NAMES, WHERE, Deployment
from tests.stateful.model import Snapshot, alike, expected, observed, restored, shown

COPIES = 3


class Copied(NamedTuple):
    """A backup: of the database, of the key store, and of what should be in them."""

    database: Any
    records: list[Record]
    keys: Path
    epochs: dict[int, int]
    model: Snapshot


class Copying(Deployment):
    """Restarts, the other process, the clock, copies of either side."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copied] = []

    @rule(at=WHERE)
    def restart(self, at: int) -> None:
        self.shredders[at].close()
        self.shredders[at] = self.open()
        assert not self.shredders[at].reconciliation.changed

    @rule()
    def another_process_looks(self) -> None:
        alike(self.elsewhere()(observed, self.threads, NAMES), expected(self.model, CLOCK.now))

    @rule(minutes=st.sampled_from([1, 2, 4]))
    def time_passes(self, minutes: int) -> None:
        CLOCK.now += minutes * 60

    @precondition(lambda self: len(self.copies) < COPIES)
    @rule()
    def back_up(self) -> None:
        keys, database = self.keys.copy(), self.database.copy()
        found = self.database.records(database)
        model = copy.deepcopy(self.model)
        self.copies.append(Copied(database, found, keys, self.keys.epochs(keys), model))

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), same=st.booleans())
    def restore_the_database(self, data: st.DataObject, same: bool) -> None:
        """An older database: one that tells that it is another, or one that looks the same."""
        copied = data.draw(st.sampled_from(self.copies))
        for name, person in self.model.items():
            if person.held is not None:  # the key store's holds stand, whatever a restored database says
                self.shredders[0].release(name)
        self.close()
        self.database.put_back(copied.database, same=same)
        self.model = restored(self.model, copied.model)
        first = self.open()
        self.shredders = [first]
        assert first.reconciliation.forked != same
        # Nothing comes back before anybody decides anything.
        alike(observed(first, self.threads, NAMES), expected(self.model, CLOCK.now))
        if not same:
            first.reconcile(adopt="restore")
        self.shredders.append(self.open())
        for name, person in self.model.items():
            if person.held is not None:
                deeds.hold(first, name, None if person.held == float("inf") else person.held)

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), both=st.booleans())
    def drill(self, data: st.DataObject, both: bool) -> None:
        """An older key store with today's database, or with its own: on copies, with today's journal."""
        copied = data.draw(st.sampled_from(self.copies))
        directory, journal = self.home / "drill", self.home / "journal of the drill"
        shutil.copytree(copied.keys, directory)
        if self.journal.exists():
            shutil.copy(self.journal, journal)
        now = copied.database if both else self.database.copy()
        keys = None
        try:
            with self.database.opened(now) as backend:
                keys = self.keys.open(directory)
                with Shredder.open(backend.url, keys=keys, journal=journal) as shredder:
                    shredder.reconcile(adopt="restore", confirm=True)
                    self.drilled(shredder, restored(self.model, copied.model) if both else self.model)
        except KeyStoreStaleError:
            # Roots that cannot be copied have gone on: such a copy is no use to anybody.
            assert self.keys.kind == "aws"
            assert self.keys.epochs(self.keys.directory) != copied.epochs
        finally:
            if keys is not None:
                keys.close()
            shutil.rmtree(directory)
            journal.unlink(missing_ok=True)

    def drilled(self, shredder: Shredder, model: Snapshot) -> None:
        should = expected(model, CLOCK.now)
        for name, person in model.items():
            threads = {thread: who for thread, who in self.threads.items() if who == name}
            try:
                found = only(shredder, name, threads)
            except KeyNotFoundError:
                assert not person.shredded
                continue  # made, enrolled or rotated after the copy: that key store never had its keys
            alike({name: found}, {name: should[name]})

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), roots=st.booleans())
    def older_key_store(self, data: st.DataObject, roots: bool) -> None:
        """An older key store in the place of today's, opened once, and today's put back: a mistake that was noticed."""
        copied = data.draw(st.sampled_from(self.copies))
        self.close()
        today = self.keys.copy()
        self.keys.put_back(copied.keys)
        if not roots and (file := today / "roots").exists():
            shutil.copy(file, self.keys.directory / "roots")
        try:
            shredder = self.open()
        except (KeyStoreStaleError, KeyNotFoundError):
            assert self.keys.epochs(today) != copied.epochs
        else:
            try:
                if not shredder.reconciliation.forked:
                    self.drilled(shredder, self.model)
            finally:
                shredder.close()
        self.keys.put_back(today)
        self.shredders = [self.open(), self.open()]


def only(shredder: Shredder, name: str, threads: dict[str, str]) -> Any:
    """What a deployment shows of one customer, where others may have lost their keys."""
    try:
        items = shredder.store.search(("users", name), limit=100, refresh_ttl=False)
    except KeyNotFoundError:
        raise
    except Exception as error:
        for thread, who in threads.items():
            try:
                shredder.saver.get_tuple({"configurable": {"thread_id": thread, "customer_id": who}})
            except type(error):
                continue
            raise AssertionError(f"{thread} is open, {name} is not") from error
        return type(error).__name__
    found: dict[str, Any] = {}
    for thread in threads:
        for one in shredder.saver.list({"configurable": {"thread_id": thread}}):
            found.setdefault(thread, {}).update(shown(one))
    return found, {item.key: item.value for item in items}
