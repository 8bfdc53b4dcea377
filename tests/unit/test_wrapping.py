"""Wrapped keys and sealed secrets open in their place alone; tombstones follow only what they followed."""

from __future__ import annotations

import pytest

from shredsaver.errors import UnsealError
from shredsaver.kms.wrapping import (
    ZEROS,
    Entry,
    Store,
    Wrapped,
    chain,
    chained,
    seal_secret,
    unseal_secret,
    unwrap,
    wrap,
)

STORE = Store(b"s" * 16, b"d" * 16)
ROW = Wrapped(3, b"c" * 16, 2, 7, 5, b"")
ROOT, KEY = b"r" * 32, b"k" * 32
ENTRY = Entry(4, b"c" * 16, 2, "2026-01-01T00:00:00.000Z", 1, 3, 5, 7, b"")
PLACES = [
    ("slot", 4),
    ("customer", b"e" * 16),
    ("customer", b""),
    ("generation", 1),
    ("epoch", 8),
    ("key_version", 4),
]


def test_a_wrapped_key_opens_in_its_place() -> None:
    row = wrap(STORE, ROOT, KEY, ROW)
    assert unwrap(STORE, ROOT, row) == KEY
    assert KEY not in row.wrapped
    assert wrap(STORE, ROOT, KEY, ROW).wrapped != row.wrapped


@pytest.mark.parametrize(("name", "value"), PLACES)
def test_a_wrapped_key_opens_nowhere_else(name: str, value: object) -> None:
    row = wrap(STORE, ROOT, KEY, ROW)
    with pytest.raises(UnsealError):
        unwrap(STORE, ROOT, row._replace(**{name: value}))


@pytest.mark.parametrize("store", [STORE._replace(store=b"x" * 16), STORE._replace(deployment=b"x" * 16)])
def test_a_wrapped_key_opens_in_no_other_store(store: Store) -> None:
    with pytest.raises(UnsealError):
        unwrap(store, ROOT, wrap(STORE, ROOT, KEY, ROW))
    with pytest.raises(UnsealError):
        unseal_secret(store, KEY, ROW, seal_secret(STORE, KEY, ROW, b"secret"))


def test_a_wrapped_key_opens_under_its_root_alone_and_is_a_key() -> None:
    with pytest.raises(UnsealError):
        unwrap(STORE, b"x" * 32, wrap(STORE, ROOT, KEY, ROW))
    with pytest.raises(UnsealError, match="32 bytes"):
        unwrap(STORE, ROOT, wrap(STORE, ROOT, KEY[:31], ROW))


def test_a_secret_is_bound_to_customer_generation_and_version_but_to_no_root() -> None:
    sealed = seal_secret(STORE, KEY, ROW, b"secret")
    assert unseal_secret(STORE, KEY, ROW._replace(slot=9, epoch=99), sealed) == b"secret"
    for name, value in (("customer", b"e" * 16), ("generation", 1), ("key_version", 4)):
        with pytest.raises(UnsealError):
            unseal_secret(STORE, KEY, ROW._replace(**{name: value}), sealed)
    # A secret does not pass for a wrapped key, nor the other way round.
    with pytest.raises(UnsealError):
        unwrap(STORE, KEY, ROW._replace(wrapped=seal_secret(STORE, KEY, ROW, KEY)))


def test_a_tombstone_is_chained_to_all_it_says_and_to_the_one_before() -> None:
    entry = ENTRY._replace(chain=chain(b"l" * 32, ZEROS, ENTRY))
    assert chained(b"l" * 32, ZEROS, entry)
    assert not chained(b"m" * 32, ZEROS, entry)
    assert not chained(b"l" * 32, b"\1" * 32, entry)
    for name in Entry._fields:
        value = getattr(entry, name)
        other = value + 1 if isinstance(value, int) else value[:-1] + ("X" if isinstance(value, str) else b"X")
        assert not chained(b"l" * 32, ZEROS, entry._replace(**{name: other})), name
