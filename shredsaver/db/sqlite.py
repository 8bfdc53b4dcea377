"""Driver for SQLite: one writer and several readers in each process, any number of processes on one file.

An async caller is served by running the whole plan on a thread of ours: SQLite blocks, whatever wraps it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from shredsaver.db.base import Begin, Call, Commit, Effect, PlanFactory, Result, Rollback, Run, Statement, T
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError

_RETRYABLE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CREATING: Final = threading.Lock()
_SYNCHRONOUS: Final = {"OFF": 0, "NORMAL": 1, "FULL": 2, "EXTRA": 3}


class SqliteDatabase:
    """One SQLite file, opened.

    Args:
        path: The file. It is created with ``mode`` if it is missing and ``create`` is true.
        journal_mode: ``"WAL"`` for data; ``"TRUNCATE"`` for a key store, whose deleted rows must not stay in a log.
        synchronous: ``"FULL"``: a commit that returned survives a power loss.
        secure_delete: Overwrite deleted rows with zeros in the file.
        readers: Most idle reading connections kept; more are opened and closed as needed.
        busy_timeout: Seconds that a writer waits for another process's writer.

    Raises:
        ConfigurationError: The path is no place for a database of ours.
        DatabaseUnavailableError: The file is missing (with ``create=False``), unreadable, or not an SQLite database.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        journal_mode: str = "WAL",
        synchronous: str = "FULL",
        secure_delete: bool = False,
        temp_store: str = "MEMORY",
        readers: int = 8,
        create: bool = True,
        mode: int = 0o600,
        busy_timeout: float = 30.0,
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise ConfigurationError(
                "the database must be a file: in memory nothing is kept, and readers would each see a database of "
                "their own. Give a path, in a temporary directory if it may vanish"
            )
        self._path = Path(path).absolute()
        self._pragmas: tuple[tuple[str, str, Any], ...] = (
            ("busy_timeout", str(int(busy_timeout * 1000)), int(busy_timeout * 1000)),
            ("journal_mode", journal_mode, journal_mode.lower()),
            ("synchronous", synchronous, _SYNCHRONOUS[synchronous]),
            ("secure_delete", "ON" if secure_delete else "OFF", int(secure_delete)),
            ("temp_store", temp_store, 2 if temp_store == "MEMORY" else 1),
            ("trusted_schema", "OFF", 0),
            ("cell_size_check", "ON", 1),
        )
        self._max_readers = readers
        self._readers: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection | None = None
        self._write_lock = threading.Lock()
        self._pid = os.getpid()
        self._executor: ThreadPoolExecutor | None = None
        self._executor_lock = threading.Lock()
        self._closed = False
        self._create(create, mode)
        self._file = str(self._path)
        self._opened = self._identity()
        self._readers.append(self._connect())

    @property
    def location(self) -> str:
        """The file's absolute path."""
        return str(self._path)

    def fingerprint(self) -> str:
        """Device and inode of the file: a copy or a restored backup has another, a renamed file keeps it."""
        device, inode = self._identity()
        return f"sqlite:{device}:{inode}"

    def _identity(self) -> tuple[int, int]:
        try:
            found = os.stat(self._file)
        except OSError as error:
            raise _unavailable(self._path, error) from None
        return found.st_dev, found.st_ino

    def run(self, factory: PlanFactory[T]) -> T:
        """Runs a plan on this thread. See `Database.run`."""
        plan = factory()
        session = _Session(self)
        try:
            effect = next(plan)
            while True:
                try:
                    answer = session.perform(effect)
                except sqlite3.Error as error:
                    session.abandon()  # a plan that goes on after it begins anew
                    effect = plan.throw(_translate(self._path, error))
                except BaseException as error:  # noqa: BLE001 -- the plan decides
                    effect = plan.throw(error)
                else:
                    effect = plan.send(answer)
        except StopIteration as stop:
            if session.connection is not None:
                raise RuntimeError("a plan ended inside its transaction") from None
            result: T = stop.value
            return result
        finally:
            session.abandon()
            plan.close()

    async def arun(self, factory: PlanFactory[T]) -> T:
        """Runs a plan on a thread of this driver. A cancelled caller does not stop a plan that has started."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads(), self.run, factory)

    def close(self) -> None:
        """Closes every connection that is not in use and refuses new ones."""
        with self._write_lock:
            self._closed = True
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        self._close_readers()
        with self._executor_lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
                self._executor = None

    async def aclose(self) -> None:
        """As `close`, on another thread: the writer in flight is waited for."""
        await asyncio.to_thread(self.close)

    # -- connections ------------------------------------------------------------------------------------------------

    def _create(self, create: bool, mode: int) -> None:
        # An existing file must not be opened here: closing any descriptor of it would drop the POSIX locks that other
        # connections of this process hold, and another process would then delete the log under them.
        with _CREATING:
            if self._path.exists():
                return
            if not create:
                raise DatabaseUnavailableError(f"there is no database {self._path}; check the path")
            try:
                # Made here and not by SQLite, which would leave it readable by everyone under a common umask.
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))
            except FileExistsError:
                return  # another process made it just now
            except OSError as error:
                raise _unavailable(self._path, error) from None

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise DatabaseUnavailableError(f"the database {self._path} was closed: open it again")
        connection = None
        try:
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )
            for name, value, expected in self._pragmas:
                connection.execute(f"PRAGMA {name}={value}")
                found = connection.execute(f"PRAGMA {name}").fetchone()[0]
                if found != expected:
                    raise ConfigurationError(
                        f"SQLite does not keep PRAGMA {name}={value} for {self._path} (it says {found!r}), "
                        "and without it the database does not do what is promised"
                    )
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise _translate(self._path, error) from error
            raise
        return connection

    def take_reader(self) -> sqlite3.Connection:
        """A connection for one reading transaction; `give_reader` takes it back."""
        self._after_fork()
        self._in_place()
        try:
            return self._readers.pop()
        except IndexError:
            return self._connect()

    def give_reader(self, connection: sqlite3.Connection) -> None:
        """Takes back a connection that is outside any transaction."""
        if len(self._readers) >= self._max_readers:
            connection.close()
        else:
            self._readers.append(connection)
        if self._closed:  # looked at last: `close` may have come by meanwhile
            self._close_readers()

    def _close_readers(self) -> None:
        while True:
            try:
                connection = self._readers.pop()
            except IndexError:  # others take them, too
                return
            connection.close()

    def take_writer(self) -> sqlite3.Connection:
        """The writing connection, inside BEGIN IMMEDIATE. Blocks while another thread has it."""
        self._after_fork()
        self._write_lock.acquire()
        try:
            self._in_place()
            if self._writer is None:
                self._writer = self._connect()
            self._writer.execute("BEGIN IMMEDIATE")
            return self._writer
        except BaseException:
            self._write_lock.release()
            raise

    def give_writer(self, connection: sqlite3.Connection, *, broken: bool) -> None:
        """Takes back the writing connection."""
        if broken:
            self._writer = None
            connection.close()
        self._write_lock.release()

    def _in_place(self) -> None:
        # Connections that are open go on with a file that was moved, new ones with what took its place: what was
        # written would be spread over two databases, and a shred seen in one of them only.
        if self._identity() != self._opened:
            raise DatabaseUnavailableError(
                f"the database {self._path} was moved or replaced while it was open: close it, and open it again"
            )

    def _after_fork(self) -> None:
        # A connection must not be used across fork(); closing it in the child would drop the parent's file locks.
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._abandoned = (self._readers, self._writer)
            self._readers, self._writer = [], None
            self._write_lock = threading.Lock()
            self._executor_lock = threading.Lock()
            self._executor = None

    def _threads(self) -> ThreadPoolExecutor:
        with self._executor_lock:
            if self._closed:
                raise DatabaseUnavailableError(f"the database {self._path} was closed: open it again")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._max_readers, "shredsaver-sqlite")
            return self._executor


class _Session:
    """The transaction of one plan."""

    __slots__ = ("_database", "_writing", "connection")

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._writing = False
        self.connection: sqlite3.Connection | None = None

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Run):
            if self.connection is None:
                raise RuntimeError("a plan ran a statement outside a transaction")
            results = [_execute(self.connection, statement) for statement in effect.statements]
            if effect.commit:
                self._end("COMMIT")
            return results
        if isinstance(effect, Begin):
            if self.connection is not None:
                raise RuntimeError("a plan began a transaction within another")
            self._writing = effect.mode == "write"
            if self._writing:
                self.connection = self._database.take_writer()
            else:
                self.connection = self._database.take_reader()
                self.connection.execute("BEGIN")
            return None
        if isinstance(effect, Commit):
            return self._end("COMMIT")
        if isinstance(effect, Rollback):
            return self._end("ROLLBACK")
        if isinstance(effect, Call):
            if self.connection is not None:
                raise RuntimeError("a plan called out of its transaction")
            return effect.function()
        raise TypeError(f"not an effect: {type(effect).__name__}")

    def _end(self, how: str) -> None:
        connection = self.connection
        if connection is None:
            raise RuntimeError("a plan ended a transaction that it had not begun")
        connection.execute(how)
        self._release(connection, broken=False)

    def abandon(self) -> None:
        """Rolls back what an exception left open."""
        connection = self.connection
        if connection is None:
            return
        broken = False
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            broken = True  # the connection is thrown away, which rolls back as well
        self._release(connection, broken=broken)

    def _release(self, connection: sqlite3.Connection, *, broken: bool) -> None:
        self.connection = None
        if self._writing:
            self._database.give_writer(connection, broken=broken)
        elif broken:
            connection.close()
        else:
            self._database.give_reader(connection)


def _execute(connection: sqlite3.Connection, statement: Statement) -> Result:
    text, params, many = statement.sql.sqlite, statement.params, statement.many
    if many:
        return Result([], connection.executemany(text, params).rowcount)
    cursor = connection.execute(text, params)
    if cursor.description is None:
        return Result([], cursor.rowcount)
    return Result(cursor.fetchall(), 0)


def _translate(path: Path, error: sqlite3.Error) -> DatabaseUnavailableError:
    # sqlite3's messages name tables, columns and files, never values.
    code = getattr(error, "sqlite_errorcode", None)
    retryable = code is not None and code & 0xFF in _RETRYABLE
    advice = {
        sqlite3.SQLITE_BUSY: "another process holds its write lock; call again",
        sqlite3.SQLITE_FULL: "the disk is full; nothing was written, free some room and call again",
        sqlite3.SQLITE_READONLY: "it may only be read; check the file's and the directory's permissions",
        sqlite3.SQLITE_CANTOPEN: "this process must be able to write to the file and beside it, and to open files",
        sqlite3.SQLITE_NOTADB: "it is not an SQLite database; check the path",
        sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a backup and run `reconcile`",
    }.get((code or 0) & 0xFF, "nothing was written")
    return DatabaseUnavailableError(f"the database {path} cannot be used: {error}; {advice}", retryable=retryable)


def _unavailable(path: Path, error: OSError) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"the database {path} cannot be opened: {error.strerror}; check the path and its permissions"
    )
