"""What goes wrong with a PostgreSQL server: which trouble passes by itself, and what of it may be told.

A server's message can quote a row (``Key (…)=(…) already exists``), so only classes whose messages name nothing but
objects and hosts are repeated.
"""

from __future__ import annotations

from typing import Final, Literal

import psycopg

from shredsaver.errors import DatabaseUnavailableError

Trouble = Literal["conflict", "lost", "other"]

# SQLSTATE, PostgreSQL's appendix A. serialization_failure, deadlock_detected
_CONFLICTS: Final = frozenset({"40001", "40P01"})
# admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout, idle_in_transaction_session_timeout,
# transaction_timeout, read_only_sql_transaction (the server is, or became, a standby), and a prepared statement whose
# result changed with a migration of another process
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006", "0A000"})
_TELLING: Final = frozenset({"08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "XX"})
_RETRYABLE: Final = frozenset({"08", "25", "40", "53", "55", "57", "58"})
_ADVICE: Final = {
    "25006": "it may only be read: it is a standby, or was made read-only; connect to the primary",
    "26000": "a prepared statement is gone: behind a pooler that shares connections between transactions, open the "
    "database with prepare=False (in a URL: prepare=off)",
    "42P05": "a prepared statement is in the way: behind a pooler that shares connections between transactions, open "
    "the database with prepare=False (in a URL: prepare=off)",
    "42501": "the role lacks a right: let the role that owns the schema GRANT it (docs/howto/postgres.md)",
    "42P01": "a table is missing: run `shredsaver init` with a role that may create tables, and GRANT this role USAGE "
    "on the schema",
    "3D000": "create the database first",
    "53300": "raise max_connections, lower pool_size, or put a pooler in front",
    "55P03": "another transaction held its lock for too long; call again",
    "57014": "the statement was cancelled, perhaps by a statement_timeout; nothing was written, call again",
}


class ServerSilentError(psycopg.OperationalError):
    """The server did not answer in time."""


class PoolBusyError(psycopg.OperationalError):
    """Every connection of a pool stayed in use."""


class PoolClosedError(psycopg.OperationalError):
    """The pool was closed."""


class StandbyError(psycopg.OperationalError):
    """The server is a standby: what it says about who was shredded can be out of date."""


def trouble(error: psycopg.Error, *, closed: bool) -> Trouble:
    """Whether running the plan again can help: after another transaction (conflict), on another connection (lost)."""
    state = error.sqlstate
    if state in _CONFLICTS:
        return "conflict"
    if isinstance(error, PoolBusyError | PoolClosedError):
        return "other"
    if closed or state in _LOST or (state or "").startswith("08"):
        return "lost"
    if state is None and isinstance(error, psycopg.OperationalError):
        return "lost"
    return "other"


def translate(location: str, error: psycopg.Error) -> DatabaseUnavailableError:
    """The library's error for one of the driver's. Raise it ``from None``: the driver's own may quote a row."""
    if isinstance(error, PoolClosedError):
        return DatabaseUnavailableError(f"the database {location} was closed: open it again")
    if isinstance(error, PoolBusyError):
        return DatabaseUnavailableError(
            f"no connection to the database {location} became free in time: call again, or raise pool_size",
            retryable=True,
        )
    state = error.sqlstate
    if state is None:
        reachable = isinstance(error, psycopg.OperationalError)
        told = " ".join(str(error).split()) if not isinstance(error, psycopg.DataError) else "a value has no form there"
        advice = "nothing was written" if not reachable else "call again once the server can be reached"
        if isinstance(error, StandbyError):
            advice = "connect to the primary"
        return DatabaseUnavailableError(
            f"the database {location} cannot be used: {told}; {advice}", retryable=reachable
        )
    told = (error.diag.message_primary if state[:2] in _TELLING else None) or type(error).__name__
    if error.diag.constraint_name:
        told += f" ({error.diag.constraint_name})"
    advice = _ADVICE.get(state, "nothing was written")
    return DatabaseUnavailableError(
        f"the database {location} cannot be used: {told} [SQLSTATE {state}]; {advice}",
        retryable=state[:2] in _RETRYABLE,
    )
