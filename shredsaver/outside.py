"""Running erasure targets: with retries, their state kept, and what a retry needs sealed until all is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from shredsaver import erasure, erasures
from shredsaver.core import Core, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Statement, call, run, sql
from shredsaver.errors import FormatError, UnsealError
from shredsaver.keytree import KeyTree
from shredsaver.memory import Place
from shredsaver.targets import REVOKED, VERIFIED, ErasureContext, ErasureTarget
from shredsaver.threads import open_name

ATTEMPTS: Final = 3
FIRST_DELAY: Final = 0.1
"""Seconds before the second attempt; each further one waits twice as long."""

FAILED: Final = "failed"
NOT_ASKED: Final = "not asked"
"""An erasure that a restore made necessary again knows a token only: targets cannot be asked by that."""

NAMES_OF_THREADS: Final = sql(
    "SELECT thread, customer, generation, scope, next_record, next_part, epoch, name FROM threads "
    "WHERE customer = ? AND generation <= ? AND scope > 0"
)
ROWS_OF_THREAD: Final = tuple(
    sql(f"SELECT count(*) FROM {table} WHERE thread = ? AND generation <= ?")
    for table in ("checkpoints", "writes", "parts")
)


class Outside:
    """The targets of a deployment."""

    def __init__(
        self, core: Core, targets: Sequence[ErasureTarget], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._core = core
        self._targets = targets
        self._sleep = sleep

    @property
    def names(self) -> list[str]:
        """The targets' names, in the order in which they erase."""
        return [target.name for target in self._targets]

    def remember(
        self, erasure_id: str, token: bytes, generation: int, customer_id: str, tree: KeyTree | None
    ) -> Plan[tuple[bytes | None, int]]:
        """Seals what the targets will have to know, within the transaction that revokes. None without targets.

        Also gives how many threads cannot be named, because a row was altered or the key is lost: they are erased like
        all others, but no target can be told of them.
        """
        if not self._targets:
            return None, 0
        thread_ids, unnamed = yield from self._thread_ids(token, generation, tree)
        data = json.dumps([customer_id, thread_ids]).encode("ascii")
        return self._core.seal_own("retry", erasure_id, data), unnamed

    def _thread_ids(self, token: bytes, generation: int, tree: KeyTree | None) -> Plan[tuple[list[str], int]]:
        """The ids of a customer's threads, within the open transaction, and how many have none that opens."""
        thread_ids: list[str] = []
        unnamed = 0
        (found,) = yield from run(Statement(NAMES_OF_THREADS, (token, generation)))
        for *place, name in found.rows:
            stands = Place(*place)
            if stands.generation != generation:
                continue
            try:
                if tree is None:
                    raise UnsealError("the key is lost")
                thread_ids.append(open_name(self._core, tree, stands, name))
            except (UnsealError, FormatError):
                unnamed += 1
        return thread_ids, unnamed

    def count(
        self, token: bytes, generation: int, customer_id: str | None, tree: KeyTree | None, erasure_id: str | None
    ) -> Plan[dict[str, int | None]]:
        """What each target still has of a customer; None for one that does not answer.

        The threads are those of the customer's living generation, or what an erasure that goes on keeps for its
        targets; that also tells the id where it is not given. Of whom nobody knows the id, no target is asked.
        """
        if not self._targets:
            return {}
        yield Begin("read")
        thread_ids: list[str] = []
        if tree is not None:
            thread_ids, _ = yield from self._thread_ids(token, generation, tree)
        elif erasure_id is not None:
            (found,) = yield from run(Statement(erasures.GET_RETRY, (erasure_id,)))
            if found.rows and found.rows[0][0] is not None:
                kept = self._core.unseal_own("retry", erasure_id, bytes(found.rows[0][0]))
                customer_id, thread_ids = json.loads(kept)
        yield Commit()
        if customer_id is None:
            return {}
        context = ErasureContext(erasure_id or "", customer_id, tuple(thread_ids))
        counts: dict[str, int | None] = {}
        for target in self._targets:
            counts[target.name] = yield from call(partial(_remaining, target, context))
        return counts

    def erase(self, one: Erasure, after: str) -> Plan[Erasure]:
        """Asks the targets of one stage that have not erased yet. Failures are kept in the entry, not raised."""
        states: dict[str, Any] = dict(one.record.get("targets", {}))
        wanted = one.record.get("target_names")
        waiting = [
            target
            for target in self._targets
            if target.after == after
            and (wanted is None or target.name in wanted)
            and states.get(target.name, {}).get("status") not in (erasures.ERASED, NOT_ASKED)
        ]
        if not waiting:
            return one
        if wanted is None:
            return (yield from self._all(one, waiting, {"status": NOT_ASKED, "attempts": 0, "remaining": -1}))
        try:
            context = yield from self._context(one, after)
        except (UnsealError, FormatError) as error:
            failed = {"status": FAILED, "attempts": 0, "remaining": -1, "error": type(error).__name__}
            return (yield from self._all(one, waiting, failed))
        if context is None:  # another process has completed the erasure, and wiped what targets need
            return (yield from erasures.advance(self._core, one))
        for target in waiting:
            tried = states.get(target.name, {}).get("attempts", 0)
            outcome = yield from call(partial(self._attempt, target, context))
            outcome["attempts"] += tried
            states[target.name] = {**outcome, "after": after, "at": erasures.now(self._core)}
            one = one._replace(record={**one.record, "targets": dict(states)})
            one = yield from erasures.advance(self._core, one)
            states = dict(one.record["targets"])
        return one

    def _all(self, one: Erasure, targets: Sequence[ErasureTarget], outcome: dict[str, Any]) -> Plan[Erasure]:
        """Notes one outcome for several targets."""
        at = erasures.now(self._core)
        states = {target.name: {**outcome, "after": target.after, "at": at} for target in targets}
        record = {**one.record, "targets": {**one.record.get("targets", {}), **states}}
        return (yield from erasures.advance(self._core, one._replace(record=record)))

    def pending(self, one: Erasure) -> tuple[str, ...]:
        """The targets that have not erased yet, as steps."""
        states = one.record.get("targets", {})
        wanted = [*dict.fromkeys((*one.record.get("target_names", ()), *states))]
        done = (erasures.ERASED, NOT_ASKED)
        return tuple(f"target:{name}" for name in wanted if states.get(name, {}).get("status") not in done)

    def steps(self, one: Erasure) -> tuple[str, ...]:
        """All steps of an erasure that are still to be done, first one first."""
        if one.state in (erasures.COMPLETE, erasures.CANCELLED):
            return ()
        if one.state == erasures.SCHEDULED:
            return self.pending(one)
        left = one.record["purge"] and not one.record.get("purged_at")
        return (*erasure.remaining(one.state, purge=left), *self.pending(one))

    def waiting(self, one: Erasure) -> tuple[str, ...]:
        """Of the steps that are pending, those of targets whose turn comes once the keys are gone."""
        states = one.record.get("targets", {})
        later = {f"target:{target.name}" for target in self._targets if target.after == VERIFIED}
        return tuple(step for step in self.pending(one) if step in later and step.partition(":")[2] not in states)

    def _context(self, one: Erasure, after: str) -> Plan[ErasureContext | None]:
        yield Begin("read")
        (found,) = yield from run(Statement(erasures.GET_RETRY, (one.erasure_id,)))
        current = yield from erasures.again(self._core, one)
        yield Commit()
        if current.state == erasures.COMPLETE:
            return None
        retry = found.rows[0][0]
        if retry is None:
            raise UnsealError(f"erasures/{one.seq}: what the erasure targets need is missing")
        customer_id, thread_ids = json.loads(self._core.unseal_own("retry", one.erasure_id, bytes(retry)))
        if after != REVOKED and one.record["purge"]:
            gone = []
            yield Begin("read")
            for thread_id in thread_ids:
                key = (self._core.token("thread", thread_id), one.generation)
                counts = yield from run(*(Statement(statement, key) for statement in ROWS_OF_THREAD))
                gone += [thread_id] if not any(int(result.rows[0][0]) for result in counts) else []
            yield Commit()
            thread_ids = gone
        return ErasureContext(one.erasure_id, customer_id, tuple(thread_ids))

    def _attempt(self, target: ErasureTarget, context: ErasureContext) -> dict[str, Any]:
        """Tries a few times. Blocks."""
        error, remaining = "", -1
        for attempt in range(1, ATTEMPTS + 1):
            try:
                target.erase(context)
                remaining = target.remaining(context)
            except Exception as failure:  # noqa: BLE001 -- a target is foreign code; what it raised is in the receipt
                error, remaining = type(failure).__name__, -1
            else:
                if remaining == 0:
                    return {"status": erasures.ERASED, "attempts": attempt, "remaining": 0}
                error = "remaining"
            if attempt < ATTEMPTS:
                self._sleep(FIRST_DELAY * 2 ** (attempt - 1))
        return {"status": FAILED, "attempts": ATTEMPTS, "remaining": remaining, "error": error}


def _remaining(target: ErasureTarget, context: ErasureContext) -> int | None:
    try:
        return target.remaining(context)
    except Exception:  # noqa: BLE001 -- foreign code; that it did not answer is in the audit
        return None
