"""How an erasure begins: whom it concerns, what is refused whole, and what is done once only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shredsaver import (
    DatabaseUnavailableError,
    KeyAccessDeniedError,
    KeyServiceUnavailableError,
    LegalHoldError,
    RevocationLogDamagedError,
    ShredIncompleteError,
    open_key_service,
)
from tests.erasure.test_obstacles import When, filled
from tests.saver.test_key_calls import Observed
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.steps import hooked
from tests.support.targets import Notes

CALL = Caller("sync")
THREE = ("c-1", "c-2", "c-3")


@pytest.fixture
def service(keys: str) -> Iterator[Observed]:
    with Observed(open_key_service(keys)) as observed:
        observed.failing = frozenset()
        yield observed


def states(shredder: Any, *names: str) -> list[str]:
    return [shredder.status(name).state for name in names]


def test_who_came_back_is_shredded_once_and_as_who_they_are_now(
    make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    shredder = filled(make_shredder, keys=service)
    first = shredder.shred("c-1")
    shredder.enrol("c-1")
    put(CALL, shredder.saver, config("t-c-1"), {"x": "again"})
    service.error, service.failing = KeyServiceUnavailableError("throttled"), frozenset({"destroy"})
    for _ in range(2):
        with pytest.raises(ShredIncompleteError):
            shredder.shred("c-1")
        (row,) = backend.rows("customers")
        assert (row["generation"], row["state"], row["name"]) == (2, "revoked", None)
        assert sorted(row["generation"] for row in backend.rows("erasures")) == [1, 2]
    service.error = None
    second = shredder.shred("c-1")
    assert (second.state, second.generation, second.pending) == ("purged", 2, ())
    assert second.erasure_id != first.erasure_id
    assert backend.count("erasures") == 2
    assert shredder.shred("c-1") == second


@pytest.mark.parametrize("name", THREE[:2])
@pytest.mark.parametrize("known_to", ["database", "key service"])
def test_a_batch_is_refused_whole_for_a_hold_that_one_record_knows(
    known_to: str, name: str, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = filled(make_shredder, *THREE)
    core = shredder._start().core
    token = core.token("customer", name)
    if known_to == "database":
        shredder.hold(name, "case")
        core.keys.release(token)
    else:
        core.keys.hold(token, None, b"")
    before = backend.contents()
    with pytest.raises(LegalHoldError, match=f"customer {token.hex()} is under a hold"):
        shredder.shred_many(THREE)
    assert backend.contents() == before
    assert states(shredder, *THREE) == ["live"] * 3
    shredder.shred_many([one for one in THREE if one != name])
    assert states(shredder, *THREE) == ["live" if one == name else "purged" for one in THREE]


def test_a_hold_that_the_key_service_is_given_late_protects_whom_it_names_and_nobody_else(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = filled(make_shredder, *THREE)
    core = shredder._start().core
    token = core.token("customer", "c-2")
    late = When(lambda _: backend.count("erasures") == 3, partial(core.keys.hold, token, None, b""))
    with hooked(late), pytest.raises(ShredIncompleteError, match=r"^the keys of 1 customers .* \(LegalHoldError\)"):
        shredder.shred_many(THREE)
    assert late.state == "done"
    assert states(shredder, *THREE) == ["purged", "revoked", "purged"]
    core.keys.release(token)
    (done,) = shredder.resume()
    assert (done.state, done.pending, done.customer) == ("purged", (), token.hex())


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnavailableError("the key store's database is away"),
        KeyServiceUnavailableError("throttled"),
        KeyAccessDeniedError("denied"),
        RevocationLogDamagedError("altered"),
    ],
)
def test_whatever_keeps_keys_from_being_destroyed_the_customer_is_out_of_use(
    error: Exception, make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    shredder = filled(make_shredder, "c-1", "c-2", keys=service)
    service.error, service.failing = error, frozenset({"destroy"})
    name = type(error).__name__
    with pytest.raises(ShredIncompleteError, match=rf"^the keys of 2 customers .* \({name}\)") as caught:
        shredder.shred_many(["c-1", "c-2"])
    assert caught.value.pending == ("destroyed", "purged")
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is error
    assert [one.state for one in caught.value.results] == ["revoked"] * 2
    assert [one.destroyed_at for one in caught.value.results] == [None] * 2
    assert backend.count("receipts") == 0
    service.error = None
    assert [one.state for one in shredder.resume()] == ["purged"] * 2


@pytest.mark.parametrize("purge", [True, False])
def test_a_sealed_name_is_kept_as_long_as_an_erasure_can_be_taken_back(
    purge: bool, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = filled(make_shredder)
    (before,) = backend.rows("customers")
    shredder.shred("c-1", grace=timedelta(days=1), purge=purge)
    (waiting,) = backend.rows("customers")
    assert waiting["name"] == before["name"] is not None
    shredder.shred("c-1")
    (after,) = backend.rows("customers")
    assert after["name"] is None


def test_free_text_is_sealed_under_the_erasure_it_belongs_to(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = filled(make_shredder)
    result = shredder.shred("c-1", reason="she asked", requested_by="Ms Meier")
    core = shredder._start().core
    (row,) = backend.rows("erasures")
    record = msgpack.unpackb(row["record"])
    for kind, text in (("reason", "she asked"), ("requested_by", "Ms Meier")):
        sealed = bytes.fromhex(record[kind]["sealed"])
        assert core.unseal_own(kind, result.erasure_id, sealed).decode() == text


def test_a_second_shred_is_the_first_one_and_changes_nothing(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    notes = Notes()
    shredder = filled(make_shredder, targets=[notes])
    first = shredder.shred("c-1", reason="art-17")
    before = backend.contents()
    for options in ({}, {"grace": timedelta(days=1)}, {"defer": True}, {"purge": False, "reason": "other"}):
        assert shredder.shred("c-1", **options) == first
    assert shredder.shred_many(["c-1", "c-1"]) == [first]
    assert backend.contents() == before
    assert len(notes.told) == 1


def test_targets_are_told_the_threads_by_a_process_that_has_not_met_the_customer(
    make_shredder: Callable[..., Any],
) -> None:
    filled(make_shredder)
    notes = Notes()
    make_shredder(targets=[notes]).shred("c-1")
    assert [(told.customer_id, told.thread_ids) for told in notes.told] == [("c-1", ("t-c-1",))]


def test_who_is_known_to_the_database_is_known_though_the_keys_are_lost(
    make_shredder: Callable[..., Any], home: Path
) -> None:
    shredder = filled(make_shredder)
    store = SqliteBackend(home / "keys" / "keys.db")
    for table in ("key_wraps", "key_trees"):
        store.execute(f"DELETE FROM {table} WHERE customer = ?", (bytes.fromhex(shredder.status("c-1").customer),))
    result = shredder.shred("c-1")
    assert (result.known, result.destruction["known"], result.state) == (True, False, "purged")


def test_who_was_never_seen_is_erased_once(
    make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    shredder = make_shredder(keys=service)
    service.error, service.failing = KeyServiceUnavailableError("throttled"), frozenset({"destroy"})
    for _ in range(2):
        with pytest.raises(ShredIncompleteError):
            shredder.shred("nobody")
        (row,) = backend.rows("customers")
        assert (row["generation"], row["state"], row["key_version"], row["name"]) == (1, "revoked", 0, None)
        assert backend.count("erasures") == 1
    service.error = None
    assert shredder.shred("nobody").pending == ()
