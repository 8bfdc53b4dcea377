"""Keys in a local directory: `LocalKeyService` (``file:DIR``) over roots in a file, `LocalRoots`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, unquote

from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import ConfigurationError, KeyNotFoundError, KeyServiceError, KeyStoreStaleError
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.locking import locked
from shredsaver.kms.passphrase import Parameters, protect, unlock
from shredsaver.kms.roots import Anchor, Death, Epoch
from shredsaver.kms.rootsfile import Root, RootsFile, seal_root, sync_directory, unseal_root
from shredsaver.kms.wrapping import new_key

SLOTS: Final = 1024  # 100,000 customers: about 100 to re-wrap when one of them is destroyed
_KEYS: Final = "keys.db"
_ROOTS: Final = "roots"
_LOCK: Final = "lock"
_OPTIONS: Final = ("passphrase-env", "roots", "mirror", "slots", "kdf")


class LocalRoots:
    """Roots in a file, or in several alike. Implements `Roots`.

    Args:
        lock: The lock file of the key directory.
        paths: The files of roots; the first is read, all are written and zeroed.
        slots: Number of slots of a new file; a file that exists has its own.
        passphrase: Over the roots, or None.
        kdf: How a new file's key comes from the passphrase, ``"argon2id"`` or ``"pbkdf2"``.
        clock: Gives the present in UTC.
    """

    assurance: Final = (
        "Clear (NIST SP 800-88), best effort: the root is overwritten in place, synced and read back; no promise over "
        "wear levelling, file system snapshots, or copies that were made of the file of roots"
    )
    shared: Final = False
    lease: Final = 0.0

    def __init__(
        self,
        lock: Path,
        paths: Sequence[Path],
        *,
        slots: int = SLOTS,
        passphrase: str | None = None,
        kdf: str = "argon2id",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.slots = slots
        self._lock = lock
        self._paths = tuple(paths)
        self._passphrase = passphrase
        self._kdf = kdf
        self._clock = clock
        self._files: list[RootsFile] = []
        self._key: bytes | None = None

    def exclusive(self) -> AbstractContextManager[None]:
        """Holds the lock of the key directory."""
        return locked(self._lock)

    def attach(self, deployment: bytes, *, fresh: bool) -> None:
        """Opens the files of roots, and makes them for a fresh key store. See `Roots.attach`."""
        with self.exclusive():
            parameters: Parameters | None = None
            for path in self._paths:
                if not path.exists():
                    if not fresh:
                        raise KeyNotFoundError(
                            f"{path} is missing, and without it no key opens: restore the file of roots, or name where "
                            "it is with file:DIR?roots=PATH"
                        )
                    if parameters is None:
                        parameters, self._key = (
                            (Parameters(), None) if self._passphrase is None else protect(self._passphrase, self._kdf)
                        )
                    RootsFile.create(path, self.slots, deployment, parameters)
                check_private(path)
                file = RootsFile(path)
                self._files.append(file)
                if file.deployment != deployment:
                    raise self._foreign(path, fresh)
                if file.parameters != parameters:
                    if parameters is not None:
                        raise ConfigurationError(f"{path} was made with another passphrase than {self._paths[0]}")
                    self._key = unlock(self._passphrase, file.parameters)
                    parameters = file.parameters
            self.slots = self._files[0].slots

    @staticmethod
    def _foreign(path: Path, fresh: bool) -> Exception:
        if fresh:
            return KeyStoreStaleError(
                f"{path} belongs to a key store that is not here: its keys.db is missing; restore it from a mirror"
            )
        return ConfigurationError(f"{path} belongs to another deployment than the keys.db beside it")

    def check(self, live: Sequence[Epoch]) -> list[Anchor]:
        """Compares live epochs with the files. See `Roots.check`."""
        known = {epoch.slot: epoch.epoch for epoch in live}
        anchors = []
        for file in self._files:
            found: dict[int, set[int]] = {}
            for root in file.scan():
                found.setdefault(root.slot, set()).add(root.epoch)
                anchors.append(root.anchor)
            for slot in sorted(found.keys() | known.keys()):
                epoch, there = known.get(slot), found.get(slot, set())
                newest = max(there, default=0)
                # One ahead, with the live one still there, is what a crash in the middle of a rotation leaves.
                if epoch is None or newest > epoch + 1 or (newest == epoch + 1 and epoch and epoch not in there):
                    raise self._stale(slot, epoch or 0, newest)
                if newest < epoch:
                    raise self._missing(file, slot, epoch)
        return anchors

    def make(self, epochs: Sequence[Epoch], anchor: Anchor) -> list[bytes]:
        """Writes new roots into their free halves, in every file. See `Roots.make`."""
        self._hold_on()
        first = self._files[0]
        roots = []
        for epoch in epochs:
            there = first.read(epoch.slot, epoch.epoch)
            key = self._plain(there) if there is not None else new_key()
            stored = key if self._key is None else seal_root(self._key, first.deployment, epoch.slot, epoch.epoch, key)
            roots.append(there or Root(epoch.slot, epoch.epoch, anchor, stored))
        for file in self._files:
            file.write([root for root in roots if file.read(root.slot, root.epoch) != root])
        return [self.open(epoch) for epoch in epochs]

    def open(self, epoch: Epoch, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - nothing is cached here
        """Reads a root. See `Roots.open`."""
        first = self._files[0]
        root = first.read(epoch.slot, epoch.epoch)
        if root is not None:
            return self._plain(root)
        newest = first.newest(epoch.slot)
        if newest is not None and newest.epoch > epoch.epoch:
            raise self._stale(epoch.slot, epoch.epoch, newest.epoch)
        raise self._missing(first, epoch.slot, epoch.epoch)

    def destroy(self, epochs: Sequence[Epoch]) -> list[Death]:
        """Zeroes roots in every file. See `Roots.destroy`."""
        self._hold_on()
        for file in self._files:
            file.erase([(epoch.slot, epoch.epoch) for epoch in epochs])
        at = self._clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        method = "root overwritten with zeros in place, synced, read back"
        return [Death("destroyed", method, at, details={"copies": len(self._files)}) for _ in epochs]

    def close(self) -> None:
        """Closes the files and forgets the passphrase's key."""
        self._key = None
        for file in self._files:
            file.close()

    def _plain(self, root: Root) -> bytes:
        return root.key if self._key is None else unseal_root(self._key, self._files[0].deployment, root)

    def _hold_on(self) -> None:
        for file in self._files:
            if not file.current():
                raise KeyServiceError(
                    f"{file.path} was replaced while it was open: close the key service, open it again"
                )

    @staticmethod
    def _stale(slot: int, epoch: int, found: int) -> KeyStoreStaleError:
        return KeyStoreStaleError(
            f"the key store has slot {slot} at epoch {epoch}, its roots are at {found}: it is an older copy. Restore a "
            "current copy or mirror of keys.db; what was shredded since then must not come back"
        )

    @staticmethod
    def _missing(file: RootsFile, slot: int, epoch: int) -> KeyNotFoundError:
        return KeyNotFoundError(
            f"{file.path} has no whole root for slot {slot}, epoch {epoch}: it is an older copy, or damaged. Restore "
            "it from a mirror; nothing was shredded"
        )


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
    ) -> None:
        path = Path(directory).absolute()
        if mirrors:
            raise ConfigurationError("mirrors are not there yet")
        if not 1 <= slots <= 65536:  # noqa: PLR2004
            raise ConfigurationError(f"slots is {slots}; it must be 1 to 65536")
        roots_path = Path(roots).absolute() if roots is not None else path / _ROOTS
        self.directory = path
        _prepare(path, create)
        with locked(path / _LOCK):
            _prepare_store(path / _KEYS, roots_path, create)
        database = SqliteDatabase(
            path / _KEYS,
            journal_mode="TRUNCATE",
            synchronous="FULL",
            secure_delete=True,
            temp_store="MEMORY",
            readers=2,
        )
        provider = LocalRoots(path / _LOCK, [roots_path], slots=slots, passphrase=passphrase, kdf=kdf, clock=clock)
        try:
            super().__init__(database, provider, clock=clock)
        except BaseException:
            provider.close()
            database.close()
            raise

    @classmethod
    def from_uri(cls, uri: str, *, create: bool = True) -> Self:
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
        )


def check_private(path: Path) -> None:
    """Refuses a file or directory that others can read or write, or that belongs to someone else.

    Raises:
        ConfigurationError: It is so.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        should = "700" if stat.S_ISDIR(found.st_mode) else "600"
        raise ConfigurationError(
            f"{path} has mode {mode:04o}, so others on this host can reach the keys; run: chmod {should} {path}"
        )
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise ConfigurationError(f"{path} belongs to user {found.st_uid}, this process runs as {os.geteuid()}")


def _prepare(path: Path, create: bool) -> None:
    if not path.exists():
        if not create:
            raise KeyNotFoundError(
                f"there is no key directory {path}, but the database depends on one: check the key URI, or restore the "
                "directory; it is not made anew, as its keys would open nothing"
            )
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass  # another process made it just now
        except OSError as error:
            raise ConfigurationError(f"the key directory {path} cannot be made: {error.strerror}") from None
        else:
            sync_directory(path.parent)
    if not path.is_dir():
        raise ConfigurationError(f"{path} is no directory; a file: key URI names the directory of the keys")
    check_private(path)


def _prepare_store(keys: Path, roots: Path, create: bool) -> None:
    if keys.exists():
        check_private(keys)
        return
    if roots.exists():
        raise KeyStoreStaleError(
            f"{keys} is missing while its file of roots is there: restore keys.db from a mirror; it is not made anew, "
            "as every customer's key is in it"
        )
    if not create:
        raise KeyNotFoundError(f"there is no key store in {keys.parent}: check the key URI, or restore the directory")
