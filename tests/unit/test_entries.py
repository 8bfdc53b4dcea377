"""Entries of the log of erasures: what becomes of two that two processes have of one erasure, and the chain."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import msgpack
import pytest

from shredsaver import RevocationLogDamagedError
from shredsaver.core import Erasure, shredded
from shredsaver.erasures import CANCELLED, COMPLETE, SCHEDULED, merged
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

STATES = (SCHEDULED, "revoked", "destroyed", "purged", COMPLETE, CANCELLED)


def entry(state: str = "revoked", generation: int = 1, **record: Any) -> Erasure:
    return Erasure(7, "id", b"c" * 16, generation, state, record)


@pytest.mark.parametrize(("stored", "mine"), list(product(STATES[:4], STATES)))
def test_whoever_is_further_is_right(stored: str, mine: str) -> None:
    assert merged(entry(stored), entry(mine)).state == max(stored, mine, key=STATES.index)


@pytest.mark.parametrize("state", [COMPLETE, CANCELLED])
def test_what_has_ended_stays_as_it_is(state: str) -> None:
    ended = entry(state, 2, purged_at="then", targets={"notes": {"status": "failed"}})
    assert merged(ended, entry("purged", 3, purged_at="now", verified_at="now")) == ended


@pytest.mark.parametrize(("stored", "mine"), [(1, 2), (2, 1), (2, 2)])
def test_the_later_generation_is_right(stored: int, mine: int) -> None:
    found = merged(entry(generation=stored), entry(generation=mine))
    assert (found.generation, found.seq, found.erasure_id, found.customer) == (2, 7, "id", b"c" * 16)


@pytest.mark.parametrize("name", ["revoked_at", "destroyed_at", "purged_at", "before"])
def test_what_was_noted_first_stands(name: str) -> None:
    assert merged(entry(**{name: "first"}), entry(**{name: "second"})).record == {name: "first"}
    for nothing in ({}, {name: None}):
        assert merged(entry(**nothing), entry(**{name: "second"})).record == {name: "second"}
    assert merged(entry(**{name: "first"}), entry()).record == {name: "first"}


@pytest.mark.parametrize("name", ["after", "verified_at", "verification", "destruction", "known"])
def test_of_everything_else_the_last_word_counts(name: str) -> None:
    assert merged(entry(**{name: "first"}), entry(**{name: "second"})).record == {name: "second"}
    assert merged(entry(**{name: "first"}), entry()).record == {name: "first"}


def test_a_target_that_is_done_stays_done_and_none_is_forgotten() -> None:
    done, failed, again = ({"status": status, "attempts": n} for n, status in enumerate(("erased", "failed", "failed")))
    stored = entry(targets={"done": done, "worse": failed, "theirs": failed})
    mine = entry(targets={"done": failed, "worse": again, "mine": done})
    assert merged(stored, mine).record["targets"] == {"done": done, "worse": again, "theirs": failed, "mine": done}
    assert merged(stored, entry()).record["targets"] == stored.record["targets"]
    assert merged(entry(), mine).record["targets"] == mine.record["targets"]
    assert merged(entry(), entry()).record == {}


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_the_chain_is_the_one_of_the_format(make_shredder: Callable[..., Any], backend: Backend) -> None:
    """Computed from the rows and the log key, with nothing of the library's."""
    shredder = make_shredder()
    shredder.shred_many(["c-1", "c-2"])
    put(Caller("sync"), shredder.saver, config(customer_id="c-4"), {"x": 1})
    shredder.restrict("c-4")
    shredder.shred("c-3")
    core = shredder._start().core
    previous = b""
    for number, row in enumerate(sorted(backend.rows("erasures"), key=lambda row: row["seq"]), 1):
        assert row["seq"] == number
        requested = msgpack.unpackb(row["record"])["requested_at"]
        said = ["erasure-log", core.deployment, previous, number, row["erasure_id"], row["customer"], requested]
        previous = hmac.digest(core.secrets.log_key, msgpack.packb(said), hashlib.sha256)
        assert row["chain"] == previous
    assert number == shredder.check_log() == 3
    counters = [row for row in backend.rows("counters") if not row["customer"]]
    assert {(row["generation"], row["scope"]): row["next"] for row in counters} == {(0, 0): 4, (0, 1): 4, (0, 2): 2}


def test_an_erasure_is_told_with_its_time_and_without() -> None:
    customer = (b"c" * 16).hex()
    told = shredded(entry(revoked_at="2026-01-02T03:04:05+00:00"))
    assert str(told) == f"customer {customer} was shredded at 2026-01-02T03:04:05+00:00 (erasure id)"
    assert (told.shredded_at, told.erasure_id) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "id")
    told = shredded(entry())
    assert str(told) == f"customer {customer} was shredded (erasure id)"
    assert (told.shredded_at, told.erasure_id) == (None, "id")


@pytest.mark.parametrize(
    ("key", "name"), [(b"c" * 16, (b"c" * 16).hex()), ("text", "of no name"), (None, "of no name")]
)
def test_an_altered_row_of_customers_is_named_by_its_token_if_it_has_one(
    make_shredder: Callable[..., Any], key: Any, name: str
) -> None:
    core = make_shredder()._start().core
    with pytest.raises(RevocationLogDamagedError, match=f"the row of customer {name} in customers was altered"):
        core.customer((key, 1, "live", 1, "", b"no MAC"))
