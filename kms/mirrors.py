"""A key store kept alike in several directories, so that losing one disk loses no customer.

`MirroredDatabase` runs a plan on the first copy and repeats what it wrote on the others before anyone hears of it.
`bring_together` compares the copies when they are opened, and overwrites those that were left behind.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from shredsaver.db.base import (
    Begin,
    Commit,
    Effect,
    Plan,
    PlanFactory,
    Rollback,
    Run,
    Statement,
    T,
    run,
)
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import DatabaseUnavailableError, KeyServiceUnavailableError, KeyStoreStaleError
from shredsaver.kms import deadlog, schema
from shredsaver.kms._steps import step
from shredsaver.kms.locking import locked
from shredsaver.kms.roots import Anchor
from shredsaver.kms.rootsfile import copy_roots

_CHANGES: Final = "changes"


class State(NamedTuple):
    """How far a copy of the key store has come."""

    changes: int
    store: bytes
    log: Anchor
    copies: int


class MirroredDatabase:
    """A `Database` that writes to every copy, in the same order everywhere.

    Args:
        copies: Drivers of the copies; the first is the one that is read.
        lock: Lock file that every writer of these copies takes.
    """

    def __init__(self, copies: Sequence[SqliteDatabase], lock: Path) -> None:
        self._first, *self._others = copies
        self._lock = lock

    @property
    def location(self) -> str:
        """Where the first copy is."""
        return self._first.location

    def run(self, factory: PlanFactory[T]) -> T:
        """Runs a plan on the first copy and what it wrote on the others. See `Database.run`.

        Raises:
            KeyServiceUnavailableError: Another copy cannot be written, or fell behind. What the plan wrote stands in
                the first copy; opening the key service again brings the others up to it.
        """
        with ExitStack() as held:
            written: list[Statement] = []
            before: list[int] = []

            def attempt() -> Plan[T]:
                held.close()
                written.clear()
                before.clear()
                return self._watched(factory, held, written, before)

            answer = self._first.run(attempt)
            if before:
                step("mirror")
                for other in self._others:
                    self._repeat(other, written, before[-1])
                    step("mirrored")
            return answer

    async def arun(self, factory: PlanFactory[T]) -> T:
        """As `run`, on another thread."""
        return await asyncio.to_thread(self.run, factory)

    def fingerprint(self) -> str:
        """Tells the first copy from a copy or restore of it."""
        return self._first.fingerprint()

    def in_step(self) -> None:
        """Raises unless every copy has all that the first has.

        Raises:
            KeyServiceUnavailableError: One has not.
        """
        with locked(self._lock):
            there = [copy.run(state) for copy in (self._first, *self._others)]
        for found, copy in zip(there, (self._first, *self._others), strict=True):
            if found != there[0]:
                raise _behind(copy)

    def close(self) -> None:
        """Closes every copy."""
        for copy in (self._first, *self._others):
            copy.close()

    async def aclose(self) -> None:
        """As `close`, on another thread."""
        await asyncio.to_thread(self.close)

    def _watched(
        self, factory: PlanFactory[T], held: ExitStack, written: list[Statement], before: list[int]
    ) -> Plan[T]:
        """The plan, with its writing statements noted and a counter moved on in each of its transactions."""
        plan = factory()
        writing = False
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                effect: Effect = plan.send(answer) if failure is None else plan.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            failure = None
            if isinstance(effect, Begin) and effect.mode == "write":
                if before:
                    raise RuntimeError("a plan over mirrors has one writing transaction")
                held.enter_context(locked(self._lock))
                writing = True
            try:
                answer = yield from self._passed(effect, writing, written, before)
            except BaseException as error:  # noqa: BLE001 - the plan's own affair: it is thrown into it
                failure = error
            if isinstance(effect, Rollback | Commit) or (isinstance(effect, Run) and effect.commit):
                writing = False

    @staticmethod
    def _passed(effect: Effect, writing: bool, written: list[Statement], before: list[int]) -> Plan[Any]:
        if not writing or isinstance(effect, Begin | Rollback):
            answer = yield effect
            return answer
        statements: Sequence[Statement] = effect.statements if isinstance(effect, Run) else ()
        ends = isinstance(effect, Commit) or (isinstance(effect, Run) and effect.commit)
        answer = (yield Run(statements)) if statements else []
        changes = [each for each in statements if not each.sql.sqlite.startswith("SELECT")]
        if not ends:
            written += changes
            return answer
        (found,) = yield from run(Statement(schema.META_GET, (_CHANGES,)))
        number = int(bytes(found.rows[0][0]))
        yield Run([_moved_on(number)], commit=True)
        # Only now: what was rolled back is repeated nowhere.
        written += changes
        before.append(number)
        return answer if isinstance(effect, Run) else None

    def _repeat(self, other: SqliteDatabase, written: Sequence[Statement], before: int) -> None:
        try:
            if other.run(partial(_again, tuple(written), before)):
                return
            # Another process wrote to the first copy and ended before it came to this one. Its roots are not touched:
            # they are the business of rotations, one of which may be at work now.
            if self._first.run(partial(_follows, other.run(state))):
                copy_rows(Path(self._first.location), Path(other.location))
                return
        except (DatabaseUnavailableError, sqlite3.Error) as error:
            raise KeyServiceUnavailableError(f"the mirror {other.location} cannot be written: {error}") from error
        raise _behind(other)


def state() -> Plan[State]:
    """How far a copy has come, all in one snapshot."""
    yield Begin("read")
    changes, store, log, copies = yield from run(
        Statement(schema.META_GET, (_CHANGES,)),
        Statement(schema.META_GET, ("store",)),
        Statement(schema.LOG),
        Statement(schema.META_GET, ("copies",)),
        commit=True,
    )
    length, head = log.rows[0]
    number, identity, count = (bytes(each.rows[0][0]) if each.rows else b"" for each in (changes, store, copies))
    return State(int(number or 0), identity, Anchor(length, bytes(head)), int(count or 1))


def begin(copies: int) -> Plan[None]:
    """Starts a copy's counter of changes, and notes how many copies there are."""
    yield Begin("write")
    yield from run(
        Statement(schema.META_ADD, (_CHANGES, b"0")),
        Statement(schema.META_PUT, ("copies", str(copies).encode())),
        commit=True,
    )


def _again(written: Sequence[Statement], before: int) -> Plan[bool]:
    yield Begin("write")
    (found,) = yield from run(Statement(schema.META_GET, (_CHANGES,)))
    if not found.rows or int(bytes(found.rows[0][0])) != before:
        yield Rollback()
        return False
    yield from run(*written, _moved_on(before), commit=True)
    return True


def _moved_on(number: int) -> Statement:
    return Statement(schema.META_PUT, (_CHANGES, str(number + 1).encode()))


def _behind(copy: SqliteDatabase) -> KeyServiceUnavailableError:
    return KeyServiceUnavailableError(
        f"the mirror {copy.location} fell behind; no root is destroyed before it is brought up to the others, which "
        "opening the key service again does"
    )


def copy_rows(source: Path, target: Path) -> None:
    """Makes a copy's rows equal to another's, in one transaction."""
    with closing(sqlite3.connect(source)) as good, closing(sqlite3.connect(target)) as copy:
        for pragma in ("journal_mode=TRUNCATE", "synchronous=FULL", "secure_delete=ON", "busy_timeout=30000"):
            copy.execute(f"PRAGMA {pragma}").close()
        good.backup(copy)
    step("mirror-rows")


def bring_together(copies: Sequence[tuple[SqliteDatabase, Path]]) -> None:
    """Overwrites the copies that were left behind with the one that has come furthest.

    The caller holds the locks of rotations and of writers. Roots in a file that was left behind are not its business:
    `LocalRoots.check` writes those that are missing, `LocalRoots.sweep` zeroes those that are dead.

    Args:
        copies: Driver and file of roots of each copy, with tables made.

    Raises:
        KeyStoreStaleError: They are copies of different key stores, or two of them went on without each other.
    """
    found = [database.run(state) for database, _ in copies]
    best = max(range(len(found)), key=lambda i: (found[i].changes, found[i].log.length, -i))
    source, roots = copies[best]
    for (database, its_roots), each in zip(copies, found, strict=True):
        if each.store not in (b"", found[best].store) or not source.run(partial(_follows, each)):
            raise KeyStoreStaleError(
                f"{database.location} and {source.location} are no mirrors of each other, or went on without each "
                "other: find out which one is right, and give an empty directory in place of the other"
            )
        if roots.exists() and not its_roots.exists():
            copy_roots(roots, its_roots)
        if each != found[best]:
            copy_rows(Path(source.location), Path(database.location))


def _follows(earlier: State) -> Plan[bool]:
    """Whether this copy's log of the dead begins with that of an earlier copy."""
    yield Begin("read")
    entry = None
    if earlier.log.length:
        (found,) = yield from run(Statement(schema.TOMBSTONE_AT, (earlier.log.length,)))
        entry = deadlog.entries(found.rows)[0] if found.rows else None
    yield Commit()
    return not earlier.log.length or (entry is not None and entry.chain == earlier.log.head)
