"""Opened trees serve a bounded time, and none that was revoked is ever served again."""

from __future__ import annotations

from pathlib import Path

import pytest

from shredsaver import CustomerShreddedError
from shredsaver.keyring import MAX_AGE, Keyring
from shredsaver.keytree import KeyTree
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.records import KeyRecord

WHO = b"c" * 16


class Keys:
    """A key service that counts, and dies when told."""

    def __init__(self) -> None:
        self.loads = 0
        self.dead = False
        self.secret = b""

    def create(self, customer: bytes, secret: bytes) -> KeyRecord:
        self.secret = secret
        return KeyRecord(customer, 1, 1, secret)

    def load(self, customer: bytes, generation: int) -> KeyRecord:
        self.loads += 1
        if self.dead:
            raise CustomerShreddedError("destroyed")
        return KeyRecord(customer, generation, 1, self.secret)


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def ring(keys: Keys, now: list[float]) -> Keyring:
    ring = Keyring(keys, clock=lambda: now[0])  # type: ignore[arg-type]
    ring.create(WHO)
    return ring


def test_a_tree_serves_a_minute_and_then_the_key_service_is_asked(ring: Keyring, keys: Keys, now: list[float]) -> None:
    assert MAX_AGE == 60.0
    assert ring.cached(WHO, 1, 1) is not None
    now[0] += MAX_AGE
    assert ring.cached(WHO, 1, 1) is not None
    now[0] += 0.001
    assert ring.cached(WHO, 1, 1) is None
    ring.load(WHO, 1)
    assert keys.loads == 1
    assert ring.cached(WHO, 1, 1) is not None


def test_a_customer_destroyed_elsewhere_is_gone_within_a_minute(ring: Keyring, keys: Keys, now: list[float]) -> None:
    keys.dead = True
    now[0] += MAX_AGE + 0.001
    assert ring.cached(WHO, 1, 1) is None
    with pytest.raises(CustomerShreddedError):
        ring.load(WHO, 1)
    keys.dead = False  # whoever undoes that in the key service is not believed by a process that saw it
    with pytest.raises(CustomerShreddedError):
        ring.load(WHO, 1)
    assert ring.cached(WHO, 1, 1) is None


def test_a_tree_older_than_the_database_says_is_not_served(ring: Keyring) -> None:
    assert ring.cached(WHO, 1, 2) is None


def test_the_least_recently_used_tree_goes(keys: Keys) -> None:
    ring = Keyring(keys, max_trees=2)  # type: ignore[arg-type]
    for customer in (b"1", b"2", b"3"):
        ring.create(customer)
        ring.cached(b"1", 1, 1)
    assert [ring.cached(customer, 1, 1) is not None for customer in (b"1", b"2", b"3")] == [True, False, True]


def test_a_tree_that_is_loaded_again_unchanged_is_the_same_object(tmp_path: Path) -> None:
    """Two writers of a new customer load its tree for each other in turn, for ever, if each load makes a new one."""
    with LocalKeyService(tmp_path / "keys", slots=4) as service:
        keyring = Keyring(service)
        keyring.create(WHO)
        first = keyring.cached(WHO, 1, 1)
        assert first is not None
        keyring.load(WHO, 1)
        keyring.create(WHO)
        assert keyring.cached(WHO, 1, 1) is first
        service.replace(WHO, 1, KeyTree.generate().to_bytes(), 1)
        keyring.load(WHO, 1)
        assert keyring.cached(WHO, 1, 2) is not first
