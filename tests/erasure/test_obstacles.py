"""What gets in the way of an erasure at one certain step, and what is left to be done then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from shredsaver import (
    CustomerShreddedError,
    FormatError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    LegalHoldError,
    RevocationLogDamagedError,
    ShredIncompleteError,
    UnsealError,
    erasures,
    open_key_service,
    proof,
)
from shredsaver.receipts import verify, verify_chain
from tests.erasure.test_authority import undeletable
from tests.saver.test_key_calls import Observed
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.steps import hooked
from tests.support.targets import Clock, Notes

CALL = Caller("sync")


@pytest.fixture
def service(keys: str) -> Iterator[Observed]:
    with Observed(open_key_service(keys)) as observed:
        observed.failing = frozenset()
        yield observed


def filled(make_shredder: Callable[..., Any], *names: str, **options: Any) -> Any:
    shredder = make_shredder(**options)
    for name in names or ("c-1",):
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": ["text " * 100]})
    return shredder


class When:
    """Calls a function once, at the first step at which a condition holds; its own steps are not looked at."""

    def __init__(self, condition: Callable[[str], bool], function: Callable[[], Any]) -> None:
        self.condition = condition
        self.function = function
        self.state = "waits"

    def __call__(self, step: str) -> None:
        if self.state == "waits":
            self.state = "looks"
            if self.condition(step):
                self.function()
                self.state = "done"
            else:
                self.state = "waits"


def test_a_hold_that_only_the_key_service_knows_protects(make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = filled(make_shredder)
    core = shredder._start().core
    before = backend.contents()
    core.keys.hold(core.token("customer", "c-1"), None, b"")
    with pytest.raises(LegalHoldError):
        shredder.shred("c-1")
    assert backend.contents() == before
    assert shredder.status("c-1").state == "live"


def test_a_hold_set_before_the_second_of_a_batch_lets_the_first_be_finished(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder, other = filled(make_shredder, "c-1", "c-2"), make_shredder()
    hold = When(lambda step: backend.count("erasures") == 1, partial(other.hold, "c-2", "case"))
    with hooked(hold), pytest.raises(LegalHoldError):
        shredder.shred_many(["c-1", "c-2"])
    assert hold.state == "done"
    assert [shredder.status(name).state for name in ("c-1", "c-2")] == ["purged", "live"]
    assert backend.count("receipts") == 1


def test_an_erasure_that_is_cancelled_while_it_is_looked_at_is_not_carried_out(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    clock = Clock()
    shredder, other = filled(make_shredder), make_shredder()
    for one in (shredder, other):
        one._start().core.clock = clock
    shredder.shred("c-1", grace=timedelta(hours=1))
    clock.on(timedelta(hours=2))
    (seen,) = shredder._run(partial(erasures.unfinished, shredder._start().core))
    assert seen.state == "scheduled"
    later = timedelta(hours=-1, minutes=-30)
    clock.on(later)
    other.reinstate("c-1")
    clock.on(-later)
    shredding = shredder._start().shredding
    assert shredder._run(partial(shredding.revoke, seen)).state == "cancelled"
    assert shredder.resume() == []
    assert shredder.status("c-1").state == "live"
    assert backend.count("checkpoints") == 1


def test_a_record_of_the_dead_that_does_not_verify_keeps_nobody_in_use(
    make_shredder: Callable[..., Any], service: Observed
) -> None:
    shredder = filled(make_shredder, keys=service)
    service.error, service.failing = RevocationLogDamagedError("altered"), frozenset({"current", "destroy"})
    with pytest.raises(ShredIncompleteError, match="RevocationLogDamagedError") as caught:
        shredder.shred("c-1")
    assert caught.value.pending == ("destroyed", "purged")
    with pytest.raises(CustomerShreddedError):
        shredder.saver.get_tuple(config("t-c-1", "c-1"))
    service.error = None
    (done,) = shredder.resume()
    assert done.state == "purged"


@pytest.mark.parametrize("error", [KeyServiceUnavailableError("throttled"), KeyAccessDeniedError("denied")])
def test_keys_that_cannot_be_asked_for_are_not_verified_as_gone(
    error: Exception, make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    shredder = filled(make_shredder, "c-1", "c-2", keys=service)
    service.error, service.failing = error, frozenset({"load"})
    with pytest.raises(ShredIncompleteError, match="to be done: verified") as caught:
        shredder.shred_many(["c-1", "c-2"])
    assert caught.value.pending == ("verified",)
    assert isinstance(caught.value.__cause__, type(error))
    assert backend.count("receipts") == 0
    assert [shredder.status(name).state for name in ("c-1", "c-2")] == ["purged", "purged"]
    service.error = None
    done = shredder.resume()
    assert [one.pending for one in done] == [(), ()]
    assert len(verify_chain(list(shredder.receipts()), [shredder.public_key()])) == 2


@pytest.mark.parametrize("table", ["checkpoints", "writes", "parts", "items"])
def test_a_row_that_comes_back_before_the_count_is_told(
    table: str, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder, everything = filled(make_shredder), backend
    at = put(CALL, shredder.saver, config("t-c-1", "c-1"), {"x": 2})
    shredder.saver.put_writes(at, [("x", 3)], "task")
    shredder.store.put(("users", "c-1"), "key", {"said": 1})
    (row, *_) = everything.rows(table)

    def put_back() -> None:
        marks = ", ".join("?" * len(row))
        everything.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    back = When(lambda step: step == "after Run and commit" and not everything.count(table), put_back)
    with hooked(back), pytest.raises(ShredIncompleteError, match=f"still there after the purge: 1 {table}$") as caught:
        shredder.shred("c-1")
    assert back.state == "done"
    assert caught.value.pending == ("purged",)
    everything.execute(f"DELETE FROM {table}")
    (done,) = shredder.resume()
    assert (done.pending, done.after[table]) == ((), 0)


def test_rows_that_cannot_be_deleted_keep_nobody_elses_erasure_waiting(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """The purge of the first fails within its transaction; the next begins one of its own."""
    shredder = filled(make_shredder, "c-1", "c-2")
    thread = shredder._start().core.token("thread", "t-c-1")
    with undeletable(backend, thread), pytest.raises(ShredIncompleteError) as caught:
        call(shredder, "shred_many", ["c-1", "c-2"])
    assert caught.value.pending == ("purged",)
    assert [one.state for one in caught.value.results] == ["destroyed", "purged"]
    assert {row["thread"] for row in backend.rows("checkpoints")} == {thread}
    (done,) = call(shredder, "resume")
    assert (done.state, done.pending) == ("purged", ())


@pytest.mark.parametrize("error", [KeyNotFoundError("lost"), UnsealError("altered"), FormatError("no tree")])
def test_a_lost_key_keeps_the_threads_names_from_the_targets_and_stops_nothing(
    error: Exception, make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    filled(make_shredder)
    notes = Notes()
    shredder = make_shredder(keys=service, targets=[notes])
    service.error, service.failing = error, frozenset({"load"})
    found = When(lambda step: backend.count("erasures") == 1, lambda: setattr(service, "error", None))
    with hooked(found):
        result = shredder.shred("c-1")
    assert found.state == "done"
    assert (result.state, result.pending) == ("purged", ())
    assert [told.thread_ids for told in notes.told] == [()]
    assert verify(result.receipt, shredder.public_key()).payload["what"]["threads_unnamed"] == 1


def test_there_is_one_last_receipt(make_shredder: Callable[..., Any], backend: Backend) -> None:
    """Another process may have issued it while this one still verified."""
    shredder = filled(make_shredder)
    core = shredder._start().core
    result = shredder.shred("c-1")
    token = core.token("customer", "c-1")

    def found() -> Any:
        from shredsaver.db.base import Begin, Commit

        yield Begin("read")
        one = yield from erasures.latest(core, token, 1)
        yield Commit()
        return one

    stood = shredder._run(found)
    before = backend.contents()
    for pending in ((), ("notes",)):
        one = shredder._run(partial(proof.issue, core, stood._replace(state="purged"), pending))
        assert one == stood
    assert backend.contents() == before
    assert list(shredder.receipts()) == [result.receipt]


def test_reasons_are_told_as_codes_or_committed_to(make_shredder: Callable[..., Any]) -> None:
    shredder = filled(make_shredder, "c-1", "c-2")
    coded = verify(shredder.shred("c-1", reason="art-17/2026#118", requested_by="dpo").receipt, shredder.public_key())
    assert coded.payload["why"] == {"reason": {"code": "art-17/2026#118"}, "requested_by": {"code": "dpo"}}
    told = verify(
        shredder.shred("c-2", reason="she asked", requested_by="Ms Meier").receipt, shredder.public_key()
    ).payload["why"]
    assert set(told["reason"]) == set(told["requested_by"]) == {"commitment"}
    assert told["reason"] != told["requested_by"]


@pytest.mark.parametrize("text", ["", "two words", "-x", "x" * 65, "a\nb", "é", ".x"])
def test_what_is_no_code(text: str) -> None:
    assert proof.CODE.fullmatch(text) is None


@pytest.mark.parametrize("text", ["x", "7", "x" * 64, "a.b_c/d:e#f-g"])
def test_what_is_a_code(text: str) -> None:
    assert proof.CODE.fullmatch(text) is not None


def test_what_is_due_is_done_at_its_time_and_not_before(make_shredder: Callable[..., Any]) -> None:
    shredder = filled(make_shredder)
    core = shredder._start().core
    at = float(int(Clock()()))
    core.clock = lambda: at
    waiting = shredder.shred("c-1", grace=timedelta(seconds=60))
    assert datetime.fromisoformat(waiting.due_at) == datetime.fromtimestamp(at + 60, UTC)
    core.clock = lambda: at + 59.99
    assert shredder.resume() == []
    core.clock = lambda: at + 60
    (done,) = shredder.resume()
    assert done.state == "purged"
