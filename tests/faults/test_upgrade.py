"""An upgrade that is cut off, met by older code, or begun by several processes at once: one schema or the other."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import DatabaseUnavailableError, SchemaVersionError, Shredder
from shredsaver.db import migrations
from shredsaver.db.base import sql
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import RemoteError, killed_at, worker

CALL = Caller("sync")
NOW = len(migrations.MIGRATIONS)
LATER = (
    *migrations.MIGRATIONS,
    (sql("CREATE TABLE later (number {int} NOT NULL PRIMARY KEY) {strict}"),),
    (
        sql("ALTER TABLE threads ADD COLUMN later {int}"),
        sql("CREATE INDEX threads_later ON threads (later)"),
        sql("INSERT INTO later (number) VALUES (1)"),
    ),
)
"""The schema of a release to come: two versions on."""
VALUES = {"x": ["kept " * 60]}
ITEM = (("users", "c-1"), "key")
MOST_STEPS = 100


@pytest.fixture
def filled(backend: Backend, keys: str) -> None:
    with Shredder.open(backend.url, keys=keys) as shredder:
        put(CALL, shredder.saver, config(), VALUES)
        shredder.store.put(*ITEM, {"said": "kept"})
        put(CALL, shredder.saver, config("t-2", "c-2"), VALUES)
        shredder.shred("c-2")


def version(backend: Backend) -> int:
    (found,) = backend.execute("SELECT value FROM meta WHERE key = 'schema_version'")[0]
    return int(bytes(found))


def taken_back(backend: Backend) -> None:
    """The schema of today again."""
    for statement in ("DROP INDEX threads_later", "ALTER TABLE threads DROP COLUMN later", "DROP TABLE later"):
        backend.execute(statement)
    backend.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (b"%d" % NOW,))


def whole(backend: Backend) -> int:
    """The schema's version; raises where the tables are not all of that version's."""
    found = version(backend)
    marks = ("later" in backend.tables(), "later" in backend.columns("threads"))
    assert (found, *marks) in ((NOW, False, False), (len(LATER), True, True))
    return found


def serves(url: str, keys: str) -> None:
    with Shredder.open(url, keys=keys) as shredder:
        found, item = shredder.saver.get_tuple(config()), shredder.store.get(*ITEM)
        assert found is not None
        assert item is not None
        assert (found.checkpoint["channel_values"], item.value) == (VALUES, {"said": "kept"})
        put(CALL, shredder.saver, config("t-3"), VALUES)
        assert shredder.status("c-2").state == "purged"
        assert shredder.check_log() == 1


def upgrade(shredder: Any, done: Callable[[Any], None], url: str, keys: str) -> None:
    """Opens the database as the release to come would, in a process that has it open as today's release."""
    migrations.MIGRATIONS = LATER  # type: ignore[misc]
    try:
        serves(url, keys)
    finally:
        migrations.MIGRATIONS = LATER[:NOW]  # type: ignore[misc]
    done("upgraded")


def without_room(shredder: Any, url: str, keys: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        upgrade(shredder, print, url, keys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("filled")
def test_killed_at_any_step_of_an_upgrade(backend: Backend, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for step in range(1, MOST_STEPS):
        _, finished = killed_at(step, backend.url, {"keys": keys}, upgrade, backend.url, keys)
        seen.append(whole(backend))
        if seen[-1] == NOW:
            serves(backend.url, keys)
        else:
            before = backend.contents()
            with pytest.raises(SchemaVersionError, match="upgrade shredsaver"):
                serves(backend.url, keys)
            assert backend.contents() == before
            # Whoever had it open goes on; once it is upgraded, the steps that are left are those of any opening.
            break
        assert not finished
    assert seen.count(NOW) >= 3
    monkeypatch.setattr(migrations, "MIGRATIONS", LATER)
    serves(backend.url, keys)
    monkeypatch.undo()
    taken_back(backend)
    serves(backend.url, keys)


@pytest.mark.usefixtures("filled")
def test_processes_that_upgrade_at_once(backend: Backend, keys: str) -> None:
    with (
        worker(backend.url, keys=keys) as one,
        worker(backend.url, keys=keys) as two,
        worker(backend.url, keys=keys) as older,
    ):
        for process in (one, two):
            process.ask(upgrade, print, backend.url, keys)
        older.ask(put_one, config("t-4"))
        for process in (one, two, older):
            process.answer()
        assert whole(backend) == len(LATER)
        assert backend.count("later") == 1
        older(put_one, config("t-5"))
        assert one(values, config("t-5")) == VALUES


def put_one(shredder: Any, here: dict[str, Any]) -> None:
    put(CALL, shredder.saver, here, VALUES)


def values(shredder: Any, here: dict[str, Any]) -> Any:
    return shredder.saver.get_tuple(here).checkpoint["channel_values"]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_no_room_for_an_upgrade(backend: Backend, keys: str) -> None:
    with worker(backend.url, keys=keys) as one:
        with pytest.raises(RemoteError) as caught:
            one(without_room, backend.url, keys)
        assert caught.value.name == DatabaseUnavailableError.__name__
        assert whole(backend) == NOW
        serves(backend.url, keys)
        one(upgrade, print, backend.url, keys)
        assert whole(backend) == len(LATER)


@pytest.mark.usefixtures("filled")
def test_an_upgrade_that_cannot_be_carried_out_leaves_what_was(
    backend: Backend, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", (*LATER, (sql("CREATE INDEX bad ON nowhere (nothing)"),)))
    with pytest.raises(DatabaseUnavailableError):
        serves(backend.url, keys)
    monkeypatch.undo()
    assert whole(backend) == NOW
    serves(backend.url, keys)
