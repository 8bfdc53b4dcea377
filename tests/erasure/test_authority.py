"""A consumed grant is never armed again: the ledger is cleared only for threads that are gone, whatever fails.

A grant that was consumed is recorded in a ledger of the application. If the record went while a checkpoint from before
could still be resumed, resuming it would use the grant a second time.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shredsaver import CustomerShreddedError, Shredder, ShredIncompleteError
from shredsaver.targets import SqlLedgerTarget
from tests.support.backends import Backend, PostgresServer, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.steps import hooked
from tests.support.targets import Notes

CALL = Caller("sync")


class Ledger:
    """An application's ledger of consumed grants, one row a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE grants (thread_id TEXT PRIMARY KEY)")
        self.target = SqlLedgerTarget("grants", self.connect, "grants")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def consume(self, thread_id: str) -> None:
        with closing(self.connect()) as connection, connection:
            connection.execute("INSERT OR IGNORE INTO grants VALUES (?)", (thread_id,))

    def recorded(self) -> set[str]:
        with closing(self.connect()) as connection:
            return {row[0] for row in connection.execute("SELECT thread_id FROM grants")}


class Watch:
    """Looks at every moment whether a resumable checkpoint meets a cleared grant."""

    def __init__(self, backend: Backend, ledger: Ledger, key_alive: Callable[[], bool]) -> None:
        self.backend = backend
        self.ledger = ledger
        self.key_alive = key_alive
        self.threads: dict[str, bytes] = {}
        self.looks = 0
        self.looking = False

    def __call__(self, _: str = "") -> None:
        if self.looking:  # what looking itself does is no step of the library's
            return
        self.looking = True
        try:
            self.look()
        finally:
            self.looking = False

    def look(self) -> None:
        self.looks += 1
        recorded = self.ledger.recorded()
        for thread_id, token in self.threads.items():
            if thread_id in recorded:
                continue
            rows = self.backend.execute("SELECT count(*) FROM checkpoints WHERE thread = ?", (token,))[0][0]
            assert not rows, "the grant was cleared while checkpoints of its thread were there"
            assert not self.key_alive(), "the grant was cleared while its thread's keys could be had"


@contextmanager
def undeletable(backend: Backend, thread: bytes) -> Iterator[None]:
    """Deleting a thread's checkpoints fails meanwhile."""
    if backend.kind == "sqlite":
        backend.execute(
            f"CREATE TRIGGER stuck BEFORE DELETE ON checkpoints WHEN OLD.thread = x'{thread.hex()}' "
            "BEGIN SELECT RAISE(ABORT, 'disk is on fire'); END"
        )
    else:
        backend.execute(
            "CREATE OR REPLACE FUNCTION stuck() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.thread = "
            f"'\\x{thread.hex()}' THEN RAISE 'disk is on fire'; END IF; RETURN OLD; END $$"
        )
        backend.execute("CREATE TRIGGER stuck BEFORE DELETE ON checkpoints FOR EACH ROW EXECUTE FUNCTION stuck()")
    try:
        yield
    finally:
        backend.execute("DROP TRIGGER stuck" + ("" if backend.kind == "sqlite" else " ON checkpoints"))


def key_alive(shredder: Any, customer: str) -> bool:
    started = shredder._start()
    try:
        started.core.keys.load(started.core.token("customer", customer), 1)
    except CustomerShreddedError:
        return False
    return True


def test_a_deletion_that_fails_keeps_the_grant_and_the_resumed_erasure_clears_it(
    make_shredder: Callable[..., Any], backend: Backend, home: Path
) -> None:
    ledger = Ledger(home / "ledger.db")
    shredder = make_shredder(targets=[ledger.target])
    token = shredder._start().core.token
    watch = Watch(backend, ledger, lambda: key_alive(shredder, "c-1"))
    for thread_id in ("t-1", "t-2"):
        put(CALL, shredder.saver, config(thread_id), {"x": 1})
        ledger.consume(thread_id)
        watch.threads[thread_id] = token("thread", thread_id)
    with undeletable(backend, token("thread", "t-2")), hooked(watch):
        with pytest.raises(ShredIncompleteError) as caught:
            shredder.shred("c-1")
        assert "purged" in caught.value.pending
        assert ledger.recorded() == {"t-1", "t-2"}
        with pytest.raises(CustomerShreddedError):
            shredder.saver.get_tuple(config("t-2"))
        assert shredder.status("c-1").pending == ("purged", "target:grants")
    with hooked(watch):
        (result,) = shredder.resume()
    assert result.pending == ()
    assert result.targets["grants"]["status"] == "erased"
    assert ledger.recorded() == set()
    assert watch.looks > 20


class Grants(RuleBasedStateMachine):
    """Threads that consume grants, a shred that is cut off anywhere, deletions and targets that fail, restarts."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.home = Path(tempfile.mkdtemp(prefix="shredsaver-", dir=memory if memory.exists() else None))
        self.backend = self.database()
        self.ledger = Ledger(self.home / "ledger.db")
        self.notes = Notes()
        self.shredder: Any = None
        self.asked = False
        self.complete = False

    def database(self) -> Backend:
        return SqliteBackend(self.home / "atlas.sqlite")

    @initialize(threads=st.integers(1, 3))
    def begin(self, threads: int) -> None:
        self.reopen()
        self.watch = Watch(self.backend, self.ledger, lambda: key_alive(self.shredder, "c-1"))
        self.notes.kept["c-1"] = 1
        for number in range(threads):
            self.write(f"t-{number}")

    @rule()
    def reopen(self) -> None:
        if self.shredder is not None:
            self.shredder.close()
        self.shredder = Shredder.open(
            self.backend.url, keys=f"file:{self.home / 'keys'}?slots=1", targets=[self.notes, self.ledger.target]
        )
        self.shredder._start().outside._sleep = lambda _: None

    @precondition(lambda self: not self.asked)
    @rule(number=st.integers(0, 3))
    def write_more(self, number: int) -> None:
        self.write(f"t-{number}")

    def write(self, thread_id: str) -> None:
        put(CALL, self.shredder.saver, config(thread_id), {"x": 1})
        self.ledger.consume(thread_id)
        self.watch.threads[thread_id] = self.shredder._start().core.token("thread", thread_id)

    @rule(
        failure=st.sampled_from(["none", "cut off", "deletion", "notes"]), step=st.integers(1, 60), again=st.booleans()
    )
    def erase(self, failure: str, step: int, again: bool) -> None:
        left = step

        def hook(name: str) -> None:
            nonlocal left
            if self.watch.looking:
                return
            self.watch(name)
            left -= 1
            if failure == "cut off" and not left:
                raise KeyboardInterrupt

        self.asked = True
        self.notes.failures = None if failure == "notes" else 0
        stuck = sorted(self.watch.threads.values())[step % len(self.watch.threads)]
        with contextlib.ExitStack() as stack:
            if failure == "deletion":
                stack.enter_context(undeletable(self.backend, stuck))
            stack.enter_context(hooked(hook))
            try:
                if again:
                    self.shredder.resume()
                else:
                    self.shredder.shred("c-1")
                    self.complete = True
            except (ShredIncompleteError, KeyboardInterrupt):
                pass
        if self.complete:
            assert self.ledger.recorded() == set()
            assert self.notes.kept == {}

    @invariant()
    def no_checkpoint_meets_a_cleared_grant(self) -> None:
        if self.shredder is not None:
            self.watch()

    def teardown(self) -> None:
        try:
            if self.asked:
                self.notes.failures = 0
                result = self.shredder.shred("c-1")
                assert result.pending == ()
                assert self.ledger.recorded() == set()
                rows = self.backend.rows("erasures")
                assert [row["retry"] for row in rows] == [None]
        finally:
            if self.shredder is not None:
                self.shredder.close()
            shutil.rmtree(self.home)


TestGrants = Grants.TestCase
TestGrants.settings = settings(
    max_examples=15, stateful_step_count=6, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
def test_grants_on_postgres(postgres: PostgresServer) -> None:
    class OnPostgres(Grants):
        def database(self) -> Backend:
            return postgres.database()

        def teardown(self) -> None:
            super().teardown()
            postgres.recycle(self.backend)

    run_state_machine_as_test(OnPostgres, settings=settings(TestGrants.settings, max_examples=10))
