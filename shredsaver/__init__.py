"""Crypto-shredding checkpointer and store for LangGraph agents."""

from typing import TYPE_CHECKING, Any

from shredsaver import kms as _kms
from shredsaver.audit import Audit, RouteCount
from shredsaver.errors import (
    ConfigurationError,
    CustomerRestrictedError,
    CustomerShreddedError,
    CustomerUnresolvedError,
    DatabaseForkedError,
    DatabaseUnavailableError,
    FormatError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    LegalHoldError,
    MissingDependencyError,
    NamespaceUnmatchedError,
    PayloadError,
    ReceiptError,
    RevocationLogDamagedError,
    SchemaVersionError,
    ShredIncompleteError,
    ShredSaverError,
    ThreadOwnershipError,
    UnknownKeySchemeError,
    UnsealError,
)
from shredsaver.events import Event
from shredsaver.kms.base import KeyService, open_key_service, register_key_service
from shredsaver.kms.local import LocalKeyService
from shredsaver.namespaces import CUSTOMER, SHARED, id_of, label_of
from shredsaver.results import CustomerStatus, ShredPlan, ShredResult
from shredsaver.saver import ShredSaver
from shredsaver.serializer import ShredSerializer
from shredsaver.shredder import Shredder
from shredsaver.store import ShredStore

if TYPE_CHECKING:
    from shredsaver.kms.aws import AwsKeyService as AwsKeyService

__all__ = [
    "CUSTOMER",
    "SHARED",
    "Audit",
    "ConfigurationError",
    "CustomerRestrictedError",
    "CustomerShreddedError",
    "CustomerStatus",
    "CustomerUnresolvedError",
    "DatabaseForkedError",
    "DatabaseUnavailableError",
    "Event",
    "FormatError",
    "KeyAccessDeniedError",
    "KeyNotFoundError",
    "KeyService",
    "KeyServiceError",
    "KeyServiceUnavailableError",
    "KeyStoreStaleError",
    "LegalHoldError",
    "LocalKeyService",
    "MissingDependencyError",
    "NamespaceUnmatchedError",
    "PayloadError",
    "ReceiptError",
    "RevocationLogDamagedError",
    "RouteCount",
    "SchemaVersionError",
    "ShredIncompleteError",
    "ShredPlan",
    "ShredResult",
    "ShredSaver",
    "ShredSaverError",
    "ShredSerializer",
    "ShredStore",
    "Shredder",
    "ThreadOwnershipError",
    "UnknownKeySchemeError",
    "UnsealError",
    "id_of",
    "label_of",
    "open_key_service",
    "register_key_service",
]


def __getattr__(name: str) -> Any:
    # Not imported above, and not in __all__: it needs boto3, which only those have who asked for it.
    if name == "AwsKeyService":
        return _kms.AwsKeyService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
