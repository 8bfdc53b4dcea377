"""AWS KMS as this library uses it: one method for each request, on boto3, with errors told apart.

Everything is blocking and safe under threads. Regions, endpoints, profiles and roles are boto3's own configuration.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from shredsaver.errors import KeyServiceError, KeyServiceUnavailableError
from shredsaver.kms.aws_errors import (
    WRONG_STATE,
    KmsKeyMissingError,
    KmsKeyUnsettledError,
    KmsThrottledError,
    code_of,
    outcome_unknown,
    translate,
    wrong_state,
)
from shredsaver.kms.aws_quiet import install, quiet

T = TypeVar("T")

UNSETTLED: Final[tuple[type[KeyServiceError], ...]] = (KmsKeyMissingError, KmsKeyUnsettledError)
"""What a new key may answer until it is known everywhere."""

MATERIAL_BYTES: Final = 32
_OAEP: Final = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


class OutcomeUnknownError(KeyServiceUnavailableError):
    """The connection ended without an answer: the request may have been carried out. Look before asking again."""


class KeyState(NamedTuple):
    """What `DescribeKey` says of a key."""

    arn: str
    state: str
    origin: str
    created_at: datetime
    deletion_at: datetime | None


class KmsCalls:
    """Requests to AWS KMS in one Region.

    Args:
        region: AWS Region; None for boto3's own default.
        patience: Seconds after which a request that is still throttled, or a change that is still not visible, is
            given up with a retryable error.
        sleep: Waits; a test may move a clock instead.
        clock: Monotonic seconds.

    Raises:
        ConfigurationError: boto3 knows no Region.
    """

    def __init__(
        self,
        region: str | None = None,
        *,
        patience: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.patience, self.sleep, self.clock = patience, sleep, clock
        session = boto3.Session(region_name=region)

        def client(mode: str, attempts: int) -> Any:
            config = Config(
                retries={"mode": mode, "total_max_attempts": attempts},
                connect_timeout=5,
                read_timeout=15,
                max_pool_connections=32,
                user_agent_extra="shredsaver",
            )
            return session.client("kms", config=config)

        try:
            # The adaptive rate limit belongs to a client: throttled imports must not slow the use of roots down.
            self._use, self._administer = client("adaptive", 4), client("adaptive", 6)
            self._parameters = client("standard", 3)
            # CreateKey is not idempotent, and an import token is worth one try: an answer lost is looked into first.
            self._once = client("standard", 1)
        except BotoCoreError as error:
            raise translate(error, "opening AWS KMS") from error

        install()

    @property
    def region(self) -> str:
        """The Region in use."""
        return str(self._use.meta.region_name)

    def _ask(self, what: str, request: Callable[..., T], arn: str | None = None, **arguments: Any) -> T:
        try:
            with quiet():
                return request(**arguments)
        except (BotoCoreError, ClientError) as error:
            if code_of(error) in WRONG_STATE and arn is not None:
                raise wrong_state(self.describe(arn).state, what) from error
            if outcome_unknown(error):
                raise OutcomeUnknownError(str(translate(error, what))) from error
            raise translate(error, what) from error

    def create(self, *, external: bool, tags: Mapping[str, str], description: str) -> str:
        """Makes a symmetric key of this Region alone; with ``external``, without material. Gives its ARN.

        Raises:
            OutcomeUnknownError: It may exist: search for its tags.
        """
        reply: dict[str, Any] = self._ask(
            "CreateKey",
            self._once.create_key,
            Origin="EXTERNAL" if external else "AWS_KMS",
            MultiRegion=False,
            Description=description,
            Tags=[{"TagKey": name, "TagValue": value} for name, value in tags.items()],
        )
        return str(reply["KeyMetadata"]["Arn"])

    def describe(self, arn: str) -> KeyState:
        """The key's state.

        Raises:
            KmsKeyMissingError: There is no such key, or it is not visible yet.
        """
        reply: dict[str, Any] = self._ask(f"DescribeKey {arn}", self._use.describe_key, KeyId=arn)
        meta = reply["KeyMetadata"]
        return KeyState(meta["Arn"], meta["KeyState"], meta["Origin"], meta["CreationDate"], meta.get("DeletionDate"))

    def import_random(self, arn: str, beat: Callable[[], None] = lambda: None) -> datetime:
        """Gives an EXTERNAL key 32 random bytes that are kept nowhere else.

        Args:
            arn: The key.
            beat: Called before each request; what it raises ends the import.

        Returns:
            Until when AWS accepts the import token that was used.
        """
        what = f"GetParametersForImport {arn}"
        parameters: dict[str, Any] = self.patiently(
            lambda: self._ask(
                what,
                self._parameters.get_parameters_for_import,
                arn,
                KeyId=arn,
                WrappingAlgorithm="RSAES_OAEP_SHA_256",
                WrappingKeySpec="RSA_4096",
            ),
            pause=4.1,  # seconds: the quota is one request in four
            beat=beat,
        )
        public = serialization.load_der_public_key(parameters["PublicKey"])
        if not isinstance(public, rsa.RSAPublicKey):
            raise KeyServiceError(f"{what}: the wrapping key is no RSA key")
        beat()
        self._ask(
            f"ImportKeyMaterial {arn}",
            self._once.import_key_material,
            arn,
            KeyId=arn,
            ImportToken=parameters["ImportToken"],
            EncryptedKeyMaterial=public.encrypt(os.urandom(MATERIAL_BYTES), _OAEP),
            ExpirationModel="KEY_MATERIAL_DOES_NOT_EXPIRE",
        )
        valid_to: datetime = parameters["ParametersValidTo"]
        return valid_to

    def encrypt(self, arn: str, plaintext: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypts at most 4,096 bytes, bound to the context."""
        reply: dict[str, Any] = self._ask(
            f"Encrypt {arn}", self._use.encrypt, arn, KeyId=arn, Plaintext=plaintext, EncryptionContext=dict(context)
        )
        return bytes(reply["CiphertextBlob"])

    def decrypt(self, arn: str, ciphertext: bytes, context: Mapping[str, str]) -> bytes:
        """Decrypts what `encrypt` gave, under this key and context and no other."""
        reply: dict[str, Any] = self._ask(
            f"Decrypt {arn}",
            self._use.decrypt,
            arn,
            KeyId=arn,
            CiphertextBlob=ciphertext,
            EncryptionContext=dict(context),
        )
        return bytes(reply["Plaintext"])

    def delete_material(self, arn: str) -> None:
        """Deletes the imported material; deleting it twice does nothing."""
        self._ask(f"DeleteImportedKeyMaterial {arn}", self._administer.delete_imported_key_material, KeyId=arn)

    def schedule_deletion(self, arn: str, days: int) -> datetime:
        """Schedules the key's deletion; if it is scheduled already, that stands. Gives the date."""
        state = self.describe(arn)
        if state.state == "PendingDeletion" and state.deletion_at is not None:
            return state.deletion_at
        reply: dict[str, Any] = self._ask(
            f"ScheduleKeyDeletion {arn}",
            self._administer.schedule_key_deletion,
            KeyId=arn,
            PendingWindowInDays=days,
        )
        date: datetime = reply["DeletionDate"]
        return date

    def cancel_deletion(self, arn: str) -> None:
        """Cancels a scheduled deletion."""
        self._ask(f"CancelKeyDeletion {arn}", self._administer.cancel_key_deletion, KeyId=arn)

    def tag(self, arn: str, tags: Mapping[str, str]) -> None:
        """Adds tags, or replaces their values."""
        pairs = [{"TagKey": name, "TagValue": value} for name, value in tags.items()]
        self._ask(f"TagResource {arn}", self._administer.tag_resource, KeyId=arn, Tags=pairs)

    def tags(self, arn: str) -> dict[str, str]:
        """All tags of a key."""
        found: dict[str, str] = {}
        for page in self._pages("list_resource_tags", "ListResourceTags", KeyId=arn):
            found |= {tag["TagKey"]: tag["TagValue"] for tag in page["Tags"]}
        return found

    def key_arns(self) -> Iterator[str]:
        """The ARN of every key of the account in this Region, whatever its state."""
        for page in self._pages("list_keys", "ListKeys", PaginationConfig={"PageSize": 1000}):
            yield from (key["KeyArn"] for key in page["Keys"])

    def _pages(self, method: str, what: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        pages = iter(self._administer.get_paginator(method).paginate(**arguments))
        while (page := self._ask(what, lambda: next(pages, None))) is not None:
            yield page

    def patiently(
        self,
        request: Callable[[], T],
        *,
        pause: float = 0.5,
        within: float | None = None,
        beat: Callable[[], None] = lambda: None,
        unsettled: tuple[type[KeyServiceError], ...] = UNSETTLED,
    ) -> T:
        """Asks again while KMS throttles or has not heard everywhere of a change yet.

        Args:
            request: What to ask; it must be safe to ask twice.
            pause: Seconds between two attempts.
            within: Seconds after which the last error is raised; None for `patience`.
            beat: Called before each attempt; what it raises ends the waiting.
            unsettled: Errors that may only mean that a change has not spread yet.
        """
        deadline = self.clock() + (self.patience if within is None else within)
        while True:
            beat()
            try:
                return request()
            except KeyServiceError as error:
                passing = isinstance(error, (KmsThrottledError, *unsettled))
                if not passing or self.clock() + pause > deadline:
                    raise
            self.sleep(pause)
