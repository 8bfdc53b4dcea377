"""Conformance of key services: destruction, holds, coming back, the log of the dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shredsaver.errors import ConfigurationError, CustomerShreddedError, LegalHoldError
from shredsaver.kms._suite import Base, destroyed, gone, raises, token


class Endings(Base):
    def test_a_destroyed_customer_is_dead_and_others_live(self) -> None:
        with self.make() as service:
            customers = [token() for _ in range(12)]
            for customer in customers:
                service.create(customer, customer * 3)
            (end,) = destroyed(service, customers[0])
            assert (end.known, end.generation) == (True, 1)
            assert end.assurance == service.assurance
            assert end.method
            gone(service, customers[0])
            raises(CustomerShreddedError, lambda: service.create(customers[0], b"again"))
            assert service.current(customers[0]) is None
            for customer in customers[1:]:
                assert service.load(customer, 1).secret == customer * 3
            assert service.verify().ok

    def test_the_error_tells_when(self) -> None:
        with self.make() as service:
            customer = token()
            service.create(customer, b"secret")
            before = datetime.now(UTC) - timedelta(seconds=1)
            service.destroy([customer])
            error = raises(CustomerShreddedError, lambda: service.load(customer, 1))
            assert isinstance(error, CustomerShreddedError)
            assert error.shredded_at is not None
            assert error.shredded_at >= before

    def test_destroying_again_tells_the_same(self) -> None:
        with self.make() as service:
            customer = token()
            service.create(customer, b"secret")
            first = destroyed(service, customer)
            log = service.tombstones()
            again = destroyed(service, customer)
            assert [each.tombstone for each in again] == [each.tombstone for each in first]
            assert [each.revoked_at for each in again] == [each.revoked_at for each in first]
            assert service.tombstones() == log

    def test_one_never_seen_gets_a_tombstone(self) -> None:
        with self.make() as service:
            customer = token()
            (end,) = destroyed(service, customer)
            assert (end.known, end.generation, end.state) == (False, 1, "destroyed")
            assert [each.customer for each in service.tombstones()] == [customer]
            raises(CustomerShreddedError, lambda: service.create(customer, b"secret"))
            gone(service, customer)
            assert service.enrol(customer, b"secret").generation == 2

    def test_many_at_once_known_and_unknown(self) -> None:
        with self.make() as service:
            known, unknown = [token() for _ in range(8)], token()
            survivor = token()
            for customer in (*known, survivor):
                service.create(customer, b"secret")
            ends = destroyed(service, *known[:4], unknown, *known[4:], known[0])
            assert [each.known for each in ends] == [True] * 4 + [False] + [True] * 5
            assert {each.customer for each in service.tombstones()} == {*known, unknown}
            assert len(service.tombstones()) == 9
            assert service.load(survivor, 1).secret == b"secret"
            assert service.destroy([]) == []

    def test_coming_back_is_explicit_and_a_new_generation(self) -> None:
        with self.make() as service:
            customer = token()
            raises(ConfigurationError, lambda: service.enrol(customer, b"early"))
            service.create(customer, b"first")
            raises(ConfigurationError, lambda: service.enrol(customer, b"early"))
            service.destroy([customer])
            made = service.enrol(customer, b"second")
            assert (made.generation, made.key_version) == (2, 1)
            assert service.load(customer, 2).secret == b"second"
            assert service.current(customer) == 2
            gone(service, customer, 1)
            raises(ConfigurationError, lambda: service.enrol(customer, b"late"))
            raises(CustomerShreddedError, lambda: service.create(customer, b"late"))
            (end,) = destroyed(service, customer)
            assert end.generation == 2
            gone(service, customer, 1)
            gone(service, customer, 2)
            assert service.enrol(customer, b"third").generation == 3

    def test_a_hold_keeps_everything(self) -> None:
        with self.make() as service:
            held, other = token(), token()
            service.create(held, b"held")
            service.create(other, b"other")
            hold = service.hold(held, None, b"commitment")
            assert (hold.customer, hold.until, hold.reason_commitment) == (held, None, b"commitment")
            assert service.held(held) == hold
            raises(LegalHoldError, lambda: service.destroy([other, held]))
            assert service.tombstones() == []
            assert service.load(held, 1).secret == b"held"
            assert service.load(other, 1).secret == b"other"
            service.release(held)
            service.release(held)
            assert service.held(held) is None
            destroyed(service, other, held)

    def test_a_hold_ends_by_itself_and_is_set_again(self) -> None:
        with self.make() as service:
            customer, now = token(), datetime.now(UTC)
            service.create(customer, b"secret")
            service.hold(customer, now + timedelta(days=1), b"one")
            raises(LegalHoldError, lambda: service.destroy([customer]))
            service.hold(customer, now - timedelta(seconds=1), b"two")
            assert service.held(customer) is None
            destroyed(service, customer)
            raises(CustomerShreddedError, lambda: service.hold(customer, None, b"three"))
            raises(ConfigurationError, lambda: service.hold(token(), datetime(2030, 1, 1), b""))  # noqa: DTZ001

    def test_a_customer_never_seen_can_be_held(self) -> None:
        with self.make() as service:
            customer = token()
            service.hold(customer, None, b"commitment")
            raises(LegalHoldError, lambda: service.destroy([customer]))

    def test_the_log_of_the_dead_is_in_order(self) -> None:
        with self.make() as service:
            customers = [token() for _ in range(5)]
            for customer in customers:
                service.destroy([customer])
            log = service.tombstones()
            assert [each.seq for each in log] == [1, 2, 3, 4, 5]
            assert [each.customer for each in log] == customers
            assert [each.at for each in log] == sorted(each.at for each in log)
            assert len({each.chain for each in log}) == 5
            assert all(len(each.chain) == 32 for each in log)
            for after in range(6):
                assert service.tombstones(after) == log[after:]
