"""A journal of revocations outside database and key store: one more record that a restore of both does not take back.

One line of JSON an entry, each with an HMAC under the log key over the line before and its own content. Tokens only.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from shredsaver.errors import DatabaseUnavailableError, RevocationLogDamagedError
from shredsaver.reconcile import Dead


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
        """Adds entries that are not there yet; they are durable when this returns.

        Raises:
            DatabaseUnavailableError: The file cannot be written.
            RevocationLogDamagedError: What is there does not verify, so nothing can follow it.
        """
        with self._locked() as file:
            entries = list(self._entries(file))
            known = {one[:2] for one, _ in entries}
            previous = entries[-1][1] if entries else ""
            file.seek(0, os.SEEK_END)
            for one in dead:
                if one[:2] in known:
                    continue
                body = {"customer": one.customer.hex(), "generation": one.generation, "at": one.at}
                previous = self._mac(previous, body)
                line = json.dumps({**body, "mac": previous}, sort_keys=True)
                file.write(f"{line}\n")
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
    def _mac_of(file: IO[str], number: int) -> str | None:
        file.seek(0)
        lines = file.read().split("\n")[:-1]
        try:
            return str(json.loads(lines[number - 1])["mac"])
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _entries(self, file: IO[str], skip: int = 0, previous: str = "") -> Iterator[tuple[Dead, str]]:
        file.seek(0)
        lines = file.read().split("\n")
        if lines[-1]:  # not ended by a line feed: its write never returned
            file.seek(0)
            file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        for number, line in enumerate(lines[skip:-1], skip + 1):
            try:
                body: dict[str, Any] = json.loads(line)
                mac = str(body.pop("mac"))
                dead = Dead(bytes.fromhex(body["customer"]), int(body["generation"]), str(body["at"]))
                whole = mac.isascii()
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                raise self._damaged(number) from None
            if not whole or not hmac.compare_digest(mac, self._mac(previous, body)):
                raise self._damaged(number)
            previous = mac
            yield dead, mac

    def _damaged(self, number: int) -> RevocationLogDamagedError:
        return RevocationLogDamagedError(
            f"line {number} of the journal {self._path} does not verify: restore the journal, or open without it"
        )

    def _mac(self, previous: str, body: dict[str, Any]) -> str:
        message = f"journal\x00{previous}\x00{json.dumps(body, sort_keys=True)}"
        return hmac.digest(self._key, message.encode("ascii"), hashlib.sha256).hex()

    @contextmanager
    def _locked(self) -> Iterator[IO[str]]:
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+", encoding="ascii", newline="\n") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
                yield file
        except OSError as error:
            raise DatabaseUnavailableError(f"the journal {self._path} cannot be used: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self._damaged(1) from None
