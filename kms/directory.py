"""Key directories: made private, refused if others can reach into them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shredsaver.errors import ConfigurationError, KeyNotFoundError, KeyStoreStaleError
from shredsaver.kms.rootsfile import sync_directory


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


def prepare(path: Path, create: bool) -> None:
    """Makes a key directory where it is missing, readable by its owner alone.

    Raises:
        KeyNotFoundError: It is missing, and is not to be made.
        ConfigurationError: It cannot be made, is no directory, or others can reach into it.
    """
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


def prepare_store(keys: Path, roots: Path, create: bool, *, mirrored: bool) -> None:
    """Refuses what must not be made anew; with ``mirrored``, a missing copy is made from another.

    Raises:
        KeyNotFoundError: There is no key store, and none is to be made.
        KeyStoreStaleError: Only its roots are there.
        ConfigurationError: Others can reach into it.
    """
    if keys.exists():
        check_private(keys)
        return
    if mirrored:
        return
    if roots.exists():
        raise KeyStoreStaleError(
            f"{keys} is missing while its file of roots is there: restore keys.db from a mirror; it is not made anew, "
            "as every customer's key is in it"
        )
    if not create:
        raise KeyNotFoundError(f"there is no key store in {keys.parent}: check the key URI, or restore the directory")
