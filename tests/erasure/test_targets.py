"""Erasure targets: tried again, told once what they need, reported as they are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from shredsaver import ConfigurationError, ShredIncompleteError
from shredsaver.receipts import verify
from shredsaver.targets import SqlLedgerTarget, VectorStoreTarget
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.steps import hooked
from tests.support.targets import Notes

CALL = Caller("sync")
SOMEBODY = "somebody@example.org"
"""What no erasure's id looks like, nor what is sealed."""


def opened(make_shredder: Callable[..., Any], *targets: Any) -> Any:
    shredder = make_shredder(targets=targets)
    shredder._start().outside._sleep = lambda _: None
    return shredder


def said(shredder: Any, receipt: str) -> Any:
    return verify(receipt, shredder.public_key()).payload


def test_a_target_that_fails_three_times_and_then_works(make_shredder: Callable[..., Any], backend: Backend) -> None:
    notes = Notes(failures=3)
    notes.kept[SOMEBODY] = 2
    shredder = opened(make_shredder, notes)
    put(CALL, shredder.saver, config(customer_id=SOMEBODY), {"x": 1})
    with pytest.raises(ShredIncompleteError) as caught:
        shredder.shred(SOMEBODY)
    assert caught.value.pending == ("target:notes",)
    status = shredder.status(SOMEBODY)
    assert (status.state, status.pending) == ("purged", ("target:notes",))
    first = said(shredder, list(shredder.receipts())[-1])
    assert first["state"] == "pending"
    assert first["pending"] == ["target:notes"]
    assert {name: first["targets"]["notes"][name] for name in ("status", "attempts", "error")} == {
        "status": "failed",
        "attempts": 3,
        "error": "OSError",
    }
    assert shredder.unfinished() == 1
    (row,) = backend.rows("erasures")
    assert row["retry"] is not None
    assert SOMEBODY.encode() not in bytes(row["retry"])

    result = opened(make_shredder, notes).resume()[0]

    assert notes.kept == {}
    assert result.pending == ()
    last = said(shredder, result.receipt)
    assert last["state"] == "complete"
    assert last["targets"]["notes"]["attempts"] == 4
    assert last["targets"]["notes"]["remaining"] == 0
    assert shredder.status(SOMEBODY).pending == ()
    assert shredder.unfinished() == 0
    assert backend.rows("erasures")[0]["retry"] is None
    assert len({context.erasure_id for context in notes.told}) == 1
    assert notes.told[-1].thread_ids == ("t-1",)


def test_a_target_that_fails_for_ever(make_shredder: Callable[..., Any]) -> None:
    notes = Notes(failures=None)
    shredder = opened(make_shredder, notes)
    put(CALL, shredder.saver, config(customer_id=SOMEBODY), {"x": 1})
    for attempts in (3, 6, 9):
        with pytest.raises(ShredIncompleteError) as caught:
            shredder.resume() if attempts > 3 else shredder.shred(SOMEBODY)
        assert caught.value.pending == ("target:notes",)
        receipt = said(shredder, list(shredder.receipts())[-1])
        assert receipt["state"] == "pending"
        assert receipt["when"]["destroyed"] is not None
        assert receipt["targets"]["notes"]["attempts"] == attempts
        assert shredder.status(SOMEBODY).pending == ("target:notes",)
    assert SOMEBODY not in json.dumps(receipt)


def test_each_attempt_waits_twice_as_long_as_the_one_before(make_shredder: Callable[..., Any]) -> None:
    waited: list[float] = []
    shredder = opened(make_shredder, Notes(failures=None))
    shredder._start().outside._sleep = waited.append
    for _ in range(2):
        with pytest.raises(ShredIncompleteError):
            shredder.shred("c-1")
    assert waited == [0.1, 0.2] * 2


def test_what_still_remains_is_not_done(make_shredder: Callable[..., Any]) -> None:
    notes = Notes()
    notes.kept["c-1"] = 2
    notes.erase = notes.told.append  # type: ignore[method-assign]
    shredder = opened(make_shredder, notes)
    with pytest.raises(ShredIncompleteError):
        shredder.shred("c-1")
    receipt = said(shredder, list(shredder.receipts())[-1])
    assert receipt["targets"]["notes"]["remaining"] == 2


def test_each_at_its_time(make_shredder: Callable[..., Any], backend: Backend) -> None:
    seen: list[tuple[str, str, int]] = []
    early, late = Notes("early"), Notes("late", after="verified")
    for target in (early, late):
        target.at_erase = lambda _, name=target.name: seen.append(  # type: ignore[misc]
            (name, backend.rows("customers")[0]["state"], backend.count("checkpoints"))
        )
    shredder = opened(make_shredder, late, early)
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.shred("c-1")
    assert seen == [("early", "destroyed", 1), ("late", "purged", 0)]


class Crash(BaseException):
    """The process ended here."""


def test_cut_off_at_every_step_and_resumed(make_shredder: Callable[..., Any], backend: Backend) -> None:
    notes, later = Notes(), Notes("later", after="verified")
    step = 0
    while True:
        step += 1
        customer = f"c-{step}"
        notes.kept[customer] = later.kept[customer] = 1
        shredder = opened(make_shredder, notes, later)
        put(CALL, shredder.saver, config(f"t-{step}", customer), {"x": 1})
        left = step

        def hook(_: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Crash

        try:
            with hooked(hook):
                shredder.shred(customer)
        except Crash:
            fresh = opened(make_shredder, notes, later)
            fresh.resume()
            result = fresh.shred(customer)
            assert result.pending == ()
            assert customer not in notes.kept
            assert customer not in later.kept
            assert said(fresh, result.receipt)["state"] == "complete"
            fresh.close()
            shredder.close()
            continue
        break
    assert step > 15
    assert all(row["retry"] is None for row in backend.rows("erasures"))
    complete = [one for one in (said(shredder, each) for each in shredder.receipts()) if one["state"] == "complete"]
    assert len({one["erasure"] for one in complete}) == len(complete) == step


def test_an_altered_thread_row_stops_no_erasure(make_shredder: Callable[..., Any], backend: Backend) -> None:
    notes = Notes()
    shredder = opened(make_shredder, notes)
    for thread in ("t-1", "t-2"):
        put(CALL, shredder.saver, config(thread), {"x": 1})
    backend.execute(
        "UPDATE threads SET name = ? WHERE thread = ?", (b"x" * 40, shredder._start().core.token("thread", "t-1"))
    )
    result = shredder.shred("c-1")
    assert notes.told[0].thread_ids == ("t-2",)
    assert said(shredder, result.receipt)["what"]["threads_unnamed"] == 1


def test_a_process_without_the_targets_leaves_them_to_one_with(make_shredder: Callable[..., Any]) -> None:
    notes = Notes(failures=3)
    shredder = opened(make_shredder, notes)
    with pytest.raises(ShredIncompleteError):
        shredder.shred("c-1")
    with pytest.raises(ShredIncompleteError):
        make_shredder().resume()
    assert make_shredder().status("c-1").pending == ("target:notes",)
    assert opened(make_shredder, notes).resume()[0].pending == ()


def test_documents_of_a_vector_store(make_shredder: Callable[..., Any]) -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    store.add_documents(
        [Document(f"text {number}", metadata={"customer": f"c-{number % 2}"}) for number in range(6)],
        ids=[str(number) for number in range(6)],
    )

    def find(found: InMemoryVectorStore, customer_id: str) -> list[str]:
        return [key for key, doc in found.store.items() if doc["metadata"]["customer"] == customer_id]

    target = VectorStoreTarget("documents", store, find)
    result = opened(make_shredder, target).shred("c-1")
    assert sorted(store.store) == ["0", "2", "4"]
    assert result.targets["documents"]["status"] == "erased"


def test_a_ledger_of_grants_in_either_database(make_shredder: Callable[..., Any], backend: Backend) -> None:
    driver: Any = sqlite3 if backend.kind == "sqlite" else psycopg
    mark, table = ("?", "main.grants") if driver is sqlite3 else ("%s", "ledger.grants")
    if driver is psycopg:
        backend.execute("CREATE SCHEMA ledger")
    backend.execute(f"CREATE TABLE {table} (thread_id TEXT)")
    target = SqlLedgerTarget("grants", lambda: driver.connect(backend.url), table, placeholder=mark)
    shredder = opened(make_shredder, target)
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-1"), ("t-3", "c-2")):
        put(CALL, shredder.saver, config(thread, customer), {"x": 1})
        backend.execute(f"INSERT INTO {table} VALUES (?)", (thread,))
    result = shredder.shred("c-1")
    assert result.targets["grants"] == {**result.targets["grants"], "status": "erased", "attempts": 1, "remaining": 0}
    assert backend.execute(f"SELECT thread_id FROM {table}") == [("t-3",)]
    assert shredder.audit("c-2").routes["target grants"].rows == 1


@pytest.mark.parametrize(
    "targets",
    [
        [Notes(), Notes()],
        [Notes(after="whenever")],  # type: ignore[arg-type]
    ],
)
def test_targets_that_cannot_work_are_refused(make_shredder: Callable[..., Any], targets: list[Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_shredder(targets=targets)


@pytest.mark.parametrize(("table", "mark"), [("grants; DROP TABLE x", "?"), ("grants", "$1")])
def test_a_ledger_takes_plain_names(table: str, mark: str) -> None:
    with pytest.raises(ConfigurationError):
        SqlLedgerTarget("grants", lambda: None, table, placeholder=mark)
