"""The key service conformance suite on every local arrangement of keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.kms import passphrase
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.testing import FakeRemote, FakeRoots, KeyServiceConformance, run_conformance


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory where there is one: what is shown here does not depend on the disk's speed."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


class TestLocal(KeyServiceConformance):
    """Keys in a directory, with few slots, so that customers meet in them."""

    @pytest.fixture(autouse=True)
    def places(self, memory_path: Path) -> None:
        self.place = memory_path
        self.made = 0

    def open(self, number: int) -> LocalKeyService:
        return LocalKeyService(self.place / f"keys{number}", slots=4)

    def make(self) -> LocalKeyService:
        self.made += 1
        return self.open(self.made)

    def reopen(self, service: LocalKeyService) -> LocalKeyService:
        service.close()
        return self.open(int(service.directory.name.removeprefix("keys")))


class TestLocalWithPassphrase(TestLocal):
    """The roots under a passphrase, derived cheaply: these tests open some hundred times."""

    @pytest.fixture(autouse=True)
    def cheap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(passphrase._COSTS, "pbkdf2", (1000, 0, 0))

    def open(self, number: int) -> LocalKeyService:
        return LocalKeyService(self.place / f"keys{number}", slots=2, passphrase="correct horse battery", kdf="pbkdf2")


class TestLocalWithMirror(TestLocal):
    """Two directories kept alike."""

    def open(self, number: int) -> LocalKeyService:
        return LocalKeyService(self.place / f"keys{number}", slots=2, mirrors=[self.place / f"mirror{number}"])


class TestRemoteRoots(TestLocal):
    """Roots that several hosts share, kept apart by claims in the key store."""

    def open(self, number: int) -> StoredKeyService:
        remote = self.remotes.setdefault(number, FakeRemote())
        path = self.place / f"keys{number}.db"
        service = StoredKeyService(SqliteDatabase(path, journal_mode="TRUNCATE", secure_delete=True), FakeRoots(remote))
        service.number = number
        return service

    def make(self) -> StoredKeyService:
        self.remotes = getattr(self, "remotes", {})
        return super().make()

    def reopen(self, service: StoredKeyService) -> StoredKeyService:
        service.close()
        return self.open(service.number)


def test_the_suite_finds_a_service_that_forgets_its_tombstones(memory_path: Path) -> None:
    """Run as a third party would, on a service that is wrong in one respect."""

    numbers = iter(range(1000))

    class Suite(KeyServiceConformance):
        def make(self) -> LocalKeyService:
            service = LocalKeyService(memory_path / f"keys{next(numbers)}", slots=1)
            service.tombstones = lambda after=0: []
            return service

        def reopen(self, service: LocalKeyService) -> LocalKeyService:
            service.close()
            return LocalKeyService(service.directory)

    failed = {report.splitlines()[0] for report in run_conformance(Suite)}
    assert "test_the_log_of_the_dead_is_in_order" in failed
    assert "test_a_created_secret_is_loaded" not in failed
