"""The file of roots: blocks that are written, read back and zeroed in place.

A header block, then two blocks for each slot; epoch ``e`` of a slot lives in its block ``e mod 2``, so that the new
root stands beside the old one until the old one is zeroed. A block is 4,096 bytes and ends in a SHA-256 over what is
before it, which tells a torn one. Nothing but zeros means: no root.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shredsaver import sealing
from shredsaver.errors import ConfigurationError, FormatError, KeyServiceError, UnsealError
from shredsaver.kms._steps import step
from shredsaver.kms.outages import reaching
from shredsaver.kms.passphrase import PARAMETERS_BYTES, Parameters
from shredsaver.kms.roots import Anchor

BLOCK: Final = 4096
_DIGEST: Final = 32
_ZEROS: Final = bytes(BLOCK)
_CHUNK: Final = 256  # blocks read at once
_HEADER_MAGIC: Final = b"shredsaver roots"
_HEADER: Final = struct.Struct(f">16sHI16s{PARAMETERS_BYTES}s")  # magic, version, slots, deployment, passphrase
_BLOCK_MAGIC: Final = b"ssroot\x00\x01"
_BLOCK: Final = struct.Struct(">8s16sIQQ32sH64s")  # magic, deployment, slot, epoch, log length, head, key length, key
_VERSION: Final = 1


class Root(NamedTuple):
    """A block that holds a root; ``key`` is the root itself, or sealed under the passphrase."""

    slot: int
    epoch: int
    anchor: Anchor
    key: bytes


class RootsFile:
    """An open file of roots. Reading is safe on any thread; whoever writes holds the lock of the key directory.

    Args:
        path: The file, made by `create`.

    Raises:
        FormatError: It is no file of roots, damaged in its header, or of a future version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reaching(path):
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            header = _checked(self._pread(BLOCK, 0))
            if header is None or not header.startswith(_HEADER_MAGIC):
                raise FormatError(f"{path} is no file of roots, or its header is damaged: restore it from a mirror")
            _, version, self.slots, self.deployment, packed = _HEADER.unpack_from(header)
            if version != _VERSION:
                raise FormatError(f"{path} has format version {version}, this library knows {_VERSION}: upgrade it")
            self.parameters = Parameters.unpack(packed)
        except BaseException:
            os.close(self._file)
            raise

    @staticmethod
    def create(path: Path, slots: int, deployment: bytes, parameters: Parameters) -> None:
        """Makes a file without any root, complete under its name or not there at all."""
        header = _HEADER.pack(_HEADER_MAGIC, _VERSION, slots, deployment, parameters.pack())
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(file, _finished(header), 0)
            os.ftruncate(file, BLOCK * (1 + 2 * (slots + 1)))
            _sync(file)
        finally:
            os.close(file)
        step("roots-file-draft")
        draft.rename(path)
        sync_directory(path.parent)

    def read(self, slot: int, epoch: int) -> Root | None:
        """The root of an epoch; None if it is not there, or torn."""
        root = self._parse(self._pread(BLOCK, self._place(slot, epoch)))
        return root if root is not None and (root.slot, root.epoch) == (slot, epoch) else None

    def newest(self, slot: int) -> Root | None:
        """The root of the highest epoch that a slot has."""
        found = [self._parse(self._pread(BLOCK, self._place(slot, half))) for half in (0, 1)]
        return max((root for root in found if root is not None), key=lambda root: root.epoch, default=None)

    def scan(self) -> Iterator[Root]:
        """Every root in the file."""
        for start in range(0, 2 * (self.slots + 1), _CHUNK):
            chunk = self._pread(_CHUNK * BLOCK, BLOCK * (1 + start))
            if not chunk:  # the file ends before the slots that its header claims
                return
            for place in range(0, len(chunk), BLOCK):
                root = self._parse(chunk[place : place + BLOCK])
                if root is not None:
                    yield root

    def write(self, roots: Sequence[Root]) -> None:
        """Writes roots into their halves and reads them back from the device.

        Raises:
            KeyServiceError: A half still holds another epoch, or the file did not keep what was written.
        """
        for root in roots:
            there = self._parse(self._pread(BLOCK, self._place(root.slot, root.epoch)))
            if there is not None and there.epoch != root.epoch:
                raise KeyServiceError(
                    f"slot {root.slot} still holds its root of epoch {there.epoch}: it must be seen off before epoch "
                    f"{root.epoch} can be made"
                )
        self._put([(root.slot, root.epoch, self._block(root)) for root in roots], "roots-file-write")

    def erase(self, places: Sequence[tuple[int, int]]) -> None:
        """Overwrites roots, whole or torn, with zeros, given by slot and epoch.

        Raises:
            KeyServiceError: The file did not keep the zeros.
        """
        due = []
        for slot, epoch in places:
            there = self._parse(self._pread(BLOCK, self._place(slot, epoch)))
            # A newer one in the half's place was only written after this one had been zeroed.
            if there is None or there.epoch <= epoch:
                due.append((slot, epoch, _ZEROS))
        self._put(due, "roots-file-erase")

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def current(self) -> bool:
        """Whether the open file is still the one under its name."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        here = os.fstat(self._file)
        return (named.st_dev, named.st_ino) == (here.st_dev, here.st_ino)

    # ------------------------------------------------------------------------------------------------------------------

    def _put(self, blocks: Sequence[tuple[int, int, bytes]], name: str) -> None:
        for slot, epoch, block in blocks:
            step(name)
            with reaching(self.path):
                _write(self._file, block, self._place(slot, epoch))
        step(f"{name}-sync")
        with reaching(self.path):
            _sync(self._file)
        step(f"{name}-back")
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)  # what is read back must not come from the cache
        for slot, epoch, block in blocks:
            if self._pread(BLOCK, self._place(slot, epoch)) != block:
                raise KeyServiceError(
                    f"{self.path} did not keep what was written for slot {slot}: the disk or file system is failing; "
                    "nothing depends on what was lost"
                )

    def _pread(self, size: int, place: int) -> bytes:
        with reaching(self.path):
            return os.pread(self._file, size, place)

    def _place(self, slot: int, epoch: int) -> int:
        if not 0 <= slot <= self.slots:
            raise KeyServiceError(f"{self.path} has {self.slots} slots, not a slot {slot}")
        return BLOCK * (1 + 2 * slot + epoch % 2)

    def _block(self, root: Root) -> bytes:
        length, head = root.anchor
        where = (_BLOCK_MAGIC, self.deployment, root.slot, root.epoch)
        return _finished(_BLOCK.pack(*where, length, head, len(root.key), root.key))

    def _parse(self, block: bytes) -> Root | None:
        body = _checked(block)
        if body is None or not body.startswith(_BLOCK_MAGIC):
            return None
        _, deployment, slot, epoch, length, head, size, key = _BLOCK.unpack_from(body)
        if deployment != self.deployment:
            raise ConfigurationError(f"{self.path} holds a root of another deployment: files were mixed up")
        return Root(slot, epoch, Anchor(length, head), key[:size])


def copy_roots(source: Path, target: Path) -> None:
    """Makes a copy of a file of roots where there is none, complete under its name or not there at all.

    Raises:
        KeyServiceError: The copy did not keep what was written.
    """
    content = source.read_bytes()
    draft = target.with_name(target.name + ".new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write(file, content, 0)
        _sync(file)
    finally:
        os.close(file)
    if draft.read_bytes() != content:
        raise KeyServiceError(f"{draft} did not keep what was written: the disk or file system is failing")
    step("roots-file-copy")
    draft.rename(target)
    sync_directory(target.parent)


def seal_root(cipher_key: bytes, deployment: bytes, slot: int, epoch: int, root: bytes) -> bytes:
    """A root as it stands in its block where the file has a passphrase."""
    return sealing.seal(cipher_key, root, _data(deployment, slot, epoch))


def unseal_root(cipher_key: bytes, deployment: bytes, root: Root) -> bytes:
    """The root of a block of a file that has a passphrase.

    Raises:
        UnsealError: It was altered or moved.
    """
    try:
        return sealing.unseal(
            cipher_key, root.key, _data(deployment, root.slot, root.epoch), ("roots", root.slot, root.epoch)
        )
    except FormatError as error:
        raise UnsealError(f"the root of slot {root.slot}, epoch {root.epoch} is not sealed as its file says") from error


def _data(deployment: bytes, slot: int, epoch: int) -> bytes:
    return sealing.associated_data(sealing.WRAPPED_KEY, deployment, b"", 0, 0, 0, b"roots", slot, epoch, "0")


def _finished(body: bytes) -> bytes:
    body = body.ljust(BLOCK - _DIGEST, b"\x00")
    return body + hashlib.sha256(body).digest()


def _checked(block: bytes) -> bytes | None:
    if block == _ZEROS:
        return None
    body, digest = block[:-_DIGEST], block[-_DIGEST:]
    return body if len(block) == BLOCK and hashlib.sha256(body).digest() == digest else None


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written


def _sync(file: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def sync_directory(path: Path) -> None:
    """Makes a directory's entries durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
