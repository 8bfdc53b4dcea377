"""The states of a generation, the length of a hold, and who is dead according to whom: without any database."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from shredsaver import erasure
from shredsaver.erasure import DEAD, DESTROYED, LIVE, PURGED, RESTRICTED, REVOKED
from shredsaver.reconcile import DESTRUCTIONS_UNASKED, Dead, Differences, Reconciliation, Standing, compare, latest

STATES = [LIVE, RESTRICTED, REVOKED, DESTROYED, PURGED]
FOLLOWING = {
    (LIVE, RESTRICTED),
    (RESTRICTED, LIVE),
    (LIVE, REVOKED),
    (RESTRICTED, REVOKED),
    (REVOKED, DESTROYED),
    (DESTROYED, PURGED),
}


@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_no_state_is_skipped_or_taken_back(state: str, to: str) -> None:
    if (state, to) in FOLLOWING:
        assert erasure.advance(state, to) == to
    else:
        with pytest.raises(ValueError, match=f"no generation goes from {state} to {to}"):
            erasure.advance(state, to)


def test_what_is_no_state() -> None:
    with pytest.raises(ValueError, match="from gone to live"):
        erasure.advance("gone", LIVE)
    for purge in (True, False):
        with pytest.raises(ValueError, match="no such state: gone"):
            erasure.remaining("gone", purge=purge)


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        (LIVE, (REVOKED, DESTROYED, PURGED)),
        (RESTRICTED, (REVOKED, DESTROYED, PURGED)),
        (REVOKED, (DESTROYED, PURGED)),
        (DESTROYED, (PURGED,)),
        (PURGED, ()),
    ],
)
def test_the_steps_that_are_left(state: str, steps: tuple[str, ...]) -> None:
    assert erasure.remaining(state, purge=True) == steps
    assert erasure.remaining(state, purge=False) == tuple(step for step in steps if step != PURGED)


def test_the_dead_are_those_that_nothing_brings_back() -> None:
    assert {REVOKED, DESTROYED, PURGED} == DEAD


def test_a_hold_lasts_until_its_end_and_not_at_it() -> None:
    end = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    at = end.timestamp()
    assert erasure.held(end.isoformat(), at - 0.001)
    assert not erasure.held(end.isoformat(), at)
    assert not erasure.held("", at)


# -- who is dead ------------------------------------------------------------------------------------------------------

ONE, TWO = b"1" * 16, b"2" * 16
EARLY, LATE = "2026-01-01T00:00:00.000+00:00", "2026-02-01T00:00:00.000+00:00"


def test_of_each_customer_the_highest_generation_counts_and_its_earliest_time() -> None:
    found = latest(
        [Dead(ONE, 1, EARLY), Dead(ONE, 2, LATE), Dead(ONE, 1, EARLY), Dead(TWO, 1, LATE), Dead(TWO, 1, EARLY)]
    )
    assert found == {ONE: Dead(ONE, 2, LATE), TWO: Dead(TWO, 1, EARLY)}
    assert latest([Dead(ONE, 1, EARLY), Dead(ONE, 1, LATE)]) == {ONE: Dead(ONE, 1, EARLY)}


def test_a_known_time_counts_before_an_unknown_one() -> None:
    for given in ([Dead(ONE, 1, ""), Dead(ONE, 1, LATE)], [Dead(ONE, 1, LATE), Dead(ONE, 1, "")]):
        assert latest(given) == {ONE: Dead(ONE, 1, LATE)}


def test_what_is_destroyed_unasked_is_few() -> None:
    assert DESTRUCTIONS_UNASKED == 10


ALIVE, GONE = Standing(1, dead=False), Standing(1, dead=True)
DEAD_ONE = Dead(ONE, 1, EARLY)


@pytest.mark.parametrize(
    ("keys", "log", "journal", "rows", "revoke", "destroy", "record"),
    [
        ([], [], [], {ONE: ALIVE}, False, False, False),
        ([DEAD_ONE], [DEAD_ONE], [DEAD_ONE], {ONE: GONE}, False, False, False),
        ([DEAD_ONE], [], [], {ONE: ALIVE}, True, False, False),
        ([DEAD_ONE], [], [], {}, True, False, False),
        ([], [DEAD_ONE], [], {ONE: GONE}, False, True, False),
        ([], [DEAD_ONE], [], {ONE: ALIVE}, True, True, False),
        ([], [], [DEAD_ONE], {ONE: ALIVE}, True, True, False),
        ([], [], [], {ONE: GONE}, False, True, False),
        ([DEAD_ONE], [], [], {ONE: GONE}, False, False, True),
        ([DEAD_ONE], [DEAD_ONE], [], {ONE: Standing(2, dead=False)}, False, False, False),
        ([DEAD_ONE], [], [], {ONE: Standing(2, dead=False)}, False, False, True),
        ([DEAD_ONE], [Dead(ONE, 2, LATE)], [], {ONE: Standing(2, dead=True)}, False, True, False),
        ([Dead(ONE, 2, LATE)], [DEAD_ONE], [], {ONE: Standing(2, dead=True)}, False, False, True),
    ],
)
def test_each_record_is_told_what_it_lacks(
    keys: list[Dead],
    log: list[Dead],
    journal: list[Dead],
    rows: dict[bytes, Standing],
    revoke: bool,
    destroy: bool,
    record: bool,
) -> None:
    found = compare(keys, log, journal, {**rows, TWO: ALIVE})
    assert (bool(found.to_revoke), bool(found.to_destroy), bool(found.to_record)) == (revoke, destroy, record)
    assert {dead.customer for part in dataclasses.astuple(found) for dead in [Dead(*one) for one in part]} <= {ONE}
    assert bool(found) == (revoke or destroy or record)


def test_findings_cannot_be_edited_and_begin_as_nothing() -> None:
    nothing = Reconciliation()
    assert not any(dataclasses.astuple(nothing))
    assert {name: kind for name, kind in dataclasses.asdict(nothing).items() if kind is False} == {
        "forked": False,
        "shut": False,
    }
    assert not nothing.changed
    assert not Reconciliation(forked=True).changed
    for name in ("revoked", "destroyed", "unconfirmed", "recorded", "repaired", "shut"):
        assert dataclasses.replace(nothing, **{name: 1}).changed
    for found in (nothing, Differences((), (), ())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(found, dataclasses.fields(found)[0].name, 1)
