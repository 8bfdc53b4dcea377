"""What is done to a key store's files behind its back: refused, with the error that says so, and no other is hurt."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shredsaver import sealing
from shredsaver.errors import (
    ConfigurationError,
    CustomerShreddedError,
    FormatError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    RevocationLogDamagedError,
    SchemaVersionError,
    UnsealError,
)
from shredsaver.kms import _steps, destruction
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.rootsfile import RootsFile
from shredsaver.kms.wrapping import Wrapped, unwrap

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A closed key store with three customers in one slot; B was replaced once."""
    place = tmp_path / "keys"
    with open_keys(place) as service:
        for customer in (A, B, C):
            service.create(customer, customer * 2)
        service.replace(B, 1, b"second", 1)
    return place


def open_keys(place: Path) -> LocalKeyService:
    return LocalKeyService(place, slots=1)


def change(place: Path, statement: str, *params: object) -> None:
    with closing(sqlite3.connect(place / "keys.db")) as connection:
        changed = connection.execute(statement, params).rowcount
        connection.commit()
    assert changed


def rows(place: Path, statement: str, *params: object) -> list[tuple]:
    with closing(sqlite3.connect(place / "keys.db")) as connection:
        return connection.execute(statement, params).fetchall()


@pytest.fixture
def untouched(keys: Path) -> Iterator[None]:
    """C reads as ever, whatever was done to A and B."""
    yield
    with open_keys(keys) as service:
        assert service.load(C, 1).secret == C * 2


pytestmark = pytest.mark.usefixtures("untouched")
WHERE = "WHERE customer = ? AND generation = 1"


@pytest.mark.parametrize(
    ("statement", "params"),
    [
        (
            "UPDATE key_wraps SET wrapped = (SELECT wrapped FROM key_wraps WHERE customer = ?) WHERE customer = ?",
            (B, A),
        ),
        ("UPDATE key_trees SET sealed = (SELECT sealed FROM key_trees WHERE customer = ?) WHERE customer = ?", (B, A)),
        (f"UPDATE key_wraps SET key_version = 2 {WHERE}", (A,)),
        (f"UPDATE key_wraps SET epoch = 1 {WHERE}", (A,)),
        (f"UPDATE key_wraps SET epoch = 7 {WHERE}", (A,)),
        (f"UPDATE key_wraps SET wrapped = zeroblob(62) {WHERE}", (A,)),
        (f"UPDATE key_wraps SET wrapped = CAST(x'02' || substr(wrapped, 2) AS BLOB) {WHERE}", (A,)),
        (f"UPDATE key_wraps SET wrapped = substr(wrapped, 1, 61) {WHERE}", (A,)),
        (f"UPDATE key_trees SET sealed = x'' {WHERE}", (A,)),
        (f"UPDATE key_trees SET sealed = CAST(sealed || x'00' AS BLOB) {WHERE}", (A,)),
        (f"DELETE FROM key_trees {WHERE}", (A,)),
    ],
)
def test_an_edited_row_does_not_open(keys: Path, statement: str, params: tuple[object, ...]) -> None:
    change(keys, statement, *params)
    with open_keys(keys) as service:
        with pytest.raises((UnsealError, FormatError)) as caught:
            service.load(A, 1)
        assert A.hex() in str(caught.value)
        assert (A * 2).hex() not in str(caught.value)
        assert any(A.hex() in problem for problem in service.verify().problems)
        assert service.load(B, 1).secret == b"second"


def test_another_generation_of_a_row_is_not_found(keys: Path) -> None:
    change(keys, f"UPDATE key_wraps SET generation = 2 {WHERE}", A)
    change(keys, f"UPDATE key_trees SET generation = 2 {WHERE}", A)
    with open_keys(keys) as service:
        with pytest.raises(KeyNotFoundError):
            service.load(A, 1)
        with pytest.raises(UnsealError):
            service.load(A, 2)


def test_an_older_wrapped_key_put_back_does_not_open(keys: Path) -> None:
    wraps, trees = (
        rows(keys, f"SELECT * FROM key_wraps {WHERE}", B)[0],
        rows(keys, f"SELECT * FROM key_trees {WHERE}", B)[0],
    )
    with open_keys(keys) as service:
        service.replace(B, 1, b"third", 2)
    change(keys, "INSERT OR REPLACE INTO key_wraps VALUES (?, ?, ?, ?, ?, ?, ?)", *wraps)
    change(keys, "INSERT OR REPLACE INTO key_trees VALUES (?, ?, ?)", *trees)
    with open_keys(keys) as service, pytest.raises(UnsealError, match="put back"):
        service.load(B, 1)
    # Said to be of the present epoch, it is sealed under a root that is no more.
    change(keys, f"UPDATE key_wraps SET epoch = (SELECT epoch FROM key_slots WHERE slot = 0) {WHERE}", B)
    with open_keys(keys) as service, pytest.raises(UnsealError):
        service.load(B, 1)


def test_a_destroyed_customers_row_put_back_stays_dead(keys: Path) -> None:
    wraps, trees = (
        rows(keys, f"SELECT * FROM key_wraps {WHERE}", A)[0],
        rows(keys, f"SELECT * FROM key_trees {WHERE}", A)[0],
    )
    with open_keys(keys) as service:
        service.destroy([A])
    change(keys, "INSERT INTO key_wraps VALUES (?, ?, ?, ?, ?, ?, ?)", *wraps)
    change(keys, "INSERT INTO key_trees VALUES (?, ?, ?)", *trees)
    with open_keys(keys) as service:
        with pytest.raises(CustomerShreddedError):
            service.load(A, 1)
        with pytest.raises(CustomerShreddedError):
            service.create(A, b"again")
        assert service.current(A) is None
        assert any("put back" in problem for problem in service.verify().problems)
        service.destroy([A])
        assert service.verify().ok


def test_a_damaged_row_stops_its_slots_rotation_and_loses_nobody(keys: Path) -> None:
    good = rows(keys, f"SELECT wrapped FROM key_wraps {WHERE}", A)[0]
    change(keys, f"UPDATE key_wraps SET wrapped = zeroblob(62) {WHERE}", A)
    with open_keys(keys) as service:
        with pytest.raises((UnsealError, FormatError)):
            service.destroy([B])
        with pytest.raises(CustomerShreddedError):
            service.load(B, 1)
        assert service.load(C, 1).secret == C * 2
    with open_keys(keys) as service:  # opening does not fail over it either
        assert service.load(C, 1).secret == C * 2
        with pytest.raises((UnsealError, FormatError)):
            service.destroy([B])
    change(keys, f"UPDATE key_wraps SET wrapped = ? {WHERE}", *good, A)
    with open_keys(keys) as service:
        assert service.destroy([B])[0].state == "destroyed"
        assert service.load(A, 1).secret == A * 2


def test_a_damaged_slot_does_not_keep_others_from_being_destroyed(tmp_path: Path) -> None:
    place = tmp_path / "many"
    customers = [bytes([0, n]) * 8 for n in range(4)]  # one in each slot
    with LocalKeyService(place, slots=4) as service:
        for customer in customers:
            service.create(customer, customer)
        service.create(b"\0\0other", b"other")
    change(place, "UPDATE key_wraps SET wrapped = zeroblob(62) WHERE customer = ?", b"\0\0other")
    with LocalKeyService(place) as service:
        with pytest.raises((UnsealError, FormatError)):
            service.destroy(customers)
        assert [each.state for each in service.destroy(customers[1:])] == ["destroyed"] * 3


def test_a_row_that_still_needs_the_old_root_keeps_it(keys: Path) -> None:
    """Written by whatever means between the re-wrapping and the proof: found there, so nothing is destroyed."""
    wraps = rows(keys, f"SELECT * FROM key_wraps {WHERE}", A)[0]

    def hook(name: str) -> None:
        if name == "roots-published":
            _steps.hook = None
            change(keys, "INSERT OR REPLACE INTO key_wraps VALUES (?, ?, ?, ?, ?, ?, ?)", *wraps)

    with open_keys(keys) as service:
        _steps.hook = hook
        try:
            with pytest.raises(UnsealError, match="put back"):
                service.destroy([B])
        finally:
            _steps.hook = None
        old = wraps[3]
        assert service._roots._files[0].read(0, old) is not None
        with pytest.raises(KeyServiceUnavailableError, match="not all proven dead"):
            service._database.run(lambda: destruction.outcome(service.deployment().log_key, {B: 0}, [B], ""))


# -- the log of the dead -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE key_tombstones SET customer = x'04040404040404040404040404040404' WHERE seq = 1",
        "UPDATE key_tombstones SET generation = 9 WHERE seq = 1",
        "UPDATE key_tombstones SET at = '2020-01-01T00:00:00.000Z' WHERE seq = 2",
        "UPDATE key_tombstones SET known = 0 WHERE seq = 1",
        "UPDATE key_tombstones SET first_epoch = 2 WHERE seq = 1",
        "UPDATE key_tombstones SET chain = zeroblob(32) WHERE seq = 1",
        "DELETE FROM key_tombstones WHERE seq = 1",
        "DELETE FROM key_tombstones WHERE seq = 2",
        "UPDATE key_tombstones SET seq = 3 WHERE seq = 2",
        "UPDATE key_log SET length = 1",
        "UPDATE key_log SET head = zeroblob(32)",
        "INSERT INTO key_tombstones SELECT 3, zeroblob(16), 1, at, 1, 0, 1, 1, chain FROM key_tombstones WHERE seq = 2",
    ],
)
def test_an_edited_log_does_not_verify(tmp_path: Path, statement: str) -> None:
    place = tmp_path / "log"
    with open_keys(place) as service:
        service.create(A, b"a")
        service.destroy([A])
        service.destroy([B])
    change(place, statement)
    try:
        service = open_keys(place)
    except (RevocationLogDamagedError, KeyStoreStaleError):
        return  # an anchor in the roots has seen what is missing
    with service:
        with pytest.raises(RevocationLogDamagedError):
            service.tombstones()
        assert not service.verify().ok


def test_a_log_cut_short_is_older_than_its_roots(keys: Path, tmp_path: Path) -> None:
    """Whole and consistent in itself: only the anchor in the roots knows that it was longer."""
    place = tmp_path / "cut"
    shutil.copytree(keys, place)
    with open_keys(place) as service:
        service.destroy([A])
    change(place, "DELETE FROM key_tombstones")
    change(place, "UPDATE key_log SET length = 0, head = zeroblob(32)")
    with pytest.raises(KeyStoreStaleError, match="0 tombstones, its roots have seen 1"):
        open_keys(place)


def test_a_forged_tombstone_is_no_shred(keys: Path) -> None:
    change(keys, "INSERT INTO key_tombstones VALUES (1, ?, 1, '2026-01-01T00:00:00.000Z', 1, 0, 1, 2, zeroblob(32))", A)
    with open_keys(keys) as service:
        with pytest.raises(RevocationLogDamagedError):
            service.load(A, 1)
        with pytest.raises(RevocationLogDamagedError):
            service.create(A, b"again")
    change(keys, "DELETE FROM key_tombstones")
    with open_keys(keys) as service:
        assert service.load(A, 1).secret == A * 2


# -- older copies ------------------------------------------------------------------------------------------------------


def test_an_older_copy_of_the_rows_opens_nothing_of_the_destroyed(keys: Path, tmp_path: Path) -> None:
    """By hand, with every root that there is today: what the receipt promises."""
    old = tmp_path / "old.db"
    shutil.copy(keys / "keys.db", old)
    with open_keys(keys) as service:
        store = service._store
        assert service.destroy([A])[0].state == "destroyed"
    file = RootsFile(keys / "roots")
    roots = [root.key for root in file.scan()]
    file.close()
    assert len(roots) == 2  # the slot's and the deployment's
    with closing(sqlite3.connect(old)) as connection:
        found = connection.execute(
            "SELECT slot, customer, generation, epoch, key_version, wrapped FROM key_wraps WHERE customer = ?", (A,)
        ).fetchall()
    assert len(found) == 1
    for root in roots:
        for epoch in range(10):
            with pytest.raises(UnsealError):
                unwrap(store, root, Wrapped(*found[0])._replace(epoch=epoch))
    raw = (keys / "keys.db").read_bytes() + (keys / "roots").read_bytes()
    assert found[0][5] not in raw


def test_the_old_copy_was_good_before(keys: Path) -> None:
    """The control of the test above: the same by hand, before the destruction, opens."""
    with open_keys(keys) as service:
        store = service._store
    row = Wrapped(
        *rows(
            keys, "SELECT slot, customer, generation, epoch, key_version, wrapped FROM key_wraps WHERE customer = ?", A
        )[0]
    )
    file = RootsFile(keys / "roots")
    root = file.read(row.slot, row.epoch)
    file.close()
    assert root is not None
    assert len(unwrap(store, root.key, row)) == sealing.KEY_BYTES


def test_nothing_of_the_old_root_is_left_in_the_directory(keys: Path) -> None:
    file = RootsFile(keys / "roots")
    old = [root.key for root in file.scan() if root.slot == 0]
    file.close()
    wrapped = rows(keys, f"SELECT wrapped FROM key_wraps {WHERE}", A)[0][0]
    with open_keys(keys) as service:
        service.destroy([A])
        everything = b"".join(path.read_bytes() for path in keys.iterdir())
    assert not any(root in everything for root in old)
    assert wrapped not in everything


def test_an_older_copy_of_the_rows_is_refused(keys: Path, tmp_path: Path) -> None:
    for name in ("before", "after"):
        shutil.copytree(keys, tmp_path / name)
    with open_keys(tmp_path / "after") as service:
        service.destroy([A])
    shutil.copy(tmp_path / "before" / "keys.db", tmp_path / "after" / "keys.db")
    with pytest.raises(KeyStoreStaleError, match="older copy"):
        open_keys(tmp_path / "after")


def test_rows_from_before_a_slots_first_use_are_refused(tmp_path: Path) -> None:
    place, old = tmp_path / "keys2", tmp_path / "old.db"
    with open_keys(place) as service:
        service.deployment()
    shutil.copy(place / "keys.db", old)
    with open_keys(place) as service:
        service.create(A, b"secret")
    shutil.copy(old, place / "keys.db")
    with pytest.raises(KeyStoreStaleError):
        open_keys(place)


def test_an_unknown_customers_tombstone_is_missed_too(tmp_path: Path) -> None:
    """No root was destroyed for it, so the next root's block is what remembers how long the log was."""
    place, old = tmp_path / "keys2", tmp_path / "old.db"
    with open_keys(place) as service:
        service.create(A, b"a")
        service.create(B, b"b")
    shutil.copy(place / "keys.db", old)
    with open_keys(place) as service:
        service.destroy([C])
        service.rotate()
        epoch = rows(place, "SELECT epoch FROM key_slots WHERE slot = 0")[0][0]
    shutil.copy(old, place / "keys.db")
    with pytest.raises(KeyStoreStaleError):
        open_keys(place)
    assert epoch == 2


def test_an_older_copy_of_the_roots_is_refused(keys: Path, tmp_path: Path) -> None:
    shutil.copy(keys / "roots", tmp_path / "roots")
    shutil.copytree(keys, tmp_path / "other")
    with open_keys(tmp_path / "other") as service:
        service.destroy([A])
    shutil.copy(tmp_path / "roots", tmp_path / "other" / "roots")
    with pytest.raises(KeyNotFoundError, match="older copy, or damaged"):
        open_keys(tmp_path / "other")


def test_files_of_different_deployments_are_told_apart(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with open_keys(other) as service:
        service.create(A, b"theirs")
    mine = tmp_path / "mine"
    shutil.copytree(keys, mine)
    shutil.copy(other / "roots", mine / "roots")
    with pytest.raises(ConfigurationError, match="another deployment"):
        open_keys(mine)


def test_a_customer_of_another_deployment_does_not_open_here(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with open_keys(other) as service:
        service.create(A, b"theirs")
    wraps = rows(other, f"SELECT * FROM key_wraps {WHERE}", A)[0]
    change(
        keys,
        "INSERT OR REPLACE INTO key_wraps VALUES (?, ?, ?, (SELECT epoch FROM key_slots WHERE slot = 0), ?, ?, ?)",
        *wraps[:3],
        *wraps[4:],
    )
    with open_keys(keys) as service, pytest.raises(UnsealError):
        service.load(A, 1)


@pytest.mark.parametrize("lost", ["keys.db", "roots"])
def test_a_missing_file_is_never_made_anew(keys: Path, tmp_path: Path, lost: str) -> None:
    place = tmp_path / "half"
    shutil.copytree(keys, place)
    (place / lost).unlink()
    with pytest.raises((KeyStoreStaleError, KeyNotFoundError), match="missing"):
        open_keys(place)
    assert not (place / lost).exists()


def test_lost_deployment_secrets_are_not_made_anew(keys: Path, tmp_path: Path) -> None:
    place = tmp_path / "half"
    shutil.copytree(keys, place)
    change(place, "DELETE FROM key_wraps WHERE customer = x''")
    with open_keys(place) as service, pytest.raises(KeyNotFoundError):
        service.deployment()


def test_what_is_no_key_store_is_unavailable_and_left_alone(keys: Path, tmp_path: Path) -> None:
    place = tmp_path / "text"
    shutil.copytree(keys, place)
    (place / "keys.db").write_bytes(b"not a database" * 100)
    with pytest.raises(KeyServiceUnavailableError, match="not a database") as caught:
        open_keys(place)
    assert not caught.value.retryable
    assert (place / "keys.db").read_bytes() == b"not a database" * 100


def test_a_full_disk_is_an_outage_and_nothing_else(keys: Path) -> None:
    with open_keys(keys) as service:
        writer = service._database.driver.take_writer()
        writer.execute("PRAGMA max_page_count = 1")  # SQLite sets it to what the file has
        writer.execute("COMMIT")
        service._database.driver.give_writer(writer, broken=False)
        with pytest.raises(KeyServiceUnavailableError, match="disk is full"):
            service.create(b"\xfe" * 16, bytes(100_000))
        assert service.load(A, 1).secret == A * 2
        with pytest.raises(KeyNotFoundError):
            service.load(b"\xfe" * 16, 1)
        assert service.verify().ok


def test_a_key_store_from_the_future_is_refused(keys: Path, tmp_path: Path) -> None:
    place = tmp_path / "future"
    shutil.copytree(keys, place)
    change(place, "UPDATE key_meta SET value = CAST('99' AS BLOB) WHERE name = 'schema'")
    with pytest.raises(SchemaVersionError, match="99"):
        open_keys(place)


# -- mirrors -----------------------------------------------------------------------------------------------------------


def both(tmp_path: Path) -> LocalKeyService:
    return LocalKeyService(tmp_path / "m1", mirrors=[tmp_path / "m2"], slots=1)


def test_a_mirror_that_was_away_is_brought_up_and_holds_no_old_root(tmp_path: Path) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
        service.create(B, b"b")
    shutil.copytree(tmp_path / "m2", tmp_path / "away")
    with both(tmp_path) as service:
        assert service.destroy([A])[0].details == {"copies": 2}
    old = RootsFile(tmp_path / "away" / "roots")
    dead = [root.key for root in old.scan() if root.slot == 0]
    old.close()
    shutil.rmtree(tmp_path / "m2")
    (tmp_path / "away").rename(tmp_path / "m2")
    with both(tmp_path) as service:
        with pytest.raises(CustomerShreddedError):
            service.load(A, 1)
        assert service.load(B, 1).secret == b"b"
        assert service.verify().ok
    assert dead[0] not in (tmp_path / "m2" / "roots").read_bytes()
    with closing(sqlite3.connect(tmp_path / "m2" / "keys.db")) as connection:
        assert connection.execute("SELECT count(*) FROM key_wraps WHERE customer = ?", (A,)).fetchone() == (0,)


@pytest.mark.parametrize("behind", [1, 2, 3])
@pytest.mark.parametrize("which", ["m1", "m2"])
def test_a_restored_file_of_roots_keeps_no_dead_root(tmp_path: Path, behind: int, which: str) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
        shutil.copy(tmp_path / which / "roots", tmp_path / "older")
        for _ in range(behind):
            service.rotate()
    old = RootsFile(tmp_path / "older")
    dead = [root.key for root in old.scan()]
    old.close()
    shutil.copy(tmp_path / "older", tmp_path / which / "roots")
    with both(tmp_path) as service:
        assert service.load(A, 1).secret == b"a"
        assert service.verify().ok
    for name in ("m1", "m2"):
        content = (tmp_path / name / "roots").read_bytes()
        assert not any(root in content for root in dead)


def test_either_copy_alone_rebuilds_the_other(tmp_path: Path) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
        service.destroy([B])
    for lost in ("m1", "m2"):
        shutil.rmtree(tmp_path / lost)
        with pytest.raises(KeyServiceUnavailableError, match="away"):
            both(tmp_path)
        (tmp_path / lost).mkdir(mode=0o700)
        with both(tmp_path) as service:
            assert service.load(A, 1).secret == b"a"
            assert [each.customer for each in service.tombstones()] == [B]
            assert service.verify().ok


def test_a_damaged_root_is_healed_from_the_mirror(tmp_path: Path) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
        place = service._roots._files[0]._place(0, 1)
    with (tmp_path / "m1" / "roots").open("r+b") as file:
        file.seek(place + 60)
        file.write(b"damage")
    with both(tmp_path) as service:
        assert service.load(A, 1).secret == b"a"
    assert (tmp_path / "m1" / "roots").read_bytes() == (tmp_path / "m2" / "roots").read_bytes()


def test_all_mirrors_must_be_named(tmp_path: Path) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
    with pytest.raises(ConfigurationError, match="kept in 2 directories"):
        LocalKeyService(tmp_path / "m1")
    with LocalKeyService(tmp_path / "m2", mirrors=[tmp_path / "m1"]) as service:
        assert service.load(A, 1).secret == b"a"


def test_directories_that_went_on_without_each_other_are_refused(tmp_path: Path) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
    for name in ("m1", "m2"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-fork")
    with both(tmp_path) as service:
        service.destroy([B])
    with LocalKeyService(tmp_path / "m1-fork", mirrors=[tmp_path / "m2-fork"]) as service:
        service.destroy([C])
        service.destroy([A])
    with pytest.raises(KeyStoreStaleError, match="went on without each other"):
        LocalKeyService(tmp_path / "m1", mirrors=[tmp_path / "m1-fork"])


def test_directories_of_different_stores_are_refused(tmp_path: Path, keys: Path) -> None:
    with open_keys(tmp_path / "other") as service:
        service.create(A, b"a")
    with pytest.raises(KeyStoreStaleError, match="no mirrors of each other"):
        LocalKeyService(keys, mirrors=[tmp_path / "other"])


def test_a_root_is_kept_while_a_mirror_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with both(tmp_path) as service:
        service.create(A, b"a")
        service.create(B, b"b")
        mirror = service._database.driver._others[0]

        def broken(factory: object) -> object:
            raise KeyServiceUnavailableError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(mirror, "run", broken)
            with pytest.raises(KeyServiceUnavailableError):
                service.destroy([A])
        (root,) = [root for root in service._roots._files[0].scan() if root.slot == 0]
        assert root.epoch == 1
        assert service.destroy([A])[0].state == "destroyed"
        assert service.load(B, 1).secret == b"b"


def test_a_mirror_added_beside_a_running_process_is_noticed(tmp_path: Path) -> None:
    """The process that does not know of it must not call a root destroyed that the mirror still has."""
    with LocalKeyService(tmp_path / "m1", slots=1) as alone:
        alone.create(A, b"a")
        both(tmp_path).close()
        with pytest.raises(KeyServiceUnavailableError, match="2 directories"):
            alone.destroy([A])
    with both(tmp_path) as service:
        assert service.destroy([A])[0].state == "destroyed"
        assert service.verify().ok
    assert (tmp_path / "m1" / "roots").read_bytes() == (tmp_path / "m2" / "roots").read_bytes()
