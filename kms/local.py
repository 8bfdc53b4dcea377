"""Keys in a local directory: `LocalKeyService` (``file:DIR``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, unquote

from shredsaver.db.base import Database
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError, KeyServiceUnavailableError
from shredsaver.kms._steps import step
from shredsaver.kms.directory import prepare, prepare_store
from shredsaver.kms.driver import unavailable
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.localroots import SLOTS, LocalRoots
from shredsaver.kms.locking import locked
from shredsaver.kms.mirrors import MirroredDatabase, begin, bring_together, state
from shredsaver.kms.outages import reaching
from shredsaver.kms.rows import settled
from shredsaver.kms.schema import set_up
from shredsaver.kms.wrapping import ZEROS

__all__ = ["LocalKeyService", "LocalRoots"]

_KEYS: Final = "keys.db"
_ROOTS: Final = "roots"
_LOCK: Final = "lock"
_WRITERS: Final = "lock.writers"
_OPTIONS: Final = ("passphrase-env", "roots", "mirror", "slots", "kdf")


class LocalKeyService(StoredKeyService):
    """Keys in a directory of this host. Implements `KeyService`.

    ``keys.db`` holds wrapped keys only; ``roots`` holds what they are wrapped under, and is what must never be copied.
    Any number of processes of one host may use a directory, never several hosts over a network file system.

    Args:
        directory: The key directory, mode 0700. It is made if it is missing and ``create`` is true.
        roots: Where the file of roots is, if not in the directory.
        passphrase: A passphrase over the roots. It protects a stolen disk, not a running process.
        mirrors: Further key directories kept alike, on other disks. All must be there.
        slots: For a new directory: slots that customers are spread over. More of them make a shred of one customer
            re-wrap fewer others; each takes 8 KiB of the file of roots.
        kdf: For a new directory with a passphrase: ``"argon2id"``, or ``"pbkdf2"`` where only approved algorithms may
            be used.
        create: Whether a missing directory is made.
        clock: Gives the present in UTC.
        deployment: The deployment that a new key store is made for, when escrowed secrets are restored.
        older: Do not compare ``keys.db`` and roots: `survey` and `adopt` are what may follow.

    Raises:
        KeyNotFoundError: There is no key store (with ``create`` false), or its file of roots is missing.
        ConfigurationError: The directory or a file is open to others, or they belong to different deployments.
        KeyAccessDeniedError: The passphrase is missing or wrong.
        KeyStoreStaleError: ``keys.db`` is older than the roots, or missing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        roots: str | os.PathLike[str] | None = None,
        passphrase: str | None = None,
        mirrors: Sequence[str | os.PathLike[str]] = (),
        slots: int = SLOTS,
        kdf: str = "argon2id",
        create: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        deployment: bytes | None = None,
        older: bool = False,
    ) -> None:
        if not 1 <= slots <= 65536:  # noqa: PLR2004
            raise ConfigurationError(f"slots is {slots}; it must be 1 to 65536")
        directories = [Path(each).resolve() for each in (directory, *mirrors)]
        if len(set(directories)) != len(directories):
            raise ConfigurationError("a key directory is named twice; a mirror belongs on another disk")
        self.directory = directories[0]
        self.copies = len(directories)
        files = [each / _ROOTS for each in directories]
        if roots is not None:
            files[0] = Path(roots).resolve()
        locks = min(directories)  # the same for all who use these directories, in whatever order they name them
        with reaching(self.directory):
            databases = _open_copies(directories, files, locks, create)
        provider = LocalRoots(locks / _LOCK, files, slots=slots, passphrase=passphrase, kdf=kdf, clock=clock)
        database = databases[0] if not mirrors else MirroredDatabase(databases, locks / _WRITERS)
        try:
            with reaching(self.directory):
                super().__init__(
                    database,
                    provider,
                    set_up=False,
                    durable=partial(_durable, database, len(databases)),
                    clock=clock,
                    deployment=deployment,
                    older=older,
                )
                if not older:
                    with provider.exclusive():
                        provider.sweep(self._database.run(settled))
        except BaseException:
            provider.close()
            database.close()
            raise

    @classmethod
    def from_uri(cls, uri: str, *, create: bool = True, deployment: bytes | None = None, older: bool = False) -> Self:
        """Opens ``file:DIR``, with options behind a question mark, joined by ``&``.

        They are ``passphrase-env=NAME`` (the variable that holds it), ``roots=PATH``, ``mirror=DIR`` (repeatable),
        ``slots=N`` and ``kdf=NAME``.

        Raises:
            ConfigurationError: The URI names no directory, another host, an unknown option, or an unset variable.
        """
        rest, _, query = uri.partition(":")[2].partition("?")
        if rest.startswith("//"):
            host, slash, tail = rest[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                raise ConfigurationError(f"a file: key URI names a directory of this host; write file:{tail or 'DIR'}")
            rest = slash + tail
        if not rest:
            raise ConfigurationError("the key URI names no directory; write file:DIRECTORY")
        options = parse_qs(query, keep_blank_values=True)
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigurationError(f"file: has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}")
        passphrase = None
        if "passphrase-env" in options:
            name = options["passphrase-env"][-1]
            passphrase = os.environ.get(name)
            if passphrase is None:
                raise ConfigurationError(f"the environment has no variable {name}, which should hold the passphrase")
        slots = options.get("slots", [str(SLOTS)])[-1]
        if not slots.isascii() or not slots.isdigit():
            raise ConfigurationError("slots in the key URI is no number")
        return cls(
            unquote(rest),
            roots=options["roots"][-1] if "roots" in options else None,
            passphrase=passphrase,
            mirrors=options.get("mirror", ()),
            slots=int(slots),
            kdf=options.get("kdf", ["argon2id"])[-1],
            create=create,
            deployment=deployment,
            older=older,
        )


def _open_copies(directories: list[Path], roots: list[Path], locks: Path, create: bool) -> list[SqliteDatabase]:
    """Opens ``keys.db`` of every directory, made where it is missing, and brings all of them to the same state."""
    there = [each for each in directories if (each / _KEYS).exists()]
    for each in directories:
        if there and not each.exists() and len(directories) <= _copies(there[0]):
            raise KeyServiceUnavailableError(
                f"the key directory {each} is away: mount its disk. In place of a lost one make an empty directory of "
                "mode 0700 there, and it is filled from the others",
                retryable=False,
            )
        prepare(each, create)
    databases: list[SqliteDatabase] = []
    try:
        with locked(locks / _LOCK), locked(locks / _WRITERS):
            for each, file in zip(directories, roots, strict=True):
                prepare_store(each / _KEYS, file, create, mirrored=bool(there))
                databases.append(_open(each / _KEYS))
                databases[-1].run(partial(set_up, ZEROS))
            step("set-up")
            expected = max(database.run(state).copies for database in databases)
            if expected > len(directories):
                raise _too_few(expected, directories)
            if len(databases) > 1:
                bring_together(list(zip(databases, roots, strict=True)))
            for database in databases:
                if database.run(state).copies != len(directories):
                    database.run(partial(begin, len(directories)))
    except BaseException as error:
        for database in databases:
            database.close()
        if isinstance(error, DatabaseUnavailableError):
            raise unavailable(error) from error
        raise
    return databases


def _open(path: Path) -> SqliteDatabase:
    return SqliteDatabase(
        path, journal_mode="TRUNCATE", synchronous="FULL", secure_delete=True, temp_store="MEMORY", readers=2
    )


def _copies(directory: Path) -> int:
    with closing(_open(directory / _KEYS)) as database:
        database.run(partial(set_up, ZEROS))
        return database.run(state).copies


def _too_few(expected: int, directories: list[Path]) -> ConfigurationError:
    return ConfigurationError(
        f"the key store in {directories[0]} is kept in {expected} directories, {len(directories)} are named: name them "
        "all (file:DIR?mirror=DIR2), or a root that is destroyed here lives on in the others. For a lost disk name an "
        "empty directory in its place"
    )


def _durable(database: Database, copies: int) -> None:
    """Refuses to destroy a root while a copy lacks what was committed, or while there are copies we do not know of."""
    if isinstance(database, MirroredDatabase):
        database.in_step()
    found = database.run(state).copies
    if found != copies:
        raise KeyServiceUnavailableError(
            f"the key store is now kept in {found} directories, this process knows {copies}: open it again with all"
        )
