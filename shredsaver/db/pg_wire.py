"""One connection's half of the conversation with PostgreSQL, as generators that psycopg's connections wait on.

A connection is in libpq's pipeline mode for good, driven through `psycopg.pq`: all of a `Run` and one Sync go out
at once, then all answers are read. psycopg's own pipelines would do nearly that, but send a Flush behind the Sync when
they end, and a server that gets one does not start its ``idle_in_transaction_session_timeout``; and they believe a
statement prepared that an error in front of it kept from being.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.waiting import Wait

from shredsaver.db.pg_errors import ServerSilentError
from shredsaver.db.pg_session import Query, Reply
from shredsaver.db.pg_url import Target

_PREPARE_AFTER: Final = 2  # uses of a statement on a connection, before it is prepared
_MAX_PREPARED: Final = 500  # statements of a connection
_READABLE: Final = 1
_AUTO: Final = [PyFormat.AUTO] * 65_535  # the protocol's most parameters


_Prepared = tuple[bytes, tuple[int, ...]]
"""What a prepared statement is told by: its text, and its parameters' types."""


class _Command(NamedTuple):
    """Something that was sent and is answered by one result: for a query, or to prepare its statement."""

    query: int
    prepares: tuple[_Prepared, bytes] | None = None


def adapters() -> AdaptersMap:
    """How values are sent and read: as psycopg does, but whole numbers always as BIGINT."""
    made = AdaptersMap(psycopg.adapters)
    # By default the type of a parameter follows the size of the number, and each mix of types would be prepared apart.
    made.register_dumper(int, Int8BinaryDumper)
    return made


class Wire:
    """What is known of one connection: which statements it has prepared, and which answers it still owes.

    Args:
        connection: A psycopg connection of either kind that nobody else uses.
        target: The database, for ``prepare`` and ``answer_timeout``.
    """

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], target: Target) -> None:
        self._pgconn = connection.pgconn
        self._prepare = target.prepare
        self._patience = target.answer_timeout
        self._dumper = Transformer(connection)
        self._loader = Transformer(connection)
        self._names: dict[_Prepared, bytes] = {}
        self._seen: dict[_Prepared, int] = {}
        self.owed = 0
        """How many answers are on their way that nobody waits for."""
        self._pgconn.enter_pipeline_mode()

    def post(self, query: Query) -> PQGen[None]:
        """Sends a statement without parameters and does not wait: `exchange` takes its answer in before its own."""
        self._pgconn.send_query_params(query.text.encode(), None)
        self._pgconn.pipeline_sync()
        self.owed += 1
        while self._pgconn.flush():
            yield Wait.W

    def exchange(self, queries: Sequence[Query]) -> PQGen[list[Reply]]:
        """Sends all and waits for all answers: one round trip.

        Raises:
            psycopg.Error: What the first statement that failed met; none behind it was run.
            ServerSilentError: Nothing came for ``answer_timeout`` seconds; the connection is closed.
        """
        commands: list[_Command] = []
        prepared: dict[_Prepared, bytes] = {}
        for number, query in enumerate(queries):
            for params in query.params if query.many else (query.params,):
                commands += self._send(number, query, params, prepared)
        self._pgconn.pipeline_sync()
        results = yield from self._receive()
        rows: list[list[tuple[Any, ...]]] = [[] for _ in queries]
        changed, tags = [0] * len(queries), [""] * len(queries)
        for command, result in zip(commands, results, strict=False):
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise error_from_result(result)
            if command.prepares is not None:
                statement, name = command.prepares
                self._names[statement] = name
                continue
            if result.status == pq.ExecStatus.TUPLES_OK:
                self._loader.set_pgresult(result)
                rows[command.query] = self._loader.load_rows(0, result.ntuples, tuple)
            changed[command.query] += result.command_tuples or 0
            tags[command.query] = (result.command_status or b"").decode()
        self._loader.set_pgresult(None)  # or a long answer would stay in memory
        return [Reply(*answer) for answer in zip(rows, changed, tags, strict=True)]

    def _send(
        self, number: int, query: Query, params: Sequence[Any], prepared: dict[_Prepared, bytes]
    ) -> list[_Command]:
        """Sends one statement; ``prepared`` holds what is prepared by commands in front of it, if those succeed."""
        text = _numbered(query.text)
        dumper = self._dumper
        dumped = dumper.dump_sequence(params, _AUTO[: len(params)]) if params else []
        types, formats = (tuple(dumper.types or ()), dumper.formats) if params else ((), [])
        statement = (text, types)
        name = self._names.get(statement) or prepared.get(statement)
        made: list[_Command] = []
        if name is None and self._worth_preparing(statement):
            count = len(self._names) + len(prepared)
            name = prepared[statement] = f"shredsaver_{count}_{time.monotonic_ns()}".encode()
            self._pgconn.send_prepare(name, text, param_types=types)
            made.append(_Command(number, (statement, name)))
        if name is None:
            self._pgconn.send_query_params(text, dumped, types, formats, pq.Format.BINARY)
        else:
            self._pgconn.send_query_prepared(name, dumped, formats, pq.Format.BINARY)
        made.append(_Command(number))
        return made

    def _worth_preparing(self, statement: _Prepared) -> bool:
        if not self._prepare or len(self._names) >= _MAX_PREPARED:
            return False
        if len(self._seen) > 4 * _MAX_PREPARED:
            self._seen.clear()
        self._seen[statement] = self._seen.get(statement, 0) + 1
        return self._seen[statement] > _PREPARE_AFTER

    def _receive(self) -> Generator[Any, Any, list[Any]]:
        """The first result of each command behind the last Sync but one; earlier ones were not waited for."""
        pgconn = self._pgconn
        found: list[Any] = []
        current: Any = None
        deadline = time.monotonic() + self._patience
        while True:
            ready = yield Wait.RW if pgconn.flush() else Wait.R
            if not ready and time.monotonic() > deadline:
                pgconn.finish()
                raise ServerSilentError(f"the server did not answer for {self._patience:g} seconds")
            if ready and ready & _READABLE:  # None when psycopg waits on, after it was interrupted
                pgconn.consume_input()
                deadline = time.monotonic() + self._patience
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                    if not self.owed:
                        return found
                    self.owed -= 1
                    found = []
                elif result is not None:
                    current = current or result
                elif current is not None:
                    found.append(current)
                    current = None
                else:
                    break


@lru_cache(maxsize=2048)
def _numbered(text: str) -> bytes:
    """``%s`` as libpq wants it: ``$1``, ``$2`` and so on."""
    first, *rest = text.split("%s")
    return (first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, 1))).encode()
