"""A TCP proxy in front of a PostgreSQL server: counts Syncs, cuts and stalls connections, adds latency."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from typing import Final, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_SYNC: Final = ord("S")  # what the client sends behind all that the server shall answer together
_CHUNK: Final = 65_536


class PostgresProxy:
    """Listens on a local port and passes everything on. Use as a context manager."""

    def __init__(self, dsn: str, *, latency: float = 0.0) -> None:
        parts = conninfo_to_dict(dsn)
        host, port = str(parts.get("host") or ""), int(parts.get("port") or 5432)
        self._server: str | tuple[str, int] = (
            os.path.join(host, f".s.PGSQL.{port}") if host[:1] == "/" else (host, port)
        )
        self._user, self._database = str(parts.get("user") or "postgres"), str(parts.get("dbname") or "postgres")
        self._password = str(parts.get("password") or "")
        self.latency = latency
        """Seconds that each answer is held back."""
        self.syncs = 0
        """Syncs that clients sent and that were passed on: all in front of an answer that has come back."""
        self.connections = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        user = self._user + (f":{quote(self._password, safe='')}" if self._password else "")
        port = self._listener.getsockname()[1]
        options = "sslmode=disable&gssencmode=disable&connect_timeout=60"
        return f"postgresql://{user}@127.0.0.1:{port}/{self._database}?{options}"

    @property
    def open(self) -> int:
        """How many connections there are now: one that a side has closed counts until the proxy has noticed."""
        with self._lock:
            return len(self._links)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._flowing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()

    def cut(self, *, some: float = 1.0) -> int:
        """Cuts every connection, or each with a probability, and tells how many."""
        with self._lock:
            chosen = [link for link in self._links if random.random() < some]
        for link in chosen:
            link.cut()
        return len(chosen)

    def stall(self) -> None:
        """Lets nothing through, in either direction, until `resume`: the sockets stay open and silent."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def refuse(self, refusing: bool = True) -> None:
        """Closes new connections at once."""
        self._refusing = refusing

    def cut_answer_to(self, text: bytes) -> None:
        """Arms every connection: the first request that holds ``text`` reaches the server, its answer is lost."""
        with self._lock:
            for link in self._links:
                link.fatal = text

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
            try:
                server.connect(self._server)
            except OSError:
                server.close()
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self.connections += 1
                self._links.add(link)
            link.start()

    def gone(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def wait(self) -> None:
        self._flowing.wait()

    def count(self) -> None:
        with self._lock:
            self.syncs += 1


class _Link:
    """One connection, both ways."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._lost = False
        self._first = threading.Lock()
        self.fatal: bytes | None = None
        for end in (client, server):
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._answers, daemon=True).start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was faster

    def _requests(self) -> None:
        pending, header = b"", 0  # a connection's first message has no type in front of its length
        try:
            while data := self._client.recv(_CHUNK):
                self._proxy.wait()
                pending, header = self._count(pending + data, header)
                if self.fatal is not None and self.fatal in data:
                    self._lost = True
                self._server.sendall(data)
        except OSError:
            pass
        finally:
            self._end()

    def _answers(self) -> None:
        try:
            while data := self._server.recv(_CHUNK):
                if self._lost:
                    # The server has done what it was asked when it says so; the client never hears it.
                    break
                if self._proxy.latency:
                    time.sleep(self._proxy.latency)
                self._proxy.wait()
                self._client.sendall(data)
        except OSError:
            pass
        finally:
            self._end()

    def _count(self, data: bytes, header: int) -> tuple[bytes, int]:
        """Counts the Syncs among whole messages; gives what is incomplete, and the bytes before the next length."""
        position = 0
        while len(data) - position >= header + 4:
            length = header + int.from_bytes(data[position + header : position + header + 4], "big")
            if len(data) - position < length:
                break
            if header and data[position] == _SYNC:
                self._proxy.count()
            position, header = position + length, 1
        return data[position:], header

    def _end(self) -> None:
        self.cut()
        self._proxy.gone(self)
        # Closed by whichever direction ends last: the other may be about to read, and the number may be another's then.
        if not self._first.acquire(blocking=False):
            self._client.close()
            self._server.close()
