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

__all__ = [
    "DeploymentSecrets",
    "Destruction",
    "Hold",
    "KeyRecord",
    "KeyService",
    "KeyServiceFactory",
    "Report",
    "Tombstone",
    "open_key_service",
    "register_key_service",
]
