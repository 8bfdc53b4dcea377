"""What holds after every step."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis.stateful import invariant

from shredsaver import CustomerShreddedError, Shredder, UnsealError
from shredsaver.keytree import KeyPuncturedError, KeyTree
from tests.stateful.clock import CLOCK
from tests.stateful.copying import Copying
from tests.stateful.databases import Record, records
from tests.stateful.keyplaces import Owner, Secrets
from tests.stateful.machine import NAMES
from tests.stateful.model import alike, expected, observed
from tests.support.checkpoints import config

CANARY = re.compile(rb"<c-\d \d+ \d+>")


class Checks(Copying):
    """The invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: set[bytes] = set()
        self.looked = 0

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        """Looked at by one opener for a while, and then by the other: looking refreshes what is remembered."""
        self.looked += 1
        for shredder in self.shredders[self.looked // 3 % 2 :][:1]:
            self.right(shredder)

    def right(self, shredder: Shredder) -> None:
        alike(observed(shredder, self.threads, NAMES), expected(self.model, CLOCK.now))

    @invariant()
    def nothing_of_the_dead_is_told(self) -> None:
        for shredder in self.shredders[-1:]:
            for name, person in self.model.items():
                if person.shredded:
                    self.nobody(shredder, name)

    @invariant()
    def the_audit_counts_the_same(self) -> None:
        for shredder in self.shredders[1:]:
            for name, person in self.model.items():
                audit = shredder.audit(name)
                assert not audit.damaged
                if person.shredded:
                    assert audit.opens == 0
                    assert all(count.opens == 0 for count in audit.routes.values())
                    continue
                counts = {route: audit.routes[route] for route in person.rows}
                # A thread without a checkpoint has no live state that could open.
                opens = {route: count.opens for route, count in counts.items() if route != "threads"}
                assert opens == {route: count for route, count in person.rows.items() if route != "threads"}
                assert person.left or {route: count.rows for route, count in counts.items()} == person.rows

    @invariant()
    def tombstones_only_grow(self) -> None:
        for shredder in self.shredders[:1]:
            found = shredder._start().core.keys.tombstones()
            assert [one.seq for one in found] == list(range(1, len(found) + 1))
            stones = {(one.customer, one.generation) for one in found}
            assert stones >= self.stones
            self.stones = stones
            for name, person in self.model.items():
                last = max((generation for who, generation in stones if who == self.token(name)), default=0)
                assert last == person.dead
            assert shredder.check_log() >= 0

    @invariant()
    def no_copy_of_the_keys_gives_a_dead_generation(self) -> None:
        """Every row of every copy of the key store, tried with every root there is today."""
        if not self.shredders:
            return
        dead = {(who, generation) for who, upto in self.stones for generation in range(1, upto + 1)}
        living = {
            (self.token(name), person.generation)
            for name, person in self.model.items()
            if person.state in ("live", "restricted") and not self.keyless(name)
        }
        now = self.keys.secrets(self.keys.directory)
        assert living <= owners(now)
        assert not dead & owners(now)
        for copied in self.copies:
            found = self.keys.secrets(copied.keys)
            assert not dead & owners(found)
            # What was replaced is destroyed as well.
            assert {key for key in found if key[:2] in owners(now)} <= set(now)
            self.try_to_open(copied.records, now | found)

    def keyless(self, name: str) -> bool:
        """Whether a customer is known to the model only: restored to a time before its first write."""
        return self.model[name].state == "unknown"

    def attack(self, found: list[Record]) -> None:
        secrets = self.keys.secrets(self.keys.directory)
        for copied in self.copies:
            secrets |= self.keys.secrets(copied.keys)
        self.try_to_open(found, secrets)

    def try_to_open(self, found: list[Record], secrets: Secrets) -> None:
        """Records of the dead, with any key of anybody, and without asking whether they are authentic."""
        dead = {(who, generation) for who, upto in self.stones for generation in range(1, upto + 1)}
        for secret in secrets.values():
            tree = None
            for record in found:
                if (record.customer, record.generation) not in dead:
                    continue
                mark = hashlib.sha256(secret + record.sealed).digest()
                if mark in self.tried:
                    continue
                self.tried.add(mark)
                tree = tree or KeyTree.from_bytes(secret)
                try:
                    key = tree.derive(record.scope, record.number)
                except KeyPuncturedError:
                    continue
                assert not CANARY.search(deciphered(key, record.sealed))

    def nobody(self, shredder: Shredder, name: str) -> None:
        """No public call gives anything of a shredded customer."""
        here = config(self.thread(name, "0"), name)
        calls: list[Callable[[], Any]] = [
            lambda: shredder.saver.get_tuple(here),
            lambda: list(shredder.saver.list(here)),
            lambda: shredder.store.get(("users", name), "a"),
            lambda: list(shredder.export(name)),
        ]
        for act in calls:
            try:
                found = act()
            except (CustomerShreddedError, UnsealError):
                continue
            raise AssertionError(f"{name} was shredded, and a call gave {found!r}")

    def teardown(self) -> None:
        try:
            if len(self.shredders) == 2:
                self.at_the_end()
        finally:
            super().teardown()

    def at_the_end(self) -> None:
        """The key store is whole, and nothing was ever written in the clear."""
        for shredder in self.shredders:
            self.right(shredder)
        self.shredders[0].resume()
        report = self.shredders[0].check_keys()
        assert not report.problems, report
        self.attack(records(self.database.backend))
        for place, stored in self.database.backend.dump().items():
            assert not CANARY.search(stored), place


def owners(secrets: Secrets) -> set[Owner]:
    return {(who, generation) for who, generation, _ in secrets}


def deciphered(key: bytes, sealed: bytes) -> bytes:
    """What AES-256-GCM would give if nobody looked at the tag (SP 800-38D, section 7.2)."""
    counter = sealed[1:13] + (2).to_bytes(4)
    decryptor = Cipher(algorithms.AES256(key), modes.CTR(counter)).decryptor()
    return decryptor.update(sealed[13:-16])
