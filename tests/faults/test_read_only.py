"""Files and directories that may only be read: typed errors that say so, and everything is there afterwards."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shredsaver import Shredder, ShredSaverError
from tests.support.backends import SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import worker

CALL = Caller("sync")
VALUES = {"x": ["kept " * 60]}
CAPABILITIES_3 = 0x20080522
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)


def obey_modes() -> None:
    """Gives up root's right to pass over the modes of files, for this thread and those that it starts."""
    if os.geteuid() or platform.system() != "Linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~OVERRIDES  # the effective ones
    assert libc.capset(header, sets) == 0


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    places = [directory, *directory.rglob("*")]
    modes = [place.stat().st_mode for place in places]
    for place in reversed(places):
        place.chmod(0o500 if place.is_dir() else 0o400)
    try:
        yield
    finally:
        for place, mode in zip(places, modes, strict=True):
            place.chmod(mode)


def attempts(shredder: Any, directory: str, url: str, keys: str) -> dict[str, str]:
    """What comes of opening, and of what an opened one is asked for, while a directory may only be read."""
    obey_modes()
    found = {}
    with read_only(Path(directory)):
        for name, deed in DEEDS.items():
            try:
                with Shredder.open(url, keys=keys) as fresh:
                    deed(fresh)
                found[name] = "done"
            except ShredSaverError as error:
                found[name] = f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 - this is what is looked for
                found[name] = f"not ours: {error!r}"
    return found


DEEDS: dict[str, Callable[[Shredder], Any]] = {
    "read": lambda shredder: shredder.saver.get_tuple(config()),
    "write": lambda shredder: put(CALL, shredder.saver, config(), VALUES),
    "shred": lambda shredder: shredder.shred("c-2"),
}


@pytest.mark.parametrize("place", ["database", "keys"])
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_what_may_only_be_read(
    place: str, backend: SqliteBackend, keys: str, home: Path, make_shredder: Callable[..., Any]
) -> None:
    with make_shredder() as shredder:
        put(CALL, shredder.saver, config(), VALUES)
        put(CALL, shredder.saver, config("t-2", "c-2"), VALUES)
    (home / "elsewhere").mkdir()
    # A worker needs something to be open: it is another deployment.
    with worker(str(home / "elsewhere" / "atlas.sqlite"), keys=f"file:{home / 'elsewhere' / 'keys'}") as other:
        found = other(attempts, str(home / place), backend.url, keys)
    kind = {"database": "DatabaseUnavailableError: ", "keys": "KeyServiceUnavailableError: "}[place]
    for outcome in found.values():
        assert outcome.startswith(kind), found
        assert str(home / place) in outcome
        assert "must be able to write" in outcome or "may only be read" in outcome, outcome
    for customer in ("c-1", "c-2"):
        again = make_shredder().saver.get_tuple(config("t-2" if customer == "c-2" else "t-1", customer))
        assert again.checkpoint["channel_values"] == VALUES
    assert make_shredder().shred("c-2").state == "purged"
