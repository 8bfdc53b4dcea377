"""What cannot work is refused with an error that says what to do; nothing is written, nothing is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver import (
    ConfigurationError,
    CustomerUnresolvedError,
    DatabaseUnavailableError,
    KeyNotFoundError,
    KeyServiceError,
    PayloadError,
    SchemaVersionError,
    Shredder,
    ShredSaverError,
    UnknownKeySchemeError,
    UnsealError,
)
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import checkpoint, config, metadata, put

CALL = Caller("sync")


def refused(error: type[Exception] | tuple[type[Exception], ...], database: str, keys: Any, **options: Any) -> str:
    with pytest.raises(error) as caught, Shredder.open(database, keys=keys, **options):
        pass
    assert isinstance(caught.value, ShredSaverError)
    assert len(str(caught.value)) > 20
    return str(caught.value)


def good(database: str, keys: str) -> None:
    """Makes a deployment that works, with one customer in it."""
    with Shredder.open(database, keys=keys) as shredder:
        put(CALL, shredder.saver, config(), {"x": 1})


def still_good(database: str, keys: str) -> None:
    with Shredder.open(database, keys=keys) as shredder:
        assert shredder.saver.get_tuple(config()).checkpoint["channel_values"] == {"x": 1}
        put(CALL, shredder.saver, config("another"), {"x": 1})


class TestDatabases:
    def test_a_file_that_is_no_database(self, home: Path) -> None:
        file = home / "notes.txt"
        file.write_bytes(b"these are my notes\n" * 100)
        refused(DatabaseUnavailableError, str(file), f"file:{home / 'keys'}")
        assert file.read_bytes() == b"these are my notes\n" * 100

    def test_a_directory(self, home: Path) -> None:
        refused((DatabaseUnavailableError, ConfigurationError), str(home), f"file:{home / 'keys'}")

    def test_a_place_that_is_not_there(self, home: Path) -> None:
        refused(DatabaseUnavailableError, str(home / "no" / "such" / "atlas.sqlite"), f"file:{home / 'keys'}")

    @pytest.mark.parametrize("database", ["", ":memory:", "sqlite:///:memory:", "mysql://host/db", "redis://x"])
    def test_what_is_no_place_for_a_database(self, database: str, home: Path) -> None:
        before = set(Path.cwd().iterdir())
        refused(ConfigurationError, database, f"file:{home / 'keys'}")
        assert set(Path.cwd().iterdir()) == before
        assert not (home / "keys").exists()

    def test_the_database_of_another_program(self, home: Path) -> None:
        file = home / "other.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT, checkpoint BLOB)")
        connection.execute("INSERT INTO checkpoints VALUES ('t', x'00')")
        connection.commit()
        connection.close()
        refused(ConfigurationError, str(file), f"file:{home / 'keys'}")
        connection = sqlite3.connect(file)
        assert connection.execute("SELECT * FROM checkpoints").fetchall() == [("t", b"\0")]
        connection.close()

    def test_a_schema_from_the_future(self, backend: Backend, keys: str) -> None:
        good(backend.url, keys)
        (version,) = backend.execute("SELECT value FROM meta WHERE key = 'schema_version'")[0]
        backend.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (b"99",))
        before = backend.contents()
        refused(SchemaVersionError, backend.url, keys)
        assert backend.contents() == before
        backend.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (bytes(version),))
        still_good(backend.url, keys)

    def test_no_tables_and_no_right_to_make_them(self, backend: Backend, keys: str) -> None:
        refused(SchemaVersionError, backend.url, keys, auto_setup=False)
        assert backend.tables() == []

    def test_a_damaged_file_serves_nothing_wrong(self, home: Path) -> None:
        file, keys = home / "atlas.sqlite", f"file:{home / 'keys'}"
        good(str(file), keys)
        data = bytearray(file.read_bytes())
        for offset in range(100, len(data), 512):
            data[offset : offset + 64] = os.urandom(64)
        file.write_bytes(data)
        with pytest.raises(ShredSaverError), Shredder.open(str(file), keys=keys) as shredder:
            shredder.saver.get_tuple(config())

    def test_a_locked_database_is_waited_for(self, home: Path) -> None:
        file, keys = home / "atlas.sqlite", f"file:{home / 'keys'}"
        good(str(file), keys)
        holder = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        release = threading.Timer(0.3, holder.execute, ("COMMIT",))
        with Shredder.open(str(file), keys=keys) as shredder:
            holder.execute("BEGIN IMMEDIATE")
            release.start()
            put(CALL, shredder.saver, config("t-2"), {"x": 2})
        release.join()
        holder.close()


class TestKeys:
    def test_an_unknown_scheme(self, backend: Backend) -> None:
        message = refused(UnknownKeySchemeError, backend.url, "vault:somewhere")
        assert "file:" in message

    @pytest.mark.parametrize("keys", ["", "file:", "keys", None, 7])
    def test_what_is_no_key_service(self, keys: Any, backend: Backend) -> None:
        refused(ConfigurationError, backend.url, keys)

    def test_a_key_directory_that_is_gone_is_not_made_anew(self, backend: Backend, keys: str) -> None:
        good(backend.url, keys)
        directory = Path(keys.removeprefix("file:"))
        directory.rename(directory.with_name("moved"))
        refused(KeyNotFoundError, backend.url, keys)
        assert not directory.exists()
        directory.with_name("moved").rename(directory)
        still_good(backend.url, keys)

    @pytest.mark.parametrize("which", ["directory", "keys.db", "roots"])
    def test_keys_that_others_can_read(self, which: str, backend: Backend, keys: str) -> None:
        good(backend.url, keys)
        directory = Path(keys.removeprefix("file:"))
        target = directory if which == "directory" else directory / which
        mode = stat.S_IMODE(target.stat().st_mode)
        target.chmod(mode | 0o044)
        message = refused(ConfigurationError, backend.url, keys)
        assert "chmod" in message
        target.chmod(mode)
        still_good(backend.url, keys)

    def test_keys_of_another_deployment(self, backend: Backend, keys: str, home: Path) -> None:
        good(backend.url, keys)
        other = f"file:{home / 'other keys'}"
        good(str(home / "other.sqlite"), other)
        before = backend.contents()
        refused((ConfigurationError, KeyServiceError), backend.url, other)
        refused((ConfigurationError, KeyServiceError), str(home / "other.sqlite"), keys)
        assert backend.contents() == before
        still_good(backend.url, keys)
        still_good(str(home / "other.sqlite"), other)

    def test_an_empty_key_directory_under_a_database_in_use(self, backend: Backend, keys: str, home: Path) -> None:
        good(backend.url, keys)
        empty = home / "empty"
        empty.mkdir(mode=0o700)
        refused(KeyServiceError, backend.url, f"file:{empty}")
        assert not {"keys.db", "roots"} & {file.name for file in empty.iterdir()}

    def test_a_file_where_the_directory_should_be(self, backend: Backend, home: Path) -> None:
        (home / "file").write_bytes(b"x")
        refused((ConfigurationError, KeyServiceError), backend.url, f"file:{home / 'file'}")

    def test_key_files_that_are_gone_or_cut_off(self, backend: Backend, keys: str, home: Path) -> None:
        good(backend.url, keys)
        directory = Path(keys.removeprefix("file:"))
        kept = home / "kept"
        shutil.copytree(directory, kept)
        for name in ("keys.db", "roots"):
            for damage in (lambda file: file.unlink(), lambda file: os.truncate(file, 100)):
                damage(directory / name)
                with pytest.raises(ShredSaverError), Shredder.open(backend.url, keys=keys) as shredder:
                    shredder.saver.get_tuple(config())
                shutil.rmtree(directory)
                shutil.copytree(kept, directory)
        still_good(backend.url, keys)


class TestCalls:
    @pytest.fixture
    def saver(self, make_shredder: Callable[..., Any]) -> Any:
        return make_shredder().saver

    @pytest.fixture
    def unchanged(self, saver: Any, backend: Backend) -> Any:
        put(CALL, saver, config("before", "c-0"), {"x": 1})
        before = backend.contents()
        yield
        assert backend.contents() == before

    @pytest.mark.usefixtures("unchanged")
    @pytest.mark.parametrize("where", [{}, {"configurable": {}}, {"configurable": {"customer_id": "c-1"}}])
    def test_no_thread(self, where: dict[str, Any], call: Caller, saver: Any) -> None:
        made = checkpoint({"x": 1})
        with pytest.raises(ConfigurationError):
            call(saver, "put", where, made, metadata(), made["channel_versions"])
        with pytest.raises(ConfigurationError):
            call(saver, "put_writes", where, [("x", 1)], "task")
        with pytest.raises(ConfigurationError):
            call(saver, "get_tuple", where)

    @pytest.mark.usefixtures("unchanged")
    def test_writes_for_no_checkpoint(self, call: Caller, saver: Any) -> None:
        with pytest.raises(ConfigurationError):
            call(saver, "put_writes", config(), [("x", 1)], "task")

    @pytest.mark.usefixtures("unchanged")
    @pytest.mark.parametrize("customer", ["", 7, 1.5, True, b"c-1", ["c-1"], {"id": "c-1"}, object(), "\ud800"])
    def test_what_is_no_customer_id(self, customer: Any, call: Caller, saver: Any) -> None:
        made = checkpoint({"x": 1})
        here = config("t-1", customer)
        with pytest.raises(CustomerUnresolvedError):
            call(saver, "put", here, made, metadata(), made["channel_versions"])
        with pytest.raises(CustomerUnresolvedError):
            call(saver, "get_tuple", here)

    @pytest.mark.parametrize("answer", ["", 7, b"x"])
    def test_a_callable_that_gives_no_id(self, answer: Any, call: Caller, make_shredder: Callable[..., Any]) -> None:
        saver = make_shredder(customer=lambda config: answer).saver
        with pytest.raises(CustomerUnresolvedError):
            put(call, saver, config(), {"x": 1})

    @pytest.mark.usefixtures("unchanged")
    @pytest.mark.parametrize(
        "value",
        [object(), lambda: None, threading.Lock(), {"deep": [object()]}, {object(): 1}, [2**70], iter([1])],
        ids=["object", "function", "lock", "deep", "key", "huge number", "iterator"],
    )
    @pytest.mark.parametrize("place", ["state", "write", "metadata"])
    def test_a_value_that_cannot_be_serialised(self, value: Any, place: str, call: Caller, saver: Any) -> None:
        made = checkpoint({"fine": "text " * 100, "x": value if place == "state" else 1})
        more = {"odd": value} if place == "metadata" else {}
        act = {
            "state": lambda: call(saver, "put", config(), made, metadata(), made["channel_versions"]),
            "metadata": lambda: call(saver, "put", config(), made, metadata(**more), made["channel_versions"]),
            "write": lambda: call(
                saver, "put_writes", config(checkpoint_id=made["id"]), [("fine", "text " * 100), ("x", value)], "task"
            ),
        }[place]
        with pytest.raises(PayloadError) as caught:
            act()
        assert repr(value) not in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.usefixtures("unchanged")
    def test_a_payload_over_the_limit(self, call: Caller, saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the limit lowered: the real one is 2 GiB, which the slow test below writes."""
        from shredsaver import sealing

        assert sealing.MAX_PLAINTEXT > 2**30
        monkeypatch.setattr(sealing, "MAX_PLAINTEXT", 100_000)
        for value in (b"x" * 100_001, "x" * 100_001, {"k": "x" * 100_001}, ["x" * 100_001]):
            with pytest.raises(PayloadError):
                put(call, saver, config(), {"fine": 1, "x": value})
            with pytest.raises(PayloadError):
                call(saver, "put_writes", config(checkpoint_id="1"), [("x", 1), ("x", value)], "task")

    @pytest.mark.usefixtures("unchanged")
    @pytest.mark.slow
    def test_a_payload_over_the_real_limit(self, saver: Any) -> None:
        value = bytes(2**31)
        with pytest.raises(PayloadError):
            put(CALL, saver, config(), {"x": value})

    def test_an_option_that_cannot_work(self, backend: Backend, keys: str) -> None:
        for customer in ("", None, 7):
            refused(ConfigurationError, backend.url, keys, customer=customer)


def test_records_of_another_deployment(backend: Backend, keys: str, home: Path) -> None:
    """Rows taken over from another database do not open, although thread and customer have the same names."""
    good(backend.url, keys)
    good(str(home / "other.sqlite"), f"file:{home / 'other keys'}")
    (record,) = SqliteBackend(home / "other.sqlite").execute("SELECT sealed FROM checkpoints")
    backend.execute("UPDATE checkpoints SET sealed = ?", record)
    with Shredder.open(backend.url, keys=keys) as shredder, pytest.raises(UnsealError):
        shredder.saver.get_tuple(config())
