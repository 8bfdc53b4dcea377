"""Conformance of key services: callers that race, and operations that end in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count

from shredsaver.errors import ConfigurationError, CustomerShreddedError, KeyVersionError
from shredsaver.kms._suite import Base, destroyed, gone, raises, token
from shredsaver.kms.base import KeyService


class Concurrency(Base):
    def _together(self, *acts: Callable[[], object]) -> list[object]:
        start = threading.Barrier(len(acts))
        answers: list[object] = [None] * len(acts)

        def run(index: int, act: Callable[[], object]) -> None:
            start.wait()
            try:
                answers[index] = act()
            except BaseException as error:  # noqa: BLE001 - handed to the test
                answers[index] = error

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def test_racing_creators_get_one_secret(self) -> None:
        with self.make() as service:
            for _ in range(5):
                customer = token()
                made = self._together(*(partial(service.create, customer, bytes([i + 1]) * 9) for i in range(8)))
                assert len(set(map(repr, made))) == 1, made
                assert all(each == service.load(customer, 1) for each in made)

    def test_racing_returns_have_one_winner(self) -> None:
        with self.make() as service:
            customer = token()
            service.create(customer, b"secret")
            service.destroy([customer])
            made = self._together(*(partial(service.enrol, customer, bytes([i + 1])) for i in range(6)))
            won = [each for each in made if not isinstance(each, BaseException)]
            assert len(won) == 1, made
            assert all(isinstance(each, ConfigurationError) for each in made if each is not won[0])
            assert service.load(customer, 2) == won[0]

    def test_racing_replacements_have_one_winner(self) -> None:
        with self.make() as service:
            customer = token()
            service.create(customer, b"secret")
            made = self._together(*(partial(service.replace, customer, 1, bytes([i + 1]), 1) for i in range(6)))
            won = [each for each in made if not isinstance(each, BaseException)]
            assert len(won) == 1, made
            assert all(isinstance(each, KeyVersionError) for each in made if each is not won[0]), made
            assert service.load(customer, 1) == won[0]

    def test_destroying_while_others_are_created_and_roots_change(self) -> None:
        with self.make() as service:
            dying = [token() for _ in range(6)]
            arriving = [token() for _ in range(6)]
            for customer in dying:
                service.create(customer, b"secret")
            answers = self._together(
                *(partial(service.destroy, [customer]) for customer in dying),
                *(partial(service.create, customer, customer) for customer in arriving),
                service.rotate,
            )
            assert not [each for each in answers if isinstance(each, BaseException)], answers
            for customer in dying:
                gone(service, customer)
            assert [service.load(customer, 1).secret for customer in arriving] == arriving
            assert service.verify().ok

    def test_a_creator_racing_a_destroyer_never_wins_afterwards(self) -> None:
        with self.make() as service:
            for _ in range(10):
                customer = token()
                self._together(partial(service.create, customer, b"secret"), partial(service.destroy, [customer]))
                gone(service, customer)
                raises(CustomerShreddedError, partial(service.create, customer, b"secret"))


class Faults(Base):
    def test_an_interrupted_creation_is_done_or_not(self) -> None:
        service = self.make()
        before = token()
        service.create(before, b"before")
        for service, customer in self.each_interruption(
            service, lambda _: token(), lambda service, customer: service.create(customer, b"lost")
        ):
            assert service.load(before, 1).secret == b"before"
            made = service.create(customer, b"again")
            assert made.secret in {b"lost", b"again"}
            assert service.load(customer, 1) == made
            assert service.verify().ok, service.verify()

    def test_an_interrupted_destruction_is_finished(self) -> None:
        service = self.make()
        others = [token() for _ in range(8)]
        for other in others:
            service.create(other, other)

        def prepare(service: KeyService) -> bytes:
            customer = token()
            service.create(customer, b"secret")
            return customer

        for service, customer in self.each_interruption(
            service, prepare, lambda service, customer: service.destroy([customer])
        ):
            # Opened again: dead as soon as its tombstone was written, and no half state ever opens as something else.
            try:
                assert service.load(customer, 1).secret == b"secret"
                assert customer not in {each.customer for each in service.tombstones()}
            except CustomerShreddedError:
                assert customer in {each.customer for each in service.tombstones()}
            destroyed(service, customer)
            gone(service, customer)
            assert [service.load(other, 1).secret for other in others] == others
            assert service.verify().ok, service.verify()

    def test_an_interrupted_rotation_is_finished(self) -> None:
        service = self.make()
        customers = [token() for _ in range(3)]
        for customer in customers:
            service.create(customer, customer)
        for service, _ in self.each_interruption(service, lambda _: b"", lambda service, _: service.rotate()):
            assert [service.load(customer, 1).secret for customer in customers] == customers
            assert service.resume() == 0
            assert service.verify().ok, service.verify()

    def test_an_interrupted_replacement_is_done_or_not(self) -> None:
        service = self.make()
        numbers = count()

        def prepare(service: KeyService) -> bytes:
            customer = next(numbers).to_bytes(16, "little")
            service.create(customer, b"old")
            return customer

        for service, customer in self.each_interruption(
            service, prepare, lambda service, customer: service.replace(customer, 1, b"new", 1)
        ):
            record = service.load(customer, 1)
            assert (record.key_version, record.secret) in {(1, b"old"), (2, b"new")}
            assert service.replace(customer, 1, b"newest", record.key_version).secret == b"newest"
            assert service.load(customer, 1).secret == b"newest"
            assert service.verify().ok, service.verify()
