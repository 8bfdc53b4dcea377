"""The key service conformance suite on AWS KMS, the key store in a file or in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shredsaver.kms.aws import AwsKeyService
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.testing import KeyServiceConformance
from tests.fakes.kms_server import KmsServer
from tests.support.backends import PostgresServer


@pytest.fixture(scope="module")
def kms() -> Iterator[KmsServer]:
    with KmsServer() as server:
        yield server


@pytest.fixture(scope="module")
def calls(kms: KmsServer) -> Iterator[KmsCalls]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kms.environment.items():
            patch.setenv(name, value)
        yield KmsCalls()


class TestAws(KeyServiceConformance):
    """Imported material, few slots, so that customers meet in them."""

    options: dict[str, Any] = {"slots": 4}  # noqa: RUF012 - never changed

    @pytest.fixture(autouse=True)
    def places(self, calls: KmsCalls) -> Iterator[None]:
        memory = Path("/dev/shm")
        self.calls = calls
        self.stores: dict[AwsKeyService, str] = {}
        with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
            self.place = Path(directory)
            yield

    def open(self, store: str) -> AwsKeyService:
        service = AwsKeyService(store, window=0.0, spares=0, calls=self.calls, **self.options)
        self.stores[service] = store
        return service

    def new_store(self) -> str:
        return str(self.place / f"keys{len(self.stores)}.db")

    def make(self) -> AwsKeyService:
        return self.open(self.new_store())

    def reopen(self, service: AwsKeyService) -> AwsKeyService:
        service.close()
        return self.open(self.stores[service])


@pytest.mark.slow
class TestAwsSlotForEachCustomer(TestAws):
    """A KMS key for each customer."""

    options: dict[str, Any] = {"slot": "customer"}  # noqa: RUF012


@pytest.mark.slow
class TestAwsScheduled(TestAws):
    """Keys made by KMS, scheduled for deletion: a destruction stays pending."""

    options: dict[str, Any] = {"slots": 4, "erasure": "scheduled"}  # noqa: RUF012


class TestAwsOnPostgres(TestAws):
    """The key store in PostgreSQL, as several hosts share it."""

    @pytest.fixture(autouse=True)
    def databases(self, postgres: PostgresServer) -> Iterator[None]:
        self.postgres = postgres
        self.made: list[Any] = []
        yield
        for database in self.made:
            database.drop()

    def new_store(self) -> str:
        database = self.postgres.database()
        self.made.append(database)
        return str(database.url)
