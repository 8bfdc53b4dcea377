"""Key services to drill on: local files, and one fake of AWS KMS for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shredsaver.kms.aws_calls import KmsCalls
from tests.fakes.kms_server import KmsServer
from tests.support.backends import PostgresServer
from tests.support.keyplaces import AwsPlace, AwsPostgresPlace, KeyPlace, LocalPlace


@pytest.fixture(scope="session")
def kms() -> Iterator[KmsServer]:
    with KmsServer() as server:
        yield server


@pytest.fixture(scope="session")
def calls(kms: KmsServer) -> Iterator[KmsCalls]:
    """One connection for all, whose waiting moves the clock of the fake: a window of 10 seconds takes none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kms.environment.items():
            patch.setenv(name, value)
        yield KmsCalls(sleep=kms.clock.advance, clock=kms.clock.now)


@pytest.fixture
def place(request: pytest.FixtureRequest, home: Path) -> Iterator[KeyPlace]:
    kind = request.param
    if kind == "local":
        yield LocalPlace(home)
        return
    kms, calls = request.getfixturevalue("kms"), request.getfixturevalue("calls")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shredsaver.kms.aws.KmsCalls", lambda region: calls)
        if kind == "aws":
            yield AwsPlace(kms, home)
            return
        postgres: PostgresServer = request.getfixturevalue("postgres")
        database = postgres.database()
        try:
            yield AwsPostgresPlace(kms, database)
        finally:
            postgres.recycle(database)
