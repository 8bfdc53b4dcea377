"""What AWS KMS answers, told apart: each cause has a class of its own, and none of them ever stands for an erasure.

| cause | error | a retry helps |
|---|---|---|
| throttled, unreachable, timed out, failing inside, credentials expired | `KeyServiceUnavailableError` | yes |
| quota of keys reached | `KeyServiceUnavailableError` | after the quota was raised |
| denied, credentials missing or refused | `KeyAccessDeniedError` | after someone allowed it |
| key disabled | `KmsKeyDisabledError` | after `EnableKey` |
| key scheduled for deletion | `KmsKeyPendingDeletionError` | after `CancelKeyDeletion` |
| key without its imported material | `KmsKeyPendingImportError` | no |
| no such key | `KmsKeyMissingError` | no |
| ciphertext altered, moved, of another key or another context | `UnsealError` | no |
"""

from __future__ import annotations

from typing import Any, Final

from botocore import exceptions as boto

from shredsaver.errors import (
    ConfigurationError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    ShredSaverError,
    UnsealError,
)

_THROTTLED: Final = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded"})
_BUSY: Final = frozenset(
    {
        "KMSInternalException",
        "InternalFailure",
        "InternalError",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "DependencyTimeoutException",
        "KeyUnavailableException",
        "RequestTimeout",
        "RequestTimeoutException",
    }
)
_EXPIRED: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestExpired", "TokenRefreshRequired"})
_REFUSED: Final = frozenset(
    {
        "AccessDeniedException",
        "AccessDenied",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
    }
)
_ALTERED: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
WRONG_STATE: Final = frozenset({"DisabledException", "KMSInvalidStateException"})
"""Codes that leave open which state the key is in; `DescribeKey` tells."""
SERVER_ERROR: Final = 500


class KmsThrottledError(KeyServiceUnavailableError):
    """AWS KMS throttles: a quota of requests is used up for the moment."""


class KmsKeyUnsettledError(KeyServiceUnavailableError):
    """One answer of AWS KMS contradicts another: a change of the key has not spread everywhere yet."""


class KmsKeyDisabledError(KeyAccessDeniedError):
    """The KMS key is disabled, so nothing under it opens until someone enables it again. Never an erasure."""


class KmsKeyPendingDeletionError(KeyAccessDeniedError):
    """The KMS key is scheduled for deletion. Cancel that in time, or what is under it is lost. Not our erasure."""


class KmsKeyPendingImportError(KeyNotFoundError):
    """The KMS key has lost its imported material, and nobody kept a copy: what is under it is lost. Not our erasure."""


class KmsMaterialRefusedError(KeyServiceError):
    """The KMS key takes no other material than it has had before."""


class KmsKeyMissingError(KeyNotFoundError):
    """There is no such KMS key in this account and Region. Wrong Region or account, or it was deleted."""


def code_of(error: BaseException) -> str:
    """The error code of an answer of AWS; "" where there was no answer."""
    if isinstance(error, boto.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def outcome_unknown(error: BaseException) -> bool:
    """Whether the request may have been carried out although it failed."""
    if not isinstance(error, boto.ClientError):
        return not isinstance(error, (boto.EndpointConnectionError, boto.NoCredentialsError, boto.NoRegionError))
    return _status(error) >= SERVER_ERROR


def _status(error: boto.ClientError) -> int:
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))


def translate(error: boto.BotoCoreError | boto.ClientError, what: str) -> ShredSaverError:
    """The error of ours for one of boto3's.

    Args:
        error: What boto3 raised.
        what: What was asked of which key, for the message.
    """
    if isinstance(error, boto.ClientError):
        return _translate_answer(error, what)
    if isinstance(error, boto.NoRegionError):
        return ConfigurationError(f"{what}: no AWS Region is set; add region=… to the key URI, or set AWS_REGION")
    if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound)):
        return KeyAccessDeniedError(f"{what}: boto3 finds no AWS credentials; give it some in any way it knows")
    if isinstance(error, boto.ParamValidationError):
        return KeyServiceError(f"{what}: boto3 refuses the request as malformed")
    return KeyServiceUnavailableError(f"{what}: AWS KMS cannot be reached ({type(error).__name__}); retry")


def _translate_answer(error: boto.ClientError, what: str) -> ShredSaverError:
    code = code_of(error)
    kinds: tuple[tuple[bool, type[ShredSaverError], str], ...] = (
        (code in _EXPIRED, KeyServiceUnavailableError, f"the AWS credentials have expired ({code}); renew and retry"),
        (code in _THROTTLED, KmsThrottledError, f"AWS KMS throttles ({code}); retry"),
        (
            code in _BUSY or _status(error) >= SERVER_ERROR,
            KeyServiceUnavailableError,
            f"AWS KMS fails inside ({code}); retry",
        ),
        (
            code in _REFUSED,
            KeyAccessDeniedError,
            f"AWS refuses ({code}); docs/howto/aws-kms.md lists the actions needed",
        ),
        (code == "NotFoundException", KmsKeyMissingError, "no such key in this account and Region"),
        (code in _ALTERED, UnsealError, f"the stored ciphertext is altered, moved, or of another key ({code})"),
        (code == "IncorrectKeyMaterialException", KmsMaterialRefusedError, "the key has had other material before"),
        (code == "DisabledException", KmsKeyDisabledError, "the key is disabled"),
    )
    for applies, kind, why in kinds:
        if applies:
            return kind(f"{what}: {why}")
    if code == "LimitExceededException":
        why = "a quota of AWS KMS is reached; ask AWS to raise it, or delete keys that are not needed"
        return KeyServiceUnavailableError(f"{what}: {why}", retryable=False)
    return KeyServiceError(f"{what}: AWS KMS answers {code or 'an error without a code'}")


def wrong_state(state: str, what: str) -> KeyServiceError:
    """The error for a key that cannot be used in its state, as `DescribeKey` names it."""
    if state == "Disabled":
        return KmsKeyDisabledError(f"{what}: the key is disabled; whoever administers it can enable it again")
    if state == "PendingDeletion":
        return KmsKeyPendingDeletionError(
            f"{what}: the key is scheduled for deletion; cancel that while it is possible"
        )
    if state == "PendingImport":
        return KmsKeyPendingImportError(f"{what}: the key's imported material was deleted")
    return KmsKeyUnsettledError(f"{what}: refused, while the key is shown as {state}; retry")
