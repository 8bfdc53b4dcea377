"""From a plan's effects to what a PostgreSQL connection does: when to connect, what goes out together, when again.

It does no I/O: it yields steps, and `postgres.py` takes them, blocking or async. Everything that belongs to a
transaction goes with it (``SET LOCAL`` in effect), nothing to a session, so a pooler may hand each transaction to
another server process.

Isolation levels. A reading plan runs at REPEATABLE READ, READ ONLY: all its statements see one snapshot, so the fence
and the rows behind it are of one moment. A writing plan runs at READ COMMITTED: it takes the customer's row FOR SHARE
(or FOR UPDATE to shred) and a later statement sees what the winner of that lock committed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator, Sequence
from typing import Any, Final, Literal, NamedTuple

import psycopg

from shredsaver.db.base import Begin, Call, Commit, Effect, PlanFactory, Result, Rollback, Run, T
from shredsaver.db.pg_errors import StandbyError, translate, trouble
from shredsaver.db.pg_url import Target
from shredsaver.errors import DatabaseUnavailableError

Reason = Literal["conflict", "lost", "unreachable"]

_BEGIN: Final = {
    "read": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "write": "BEGIN ISOLATION LEVEL READ COMMITTED",
}
# A frozen process must not keep a shred waiting for ever, so its transaction ends; a commit is durable whatever the
# role's default says; the last column tells a standby.
_SETTINGS: Final = (
    "SELECT set_config('search_path', %s, true), set_config('lock_timeout', %s, true), "
    "set_config('idle_in_transaction_session_timeout', %s, true), "
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true), pg_is_in_recovery()"
)
_MOST: Final[dict[Reason, float]] = {"conflict": 20, "lost": 3, "unreachable": math.inf}
_LONGEST_PAUSE: Final = 1.0  # seconds


class Query(NamedTuple):
    """One statement to send; with ``many``, once for each row of ``params``."""

    text: str
    params: Sequence[Any] = ()
    many: bool = False


class Reply(NamedTuple):
    """What came back for a `Query`: its rows, the number of rows changed, and the server's command tag."""

    rows: list[tuple[Any, ...]]
    changed: int
    tag: str


class Acquire(NamedTuple):
    """Take a connection from the pool, with ``check`` one that was seen to work. Answer: the connection."""

    check: bool


class Send(NamedTuple):
    """Send all queries in one pipeline, one round trip. Answer: a list with a `Reply` for each."""

    connection: Any
    queries: Sequence[Query]


class Post(NamedTuple):
    """Send the word that ends a transaction in which nothing was written, and do not wait. Answer: None."""

    connection: Any
    query: Query


class Release(NamedTuple):
    """Give a connection back; a broken one is closed. Answer: None."""

    connection: Any
    broken: bool


class Pause(NamedTuple):
    """Wait. Answer: None."""

    seconds: float


Step = Acquire | Send | Post | Release | Pause | Call
Steps = Generator[Step, Any, T]


class _AgainError(Exception):
    """The attempt failed in a way that another may not."""

    def __init__(self, failure: DatabaseUnavailableError, reason: Reason) -> None:
        super().__init__()
        self.failure = failure
        self.reason = reason


def drive(factory: PlanFactory[T], target: Target) -> Steps[T]:
    """Runs a plan, again where that can help, and gives its result.

    Serialization failures and deadlocks are repeated with growing random pauses, lost connections on another one, both
    a bounded number of times; a server that cannot be reached is asked again; all no longer than ``target.timeout``. A
    connection can be lost while the answer to a COMMIT is on its way, so a plan may be repeated although it was
    committed: plans are written to bear that.

    Raises:
        DatabaseUnavailableError: It did not help.
    """
    started = time.monotonic()
    met = dict.fromkeys(_MOST, 0)
    while True:
        try:
            return (yield from _attempt(factory, _Session(target, check=met["lost"] > 0)))
        except _AgainError as error:
            again = error
        met[again.reason] += 1
        if met[again.reason] > _MOST[again.reason] or time.monotonic() - started > target.timeout:
            raise again.failure from None
        longest = min(_LONGEST_PAUSE, 0.005 * 2 ** min(sum(met.values()), 10))
        yield Pause(random.uniform(0, longest))  # noqa: S311 - apart in time, not secret


def _attempt(factory: PlanFactory[T], session: _Session) -> Steps[T]:
    plan = factory()
    try:
        effect = next(plan)
        while True:
            try:
                answer = yield from session.perform(effect)
            except (_AgainError, GeneratorExit):
                raise
            except DatabaseUnavailableError as error:
                yield from session.abandon(error)  # a plan that goes on after it begins anew
                effect = plan.throw(error)
            except BaseException as error:  # noqa: BLE001 - the plan decides, and lets it pass
                effect = plan.throw(error)
            else:
                effect = plan.send(answer)
    except StopIteration as stop:
        if session.mode is not None:
            yield from session.abandon(None)
            raise RuntimeError("a plan ended inside its transaction") from None
        result: T = stop.value
        return result
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from session.abandon(error)
        raise
    finally:
        plan.close()


class _Session:
    """The transaction of one attempt. BEGIN waits for the first statement, so that both go out together."""

    __slots__ = ("_check", "_connection", "_target", "mode")

    def __init__(self, target: Target, *, check: bool) -> None:
        self._target = target
        self._check = check
        self._connection: Any = None
        self.mode: str | None = None

    def perform(self, effect: Effect) -> Steps[Any]:
        if isinstance(effect, Run):
            return (yield from self._run(effect))
        if isinstance(effect, Begin):
            if self.mode is not None:
                raise RuntimeError("a plan began a transaction within another")
            self.mode = effect.mode
            return None
        if isinstance(effect, Commit | Rollback):
            if self.mode is None:
                raise RuntimeError("a plan ended a transaction that it had not begun")
            if self._connection is not None:
                yield from self._end("COMMIT" if isinstance(effect, Commit) else "ROLLBACK")
            self.mode = None
            return None
        if isinstance(effect, Call):
            if self.mode is not None:
                raise RuntimeError("a plan called out of its transaction")
            return (yield effect)
        raise TypeError(f"not an effect: {type(effect).__name__}")

    def _run(self, effect: Run) -> Steps[list[Result]]:
        if self.mode is None:
            raise RuntimeError("a plan ran a statement outside a transaction")
        queries = [Query(statement.sql.postgres, statement.params, statement.many) for statement in effect.statements]
        opening = self._connection is None
        if opening:
            self._connection = yield from self._step(Acquire(self._check))
            queries[:0] = self._opening()
        if effect.commit:
            queries.append(Query("COMMIT"))
        replies = yield from self._send(queries, ends="COMMIT" if effect.commit else None, opening=opening)
        if effect.commit:
            replies.pop()
            self.mode = None
        return [Result(reply.rows, reply.changed) for reply in replies[2 if opening else 0 :]]

    def _opening(self) -> list[Query]:
        target = self._target
        limit = round(target.timeout * 1000)
        params = (target.search_path, f"{limit}ms", f"{max(1, limit // 2)}ms")
        return [Query(_BEGIN[self.mode or "read"]), Query(_SETTINGS, params)]

    def _send(self, queries: list[Query], *, ends: str | None, opening: bool = False) -> Steps[list[Reply]]:
        replies: list[Reply] = yield from self._step(Send(self._connection, queries))
        if opening and replies[1].rows[0][-1]:
            raise self._again(StandbyError("the server is a standby"), "lost")
        if ends is not None:
            if replies[-1].tag != ends:
                # A COMMIT of a failed transaction rolls back, and says so in its tag alone.
                raise self._again(psycopg.OperationalError(f"the server answered {ends} otherwise"), "lost")
            connection, self._connection = self._connection, None
            yield Release(connection, broken=False)
        return replies

    def _end(self, word: str) -> Steps[None]:
        if word == "COMMIT" and self.mode == "write":
            yield from self._send([Query(word)], ends=word)
            return
        # Nobody needs the answer: whoever gets the connection next reads it first.
        yield from self._step(Post(self._connection, Query(word)))
        connection, self._connection = self._connection, None
        yield Release(connection, broken=False)

    def _step(self, step: Acquire | Send | Post) -> Steps[Any]:
        try:
            return (yield step)
        except psycopg.Error as error:
            problem = error
        kind = trouble(problem, closed=self._connection is not None and self._connection.closed)
        if kind == "other":
            raise translate(self._target.location, problem) from None
        raise self._again(problem, "unreachable" if isinstance(step, Acquire) else kind) from None

    def _again(self, error: psycopg.Error, reason: Reason) -> _AgainError:
        return _AgainError(translate(self._target.location, error), reason)

    def abandon(self, why: BaseException | None) -> Steps[None]:
        """Rolls back what an exception left open, or throws the connection away, which rolls back as well."""
        connection, self._connection, self.mode = self._connection, None, None
        if connection is None:
            return
        broken = connection.closed or (isinstance(why, _AgainError) and why.reason == "lost")
        broken = broken or (why is not None and not isinstance(why, Exception))  # interrupted: its state is unknown
        if not broken:
            try:
                yield Send(connection, [Query("ROLLBACK")])
            except psycopg.Error:
                broken = True
        yield Release(connection, broken)
