"""The deployment's secrets in a file under a passphrase, kept away from everything else.

They open no customer's data. Without them no customer can be found by id, no record of an erasure verifies, and no
receipt can be issued that others trust. The file is the magic, how its key comes from the passphrase, and one sealed
record (``docs/howto/keep-your-keys.md``).
"""

from __future__ import annotations

from typing import Final

from shredsaver.errors import ConfigurationError, FormatError, KeyAccessDeniedError, UnsealError
from shredsaver.kms.base import KeyService
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.passphrase import NONE, PARAMETERS_BYTES, Parameters, protect, unlock
from shredsaver.kms.records import DeploymentSecrets
from shredsaver.sealing import seal, unseal

_MAGIC: Final = b"shredsaver-escrow/1\n"
_PART: Final = 32
_DEPLOYMENT: Final = 16


def pack(secrets: DeploymentSecrets, passphrase: str, *, kdf: str = "argon2id") -> bytes:
    """Seals a deployment's secrets under a passphrase.

    Args:
        secrets: What `KeyService.deployment` gives.
        passphrase: At least 8 characters; a generated one of 20 or more is better.
        kdf: ``"argon2id"`` (RFC 9106), or ``"pbkdf2"`` where only approved algorithms may be used.
    """
    parameters, key = protect(passphrase, kdf)
    head = _MAGIC + parameters.pack()
    kept = (secrets.deployment, secrets.lookup_key, secrets.log_key, secrets.receipt_key, secrets.signing_key)
    return head + seal(key, b"".join(kept), head)


def unpack(data: bytes, passphrase: str) -> DeploymentSecrets:
    """Opens what `pack` made.

    Raises:
        FormatError: It is no such file.
        KeyAccessDeniedError: The passphrase is wrong, or the file was altered.
    """
    start = len(_MAGIC) + PARAMETERS_BYTES
    if not data.startswith(_MAGIC) or len(data) <= start:
        raise FormatError("this is no file of escrowed secrets")
    head, record = data[:start], data[start:]
    parameters = Parameters.unpack(head[len(_MAGIC) :])
    if parameters.kdf == NONE:
        raise FormatError("this file of escrowed secrets says that it has no passphrase")
    key = unlock(passphrase, parameters)
    if key is None:
        raise FormatError("this file of escrowed secrets has no passphrase")
    try:
        opened = unseal(key, record, head, ("escrow",))
    except UnsealError:
        raise KeyAccessDeniedError("the escrowed secrets do not open: the file was altered") from None
    parts = [opened[_DEPLOYMENT + i : _DEPLOYMENT + i + _PART] for i in range(0, 4 * _PART, _PART)]
    if len(opened) != _DEPLOYMENT + 4 * _PART:
        raise FormatError("the escrowed secrets have a length that this version does not know")
    return DeploymentSecrets(opened[:_DEPLOYMENT], *parts)


def restore(keys: str, secrets: DeploymentSecrets) -> KeyService:
    """Makes a new local key store of the same deployment, or gives an existing one its lost secrets back.

    Customers' keys are not in an escrow: what was sealed under keys that are lost stays closed.

    Args:
        keys: A ``file:`` URI.
        secrets: What `unpack` gave.

    Raises:
        ConfigurationError: Another scheme, or a key store of another deployment or with other secrets.
    """
    if keys.partition(":")[0].lower() != "file":
        raise ConfigurationError("escrowed secrets are restored into a key store in local files: file:DIR")
    service = LocalKeyService.from_uri(keys, create=True, deployment=secrets.deployment)
    try:
        service.restore_deployment(secrets)
    except BaseException:
        service.close()
        raise
    return service
