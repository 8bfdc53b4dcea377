"""What a plan may ask of a database, and what a driver must give.

A plan is a generator: it yields an effect, a driver carries it out and sends the answer back. Plans do no I/O, so the
same plan runs blocking and async, on SQLite and on PostgreSQL, and in a test without any database.

A plan that is thrown into by the driver (a lost connection, a cancelled task) lets the exception pass: the driver rolls
back and releases the connection. A driver may run a plan again from its factory, so a plan must not change anything
outside the transaction before its commit has been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Sql(NamedTuple):
    """One statement in each dialect, made by `sql`."""

    sqlite: str
    postgres: str


_DIALECTS: Final = {
    # marker: (SQLite, PostgreSQL)
    "bytes": ("BLOB", "BYTEA"),
    "int": ("INTEGER", "BIGINT"),
    "text": ("TEXT", 'TEXT COLLATE "C"'),
    "real": ("REAL", "DOUBLE PRECISION"),
    "share": ("", "FOR SHARE"),
    "update": ("", "FOR UPDATE"),
    "strict": ("STRICT", ""),
    "clustered": ("STRICT, WITHOUT ROWID", ""),
}


def sql(template: str) -> Sql:
    """Writes one statement for every dialect.

    Args:
        template: SQL with ``?`` for parameters (no other question marks, no per cent signs) and markers in braces:
            ``{bytes}``, ``{int}``, ``{text}``, ``{real}`` for column types (text compares by code point on both);
            ``{share}`` and ``{update}`` for row locks, which SQLite does not need; ``{strict}`` and ``{clustered}``
            behind a CREATE TABLE.
    """
    one, two = ({name: pair[i] for name, pair in _DIALECTS.items()} for i in (0, 1))
    return Sql(template.format(**one), template.format(**two).replace("?", "%s"))


class Statement(NamedTuple):
    """A statement with its parameters; with ``many``, the statement is run once for each row of ``params``."""

    sql: Sql
    params: Sequence[Any] = ()
    many: bool = False


class Result(NamedTuple):
    """Rows of a query or a RETURNING clause; the number of rows changed otherwise (0 where it is not known)."""

    rows: list[tuple[Any, ...]]
    changed: int


class Begin(NamedTuple):
    """Opens the plan's transaction. Answer: None.

    ``"read"``: one snapshot for all that follows, never blocked by a writer and blocking none.
    ``"write"``: on SQLite the only writer (BEGIN IMMEDIATE); on PostgreSQL READ COMMITTED, rows locked as they are
    asked for.
    """

    mode: Literal["read", "write"]


class Run(NamedTuple):
    """Runs statements in order within the open transaction, in one round trip. Answer: a list with a Result for each.

    With ``commit`` the transaction is committed in the same round trip.
    """

    statements: Sequence[Statement]
    commit: bool = False


class Commit(NamedTuple):
    """Commits the open transaction durably. Answer: None."""


class Rollback(NamedTuple):
    """Gives up the open transaction. Answer: None."""


class Call(NamedTuple):
    """Calls something that may block (a key service), never inside a transaction. Answer: what it returns.

    An async driver calls it on a thread of its own.
    """

    function: Callable[[], Any]


Effect = Begin | Run | Commit | Rollback | Call
Plan = Generator[Effect, Any, T]
PlanFactory = Callable[[], Generator[Effect, Any, T]]


def run(*statements: Statement, commit: bool = False) -> Plan[list[Result]]:
    """Typed form of yielding `Run`: ``(rows, changed), = yield from run(Statement(...))``."""
    results: list[Result] = yield Run(statements, commit)
    return results


def call(function: Callable[[], T]) -> Plan[T]:
    """Typed form of yielding `Call`."""
    answer: T = yield Call(function)
    return answer


class Database(Protocol):
    """A driver: one database, opened."""

    @property
    def location(self) -> str:
        """Where it is, without any password, for messages."""
        ...

    def run(self, factory: PlanFactory[T]) -> T:
        """Runs a plan, blocking. ``factory`` is called again when the attempt must be repeated.

        Raises:
            DatabaseUnavailableError: The database cannot be used; ``retryable`` tells whether a later call may work.
        """
        ...

    async def arun(self, factory: PlanFactory[T]) -> T:
        """As `run`, without blocking the running event loop."""
        ...

    def fingerprint(self) -> str:
        """What tells this very database from a copy or restore of it (SQLite: device and inode of the file)."""
        ...

    def close(self) -> None:
        """Releases every connection and thread. Closing twice does nothing."""
        ...

    async def aclose(self) -> None:
        """As `close`, without blocking the running event loop."""
        ...
