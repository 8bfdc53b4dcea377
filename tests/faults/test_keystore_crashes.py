"""kill -9 at every step that a local key store takes towards its disk: opened again, it converges."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shredsaver.errors import CustomerShreddedError
from shredsaver.kms import rootsfile
from shredsaver.kms.local import LocalKeyService
from tests.support.steps import hooked

VICTIM = b"victim".ljust(16, b"\0")
OTHERS = [bytes([i]) * 16 for i in range(1, 9)]
Act = Callable[[LocalKeyService], object]


@pytest.fixture
def place() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def open_keys(directory: Path, mirror: bool = False) -> LocalKeyService:
    return LocalKeyService(directory / "keys", slots=2, mirrors=[directory / "mirror"] if mirror else [])


def in_child(act: Callable[[], object]) -> int:
    """Runs in a forked process; gives the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed before it could be killed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def killed_at(point: int, act: Callable[[], object]) -> bool:
    """Whether the process came to its step ``point``, where it was killed."""

    def run() -> None:
        passed = 0

        def hook(name: str) -> None:
            nonlocal passed
            if passed == point:
                os.kill(os.getpid(), signal.SIGKILL)
            passed += 1

        with hooked(hook, keys=True):
            act()

    return in_child(run) == signal.SIGKILL


def every_kill(place: Path, prepare: Act, act: Act, mirror: bool = False) -> Iterator[LocalKeyService]:
    """The key store opened again after each kill, on a copy of its own."""
    template = place / "template"
    template.mkdir()
    with open_keys(template, mirror) as service:
        for other in OTHERS:
            service.create(other, other * 2)
        prepare(service)
    for point in range(2000):
        work = place / "work"
        shutil.copytree(template, work)
        reached = killed_at(point, lambda work=work: act(open_keys(work, mirror)))
        with open_keys(work, mirror) as service:
            yield service
            for other in OTHERS:
                assert service.load(other, 1).secret == other * 2
            report = service.verify()
            assert report.ok, (point, report)
            assert service.resume() == 0
        shutil.rmtree(work)
        if not reached:
            assert point > 20, "the hook is not called"
            return
    raise AssertionError("the operation does not end")


@pytest.mark.parametrize("mirror", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_creating_the_first_customer_of_a_slot(place: Path, mirror: bool) -> None:
    for service in every_kill(place, lambda _: None, lambda service: service.create(VICTIM, b"lost"), mirror):
        made = service.create(VICTIM, b"again")
        assert made.secret in {b"lost", b"again"}
        assert service.load(VICTIM, 1) == made


@pytest.mark.parametrize("mirror", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_destroying(place: Path, mirror: bool) -> None:
    states = set()
    for service in every_kill(
        place, lambda service: service.create(VICTIM, b"secret"), lambda service: service.destroy([VICTIM]), mirror
    ):
        try:
            assert service.load(VICTIM, 1).secret == b"secret"
            states.add("live")
            assert not service.tombstones()
        except CustomerShreddedError:
            states.add("dead")
            # Opening has finished it: the root that any older copy of keys.db would need is gone.
            assert service.destroy([VICTIM])[0].state == "destroyed"
        (end,) = service.destroy([VICTIM])
        assert (end.state, end.known) == ("destroyed", True)
        assert end.new_epoch == end.old_epoch + 1
        assert [each.customer for each in service.tombstones()] == [VICTIM]
        with pytest.raises(CustomerShreddedError):
            service.load(VICTIM, 1)
        for file in service._roots._files:
            assert file.read(end.slot, end.old_epoch) is None
    assert states == {"live", "dead"}


def test_replacing(place: Path) -> None:
    for service in every_kill(
        place, lambda service: service.create(VICTIM, b"old"), lambda service: service.replace(VICTIM, 1, b"new", 1)
    ):
        record = service.load(VICTIM, 1)
        assert (record.key_version, record.secret) in {(1, b"old"), (2, b"new")}


def test_rotating_everything(place: Path) -> None:
    for service in every_kill(place, lambda _: None, lambda service: service.rotate()):
        assert len(service.deployment().log_key) == 32


def test_enrolling(place: Path) -> None:
    def prepare(service: LocalKeyService) -> None:
        service.create(VICTIM, b"old")
        service.destroy([VICTIM])

    for service in every_kill(place, prepare, lambda service: service.enrol(VICTIM, b"new")):
        if service.current(VICTIM) is None:
            service.enrol(VICTIM, b"new")
        assert service.load(VICTIM, 2).secret == b"new"


@pytest.mark.parametrize("mirror", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_opening_for_the_first_time(place: Path, mirror: bool) -> None:
    for point in range(2000):
        work = place / "work"
        work.mkdir()
        reached = killed_at(point, lambda work=work: open_keys(work, mirror).create(VICTIM, b"secret"))
        with open_keys(work, mirror) as service:
            made = service.create(VICTIM, b"again")
            assert service.load(VICTIM, 1) == made
            assert service.verify().ok
        shutil.rmtree(work)
        if not reached:
            assert point > 40
            return


def test_a_kill_while_recovering_from_a_kill(place: Path) -> None:
    template = place / "template"
    template.mkdir()
    with open_keys(template) as service:
        for customer in (*OTHERS, VICTIM):
            service.create(customer, customer * 2)

    def stop_before(name: str) -> Callable[[], None]:
        def run() -> None:
            def hook(passed: str) -> None:
                if passed == name:
                    os.kill(os.getpid(), signal.SIGKILL)

            with hooked(hook, keys=True):
                open_keys(template).destroy([VICTIM])

        return run

    assert in_child(stop_before("roots-published")) == signal.SIGKILL
    for point in range(2000):
        work = place / "work"
        shutil.copytree(template, work)
        reached = killed_at(point, lambda work=work: open_keys(work))
        with open_keys(work) as service:
            assert service.destroy([VICTIM])[0].state == "destroyed"
            for other in OTHERS:
                assert service.load(other, 1).secret == other * 2
            assert service.verify().ok
        shutil.rmtree(work)
        if not reached:
            assert point > 20
            return


@pytest.mark.parametrize("size", [0, 1, 100, 511, 512, 2048, 4095])
@pytest.mark.parametrize("which", range(2))
def test_a_torn_block(place: Path, size: int, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new root's block is torn as it is written (0), or the old one's as it is zeroed (1)."""
    with open_keys(place) as service:
        for customer in (*OTHERS, VICTIM):
            service.create(customer, customer * 2)
    whole = rootsfile._write

    def tear() -> None:
        writes = 0

        def torn(file: int, data: bytes, at: int) -> None:
            nonlocal writes
            if writes == which:
                whole(file, data[:size], at)
                os.kill(os.getpid(), signal.SIGKILL)
            writes += 1
            whole(file, data, at)

        rootsfile._write = torn
        open_keys(place).destroy([VICTIM])

    assert in_child(tear) == signal.SIGKILL
    with open_keys(place) as service:
        (end,) = service.destroy([VICTIM])
        assert end.state == "destroyed"
        for other in OTHERS:
            assert service.load(other, 1).secret == other * 2
        assert service.verify().ok
        block = os.pread(service._roots._files[0]._file, 4096, service._roots._files[0]._place(end.slot, end.old_epoch))
        assert block == bytes(4096)


def test_a_disk_that_does_not_keep_the_new_root(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back finds it, nothing depends on it yet, and the old root is kept."""
    with open_keys(place) as service:
        for customer in (*OTHERS, VICTIM):
            service.create(customer, customer * 2)
        with monkeypatch.context() as patch:
            patch.setattr(rootsfile, "_write", lambda file, data, at: None)
            with pytest.raises(Exception, match="did not keep"):
                service.destroy([VICTIM])
        with pytest.raises(CustomerShreddedError):
            service.load(VICTIM, 1)
        for other in OTHERS:
            assert service.load(other, 1).secret == other * 2
        assert service.destroy([VICTIM])[0].state == "destroyed"


def test_a_disk_that_does_not_keep_the_zeros(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called destroyed."""
    with open_keys(place) as service:
        service.create(VICTIM, b"secret")
        whole = rootsfile._write
        with monkeypatch.context() as patch:
            patch.setattr(rootsfile, "_write", lambda file, data, at: whole(file, data, at) if any(data) else None)
            with pytest.raises(Exception, match="did not keep"):
                service.destroy([VICTIM])
        with pytest.raises(CustomerShreddedError):
            service.load(VICTIM, 1)
        assert service.destroy([VICTIM])[0].state == "destroyed"
