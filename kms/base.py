"""The contract of a key service, and how one is found by URI.

A key service keeps one secret per customer, hands it out while the customer lives, and can destroy it so that no
earlier copy of its own storage brings it back. It sees bytes and tokens only: never a name, an id or a payload. It is
the authority on who is dead.

Every method blocks; async callers run it on a thread. Every method may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from importlib import import_module
from typing import Final, Protocol

from shredsaver.errors import ConfigurationError, MissingDependencyError, UnknownKeySchemeError
from shredsaver.kms.records import DeploymentSecrets, Destruction, Hold, KeyRecord, Report, Tombstone

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

MAX_SECRET: Final = 64 * 1024 * 1024  # bytes; a key tree is a few hundred unless heavily punctured


class KeyService(AbstractContextManager["KeyService"], Protocol):
    """Keeps and destroys customers' secrets. `shredsaver.kms.testing` holds the tests each must pass.

    A customer is a token of 1 to 64 bytes; a secret is 1 byte to `MAX_SECRET`. Besides the errors each method names,
    any may raise `KeyServiceUnavailableError` (nothing is lost, retry), `KeyAccessDeniedError`, `KeyStoreStaleError`
    (the key store is older than its roots) and `UnsealError` (a stored key was altered or moved). None of these ever
    stands for an erasure; `CustomerShreddedError` always does.
    """

    @property
    def assurance(self) -> str:
        """How strong a destruction is, in a sentence for the receipt."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several hosts may use one key service at once."""
        ...

    def create(self, customer: bytes, secret: bytes) -> KeyRecord:
        """Makes generation 1 of a customer, or gives the live one that is there already.

        Returns:
            The record that won: among concurrent creators one secret is kept and all get it.

        Raises:
            CustomerShreddedError: The customer has a tombstone. Only `enrol` brings it back, empty.
        """
        ...

    def enrol(self, customer: bytes, secret: bytes) -> KeyRecord:
        """Makes the generation after the one that was destroyed last.

        Raises:
            ConfigurationError: The customer was never destroyed, or has a live generation (see `current`).
        """
        ...

    def load(self, customer: bytes, generation: int) -> KeyRecord:
        """The secret of a generation.

        Raises:
            CustomerShreddedError: That generation was destroyed.
            KeyNotFoundError: It never existed here.
        """
        ...

    def current(self, customer: bytes) -> int | None:
        """The live generation, or None."""
        ...

    def replace(self, customer: bytes, generation: int, secret: bytes, expected_version: int) -> KeyRecord:
        """Puts a new secret in place of one and destroys the old: no earlier copy of the key store opens to it.

        After an error other than those below, load again: the new secret may already be the one in use, and `resume`
        finishes the destruction of the old.

        Raises:
            KeyVersionError: ``key_version`` is not ``expected_version`` (anymore); nothing was changed.
            CustomerShreddedError, KeyNotFoundError: As `load`.
        """
        ...

    def destroy(self, customers: Sequence[bytes], up_to: Sequence[int] | None = None) -> list[Destruction]:
        """Destroys every generation up to the current one, and leaves a tombstone, even for a customer never seen.

        With ``up_to``, a generation for each customer, one that has a later generation by now is left as it is: it was
        destroyed and enrolled anew since, and whoever comes late must not destroy that.

        The tombstones are durable first: from then on `load` and `create` raise `CustomerShreddedError` everywhere.
        Calling again gives the state of the first destruction and finishes what a crash left undone.

        Returns:
            One for each customer, in order.

        Raises:
            LegalHoldError: One of them is held, or may be, as the record of holds does not verify; nothing was changed
                for any.
        """
        ...

    def hold(self, customer: bytes, until: datetime | None, reason_commitment: bytes) -> Hold:
        """Forbids `destroy` until then (None: until `release`). A hold set again takes the place of the first.

        Raises:
            CustomerShreddedError: There is nothing left to keep.
            ConfigurationError: ``until`` has no time zone.
        """
        ...

    def release(self, customer: bytes) -> None:
        """Ends a hold. Does nothing where there is none."""
        ...

    def held(self, customer: bytes) -> Hold | None:
        """The hold in force now, or None.

        Raises:
            LegalHoldError: The record of holds does not verify, so the customer may be held.
        """
        ...

    def tombstones(self, after: int = 0) -> Sequence[Tombstone]:
        """The log of the dead behind position ``after``, in order.

        Raises:
            RevocationLogDamagedError: An entry does not verify, or the log is shorter than it was.
        """
        ...

    def deployment(self) -> DeploymentSecrets:
        """The secrets of the deployment, made on first use; among concurrent first users all get the same."""
        ...

    def rotate(self) -> int:
        """Puts every slot under a new root and destroys the old roots. Secrets do not change.

        Returns:
            The number of slots.
        """
        ...

    def resume(self) -> int:
        """Rolls forward what a crash left half done; opening does this too.

        Returns:
            The number of rotations and destructions finished. What is pending by its nature (see `Destruction`) is
            asked about again and stays pending until it is final.
        """
        ...

    def verify(self) -> Report:
        """Opens every key and checks the whole log. Never raises for what it finds: the report names it."""
        ...

    def bind(self, fingerprint: str) -> None:
        """Notes the database that this key store belongs to. The caller compares."""
        ...

    def fingerprint(self) -> str | None:
        """What `bind` noted last, or None."""
        ...

    def close(self) -> None:
        """Releases what is open. Closing twice does nothing."""
        ...


class KeyServiceFactory(Protocol):
    """Opens a key service from its URI: a function, or a class method."""

    def __call__(self, uri: str, *, create: bool) -> KeyService:
        """With ``create`` false, a key store that does not exist yet is a `KeyNotFoundError`."""
        ...


_factories: dict[str, KeyServiceFactory] = {}
# scheme: (module, class, distribution that must be there, pip argument)
_LAZY: Final = {
    "file": ("shredsaver.kms.local", "LocalKeyService", None, ""),
    "awskms": ("shredsaver.kms.aws", "AwsKeyService", "boto3", "shredsaver[aws]"),
}


def register_key_service(scheme: str, factory: KeyServiceFactory) -> None:
    """Makes ``scheme:…`` URIs open through ``factory``; a scheme registered again is replaced.

    Raises:
        ConfigurationError: The scheme is not a URI scheme (RFC 3986, section 3.1).
    """
    tail = scheme[1:].replace("+", "").replace("-", "").replace(".", "")
    if not (scheme.isascii() and scheme[:1].isalpha() and (not tail or tail.isalnum())):
        raise ConfigurationError(f"{scheme!r} is no URI scheme: it must be letters and digits, a letter first")
    _factories[scheme.lower()] = factory


def open_key_service(keys: str | KeyService, *, create: bool = True) -> KeyService:
    """Opens a key service.

    Args:
        keys: ``file:DIR`` (see `LocalKeyService`), ``awskms:…`` (see `AwsKeyService`), a URI of a registered scheme, or
            a key service, which is given back as it is.
        create: Whether a key store that does not exist yet is made. False where a database already depends on it.

    Raises:
        UnknownKeySchemeError: No key service has registered the scheme.
        MissingDependencyError: The scheme needs a package that is not installed.
        KeyNotFoundError: The key store does not exist and ``create`` is false.
    """
    if not isinstance(keys, str):
        if not callable(getattr(keys, "deployment", None)):
            raise ConfigurationError(f"keys= must be a key URI or a key service, not {type(keys).__name__}")
        return keys
    scheme, colon, _ = keys.partition(":")
    scheme = scheme.lower()
    if colon and scheme in _factories:
        return _factories[scheme](keys, create=create)
    if not colon or scheme not in _LAZY:
        known = ", ".join(f"{name}:" for name in sorted({*_factories, *_LAZY}))
        raise UnknownKeySchemeError(
            f"no key service is registered for the scheme of the given key URI; known are {known} "
            f"(for keys in a local directory write file:DIRECTORY)"
        )
    return _lazy_factory(scheme)(keys, create=create)


def _lazy_factory(scheme: str) -> KeyServiceFactory:
    module, name, needs, extra = _LAZY[scheme]
    try:
        if needs is not None:
            import_module(needs)
        factory: KeyServiceFactory = getattr(import_module(module), name).from_uri
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{scheme}: needs a package that is not installed; run: pip install '{extra or 'shredsaver'}'"
        ) from error
    return factory
