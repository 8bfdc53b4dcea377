"""A pooler in transaction mode in front of a PostgreSQL server: each transaction goes to another server process.

What a session would keep (settings, prepared statements, advisory locks, temporary tables, listening) is looked for
behind every transaction and noted: another client's next transaction would meet it, and that client's own would not.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from contextlib import suppress
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict

from tests.support.waiting import SECONDS

_ENCRYPTION: Final = (80877103, 80877104)  # SSLRequest, GSSENCRequest
_TOUGH: Final = (b"Q", b"S")  # Query and Sync: the server ends its answer to each with ReadyForQuery
_LEFT: Final = (
    b"SELECT (SELECT count(*) FROM pg_prepared_statements) || ' prepared', "
    b"(SELECT count(*) FROM pg_settings WHERE source = 'session') || ' settings', "
    b"(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') || ' locks', "
    b"(SELECT count(*) FROM pg_class WHERE relpersistence = 't') || ' temporary', "
    b"(SELECT count(*) FROM pg_listening_channels()) || ' listening'"
)


_numbers = itertools.count()


async def _message(reader: asyncio.StreamReader, *, typed: bool = True) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1) if typed else b""
    length = await reader.readexactly(4)
    return kind, kind + length + await reader.readexactly(int.from_bytes(length, "big") - 4)


class _Server:
    """A connection to the server: at most one client's transaction at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.number = next(_numbers)
        self.owed = 0
        self.unfinished = False
        """Whether the client has sent something behind its last Sync."""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def left(self) -> str:
        """What the session keeps."""
        self.writer.write(b"Q" + (len(_LEFT) + 5).to_bytes(4, "big") + _LEFT + b"\0")
        found = []
        while True:
            kind, message = await _message(self.reader)
            if kind == b"D":
                rest = message[7:]
                while rest:
                    size = int.from_bytes(rest[:4], "big")
                    found.append(rest[4 : 4 + size].decode())
                    rest = rest[4 + size :]
            if kind == b"Z":
                return ", ".join(one for one in found if not one.startswith("0 "))


class TransactionPooler:
    """Listens on a local port. Use as a context manager.

    Attributes:
        served: Numbers of the server processes that had a transaction.
    """

    def __init__(self, dsn: str, *, size: int = 3) -> None:
        parts = conninfo_to_dict(dsn)
        self._host, self._number = str(parts["host"]), int(parts.get("port") or 5432)
        self._user, self._database = str(parts.get("user") or "postgres"), str(parts["dbname"])
        self._size = size
        self._servers: list[_Server] = []
        self._greeting = b""
        self._idle: asyncio.Queue[_Server] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._clients: dict[asyncio.Task[None], _Client] = {}
        self._stopping = False
        self._kept: list[str] = []
        self._looks: set[asyncio.Task[None]] = set()
        self.served: set[int] = set()

    @property
    def url(self) -> str:
        options = "sslmode=disable&gssencmode=disable&connect_timeout=60"
        return f"postgresql://{self._user}@127.0.0.1:{self._port}/{self._database}?{options}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(SECONDS)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def kept(self) -> list[str]:
        """What sessions were found to keep. Transactions that are over for their clients are looked behind first."""
        asyncio.run_coroutine_threadsafe(self._look_behind(), self._loop).result(SECONDS)
        return self._kept

    async def _look_behind(self) -> None:
        while looks := {*self._looks}:
            await asyncio.wait(looks)

    async def _start(self) -> None:
        for _ in range(self._size):
            await self._connect()
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._listener.close()
        self._stopping = True
        for task, holder in [*self._clients.items()]:
            holder.hang_up()
            await asyncio.wait([task])
        await self._look_behind()
        for server in self._servers:
            await server.close()
        await self._listener.wait_closed()

    async def _connect(self) -> None:
        """A server connection more. The server trusts local users, so there is nothing to answer."""
        if self._host.startswith("/"):
            path = os.path.join(self._host, f".s.PGSQL.{self._number}")
            server = _Server(*await asyncio.open_unix_connection(path))
        else:
            server = _Server(*await asyncio.open_connection(self._host, self._number))
        words = b"\0".join(word.encode() for word in ("user", self._user, "database", self._database)) + b"\0\0"
        server.writer.write((len(words) + 8).to_bytes(4, "big") + (196608).to_bytes(4, "big") + words)
        kind = greeting = b""
        while kind != b"Z":
            kind, message = await _message(server.reader)
            greeting += message
        self._greeting = greeting
        self._servers.append(server)
        self._idle.put_nowait(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        holder = self._clients[task] = _Client(self, reader, writer)
        try:
            await holder.talk()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            await holder.leave()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            del self._clients[task]


class _Client:
    def __init__(self, pooler: TransactionPooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pooler = pooler
        self._reader = reader
        self._writer = writer
        self._server: _Server | None = None
        self._answers: asyncio.Task[None] | None = None

    async def talk(self) -> None:
        while True:
            _, message = await _message(self._reader, typed=False)
            if int.from_bytes(message[4:8], "big") not in _ENCRYPTION:
                break
            self._writer.write(b"N")
        self._writer.write(self._pooler._greeting)  # kept, as there may be no server just now: see `leave`
        while True:
            kind, message = await _message(self._reader)
            if kind == b"X":
                return
            if self._server is None:
                server = await self._pooler._idle.get()
                server.owed, self._server = 0, server
                self._pooler.served.add(server.number)
                self._answers = asyncio.create_task(self._pass_on(server))
                self._pooler._looks.add(self._answers)
                self._answers.add_done_callback(self._pooler._looks.discard)
            self._server.owed += kind in _TOUGH
            self._server.unfinished = kind not in _TOUGH
            self._server.writer.write(message)

    async def _pass_on(self, server: _Server) -> None:
        """Answers, until the transaction is over."""
        while True:
            kind, message = await _message(server.reader)
            self._writer.write(message)
            if kind == b"Z":
                server.owed -= 1
                if not server.owed and not server.unfinished and message[5:] == b"I":
                    break
        self._server = None
        if left := await server.left():
            self._pooler._kept.append(left)
        self._pooler._idle.put_nowait(server)

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def leave(self) -> None:
        """A transaction that its client left open ends with its server process."""
        server = self._server
        if self._answers is not None and server is not None:
            self._answers.cancel()
        if self._answers is not None:
            await asyncio.wait([self._answers])
        if server is not None:
            self._pooler._servers.remove(server)
            await server.close()
            if not self._pooler._stopping:
                await self._pooler._connect()
