"""Key services: where the keys live that a shred destroys. `AwsKeyService` is here too; it needs boto3 when used."""

from typing import TYPE_CHECKING, Any

from shredsaver.errors import MissingDependencyError
from shredsaver.kms.base import (
    DeploymentSecrets,
    Destruction,
    Hold,
    KeyRecord,
    KeyService,
    KeyServiceFactory,
    Report,
    Tombstone,
    open_key_service,
    register_key_service,
)
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.local import LocalKeyService

if TYPE_CHECKING:
    from shredsaver.kms.aws import AwsKeyService as AwsKeyService

__all__ = [
    "DeploymentSecrets",
    "Destruction",
    "Hold",
    "KeyRecord",
    "KeyService",
    "KeyServiceFactory",
    "LocalKeyService",
    "Report",
    "StoredKeyService",
    "Tombstone",
    "open_key_service",
    "register_key_service",
]


def __getattr__(name: str) -> Any:
    if name != "AwsKeyService":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from shredsaver.kms.aws import AwsKeyService
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"AwsKeyService needs {error.name}: pip install 'shredsaver[aws]'") from None
    return AwsKeyService
