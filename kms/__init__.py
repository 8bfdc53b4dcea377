"""Key services: where the keys live that a shred destroys."""

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
