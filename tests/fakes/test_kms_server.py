"""The fake of AWS KMS, row by row of its table, through the real boto3; moto where it has an opinion."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.fakes.kms_keys import DAY
from tests.fakes.kms_server import KmsServer
from tests.support.waiting import SECONDS, join

Make = Callable[..., Any]


def client_for(url: str, region: str = "eu-central-1") -> Any:
    return boto3.client(
        "kms",
        endpoint_url=url,
        region_name=region,
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=SECONDS, read_timeout=SECONDS),
    )


@pytest.fixture
def kms() -> Iterator[KmsServer]:
    with KmsServer() as server:
        yield server


@pytest.fixture
def client(kms: KmsServer) -> Any:
    return client_for(kms.url)


@pytest.fixture(params=["fake", "moto"])
def any_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of the fake or of moto, for what moto keeps."""
    if request.param == "fake":
        yield request.getfixturevalue("client")
        return
    from moto import mock_aws

    with mock_aws():
        yield boto3.client("kms", region_name="eu-central-1")


def code(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def external(client: Any) -> str:
    return str(client.create_key(Origin="EXTERNAL", MultiRegion=False)["KeyMetadata"]["Arn"])


def wrap(parameters: Any, material: bytes) -> bytes:
    public = serialization.load_der_public_key(parameters["PublicKey"])
    assert isinstance(public, rsa.RSAPublicKey)
    oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)
    return public.encrypt(material, oaep)


def parameters(client: Any, key: str, spec: str = "RSA_2048") -> Any:
    return client.get_parameters_for_import(KeyId=key, WrappingAlgorithm="RSAES_OAEP_SHA_256", WrappingKeySpec=spec)


def import_material(client: Any, key: str, material: bytes, spec: str = "RSA_2048") -> Any:
    got = parameters(client, key, spec)
    return client.import_key_material(
        KeyId=key,
        ImportToken=got["ImportToken"],
        EncryptedKeyMaterial=wrap(got, material),
        ExpirationModel="KEY_MATERIAL_DOES_NOT_EXPIRE",
    )


def state(client: Any, key: str) -> str:
    return str(client.describe_key(KeyId=key)["KeyMetadata"]["KeyState"])


# What moto keeps too.


def test_round_trip_and_associated_data(any_client: Any) -> None:
    key = any_client.create_key()["KeyMetadata"]["Arn"]
    blob = any_client.encrypt(KeyId=key, Plaintext=b"root", EncryptionContext={"a": "1", "b": "2"})["CiphertextBlob"]
    assert any_client.decrypt(CiphertextBlob=blob, EncryptionContext={"b": "2", "a": "1"})["Plaintext"] == b"root"
    for context in ({}, {"a": "1"}, {"a": "1", "b": "3"}, {"A": "1", "b": "2"}):
        wrong = code(lambda context=context: any_client.decrypt(CiphertextBlob=blob, EncryptionContext=context))
        assert wrong == "InvalidCiphertextException"


def test_altered_ciphertext(any_client: Any) -> None:
    key = any_client.create_key()["KeyMetadata"]["Arn"]
    blob = any_client.encrypt(KeyId=key, Plaintext=b"root")["CiphertextBlob"]
    altered = blob[:-1] + bytes([blob[-1] ^ 1])
    assert code(lambda: any_client.decrypt(CiphertextBlob=altered)) == "InvalidCiphertextException"


def test_limit_of_encrypt(any_client: Any) -> None:
    key = any_client.create_key()["KeyMetadata"]["KeyId"]
    assert any_client.encrypt(KeyId=key, Plaintext=b"x" * 4096)["KeyId"].startswith("arn:aws:kms:eu-central-1:")
    assert code(lambda: any_client.encrypt(KeyId=key, Plaintext=b"x" * 4097)) == "ValidationException"


def test_tags_and_aliases(any_client: Any) -> None:
    key = any_client.create_key(Tags=[{"TagKey": "store", "TagValue": "a"}])["KeyMetadata"]["KeyId"]
    any_client.tag_resource(
        KeyId=key, Tags=[{"TagKey": "epoch", "TagValue": "7"}, {"TagKey": "store", "TagValue": "b"}]
    )
    any_client.untag_resource(KeyId=key, TagKeys=["epoch"])
    assert any_client.list_resource_tags(KeyId=key)["Tags"] == [{"TagKey": "store", "TagValue": "b"}]
    any_client.create_alias(AliasName="alias/atlas", TargetKeyId=key)
    assert any_client.describe_key(KeyId="alias/atlas")["KeyMetadata"]["KeyId"] == key
    assert code(lambda: any_client.create_alias(AliasName="alias/atlas", TargetKeyId=key)) == "AlreadyExistsException"
    any_client.delete_alias(AliasName="alias/atlas")
    assert code(lambda: any_client.describe_key(KeyId="alias/atlas")) == "NotFoundException"


def test_data_keys(any_client: Any) -> None:
    key = any_client.create_key()["KeyMetadata"]["KeyId"]
    made = any_client.generate_data_key(KeyId=key, KeySpec="AES_256", EncryptionContext={"a": "1"})
    opened = any_client.decrypt(CiphertextBlob=made["CiphertextBlob"], EncryptionContext={"a": "1"})
    assert opened["Plaintext"] == made["Plaintext"]
    assert len(made["Plaintext"]) == 32
    assert len(any_client.generate_random(NumberOfBytes=1024)["Plaintext"]) == 1024


# What only the fake keeps.


def test_contexts_are_injective(client: Any) -> None:
    key = external(client)
    import_material(client, key, os.urandom(32))
    blob = client.encrypt(KeyId=key, Plaintext=b"root", EncryptionContext={"ab": "c"})["CiphertextBlob"]
    wrong = code(lambda: client.decrypt(CiphertextBlob=blob, EncryptionContext={"a": "bc"}))
    assert wrong == "InvalidCiphertextException"


@pytest.mark.parametrize("spec", ["RSA_2048", "RSA_3072", "RSA_4096"])
def test_import_delete_restore(client: Any, spec: str) -> None:
    key, material = external(client), os.urandom(32)
    assert state(client, key) == "PendingImport"
    assert code(lambda: client.encrypt(KeyId=key, Plaintext=b"x")) == "KMSInvalidStateException"
    import_material(client, key, material, spec)
    assert state(client, key) == "Enabled"
    blob = client.encrypt(KeyId=key, Plaintext=b"root")["CiphertextBlob"]
    client.delete_imported_key_material(KeyId=key)
    assert state(client, key) == "PendingImport"
    assert code(lambda: client.decrypt(KeyId=key, CiphertextBlob=blob)) == "KMSInvalidStateException"
    client.delete_imported_key_material(KeyId=key)
    assert code(lambda: import_material(client, key, os.urandom(32))) == "IncorrectKeyMaterialException"
    assert state(client, key) == "PendingImport"
    import_material(client, key, material)
    assert client.decrypt(CiphertextBlob=blob)["Plaintext"] == b"root"


def test_import_tokens(kms: KmsServer, client: Any) -> None:
    one, two = external(client), external(client)
    got = parameters(client, one)
    arguments = {"ImportToken": got["ImportToken"], "ExpirationModel": "KEY_MATERIAL_DOES_NOT_EXPIRE"}
    sealed = wrap(got, os.urandom(32))

    def attempt(key: str, material: bytes) -> str:
        return code(lambda: client.import_key_material(KeyId=key, EncryptedKeyMaterial=material, **arguments))

    assert attempt(two, sealed) == "InvalidImportTokenException"
    assert attempt(one, bytes(256)) == "InvalidCiphertextException"
    assert attempt(one, wrap(got, os.urandom(31))) == "IncorrectKeyMaterialException"
    kms.clock.advance(DAY)
    assert attempt(one, sealed) == "ExpiredImportTokenException"


def test_token_can_be_replayed_within_its_day(client: Any) -> None:
    key = external(client)
    got = parameters(client, key)
    replay = {
        "KeyId": key,
        "ImportToken": got["ImportToken"],
        "EncryptedKeyMaterial": wrap(got, os.urandom(32)),
        "ExpirationModel": "KEY_MATERIAL_DOES_NOT_EXPIRE",
    }
    client.import_key_material(**replay)
    client.delete_imported_key_material(KeyId=key)
    client.import_key_material(**replay)
    assert state(client, key) == "Enabled"


def test_keys_of_kms_take_no_material(client: Any) -> None:
    key = client.create_key()["KeyMetadata"]["Arn"]
    assert code(lambda: parameters(client, key)) == "UnsupportedOperationException"
    assert code(lambda: client.delete_imported_key_material(KeyId=key)) == "UnsupportedOperationException"


def test_disabled(client: Any) -> None:
    key = client.create_key()["KeyMetadata"]["Arn"]
    blob = client.encrypt(KeyId=key, Plaintext=b"root")["CiphertextBlob"]
    client.disable_key(KeyId=key)
    for attempt in (
        lambda: client.decrypt(CiphertextBlob=blob),
        lambda: client.encrypt(KeyId=key, Plaintext=b"x"),
        lambda: client.generate_data_key(KeyId=key, KeySpec="AES_256"),
    ):
        assert code(attempt) == "DisabledException"
    client.enable_key(KeyId=key)
    assert client.decrypt(CiphertextBlob=blob)["Plaintext"] == b"root"


def test_windows_of_deletion(kms: KmsServer, client: Any) -> None:
    key = client.create_key()["KeyMetadata"]["Arn"]
    blob = client.encrypt(KeyId=key, Plaintext=b"root")["CiphertextBlob"]
    for days in (6, 31):
        wrong = code(lambda days=days: client.schedule_key_deletion(KeyId=key, PendingWindowInDays=days))
        assert wrong == "ValidationException"
    assert client.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)["KeyState"] == "PendingDeletion"
    decrypt: Callable[[], Any] = lambda: client.decrypt(KeyId=key, CiphertextBlob=blob)  # noqa: E731
    assert code(decrypt) == "KMSInvalidStateException"
    kms.operations.pending_deletion_error = "DisabledException"
    assert code(decrypt) == "DisabledException"
    for attempt in (
        lambda: client.schedule_key_deletion(KeyId=key),
        lambda: client.tag_resource(KeyId=key, Tags=[{"TagKey": "a", "TagValue": "b"}]),
        lambda: client.enable_key(KeyId=key),
    ):
        assert code(attempt) == "KMSInvalidStateException"
    kms.clock.advance(6.9 * DAY)
    client.cancel_key_deletion(KeyId=key)
    assert state(client, key) == "Disabled"
    assert code(lambda: client.cancel_key_deletion(KeyId=key)) == "KMSInvalidStateException"
    client.enable_key(KeyId=key)
    assert decrypt()["Plaintext"] == b"root"
    client.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    kms.clock.advance(7 * DAY)
    assert code(decrypt) == "NotFoundException"
    assert code(lambda: client.describe_key(KeyId=key)) == "NotFoundException"
    assert code(lambda: client.cancel_key_deletion(KeyId=key)) == "NotFoundException"
    assert code(lambda: client.decrypt(CiphertextBlob=blob)) == "AccessDeniedException"


def test_deletion_pending_and_material(client: Any) -> None:
    key = external(client)
    import_material(client, key, os.urandom(32))
    client.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    assert code(lambda: parameters(client, key)) == "KMSInvalidStateException"
    client.delete_imported_key_material(KeyId=key)
    assert state(client, key) == "PendingDeletion"
    client.cancel_key_deletion(KeyId=key)
    assert state(client, key) == "PendingImport"


def test_ciphertexts_are_bound_to_their_key(client: Any) -> None:
    one, two = (client.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    blob = client.encrypt(KeyId=one, Plaintext=b"root")["CiphertextBlob"]
    assert code(lambda: client.decrypt(KeyId=two, CiphertextBlob=blob)) == "IncorrectKeyException"
    for at in (1, 5, 40, len(blob) // 2):
        altered = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
        assert code(lambda altered=altered: client.decrypt(CiphertextBlob=altered)) == "InvalidCiphertextException"


def test_names_of_a_key(client: Any) -> None:
    meta = client.create_key()["KeyMetadata"]
    client.create_alias(AliasName="alias/atlas", TargetKeyId=meta["Arn"])
    alias_arn = client.list_aliases(KeyId=meta["KeyId"])["Aliases"][0]["AliasArn"]
    for name in (meta["KeyId"], meta["Arn"], "alias/atlas", alias_arn):
        blob = client.encrypt(KeyId=name, Plaintext=b"root")["CiphertextBlob"]
        assert client.decrypt(KeyId=name, CiphertextBlob=blob)["KeyId"] == meta["Arn"]
    assert code(lambda: client.disable_key(KeyId="alias/atlas")) == "NotFoundException"
    assert code(lambda: client.describe_key(KeyId="arn:aws:kms:eu-central-1:x")) == "InvalidArnException"
    elsewhere = meta["Arn"].replace("eu-central-1", "eu-west-1")
    assert code(lambda: client.describe_key(KeyId=elsewhere)) == "NotFoundException"


def test_another_accounts_key(kms: KmsServer, client: Any) -> None:
    arn = kms.foreign_key()
    blob = client.encrypt(KeyId=arn, Plaintext=b"root")["CiphertextBlob"]
    assert client.decrypt(KeyId=arn, CiphertextBlob=blob)["Plaintext"] == b"root"
    assert code(lambda: client.describe_key(KeyId=arn.rsplit("/", 1)[1])) == "NotFoundException"
    assert code(lambda: client.schedule_key_deletion(KeyId=arn)) == "AccessDeniedException"
    assert client.list_keys()["Keys"] == []


def test_pages(client: Any) -> None:
    made = {client.create_key()["KeyMetadata"]["KeyId"] for _ in range(7)}
    seen: list[str] = []
    marker: dict[str, str] = {}
    while True:
        page = client.list_keys(Limit=3, **marker)
        seen += [row["KeyId"] for row in page["Keys"]]
        if not page["Truncated"]:
            break
        marker = {"Marker": page["NextMarker"]}
    assert len(seen) == 7
    assert set(seen) == made
    paginated = client.get_paginator("list_keys").paginate(PaginationConfig={"PageSize": 2})
    assert sum(len(page["Keys"]) for page in paginated) == 7
    assert code(lambda: client.list_keys(Marker="nonsense")) == "InvalidMarkerException"
    tags = [{"TagKey": f"k{n}", "TagValue": "v"} for n in range(50)]
    key = client.create_key(Tags=tags)["KeyMetadata"]["KeyId"]
    assert len(client.list_resource_tags(KeyId=key, Limit=50)["Tags"]) == 50
    assert client.list_resource_tags(KeyId=key, Limit=20)["Truncated"]
    assert code(lambda: client.tag_resource(KeyId=key, Tags=[{"TagKey": "one", "TagValue": "v"}])) == (
        "LimitExceededException"
    )


def test_quota_of_keys(kms: KmsServer, client: Any) -> None:
    kms.operations.key_quota = 1
    key = client.create_key()["KeyMetadata"]["KeyId"]
    client.schedule_key_deletion(KeyId=key)
    assert code(client.create_key) == "LimitExceededException"


@pytest.mark.parametrize("flapping", [False, True])
def test_changes_become_visible_late(kms: KmsServer, client: Any, flapping: bool) -> None:
    key = external(client)
    import_material(client, key, os.urandom(32))
    blob = client.encrypt(KeyId=key, Plaintext=b"root")["CiphertextBlob"]
    kms.operations.propagation, kms.operations.flapping = DAY, flapping
    client.delete_imported_key_material(KeyId=key)
    answers = set()
    for _ in range(12):
        try:
            answers.add(client.decrypt(CiphertextBlob=blob)["Plaintext"])
        except ClientError as error:
            answers.add(error.response["Error"]["Code"])
    assert answers == ({b"root", "KMSInvalidStateException"} if flapping else {b"root"})
    kms.clock.advance(DAY)
    assert code(lambda: client.decrypt(CiphertextBlob=blob)) == "KMSInvalidStateException"


def test_a_new_key_is_not_there_yet(kms: KmsServer, client: Any) -> None:
    kms.operations.propagation = DAY
    key = external(client)
    assert code(lambda: parameters(client, key)) == "NotFoundException"
    kms.clock.advance(DAY)
    before = kms.clock.now()
    until = parameters(client, key)["ParametersValidTo"].timestamp()
    assert before + DAY - 1 <= until <= kms.clock.now() + DAY + 1  # as exact as JSON carries it


def test_quota_of_requests(kms: KmsServer, client: Any) -> None:
    key = external(client)
    kms.rates.limit("GetParametersForImport", 1 / DAY)
    parameters(client, key)
    assert code(lambda: parameters(client, key)) == "ThrottlingException"
    kms.clock.advance(2 * DAY)
    parameters(client, key)


def test_faults(kms: KmsServer, client: Any) -> None:
    key = client.create_key()["KeyMetadata"]["Arn"]
    encrypt: Callable[[], Any] = lambda: client.encrypt(KeyId=key, Plaintext=b"x")  # noqa: E731
    kms.faults.throttle("Encrypt", skip=1, times=2)
    encrypt()
    assert [code(encrypt), code(encrypt)] == ["ThrottlingException"] * 2
    encrypt()
    kms.faults.deny("Encrypt", key=key)
    assert code(encrypt) == "AccessDeniedException"
    client.describe_key(KeyId=key)
    kms.faults.clear()
    kms.faults.expire_credentials()
    assert code(encrypt) == "ExpiredTokenException"
    kms.faults.clear()
    kms.faults.outage()
    with pytest.raises(ConnectionClosedError):
        encrypt()
    kms.faults.clear()
    kms.faults.fail("Encrypt", "KMSInternalException", status=500)
    assert code(encrypt) == "KMSInternalException"
    encrypt()


def test_lost_and_dropped(kms: KmsServer, client: Any) -> None:
    kms.faults.lose("CreateKey")
    with pytest.raises(ConnectionClosedError):
        client.create_key()
    assert len(kms.keys) == 1
    kms.faults.drop("CreateKey")
    with pytest.raises(ConnectionClosedError):
        client.create_key()
    assert len(kms.keys) == 1


def test_hooks_and_latency(kms: KmsServer, client: Any) -> None:
    seen: list[int] = []
    kms.faults.hook("CreateKey", lambda: seen.append(len(kms.keys)))
    kms.faults.hook("CreateKey", lambda: seen.append(len(kms.keys)), when="after")
    client.create_key()
    assert seen == [0, 1]
    kms.faults.delay("GenerateRandom", 0.2)
    start = time.monotonic()
    client.generate_random(NumberOfBytes=1)
    assert time.monotonic() - start >= 0.2


def test_calls_run_at_once(kms: KmsServer, client: Any) -> None:
    together = threading.Barrier(8)
    kms.faults.hook("GenerateRandom", lambda: together.wait(SECONDS) and None, times=8)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.generate_random(NumberOfBytes=1))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    join(threads)
    assert len(answers) == 8
    assert kms.count("GenerateRandom") == 8


def test_requests_are_signed(kms: KmsServer) -> None:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(kms.url, b"{}", {"X-Amz-Target": "TrentService.ListKeys"}, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=SECONDS)
    with caught.value as answer:
        assert answer.code == 400
        assert b"MissingAuthenticationTokenException" in answer.read()


def test_dry_run(client: Any) -> None:
    key = client.create_key()["KeyMetadata"]["Arn"]
    blob = client.encrypt(KeyId=key, Plaintext=b"x")["CiphertextBlob"]
    assert code(lambda: client.decrypt(CiphertextBlob=blob, DryRun=True)) == "DryRunOperationException"
