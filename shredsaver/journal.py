"""A journal of revocations outside database and key store: one more record that a restore of both does not take back.

One line of JSON an entry, each with an HMAC under the log key over the line before and its own content. Tokens only.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from shredsaver.errors import DatabaseUnavailableError, RevocationLogDamagedError
from shredsaver.reconcile import Dead

LINE: Final = 512
"""Bytes; no entry is longer."""

TAIL: Final = 8 * 1024
"""Bytes at the end of the file that are read before something is added, and `LINE` for each entry to add."""


class Journal:
    """A journal in a file, which several processes may append to.

    Args:
        path: The file; it is created readable by its owner only. Its directory must be there.
        log_key: The deployment's log key, 32 bytes.
    """

    def __init__(self, path: str | os.PathLike[str], log_key: bytes) -> None:
        self._path = Path(path)
        self.path = self._path
        self._key = log_key

    def append(self, *dead: Dead) -> None:
        """Adds entries; they are durable when this returns. Those that were added lately are not added again.

        What is read and verified for it is the end of the file, more of it the more entries are given: `read` and
        `read_after` verify the rest. An entry that is there twice means what it means once.

        Raises:
            DatabaseUnavailableError: The file cannot be written.
            RevocationLogDamagedError: The last entries do not verify, so nothing can follow them.
        """
        with self._locked() as file:
            entries = self._tail(file, len(dead))
            known = {one[:2] for one, _ in entries}
            previous = entries[-1][1] if entries else ""
            file.seek(0, os.SEEK_END)
            for one in dead:
                if one[:2] in known:
                    continue
                body = {"customer": one.customer.hex(), "generation": one.generation, "at": one.at}
                previous = self._mac(previous, body)
                line = json.dumps({**body, "mac": previous}, sort_keys=True)
                file.write(f"{line}\n".encode("ascii"))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Dead]:
        """Every entry.

        Raises:
            RevocationLogDamagedError: One does not verify. A last line that was cut off by a crash is passed over.
        """
        with self._locked() as file:
            return [dead for dead, _ in self._entries(file)]

    def read_after(self, count: int, mac: str) -> tuple[list[Dead], int, str]:
        """The entries behind the first ``count``, if the last of those has this MAC; every entry otherwise.

        Also gives how many there are and the last one's MAC. Errors as `read`.
        """
        with self._locked() as file:
            skip = count if mac and self._mac_of(file, count) == mac else 0
            found = list(self._entries(file, skip, mac if skip else ""))
        return [dead for dead, _ in found], skip + len(found), found[-1][1] if found else (mac if skip else "")

    @staticmethod
    def _mac_of(file: IO[bytes], number: int) -> str | None:
        file.seek(0)
        lines = file.read().split(b"\n")[:-1]
        try:
            return str(json.loads(lines[number - 1].decode("ascii"))["mac"])
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _entries(self, file: IO[bytes], skip: int = 0, previous: str = "") -> Iterator[tuple[Dead, str]]:
        lines = self._lines(file, 0)
        return self._verified(lines[skip:], previous, skip + 1)

    def _tail(self, file: IO[bytes], more: int) -> list[tuple[Dead, str]]:
        """The last entries, at least one that was verified unless there is none."""
        size, length = file.seek(0, os.SEEK_END), TAIL + more * LINE
        while True:
            start = max(0, size - length)
            lines = self._lines(file, start)
            if not start:
                return list(self._verified(lines, "", 1))
            if lines[2:]:  # the first began before; the chain is taken up at the second
                return list(self._verified(lines[1:], None, None))
            length *= 2

    @staticmethod
    def _lines(file: IO[bytes], start: int) -> list[str]:
        """The lines behind a position. A last one that no line feed ends is cut off: its write never returned."""
        file.seek(start)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(start + whole)
        return data[:whole].decode("ascii").split("\n")[:-1]

    def _verified(self, lines: Sequence[str], previous: str | None, first: int | None) -> Iterator[tuple[Dead, str]]:
        """The entries in some lines, with their MACs; without ``previous`` the first is what the others follow."""
        for number, line in enumerate(lines):
            where = None if first is None else first + number
            try:
                body: dict[str, Any] = json.loads(line)
                mac = str(body.pop("mac"))
                dead = Dead(bytes.fromhex(body["customer"]), int(body["generation"]), str(body["at"]))
                whole = mac.isascii()
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                raise self._damaged(where) from None
            if not whole or (previous is not None and not hmac.compare_digest(mac, self._mac(previous, body))):
                raise self._damaged(where)
            previous = mac
            yield dead, mac

    def _damaged(self, number: int | None) -> RevocationLogDamagedError:
        line = "a line" if number is None else f"line {number}"
        return RevocationLogDamagedError(
            f"{line} of the journal {self._path} does not verify: restore the journal, or open without it"
        )

    def _mac(self, previous: str, body: dict[str, Any]) -> str:
        message = f"journal\x00{previous}\x00{json.dumps(body, sort_keys=True)}"
        return hmac.digest(self._key, message.encode("ascii"), hashlib.sha256).hex()

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
                yield file
        except OSError as error:
            raise DatabaseUnavailableError(f"the journal {self._path} cannot be used: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self._damaged(None) from None
