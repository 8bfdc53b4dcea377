"""Threads, processes and hosts on one key store: one key for each customer, and no key under a dead root."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import CustomerShreddedError, KeyServiceUnavailableError
from shredsaver.kms import _steps, localroots
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.locking import locked
from shredsaver.kms.testing import FakeRemote, FakeRoots
from tests.support.waiting import SECONDS, wait_until

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def place() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


# -- processes of one host ---------------------------------------------------------------------------------------------


def worker(place: Path, start: Any, answers: Any, number: int, rounds: int) -> None:
    """Four threads create the same customers while this process also puts every slot under new roots."""
    localroots.locked = partial(locked, timeout=SECONDS)  # the other process may rotate several times in a row
    service = LocalKeyService(place / "keys", slots=2)
    found: list[tuple[int, bytes]] = []
    failed: list[str] = []

    def create(thread: int) -> None:
        try:
            for i in range(rounds):
                customer = i.to_bytes(16, "big")
                record = service.create(customer, bytes([number, thread]) * 8)
                found.append((i, record.secret))
                again = service.load(customer, 1)
                if again != record:
                    failed.append(f"customer {i} changed")
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(repr(error))

    def rotate() -> None:
        try:
            for _ in range(rounds // 2):
                service.rotate()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(repr(error))

    start.wait()
    threads = [threading.Thread(target=create, args=(n,)) for n in range(4)] + [threading.Thread(target=rotate)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.close()
    answers.put((found, failed))


def test_two_processes_and_eight_threads_create_the_same_customers_while_roots_rotate(place: Path) -> None:
    rounds = 24
    start, answers = SPAWN.Barrier(2), SPAWN.Queue()
    processes = [SPAWN.Process(target=worker, args=(place, start, answers, n, rounds)) for n in range(2)]
    for process in processes:
        process.start()
    results = [answers.get(timeout=SECONDS) for _ in processes]
    for process in processes:
        process.join()
    assert [failed for _, failed in results] == [[], []]
    secrets: dict[int, set[bytes]] = {}
    for found, _ in results:
        assert len(found) == 4 * rounds
        for customer, secret in found:
            secrets.setdefault(customer, set()).add(secret)
    assert all(len(each) == 1 for each in secrets.values())
    with LocalKeyService(place / "keys") as service:
        for customer, (secret,) in secrets.items():
            assert service.load(customer.to_bytes(16, "big"), 1).secret == secret
        assert service.verify().ok
        assert service.resume() == 0


def test_several_openers_of_one_directory_in_one_process(place: Path) -> None:
    (place / "alias").symlink_to(place / "keys")
    services = [LocalKeyService(place / name, slots=2) for name in ("keys", "alias", "keys")]
    for i in range(12):
        services[i % 3].create(bytes([i]) * 16, bytes([i + 1]))
    services[0].destroy([bytes(16)])
    services[1].rotate()
    services[0].close()
    for service in services[1:]:
        with pytest.raises(CustomerShreddedError):
            service.load(bytes(16), 1)
        for i in range(1, 12):
            assert service.load(bytes([i]) * 16, 1).secret == bytes([i + 1])
        assert service.verify().ok
        service.close()


def test_a_forked_child_goes_on_with_an_open_service(place: Path) -> None:
    with LocalKeyService(place / "keys", slots=2) as service:
        service.create(A, b"a")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                service.create(B, b"b")
                service.destroy([A])
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert service.load(B, 1).secret == b"b"
        with pytest.raises(CustomerShreddedError):
            service.load(A, 1)
        service.create(C, b"c")
        assert service.verify().ok


def test_a_first_write_races_a_rotation_of_its_slot(place: Path) -> None:
    """The creator has wrapped under the old root and is held there until that is dead: it must wrap anew."""
    with LocalKeyService(place / "keys", slots=1) as service:
        service.create(A, b"a")
        held, go = threading.Event(), threading.Event()
        creator = threading.get_ident()

        def hook(name: str) -> None:
            if name == "create" and threading.get_ident() != creator and not held.is_set():
                held.set()
                assert go.wait(SECONDS)

        made: list[object] = []
        _steps.hook = hook
        try:
            thread = threading.Thread(target=lambda: made.append(service.create(B, b"b")))
            thread.start()
            assert held.wait(SECONDS)
            assert service.destroy([A])[0].state == "destroyed"
            go.set()
            thread.join()
        finally:
            _steps.hook = None
        assert made == [service.load(B, 1)]
        assert service.verify().ok


def test_a_reader_between_row_and_root_looks_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row was read, then its root died and the row moved on: that is no damage."""
    with LocalKeyService(place / "keys", slots=1) as service, LocalKeyService(place / "keys") as other:
        service.create(A, b"a")
        opened = service._roots.open
        rotations = iter([True, True, False])

        def late(epoch: Any, **options: Any) -> bytes:
            if next(rotations, False):
                other.rotate()
            return opened(epoch, **options)

        monkeypatch.setattr(service._roots, "open", late)
        assert service.load(A, 1).secret == b"a"
        assert next(rotations, None) is None


def test_a_replacement_races_a_rotation_of_its_slot(place: Path) -> None:
    with LocalKeyService(place / "keys", slots=1) as service:
        service.create(A, b"a")
        service.create(B, b"old")
        held, go = threading.Event(), threading.Event()
        main = threading.get_ident()

        def hook(name: str) -> None:
            if name == "replace" and threading.get_ident() != main and not held.is_set():
                held.set()
                assert go.wait(SECONDS)

        made: list[object] = []
        _steps.hook = hook
        try:
            thread = threading.Thread(target=lambda: made.append(service.replace(B, 1, b"new", 1)))
            thread.start()
            assert held.wait(SECONDS)
            assert service.destroy([A])[0].state == "destroyed"
            go.set()
            thread.join()
        finally:
            _steps.hook = None
        assert made == [service.load(B, 1)]
        assert service.verify().ok


def test_a_creator_held_until_its_customer_is_destroyed_is_refused(place: Path) -> None:
    with LocalKeyService(place / "keys", slots=1) as service:
        service.deployment()
        held, go = threading.Event(), threading.Event()

        def hook(name: str) -> None:
            if name == "create" and not held.is_set():
                held.set()
                assert go.wait(SECONDS)

        raised: list[BaseException] = []

        def create() -> None:
            try:
                service.create(B, b"b")
            except CustomerShreddedError as error:
                raised.append(error)

        _steps.hook = hook
        try:
            thread = threading.Thread(target=create)
            thread.start()
            assert held.wait(SECONDS)
            service.destroy([B])
            go.set()
            thread.join()
        finally:
            _steps.hook = None
        assert len(raised) == 1
        assert service.current(B) is None


# -- hosts that share remote roots -------------------------------------------------------------------------------------


class Hosts:
    """Several hosts on one key store, each with connections and claims of its own."""

    def __init__(self, place: Path, lease: float) -> None:
        self.remote = FakeRemote()
        self.lease = lease
        self.path = place / "shared.db"
        self.opened: list[StoredKeyService] = []

    def open(self) -> StoredKeyService:
        database = SqliteDatabase(self.path, journal_mode="TRUNCATE", secure_delete=True)
        self.opened.append(StoredKeyService(database, FakeRoots(self.remote, slots=1, lease=self.lease)))
        return self.opened[-1]


@pytest.fixture
def hosts(place: Path) -> Iterator[Callable[[float], Hosts]]:
    made: list[Hosts] = []

    def make(lease: float) -> Hosts:
        made.append(Hosts(place, lease))
        return made[-1]

    yield make
    _steps.hook = None
    for each in made:
        for service in each.opened:
            service.close()


class Stopped(BaseException):
    """The host stands still for ever."""


def stop_at(name: str) -> None:
    def hook(passed: str) -> None:
        if passed == name:
            _steps.hook = None
            raise Stopped(name)

    _steps.hook = hook


@pytest.mark.parametrize("point", ["roots-make", "remote-make", "roots-made", "roots-published", "roots-destroyed"])
def test_another_host_takes_over_what_one_left_half_done(hosts: Callable[[float], Hosts], point: str) -> None:
    both = hosts(0.3)
    first, second = both.open(), both.open()
    first.create(A, b"a")
    first.create(B, b"b")
    # A host that is killed frees no claim: the freeing of this one is made to fail.
    stop_at(point)
    original = first._database.run

    def dead(factory: Any) -> Any:
        if _steps.hook is None:
            raise Stopped
        return original(factory)

    first._database.run = dead
    with pytest.raises(Stopped):
        first.destroy([A])
    (end,) = second.destroy([A])
    assert end.state == "destroyed"
    assert second.load(B, 1).secret == b"b"
    assert second.verify().ok
    assert len(both.remote.keys) == 2  # the slot's and the deployment's: nothing was left over
    first._database.run = original
    assert first.load(B, 1).secret == b"b"


def test_a_slow_host_whose_claim_ran_out_harms_nothing(hosts: Callable[[float], Hosts]) -> None:
    both = hosts(0.2)
    slow, fast = both.open(), both.open()
    slow.create(A, b"a")
    slow.create(B, b"b")
    ends: list[object] = []
    held, go = threading.Event(), threading.Event()
    main = threading.get_ident()

    def hook(name: str) -> None:
        if name == "roots-made" and threading.get_ident() != main and not held.is_set():
            held.set()
            assert go.wait(SECONDS)

    _steps.hook = hook
    thread = threading.Thread(target=lambda: ends.append(slow.destroy([A])[0].state))
    thread.start()
    assert held.wait(SECONDS)
    assert fast.destroy([A])[0].state == "destroyed"  # waits until the claim runs out, then takes over
    fast.create(C, b"c")
    go.set()
    thread.join()
    assert ends == ["destroyed"]
    for service in (slow, fast):
        assert service.load(B, 1).secret == b"b"
        assert service.load(C, 1).secret == b"c"
    assert fast.verify().ok
    assert len(both.remote.keys) == 2


def test_a_host_that_lost_its_claim_publishes_nothing(hosts: Callable[[float], Hosts]) -> None:
    """Whoever has the claim may have noted another root by now: rows under ours would open for nobody."""
    both = hosts(30)
    service = both.open()
    service.create(A, b"a")
    service.create(B, b"b")
    seen: list[tuple[int, ...]] = []

    def hook(name: str) -> None:
        if name not in {"roots-made", "roots-published"}:
            return
        with closing(sqlite3.connect(both.path, timeout=SECONDS)) as connection:
            if name == "roots-made" and not seen:
                connection.execute("UPDATE key_slots SET claim = x'ff', claimed_until = 0 WHERE slot = 0")
                connection.commit()
            seen.append(connection.execute("SELECT epoch FROM key_slots WHERE slot = 0").fetchone())

    _steps.hook = hook
    assert service.destroy([A])[0].state == "destroyed"
    _steps.hook = None
    assert seen == [(1,), (1,), (1,), (2,)]  # refused once, then claimed anew
    assert service.load(B, 1).secret == b"b"
    assert service.verify().ok


def test_calls_that_arrive_together_share_an_epoch(hosts: Callable[[float], Hosts]) -> None:
    both = hosts(SECONDS)
    service = both.open()
    customers = [bytes([n]) * 16 for n in range(1, 25)]
    for customer in customers:
        service.create(customer, customer)
    made: list[str] = []

    def revoked() -> bool:
        with closing(sqlite3.connect(both.path, timeout=SECONDS)) as connection:
            return bool(connection.execute("SELECT count(*) = 16 FROM key_tombstones").fetchone()[0])

    def before(name: str) -> None:
        if name == "make":
            made.append(name)
            assert wait_until(revoked)  # the others arrive while the first root is made

    both.remote.before = before
    ends: list[str] = []
    threads = [
        threading.Thread(target=lambda each=each: ends.append(service.destroy([each])[0].state))
        for each in customers[:16]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["destroyed"] * 16
    assert len(made) <= 2  # the first one's, and that of all who came meanwhile
    for customer in customers[16:]:
        assert service.load(customer, 1).secret == customer


@pytest.mark.parametrize("request_", ["make", "open", "destroy"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_is_never_a_shred_and_loses_nobody(hosts: Callable[[float], Hosts], request_: str, when: str) -> None:
    both = hosts(30)
    service = both.open()
    service.create(A, b"a")
    service.create(B, b"b")

    def fail(name: str) -> None:
        if name == request_:
            raise KeyServiceUnavailableError("injected")

    setattr(both.remote, when, fail)
    with pytest.raises(KeyServiceUnavailableError):
        service.destroy([A])
    with pytest.raises(CustomerShreddedError):
        service.load(A, 1)  # out of use, as the tombstone says, but not called destroyed
    if request_ == "open":
        with pytest.raises(KeyServiceUnavailableError):
            service.load(B, 1)
    setattr(both.remote, when, lambda _: None)
    assert service.load(B, 1).secret == b"b"
    assert service.destroy([A])[0].state == "destroyed"
    assert service.verify().ok
    assert len(both.remote.keys) == 2


def test_a_pending_destruction_is_pending_until_it_is_final(hosts: Callable[[float], Hosts]) -> None:
    both = hosts(30)
    service = both.open()
    service.create(A, b"a")
    service.create(B, b"b")
    both.remote.pending = True
    (end,) = service.destroy([A])
    assert (end.state, end.destroyed_at) == ("pending", None)
    assert end.pending_until == "2999-01-01T00:00:00.000Z"
    assert len(end.key_ids) == 1
    with pytest.raises(CustomerShreddedError):
        service.load(A, 1)
    assert service.resume() == 0
    assert service.destroy([A])[0].state == "pending"
    service.destroy([B])  # a later epoch may be final before an earlier one
    both.remote.pending = False
    assert service.destroy([A])[0].state == "pending"
    assert service.resume() == 2
    (end,) = service.destroy([A])
    assert (end.state, end.pending_until) == ("destroyed", None)
    assert end.destroyed_at is not None
    assert both.open().destroy([B])[0].state == "destroyed"
