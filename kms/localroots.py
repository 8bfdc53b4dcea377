"""Roots in a file of this host: `LocalRoots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from shredsaver.errors import ConfigurationError, KeyNotFoundError, KeyServiceError, KeyStoreStaleError
from shredsaver.kms.directory import check_private
from shredsaver.kms.locking import locked
from shredsaver.kms.passphrase import Parameters, protect, unlock
from shredsaver.kms.roots import Anchor, Death, Epoch, Standing
from shredsaver.kms.rootsfile import Root, RootsFile, seal_root, unseal_root
from shredsaver.kms.wrapping import new_key

SLOTS: Final = 1024  # 100,000 customers: about 100 to re-wrap when one of them is destroyed


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
        found: dict[int, dict[int, Root]] = {}
        for file in self._files:
            for root in file.scan():
                found.setdefault(root.slot, {})[root.epoch] = root
        for slot in sorted(found.keys() | known.keys()):
            epoch, there = known.get(slot), found.get(slot, {})
            newest = max(there, default=0)
            # One ahead, with the live one still there, is what a crash in the middle of a rotation leaves.
            if epoch is None or newest > epoch + 1 or (newest == epoch + 1 and epoch and epoch not in there):
                raise self._stale(slot, epoch or 0, newest)
            if newest < epoch:
                raise self._missing(self._files[0], slot, epoch)
            if len(self._files) > 1 and epoch:
                self._heal(there[epoch])
        return [root.anchor for roots in found.values() for root in roots.values()]

    def survey(self, live: Sequence[Epoch], *, take_over: bool = False) -> tuple[list[Standing], list[Anchor]]:  # noqa: ARG002 - files need no taking over
        """How an older key store stands to the files, and what all roots have seen. See `shredsaver.kms.adoption`.

        Raises:
            KeyNotFoundError: The files are older than the key store, or damaged.
        """
        known = {epoch.slot: epoch.epoch for epoch in live}
        found: dict[int, dict[int, Root]] = {}
        for file in self._files:
            for root in file.scan():
                found.setdefault(root.slot, {})[root.epoch] = root
        standings = []
        for slot in sorted(found.keys() | known.keys()):
            epoch, there = known.get(slot, 0), found.get(slot, {})
            newest = max(there, default=0)
            if newest < epoch:
                raise self._missing(self._files[0], slot, epoch)
            standings.append(Standing(slot, epoch, newest, epoch in there))
        return standings, [root.anchor for roots in found.values() for root in roots.values()]

    def _heal(self, live: Root) -> None:
        """Gives a file the live root it lacks."""
        for file in self._files:
            if file.read(live.slot, live.epoch) != live:
                file.erase([(live.slot, live.epoch)])
                file.write([live])

    def sweep(self, live: Sequence[Epoch]) -> None:
        """Zeroes roots older than the live ones of slots without a rotation to finish: a restored copy brought them."""
        known = {epoch.slot: epoch.epoch for epoch in live}
        for file in self._files:
            back = [(root.slot, root.epoch) for root in file.scan() if root.epoch < known.get(root.slot, 0)]
            if back:
                file.erase(back)

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
        for file in self._files:
            root = file.read(epoch.slot, epoch.epoch)
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
            "current copy or mirror of keys.db; what was shredded since then must not come back. If there is none, "
            "`keys adopt` takes this one into use for the slots that still open"
        )

    @staticmethod
    def _missing(file: RootsFile, slot: int, epoch: int) -> KeyNotFoundError:
        return KeyNotFoundError(
            f"{file.path} has no whole root for slot {slot}, epoch {epoch}: it is an older copy, or damaged. Restore "
            "it from a mirror; nothing was shredded"
        )
