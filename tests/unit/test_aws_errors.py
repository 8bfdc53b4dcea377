"""What AWS KMS answers, told apart, and none of it ever read as a shred."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shredsaver.errors import (
    ConfigurationError,
    CustomerShreddedError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    UnsealError,
)
from shredsaver.kms import aws_errors
from shredsaver.kms.aws_calls import KmsCalls, OutcomeUnknownError
from tests.fakes.kms_server import KmsServer
from tests.fakes.test_kms_server import client_for
from tests.support.aws import World, secret, token

Do = Callable[[World, str], Any]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with KmsServer() as kms:
        for name, value in kms.environment.items():
            monkeypatch.setenv(name, value)
        world = World(kms, tmp_path, lambda: KmsCalls(patience=0.3))
        service = world.open()
        for number in range(4):
            service.create(token(number), secret(number))
        world.close()
        yield world
        world.close()


def client(world: World) -> Any:
    return client_for(world.kms.url)


CAUSES: dict[str, tuple[Do, Do, type[Exception], bool]] = {
    # What happens, how it ends, the error, and whether a retry without anyone changing anything may help.
    "disabled": (
        lambda world, arn: client(world).disable_key(KeyId=arn),
        lambda world, arn: client(world).enable_key(KeyId=arn),
        aws_errors.KmsKeyDisabledError,
        False,
    ),
    "pending deletion": (
        lambda world, arn: client(world).schedule_key_deletion(KeyId=arn),
        lambda world, arn: (client(world).cancel_key_deletion(KeyId=arn), client(world).enable_key(KeyId=arn)),
        aws_errors.KmsKeyPendingDeletionError,
        False,
    ),
    "denied": (
        lambda world, arn: world.kms.faults.deny("Decrypt", key=arn),
        lambda world, _: world.kms.faults.clear(),
        KeyAccessDeniedError,
        False,
    ),
    "throttled": (
        lambda world, _: world.kms.faults.throttle("Decrypt", times=1000),
        lambda world, _: world.kms.faults.clear(),
        aws_errors.KmsThrottledError,
        True,
    ),
    "failing inside": (
        lambda world, _: world.kms.faults.fail("Decrypt", "KMSInternalException", status=500, times=1000),
        lambda world, _: world.kms.faults.clear(),
        OutcomeUnknownError,
        True,
    ),
    "unreachable": (
        lambda world, _: world.kms.faults.outage(),
        lambda world, _: world.kms.faults.clear(),
        OutcomeUnknownError,
        True,
    ),
    "expired credentials": (
        lambda world, _: world.kms.faults.expire_credentials(),
        lambda world, _: world.kms.faults.clear(),
        KeyServiceUnavailableError,
        True,
    ),
    "refused credentials": (
        lambda world, _: world.kms.faults.fail("Decrypt", "UnrecognizedClientException", times=1000),
        lambda world, _: world.kms.faults.clear(),
        KeyAccessDeniedError,
        False,
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_are_told_apart(world: World, cause: str) -> None:
    happen, end, kind, retryable = CAUSES[cause]
    service = world.open(keep=0.0, outage=0.0)
    assert service.load(token(0), 1).secret == secret(0)
    arn, _ = world.root_of(0)
    happen(world, arn)
    with pytest.raises(KeyServiceError) as caught:
        service.load(token(0), 1)
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert "secret of" not in str(caught.value)
    end(world, arn)
    assert service.load(token(0), 1).secret == secret(0)
    assert service.verify().problems == ()


def test_material_that_somebody_else_deleted(world: World) -> None:
    service = world.open(keep=0.0, outage=0.0)
    arn, _ = world.root_of(0)
    client(world).delete_imported_key_material(KeyId=arn)
    with pytest.raises(aws_errors.KmsKeyPendingImportError):
        service.load(token(0), 1)
    assert service.load(token(1), 1).secret == secret(1)
    assert issubclass(aws_errors.KmsKeyPendingImportError, KeyNotFoundError)


def test_a_key_that_somebody_else_let_die(world: World) -> None:
    service = world.open(keep=0.0, outage=0.0)
    arn, _ = world.root_of(0)
    client(world).schedule_key_deletion(KeyId=arn, PendingWindowInDays=7)
    world.kms.clock.advance(8 * 86_400)
    with pytest.raises(aws_errors.KmsKeyMissingError):
        service.load(token(0), 1)
    world.close()
    with pytest.raises(KeyNotFoundError):
        world.open()


def test_no_such_region(world: World) -> None:
    """The ARN names another Region than the one asked: no such key, never a shred."""
    elsewhere = KmsCalls("eu-west-1", patience=0.3)
    arn, _ = world.root_of(0)
    with pytest.raises(aws_errors.KmsKeyMissingError):
        elsewhere.describe(arn.replace("eu-central-1", "eu-west-1"))


def test_a_root_in_anothers_place(world: World) -> None:
    """A wrong encryption context: the roots of two slots exchanged in the key store."""
    import sqlite3

    first, second = (
        world.query(f"SELECT material FROM key_epochs WHERE slot = {slot} AND epoch = 1")[0][0] for slot in (0, 1)
    )
    connection = sqlite3.connect(world.store)
    with connection:
        for slot, material in ((0, second), (1, first)):
            connection.execute("UPDATE key_epochs SET material = ? WHERE slot = ? AND epoch = 1", (material, slot))
    connection.close()
    service = world.open()
    for number in (0, 1):
        with pytest.raises(UnsealError):
            service.load(token(number), 1)


def test_an_older_key_store(world: World) -> None:
    before = world.copy("older.db")
    service = world.open(calls=KmsCalls())
    stale = world.open(before, keep=0.0, outage=0.0)  # opened before, so the copy learns of it only when it asks
    assert stale.load(token(0), 1).secret == secret(0)
    service.destroy([token(0)])
    with pytest.raises(KeyStoreStaleError):
        stale.load(token(0), 1)
    with pytest.raises(KeyStoreStaleError):
        stale.load(token(2), 1)
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{free.getsockname()[1]}")
        calls = KmsCalls(patience=0.3)
        with pytest.raises(KeyServiceUnavailableError) as caught:
            world.open(calls=calls)
    assert caught.value.retryable


def test_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigurationError, match="Region"):
        KmsCalls()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(KeyAccessDeniedError, match="credentials"):
        world.open(calls=KmsCalls(patience=0.3))


def test_the_quota_of_keys(world: World) -> None:
    service = world.open(calls=KmsCalls())
    world.kms.operations.key_quota = len(world.kms.keys)
    with pytest.raises(KeyServiceUnavailableError, match="quota") as caught:
        service.destroy([token(0)])
    assert not caught.value.retryable
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    assert service.load(token(2), 1).secret == secret(2)
    world.kms.operations.key_quota = 1000
    assert service.destroy([token(0)])[0].state == "destroyed"


def test_the_quota_of_imports(world: World) -> None:
    calls = KmsCalls(sleep=world.kms.clock.advance)
    service = world.open(calls=calls)
    world.kms.rates.limit("GetParametersForImport", 0.25)
    assert {found.state for found in service.destroy([token(0), token(1)])} == {"destroyed"}
    assert service.load(token(2), 1).secret == secret(2)
