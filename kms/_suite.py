"""What the tests of the key service conformance suite are written with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from shredsaver.errors import CustomerShreddedError, ShredSaverError
from shredsaver.kms import _steps
from shredsaver.kms.base import KeyService
from shredsaver.kms.records import Destruction

_MOST_STEPS: Final = 500  # an operation that takes more durable steps than this does not end


class Crash(BaseException):
    """What ends an operation at an injected point. No part of the service may catch it."""


class Base:
    """What the tests are written with."""

    def make(self) -> KeyService:
        """A new, empty key service. Every test calls it at least once."""
        raise NotImplementedError("a subclass says how its key service is made")

    def reopen(self, service: KeyService) -> KeyService:
        """Closes a key service, or gives it up as a crash would, and opens the same store again."""
        raise NotImplementedError("a subclass says how its key service is opened again")

    @contextmanager
    def interrupted(self, point: int) -> Iterator[Callable[[], bool]]:
        """Raises `Crash` at the given durable step of what runs inside, counted from 0.

        Gives a function that tells whether the step was reached: false ends the search for further points.
        """
        passed = 0

        def hook(name: str) -> None:
            nonlocal passed
            passed += 1
            if passed == point + 1:
                raise Crash(name)

        _steps.hook = hook
        try:
            yield lambda: passed > point
        except Crash:
            pass  # it is the end of the operation that was asked for
        finally:
            _steps.hook = None

    def each_interruption(
        self, service: KeyService, prepare: Callable[[KeyService], bytes], act: Callable[[KeyService, bytes], object]
    ) -> Iterator[tuple[KeyService, bytes]]:
        """For every step of ``act``: a customer on whom it was ended there, and the service opened again."""
        for point in range(_MOST_STEPS):
            customer = prepare(service)
            with self.interrupted(point) as reached:
                act(service, customer)
            if not reached():
                service.close()
                return
            service = self.reopen(service)
            yield service, customer
        raise AssertionError(f"the operation did not end within {_MOST_STEPS} steps")


def token() -> bytes:
    """A customer that nobody has seen."""
    return os.urandom(16)


def raises(kind: type[ShredSaverError], act: Callable[[], object]) -> ShredSaverError:
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def gone(service: KeyService, customer: bytes, generation: int = 1) -> None:
    raises(CustomerShreddedError, lambda: service.load(customer, generation))


def destroyed(service: KeyService, *customers: bytes) -> Sequence[Destruction]:
    found = service.destroy(customers)
    assert [each.customer for each in found] == list(customers)
    assert all(each.state in {"destroyed", "pending"} for each in found)
    return found
