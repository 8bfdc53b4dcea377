"""Fixtures: every kind of database with every kind of keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from shredsaver.kms.aws_calls import KmsCalls
from tests.fakes.kms_server import KmsServer
from tests.stateful.databases import PostgresPlace, SqlitePlace
from tests.stateful.keyplaces import AwsKeys, LocalKeys


@pytest.fixture(params=["sqlite", "postgres"])
def database_place(request: pytest.FixtureRequest) -> Any:
    """Makes a database in a directory."""
    if request.param == "sqlite":
        return SqlitePlace
    server = request.getfixturevalue("postgres")
    return lambda _: PostgresPlace(server)


@pytest.fixture(params=["local", "aws"])
def key_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a key store in a directory."""
    if request.param == "local":
        yield LocalKeys
        return
    with KmsServer() as kms:
        for name, value in kms.environment.items():
            monkeypatch.setenv(name, value)
        yield partial(AwsKeys, kms=kms, calls=KmsCalls())
