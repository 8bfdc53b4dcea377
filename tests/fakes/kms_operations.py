"""The operations of the fake of AWS KMS on one key, each a method named as boto3 names it, JSON in and out."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Final

from botocore import xform_name
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding

from tests.fakes.kms_account import Account, Json, blob, invalid, text
from tests.fakes.kms_keys import ACCOUNT, DAY, Key, KmsError, Version, material_id, wrapping_key

OPERATIONS: Final = """
CreateKey DescribeKey EnableKey DisableKey ScheduleKeyDeletion CancelKeyDeletion GetParametersForImport
ImportKeyMaterial DeleteImportedKeyMaterial Encrypt Decrypt GenerateDataKey GenerateRandom TagResource UntagResource
ListResourceTags ListKeys CreateAlias DeleteAlias ListAliases
"""
NO_MATERIAL: Final = "UnsupportedOperationException"


class Operations(Account):
    """One account and Region of KMS."""

    def call(self, operation: str, request: Json) -> Json:
        """Carries one operation out.

        Raises:
            KmsError: The answer is an error.
        """
        if operation not in OPERATIONS.split():
            raise KmsError("UnknownOperationException", status=404)
        method: Callable[[Json], Json] = getattr(self, xform_name(operation))
        with self._lock:
            return method(request)

    # Keys.

    def create_key(self, request: Json, *, account: str = ACCOUNT) -> Json:
        """Enabled with material made by KMS; of origin EXTERNAL, PendingImport without any."""
        origin = request.get("Origin", "AWS_KMS")
        if origin not in ("AWS_KMS", "EXTERNAL") or request.get("KeySpec", "SYMMETRIC_DEFAULT") != "SYMMETRIC_DEFAULT":
            raise KmsError(NO_MATERIAL, "this fake makes symmetric keys of origin AWS_KMS or EXTERNAL")
        tags = self._tags(request.get("Tags") or [])
        if sum(key.account == account for key in self.keys.values() if key.latest.state != "deleted") >= self.key_quota:
            raise KmsError("LimitExceededException", "the quota of KMS keys is reached")
        multi = bool(request.get("MultiRegion"))
        key_id = f"mrk-{uuid.uuid4().hex}" if multi else str(uuid.uuid4())
        arn = f"arn:aws:kms:{self.region}:{account}:key/{key_id}"
        key = Key(key_id, arn, origin, multi, request.get("Description", ""), self.clock.now(), account)
        made = origin == "AWS_KMS"
        self._change(
            key, state="Enabled" if made else "PendingImport", material=os.urandom(32) if made else None, tags=tags
        )
        self.keys[key_id] = key
        return {"KeyMetadata": self._metadata(key, key.latest)}

    def _metadata(self, key: Key, version: Version) -> Json:
        out: Json = {
            "AWSAccountId": key.account,
            "KeyId": key.key_id,
            "Arn": key.arn,
            "CreationDate": key.created_at,
            "Enabled": version.state == "Enabled",
            "Description": key.description,
            "KeyUsage": "ENCRYPT_DECRYPT",
            "KeyState": version.state,
            "Origin": key.origin,
            "KeyManager": "CUSTOMER",
            "CustomerMasterKeySpec": "SYMMETRIC_DEFAULT",
            "KeySpec": "SYMMETRIC_DEFAULT",
            "EncryptionAlgorithms": ["SYMMETRIC_DEFAULT"],
            "MultiRegion": key.multi_region,
        }
        if version.state == "PendingDeletion":
            out["DeletionDate"] = version.deletion_at
        if key.origin == "EXTERNAL" and version.material is not None:
            out["ExpirationModel"] = "KEY_MATERIAL_DOES_NOT_EXPIRE"
        return out

    def describe_key(self, request: Json) -> Json:
        """Metadata as far as it has spread."""
        key = self.resolve(request.get("KeyId"), alias=True, foreign=True)
        version = self._visible(key)
        if version is None:
            raise KmsError("NotFoundException", f"Key '{key.arn}' does not exist")
        return {"KeyMetadata": self._metadata(key, version)}

    def enable_key(self, request: Json) -> Json:
        """Back into use."""
        key = self.resolve(request.get("KeyId"))
        self._not(key, "PendingImport", "PendingDeletion")
        self._change(key, state="Enabled")
        return {}

    def disable_key(self, request: Json) -> Json:
        """Out of use; reversible."""
        key = self.resolve(request.get("KeyId"))
        self._not(key, "PendingImport", "PendingDeletion")
        self._change(key, state="Disabled")
        return {}

    def schedule_key_deletion(self, request: Json) -> Json:
        """PendingDeletion for 7 to 30 days."""
        key = self.resolve(request.get("KeyId"))
        days = request.get("PendingWindowInDays", 30)
        if not 7 <= days <= 30:
            raise invalid("'pendingWindowInDays' must be between 7 and 30")
        self._not(key, "PendingDeletion")
        at = self.clock.now() + days * DAY
        self._change(key, state="PendingDeletion", deletion_at=at, window_days=days)
        return {"KeyId": key.arn, "DeletionDate": at, "KeyState": "PendingDeletion", "PendingWindowInDays": days}

    def cancel_key_deletion(self, request: Json) -> Json:
        """Disabled afterwards; a key without its imported material waits for it."""
        key = self.resolve(request.get("KeyId"))
        if self.state(key) != "PendingDeletion":
            raise KmsError("KMSInvalidStateException", f"{key.arn} is not pending deletion.")
        bare = key.origin == "EXTERNAL" and key.latest.material is None
        self._change(key, state="PendingImport" if bare else "Disabled", deletion_at=None, window_days=0)
        return {"KeyId": key.arn}

    # The import trio.

    def _external(self, request: Json) -> Key:
        key = self.resolve(request.get("KeyId"))
        if key.origin != "EXTERNAL":
            raise KmsError(NO_MATERIAL, f"{key.arn} origin is {key.origin} which is not valid for this operation.")
        return key

    def get_parameters_for_import(self, request: Json) -> Json:
        """A public key and a token of this key that lives for 24 hours."""
        key = self._external(request)
        if request.get("WrappingAlgorithm") != "RSAES_OAEP_SHA_256":
            raise KmsError(NO_MATERIAL, "this fake unwraps RSAES_OAEP_SHA_256 only")
        spec = str(request.get("WrappingKeySpec"))
        if spec not in ("RSA_2048", "RSA_3072", "RSA_4096"):
            raise invalid("'wrappingKeySpec' failed to satisfy constraint")
        self._not(key, "PendingDeletion")
        bits, token, until = int(spec[4:]), os.urandom(64), self.clock.now() + DAY
        self._tokens[token] = (key.key_id, bits, until)
        public = wrapping_key(bits).public_key()
        der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return {"KeyId": key.arn, "ImportToken": text(token), "PublicKey": text(der), "ParametersValidTo": until}

    def import_key_material(self, request: Json) -> Json:
        """Takes 32 bytes; once a key has had material, it takes only the same again."""
        key = self._external(request)
        self._not(key, "PendingDeletion")
        token = blob(request, "ImportToken", 6144)
        wrapped = blob(request, "EncryptedKeyMaterial", 6144)
        owner, bits, until = self._tokens.get(token, ("", 0, 0.0))
        if owner != key.key_id:
            raise KmsError("InvalidImportTokenException")
        if until <= self.clock.now():
            raise KmsError("ExpiredImportTokenException")
        model = request.get("ExpirationModel", "KEY_MATERIAL_EXPIRES")
        if model != "KEY_MATERIAL_DOES_NOT_EXPIRE" or "ValidTo" in request:
            raise invalid("this fake imports KEY_MATERIAL_DOES_NOT_EXPIRE, without ValidTo")
        try:
            material = wrapping_key(bits).decrypt(
                wrapped, padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)
            )
        except ValueError:
            raise KmsError("InvalidCiphertextException") from None
        if len(material) != 32 or (key.known_material not in (None, material)):
            raise KmsError("IncorrectKeyMaterialException")
        key.known_material, key.known_material_id = material, material_id(key.key_id, material)
        self._change(key, state="Enabled", material=material)
        return {"KeyId": key.arn, "KeyMaterialId": key.known_material_id}

    def delete_imported_key_material(self, request: Json) -> Json:
        """PendingImport at once, PendingDeletion left as it is; nothing to delete is no error."""
        key = self._external(request)
        state = "PendingDeletion" if self.state(key) == "PendingDeletion" else "PendingImport"
        had = key.latest.material is not None
        self._change(key, state=state, material=None)
        return {"KeyId": key.arn, **({"KeyMaterialId": key.known_material_id} if had else {})}

    # Cryptography.

    def encrypt(self, request: Json) -> Json:
        """At most 4,096 bytes."""
        plaintext = blob(request, "Plaintext", 4096)
        key = self.resolve(request.get("KeyId"), alias=True, foreign=True)
        material = self._usable(key)
        self._dry(request)
        sealed = self._ciphertexts.seal(key, material, plaintext, request.get("EncryptionContext") or {})
        return {"CiphertextBlob": text(sealed), "KeyId": key.arn, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}

    def decrypt(self, request: Json) -> Json:
        """By the key named, or the one the blob names; the key's state is looked at before the ciphertext."""
        sealed = blob(request, "CiphertextBlob", 6144)
        named = request.get("KeyId")
        arn, _ = self._ciphertexts.key_of(sealed)
        if named:
            key = self.resolve(named, alias=True, foreign=True)
        else:
            try:
                key = self.resolve(arn, foreign=True)
            except KmsError:
                # Without a KeyId AWS does not tell a key that is gone from one that is forbidden.
                raise KmsError("AccessDeniedException", "The ciphertext refers to a key that does not exist") from None
        material = self._usable(key)
        if key.arn != arn:
            raise KmsError("IncorrectKeyException")
        plaintext = self._ciphertexts.open(material, sealed, request.get("EncryptionContext") or {})
        self._dry(request)
        return {"Plaintext": text(plaintext), "KeyId": key.arn, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}

    def _dry(self, request: Json) -> None:
        if request.get("DryRun"):
            raise KmsError("DryRunOperationException", "The request would have succeeded, but DryRun is set.")

    def generate_data_key(self, request: Json) -> Json:
        """Random bytes, in clear and under the key."""
        spec, number = request.get("KeySpec"), request.get("NumberOfBytes")
        if (spec is None) == (number is None):
            raise invalid("Please specify either number of bytes or key spec.")
        size = {"AES_256": 32, "AES_128": 16}.get(str(spec), 0) if spec else int(number or 0)
        if not 1 <= size <= 1024:
            raise invalid("'numberOfBytes' failed to satisfy constraint: between 1 and 1024")
        plaintext = os.urandom(size)
        return self.encrypt({**request, "Plaintext": text(plaintext)}) | {"Plaintext": text(plaintext)}

    def generate_random(self, request: Json) -> Json:
        """1 to 1,024 random bytes."""
        size = int(request.get("NumberOfBytes") or 0)
        if not 1 <= size <= 1024:
            raise invalid("'numberOfBytes' failed to satisfy constraint: between 1 and 1024")
        return {"Plaintext": text(os.urandom(size))}
