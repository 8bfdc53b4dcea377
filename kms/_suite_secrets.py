"""Conformance of key services: secrets kept, and the store as a whole."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from shredsaver.errors import ConfigurationError, CustomerShreddedError, KeyNotFoundError, KeyVersionError
from shredsaver.kms._suite import Base, gone, raises, token


class Secrets(Base):
    def test_a_created_secret_is_loaded(self) -> None:
        with self.make() as service:
            customer, secret = token(), os.urandom(300)
            made = service.create(customer, secret)
            assert (made.customer, made.generation, made.key_version, made.secret) == (customer, 1, 1, secret)
            assert service.load(customer, 1) == made
            assert service.current(customer) == 1

    def test_secrets_of_many_lengths_come_back_exactly(self) -> None:
        with self.make() as service:
            for length in (1, 31, 32, 4096, 1_000_000):
                customer, secret = token(), os.urandom(length)
                service.create(customer, secret)
                assert service.load(customer, 1).secret == secret

    def test_creating_again_gives_the_first_secret(self) -> None:
        with self.make() as service:
            customer = token()
            first = service.create(customer, b"first")
            assert service.create(customer, b"second") == first

    def test_what_never_existed_is_not_found_and_not_shredded(self) -> None:
        with self.make() as service:
            customer = token()
            raises(KeyNotFoundError, lambda: service.load(customer, 1))
            assert service.current(customer) is None
            service.create(customer, b"secret")
            raises(KeyNotFoundError, lambda: service.load(customer, 2))
            raises(KeyNotFoundError, lambda: service.load(token(), 1))

    def test_no_repr_and_no_error_shows_a_secret(self) -> None:
        with self.make() as service:
            customer, secret = token(), b"a secret that nobody may see"
            shown = repr(service.create(customer, secret)) + repr(service.load(customer, 1))
            deployment = service.deployment()
            shown += repr(deployment) + str(raises(KeyVersionError, lambda: service.replace(customer, 1, secret, 9)))
            service.destroy([customer])
            shown += str(raises(CustomerShreddedError, lambda: service.create(customer, secret)))
            for hidden in (secret, deployment.log_key, deployment.lookup_key, deployment.signing_key):
                assert repr(hidden)[2:-1] not in shown
                assert hidden.hex() not in shown

    def test_a_replaced_secret_takes_the_place_of_the_old(self) -> None:
        with self.make() as service:
            customer, other = token(), token()
            service.create(customer, b"first")
            service.create(other, b"other")
            made = service.replace(customer, 1, b"second", 1)
            assert (made.generation, made.key_version, made.secret) == (1, 2, b"second")
            assert service.load(customer, 1) == made
            assert service.replace(customer, 1, b"third", 2).key_version == 3
            assert service.load(other, 1).secret == b"other"
            assert service.verify().ok

    def test_only_the_expected_version_is_replaced(self) -> None:
        with self.make() as service:
            customer = token()
            service.create(customer, b"first")
            service.replace(customer, 1, b"second", 1)
            for expected in (0, 1, 3):
                raises(KeyVersionError, partial(service.replace, customer, 1, b"x", expected))
            assert service.load(customer, 1).secret == b"second"
            raises(KeyNotFoundError, lambda: service.replace(token(), 1, b"x", 1))
            raises(KeyNotFoundError, lambda: service.replace(customer, 2, b"x", 1))
            service.destroy([customer])
            raises(CustomerShreddedError, lambda: service.replace(customer, 1, b"x", 2))

    def test_bad_tokens_and_secrets_are_refused(self) -> None:
        with self.make() as service:
            customers: list[Any] = [b"", bytes(65), "text", None]
            for customer in customers:
                raises(ConfigurationError, partial(service.create, customer, b"secret"))
                raises(ConfigurationError, partial(service.load, customer, 1))
                raises(ConfigurationError, partial(service.destroy, [customer]))
            secrets: list[Any] = [b"", "text", None]
            for secret in secrets:
                raises(ConfigurationError, partial(service.create, token(), secret))
            assert service.tombstones() == []

    def test_tokens_of_any_length_are_customers_of_their_own(self) -> None:
        with self.make() as service:
            tokens = [b"\x00", b"\x00\x00", b"\x00" * 16, b"\x00" * 64, b"\xff"]
            for i, customer in enumerate(tokens):
                service.create(customer, bytes([i + 1]))
            service.destroy([tokens[1]])
            for i, customer in enumerate(tokens):
                if i != 1:
                    assert service.load(customer, 1).secret == bytes([i + 1])
            gone(service, tokens[1])


class WholeStore(Base):
    def test_everything_is_there_after_opening_again(self) -> None:
        service = self.make()
        live, dead, held = token(), token(), token()
        made = service.create(live, b"live")
        service.create(dead, b"dead")
        service.create(held, b"held")
        end = service.destroy([dead])
        hold = service.hold(held, None, b"commitment")
        service.bind("sqlite:1:2")
        deployment, log = service.deployment(), service.tombstones()
        with self.reopen(service) as service:
            assert service.load(live, 1) == made
            gone(service, dead)
            assert service.held(held) == hold
            assert service.fingerprint() == "sqlite:1:2"
            assert service.deployment() == deployment
            assert service.tombstones() == log
            assert [each.tombstone for each in service.destroy([dead])] == [each.tombstone for each in end]
            assert service.verify().ok

    def test_the_deployment_has_secrets_of_its_own(self) -> None:
        with self.make() as service, self.make() as other:
            ours, theirs = service.deployment(), other.deployment()
            assert service.deployment() == ours
            keys = [ours.lookup_key, ours.log_key, ours.receipt_key, ours.signing_key]
            assert [len(key) for key in keys] == [32] * 4
            assert len(ours.deployment) == 16
            assert len({*keys, theirs.lookup_key, theirs.log_key, theirs.receipt_key, theirs.signing_key}) == 8
            assert ours.deployment != theirs.deployment

    def test_a_fingerprint_is_kept_and_replaced(self) -> None:
        with self.make() as service:
            assert service.fingerprint() is None
            service.bind("one")
            service.bind("two")
            assert service.fingerprint() == "two"

    def test_new_roots_change_no_secret(self) -> None:
        service = self.make()
        customers = [token() for _ in range(10)]
        for customer in customers:
            service.create(customer, customer)
        deployment = service.deployment()
        assert service.rotate() >= 1
        assert service.rotate() >= 1
        with self.reopen(service) as service:
            assert [service.load(customer, 1).secret for customer in customers] == customers
            assert service.deployment() == deployment
            assert service.verify().ok

    def test_a_verified_store_is_counted(self) -> None:
        with self.make() as service:
            for _ in range(4):
                service.create(token(), b"secret")
            service.destroy([token()])
            report = service.verify()
            assert (report.ok, report.problems, report.customers, report.tombstones) == (True, (), 4, 1)

    def test_closing_twice_does_nothing(self) -> None:
        service = self.make()
        service.close()
        service.close()

    def test_it_says_what_it_is(self) -> None:
        with self.make() as service:
            assert service.assurance
            assert isinstance(service.shared, bool)
