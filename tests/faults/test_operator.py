"""A careless operator: full disks, files moved or opened to others, the wrong keys. Typed errors, and nothing lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver import (
    ConfigurationError,
    DatabaseForkedError,
    DatabaseUnavailableError,
    FormatError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    SchemaVersionError,
    Shredder,
    ShredIncompleteError,
    ShredSaverError,
)
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import worker

CALL = Caller("sync")
DAMAGE = (DatabaseUnavailableError, KeyServiceUnavailableError, KeyStoreStaleError, KeyNotFoundError, FormatError)
SQLITE = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
VALUES = {"x": ["kept " * 60]}


def state(shredder: Shredder, *here: Any) -> Any:
    found = shredder.saver.get_tuple(config(*here))
    return found and found.checkpoint["channel_values"]


def outcomes(shredder: Shredder) -> dict[str, str]:
    """What each kind of call comes to: ``"done"``, or the name of its error, marked where it is not ours."""
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: state(shredder),
        "write": lambda: put(CALL, shredder.saver, config(), {"x": "y" * 100_000}),
        "first write": lambda: put(CALL, shredder.saver, config("t-new", "c-new"), {"x": 1}),
        "item": lambda: shredder.store.put(("users", "c-1"), "key", {"x": "y" * 100_000}),
        "rotate": shredder.rotate,
        "rotate one": lambda: shredder.rotate("c-1"),
        "hold": lambda: shredder.hold("c-2", "a case"),
        "release": lambda: shredder.release("c-2"),
        "shred": lambda: shredder.shred("c-2"),
        "resume": shredder.resume,
        "reconcile": shredder.reconcile,
        "check": shredder.check_keys,
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "done"
        except ShredSaverError as error:
            found[name] = type(error).__name__
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            found[name] = f"not ours: {error!r}"
    return found


def without_descriptors(shredder: Shredder) -> dict[str, str]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        return outcomes(shredder)
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def without_room(shredder: Shredder) -> dict[str, str]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        return outcomes(shredder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def finish(shredder: Shredder) -> tuple[str, bool, Any]:
    shredder.resume()
    return shredder.shred("c-2").state, shredder.check_keys().ok, put(CALL, shredder.saver, config(), VALUES) and None


@pytest.mark.parametrize("without", [without_descriptors, without_room], ids=["descriptors", "room"])
def test_what_runs_out_is_told_and_nothing_is_lost(
    without: Callable[..., Any], backend: Backend, keys: str, make_shredder: Callable[..., Any]
) -> None:
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-2"), ("t-3", "c-3")):
        put(CALL, shredder.saver, config(thread, customer), VALUES)
    with worker(backend.url, keys=keys) as other:
        found = other(without)
        assert not {name: outcome for name, outcome in found.items() if outcome.startswith("not ours")}
        assert set(found.values()) & {"KeyServiceUnavailableError", "DatabaseUnavailableError", "ShredIncompleteError"}
        assert other(finish) == ("purged", True, None)
    for one in (shredder, make_shredder()):
        assert state(one, "t-3", "c-3") == VALUES
        assert state(one) == VALUES


@pytest.mark.parametrize("function", ["pwrite", "fsync", "pread"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@SQLITE
def test_a_file_of_roots_that_cannot_be_used(
    function: str, code: int, backend: Backend, make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-2")):
        put(CALL, shredder.saver, config(thread, customer), VALUES)

    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(f"shredsaver.kms.rootsfile.os.{function}", fail)
        with pytest.raises(KeyServiceUnavailableError) as caught:
            shredder.rotate()
        assert caught.value.retryable == (code == errno.ENOSPC)
        with pytest.raises(ShredIncompleteError):
            shredder.shred("c-2")
    shredder.resume()
    assert shredder.status("c-2").state == "purged"
    assert shredder.check_keys().ok
    assert state(make_shredder()) == VALUES


@SQLITE
def test_keys_deleted_while_serving(backend: Backend, keys: str, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), VALUES)
    directory = Path(keys.removeprefix("file:"))
    directory.rename(directory.with_name("away"))
    found = outcomes(shredder)
    assert found["first write"] == "KeyServiceUnavailableError"
    assert found["shred"] in ("ShredIncompleteError", "KeyServiceUnavailableError")
    assert not [outcome for outcome in found.values() if outcome.startswith("not ours")]
    with pytest.raises(KeyNotFoundError):
        make_shredder()
    directory.with_name("away").rename(directory)
    shredder.resume()
    assert shredder.shred("c-2").state == "purged"
    assert make_shredder().saver.get_tuple(config()) is not None


@SQLITE
def test_a_database_moved_while_it_is_open(backend: SqliteBackend, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), VALUES)
    directory = backend.path.parent
    directory.rename(directory.with_name("moved"))
    found = outcomes(shredder)
    found.pop("check")  # of the keys, which are where they were
    assert not [outcome for outcome in found.values() if outcome == "done" or outcome.startswith("not ours")]
    directory.mkdir()
    second = make_shredder()  # an empty one has taken its place: it is not the one that the keys belong to
    assert second.reconciliation.forked
    for call in (lambda: state(shredder), lambda: put(CALL, shredder.saver, config(), {"x": 2})):
        with pytest.raises(DatabaseUnavailableError, match="moved or replaced"):
            call()
    second.close()
    shutil.rmtree(directory)
    directory.with_name("moved").rename(directory)
    assert state(shredder) == VALUES
    assert state(make_shredder()) == VALUES


def test_two_databases_on_one_key_store(
    backend: Backend, home: Path, keys: str, make_shredder: Callable[..., Any]
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), VALUES)
    other = make_shredder(str(home / "other.sqlite"))
    assert state(other) is None
    for call in (
        lambda: put(CALL, other.saver, config(), {"x": 1}),
        lambda: other.shred("c-1"),
        other.rotate,
        other.resume,
        lambda: other.reconcile(adopt="fork") and other.shred("c-1"),
    ):
        with pytest.raises(DatabaseForkedError):
            call()
    assert state(shredder) == VALUES
    put(CALL, shredder.saver, config("t-2", "c-2"), VALUES)


def test_the_wrong_keys(backend: Backend, home: Path, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), VALUES)
    with Shredder.open(str(home / "other.sqlite"), keys=f"file:{home / 'others'}") as stranger:
        put(CALL, stranger.saver, config(), VALUES)
    with pytest.raises(ConfigurationError, match="deployment"):
        make_shredder(keys=f"file:{home / 'others'}")
    with pytest.raises(KeyNotFoundError):
        make_shredder(keys=f"file:{home / 'nowhere'}")
    assert not (home / "nowhere").exists()
    assert state(make_shredder()) == VALUES


@pytest.mark.parametrize(("name", "mode"), [("", 0o755), ("roots", 0o644), ("keys.db", 0o640)])
@SQLITE
def test_permissions_opened(
    name: str, mode: int, backend: Backend, keys: str, make_shredder: Callable[..., Any]
) -> None:
    put(CALL, make_shredder().saver, config(), VALUES)
    path = Path(keys.removeprefix("file:")) / name
    before = path.stat().st_mode
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod"):
        make_shredder()
    path.chmod(before)
    assert state(make_shredder()) == VALUES


@pytest.mark.parametrize("kept", [0.5, 5_000, 100, 0, None], ids=str)
@pytest.mark.parametrize("name", ["atlas.sqlite", "keys.db", "roots"])
@SQLITE
def test_a_half_finished_copy(
    name: str, kept: float | None, backend: SqliteBackend, keys: str, home: Path, make_shredder: Callable[..., Any]
) -> None:
    with make_shredder() as shredder:
        put(CALL, shredder.saver, config(), VALUES)
    database, copied = home / "copied" / "atlas.sqlite", home / "copied keys"
    shutil.copytree(backend.path.parent, database.parent)
    shutil.copytree(keys.removeprefix("file:"), copied)
    file = database if name == "atlas.sqlite" else copied / name
    if kept is None:
        file.unlink()
    else:
        os.truncate(file, int(file.stat().st_size * kept) if 0 < kept < 1 else int(kept))
    if name == "atlas.sqlite" and not kept:  # an empty database is a new one: it is not the keys' own
        assert make_shredder(str(database), keys=f"file:{copied}").reconciliation.forked
        return
    with pytest.raises(DAMAGE):
        make_shredder(str(database), keys=f"file:{copied}")
    assert state(make_shredder()) == VALUES


@pytest.mark.parametrize("version", [b"99", b"x", b"", b"-1", b"0", b"\xff", b"9" * 5_000])
def test_a_schema_version_that_is_not_ours(version: bytes, backend: Backend, make_shredder: Callable[..., Any]) -> None:
    put(CALL, make_shredder().saver, config(), VALUES)
    (before,) = backend.execute("SELECT value FROM meta WHERE key = 'schema_version'")
    backend.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    with pytest.raises(SchemaVersionError):
        make_shredder()
    backend.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", before)
    assert state(make_shredder()) == VALUES


def test_a_clock_set_back_revives_nobody(
    backend: Backend, make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder = make_shredder()
    for thread, customer in (("t-1", "c-1"), ("t-2", "c-2")):
        put(CALL, shredder.saver, config(thread, customer), VALUES)
    shredder.shred("c-1", purge=False)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1e8)
    early = make_shredder()
    with pytest.raises(ShredSaverError, match="was shredded"):
        early.saver.get_tuple(config())
    put(CALL, early.saver, config("t-2", "c-2"), VALUES)
    assert early.shred("c-2").state == "purged"
    assert early.check_log() == 2
    monkeypatch.undo()
    assert not make_shredder().reconciliation.changed
