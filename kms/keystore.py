"""A key service over tables and erasable roots: `StoredKeyService`.

    root of a slot and epoch (`Roots`)  wraps  a customer's key (``key_wraps``)  seals  the secret (``key_trees``)

The tables can be copied, and such copies die with the roots they were wrapped under. `rotation` has the rules of that;
`deadlog` is the log of tombstones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from shredsaver.db.base import Database
from shredsaver.errors import (
    ConfigurationError,
    FormatError,
    KeyNotFoundError,
    KeyStoreStaleError,
    UnsealError,
)
from shredsaver.kms import adoption, destruction, rows, schema
from shredsaver.kms._steps import step
from shredsaver.kms.adopting import Adopting
from shredsaver.kms.driver import KeyDatabase
from shredsaver.kms.holding import Holding
from shredsaver.kms.inspection import inspect
from shredsaver.kms.records import DeploymentSecrets, Destruction, KeyRecord, Report, Tombstone
from shredsaver.kms.replies import busy, check, conflict, shredded, text
from shredsaver.kms.roots import Anchor, Epoch, Roots
from shredsaver.kms.rotation import Rotation
from shredsaver.kms.wrapping import (
    KEY_BYTES,
    ZEROS,
    Wrapped,
    new_key,
    seal_secret,
    unseal_secret,
    unwrap,
    wrap,
)

_log = logging.getLogger("shredsaver.kms")

_ATTEMPTS: Final = 50  # each lost attempt means that another process moved the slot on
_DEPLOYMENT: Final = b""  # the token of the deployment's own record: no customer's, which has at least one byte
_SECRETS: Final = 4  # of 32 bytes each, in the order of `DeploymentSecrets`


class StoredKeyService(Holding, Adopting):
    """Keeps secrets in a database under erasable roots. Implements `KeyService`.

    Args:
        database: Driver of the key store; closed by `close`.
        roots: Provider of roots; closed by `close`.
        set_up: Make the tables where they are missing.
        durable: Called before a root is destroyed; raises unless what was committed is durable on every copy of the key
            store that could come into use.
        clock: Gives the present in UTC.
        deployment: The deployment that a new key store is made for, when escrowed secrets are restored.
        older: Do not compare key store and roots: `survey` and `adopt` are what may follow.

    Raises:
        KeyStoreStaleError: The key store is older than its roots.
        ConfigurationError: The roots belong to another deployment.
    """

    def __init__(
        self,
        database: Database,
        roots: Roots,
        *,
        set_up: bool = True,
        durable: Callable[[], None] = lambda: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        deployment: bytes | None = None,
        older: bool = False,
    ) -> None:
        if not roots.shared and database.location.startswith("postgresql:"):
            raise ConfigurationError(
                f"the key store {database.location} opens from any host, its roots from this one only: another host "
                "would make roots of its own and find no key. Keep both in a directory (file:DIR), or use awskms:"
            )
        self._database = database = KeyDatabase(database)
        self._roots = roots
        self._clock = clock
        self._secrets: DeploymentSecrets | None = None
        if set_up:
            database.run(partial(schema.set_up, ZEROS))
            step("set-up")
        self._store, fresh = database.run(partial(rows.identify, deployment))
        step("identified")
        roots.attach(self._store.deployment, fresh=fresh)
        self._rotation = Rotation(database, roots, self._store, durable)
        self._opened = False
        if not older:
            self._open_up()

    def _open_up(self) -> None:
        """Compares key store and roots, and rolls forward what a crash left half done."""
        if self._opened:
            return
        if (note := self._database.run(partial(rows.get_meta, adoption.NOTE))) is not None:
            self._finish_adoption(note)
        self._database.run(partial(rows.compare, self._anchors()))
        self._opened = True
        try:
            self.resume()
        except (UnsealError, FormatError) as error:
            # One damaged slot must not keep the others from being served: it stays as it is, and `verify` names it.
            _log.warning("a rotation that was begun cannot be finished: %s", error)

    @property
    def assurance(self) -> str:
        """How strong a destruction is, in a sentence for the receipt."""
        return self._roots.assurance

    @property
    def shared(self) -> bool:
        """Whether several hosts may use one key service at once."""
        return self._roots.shared

    # -- secrets ----------------------------------------------------------------------------------------------------

    def create(self, customer: bytes, secret: bytes) -> KeyRecord:
        """Makes generation 1, or gives the live one. See `KeyService.create`."""
        check(customer, secret)
        return self._add(customer, secret, enrol=False)

    def enrol(self, customer: bytes, secret: bytes) -> KeyRecord:
        """Makes the generation after the destroyed one. See `KeyService.enrol`."""
        check(customer, secret)
        return self._add(customer, secret, enrol=True)

    def load(self, customer: bytes, generation: int) -> KeyRecord:
        """The secret of a generation. See `KeyService.load`."""
        check(customer)
        return self._load(customer, generation)

    def current(self, customer: bytes) -> int | None:
        """The live generation, or None."""
        check(customer)
        return self._look(customer).live

    def replace(self, customer: bytes, generation: int, secret: bytes, expected_version: int) -> KeyRecord:
        """Puts a new secret in place of one and destroys the old. See `KeyService.replace`."""
        check(customer, secret)
        slot = self._slot(customer)
        for _ in range(_ATTEMPTS):
            record = self._load(customer, generation)
            if record.key_version != expected_version:
                raise conflict(record.key_version, expected_version)
            look = self._look(customer)
            root = self._open(look.root)
            if root is None or look.root is None:
                continue
            row = Wrapped(slot, customer, generation, look.root.epoch, expected_version + 1, b"")
            key = new_key()
            sealed = seal_secret(self._store, key, row, secret)
            step("replace")
            if self._database.run(partial(rows.replace, wrap(self._store, root, key, row), sealed)):
                step("replaced")
                self._rotation.run([slot])
                return KeyRecord(customer, generation, row.key_version, secret)
        raise busy()

    def _add(self, customer: bytes, secret: bytes, *, enrol: bool) -> KeyRecord:
        slot = self._slot(customer)
        for _ in range(_ATTEMPTS):
            look = self._look(customer)
            if enrol:
                self._check_enrolment(look)
            elif look.dead is not None:
                raise shredded(look.dead)
            if look.live is not None:
                return self._load(customer, look.live)
            if look.root is None:
                self._rotation.begin(slot)
                continue
            root = self._open(look.root)
            if root is None:
                continue
            generation = look.dead.generation + 1 if look.dead else 1
            row = Wrapped(slot, customer, generation, look.root.epoch, 1, b"")
            key = new_key()
            sealed = seal_secret(self._store, key, row, secret)
            step("create")
            if self._database.run(partial(rows.insert, wrap(self._store, root, key, row), sealed)):
                step("created")
                return KeyRecord(customer, generation, 1, secret)
        raise busy()

    @staticmethod
    def _check_enrolment(look: rows.Look) -> None:
        if look.live is not None:
            raise ConfigurationError(f"the customer has a live generation, {look.live}: there is nothing to enrol")
        if look.dead is None:
            raise ConfigurationError("the customer was never shredded: its first generation is made by `create`")

    def _load(self, customer: bytes, generation: int) -> KeyRecord:
        slot = self._slot(customer)
        seen = None
        while True:
            found = self._database.run(partial(rows.record, slot, customer, generation))
            if found is None or found.dead:
                dead = self._look(customer).dead
                if dead is not None and generation <= dead.generation:
                    raise shredded(dead)
            if found is None:
                raise KeyNotFoundError(
                    f"the key store has no generation {generation} of customer {customer.hex()} and no tombstone for "
                    "it: it is the wrong key store, or an incomplete one"
                )
            try:
                secret = self._secret(found)
            except (UnsealError, FormatError, KeyStoreStaleError, KeyNotFoundError):
                # A rotation between the row and the root looks like damage: only what stays so on another look is.
                if found == seen:
                    raise
                seen = found
                continue
            return KeyRecord(customer, generation, found.row.key_version, secret)

    def _secret(self, found: rows.Found) -> bytes:
        row, root = found.row, found.root
        if root is None or root.epoch != row.epoch:
            raise UnsealError(
                f"key_wraps/{row.customer.hex()}/{row.generation} is wrapped under epoch {row.epoch}, its slot is at "
                f"{root.epoch if root else 'none'}: it was put back from an older copy, or altered"
            )
        if found.sealed is None:
            raise UnsealError(f"key_trees/{row.customer.hex()}/{row.generation} is missing")
        key = unwrap(self._store, self._roots.open(root), row)
        return unseal_secret(self._store, key, row, found.sealed)

    def _look(self, customer: bytes) -> rows.Look:
        log_key = None if customer == _DEPLOYMENT else self._log_key()
        return self._database.run(partial(rows.look, log_key, self._slot(customer), customer))

    def _open(self, epoch: Epoch | None) -> bytes | None:
        """The root, or None if the slot has moved on since that was read: look again."""
        if epoch is None:
            return None
        try:
            return self._roots.open(epoch)
        except (KeyStoreStaleError, KeyNotFoundError):
            if epoch in self._database.run(rows.live):
                raise
            return None

    def _slot(self, customer: bytes) -> int:
        slots = self._roots.slots
        return int.from_bytes(customer[:2]) % slots if customer != _DEPLOYMENT else slots

    # -- the dead ---------------------------------------------------------------------------------------------------

    def destroy(self, customers: Sequence[bytes], up_to: Sequence[int] | None = None) -> list[Destruction]:
        """Destroys every generation and leaves tombstones. See `KeyService.destroy`."""
        for customer in customers:
            check(customer)
        bounds = {} if up_to is None else dict(zip(customers, up_to, strict=True))
        log_key = self._log_key()
        slots = {customer: self._slot(customer) for customer in customers}
        now = self._now()
        step("revoke")
        self._database.run(partial(destruction.revoke, log_key, slots, now, bounds))
        step("revoked")
        self._rotation.run(frozenset(slots.values()))
        return self._database.run(partial(destruction.outcome, log_key, slots, customers, self.assurance))

    def tombstones(self, after: int = 0) -> Sequence[Tombstone]:
        """The log of the dead. See `KeyService.tombstones`."""
        found = self._database.run(partial(rows.log_after, self._log_key(), after))
        return [Tombstone(entry.seq, entry.customer, entry.generation, entry.at, entry.chain) for entry in found]

    # -- the whole store --------------------------------------------------------------------------------------------

    def deployment(self) -> DeploymentSecrets:
        """The secrets of the deployment. See `KeyService.deployment`."""
        if self._secrets is None:
            try:
                secret = self._load(_DEPLOYMENT, 1).secret
            except KeyNotFoundError:
                if self._database.run(partial(rows.used, self._roots.slots)):
                    # Another process made them just now; or they were lost, and then they are not made anew.
                    secret = self._load(_DEPLOYMENT, 1).secret
                else:
                    secret = self._add(_DEPLOYMENT, os.urandom(_SECRETS * KEY_BYTES), enrol=False).secret
            if len(secret) != _SECRETS * KEY_BYTES:
                raise FormatError("the deployment's secrets have a length that this version does not know")
            parts = (secret[i : i + KEY_BYTES] for i in range(0, len(secret), KEY_BYTES))
            self._secrets = DeploymentSecrets(self._store.deployment, *parts)
        return self._secrets

    def restore_deployment(self, secrets: DeploymentSecrets) -> None:
        """Puts escrowed secrets where they are missing; does nothing where they are already.

        Raises:
            ConfigurationError: The key store is another deployment's, or has other secrets.
        """
        if secrets.deployment != self._store.deployment:
            raise ConfigurationError(
                f"the key store belongs to deployment {self._store.deployment.hex()}, the escrowed secrets to "
                f"{secrets.deployment.hex()}"
            )
        wanted = b"".join((secrets.lookup_key, secrets.log_key, secrets.receipt_key, secrets.signing_key))
        if self._add(_DEPLOYMENT, wanted, enrol=False).secret != wanted:
            raise ConfigurationError("the key store has secrets of its own, which are not the escrowed ones")

    def _anchors(self) -> Sequence[Anchor]:
        with self._roots.exclusive():
            # Else a rotation in between makes the key store look older than its roots.
            return self._roots.check(self._database.run(rows.claimed))

    def rotate(self) -> int:
        """Puts every slot under a new root. See `KeyService.rotate`."""
        slots = self._database.run(rows.all_due)
        step("all-due")
        self._rotation.run(frozenset(slots))
        return len(slots)

    def resume(self) -> int:
        """Rolls forward what a crash left half done. See `KeyService.resume`."""
        return self._rotation.run() + self._rotation.ask_again()

    def verify(self) -> Report:
        """Opens every key and checks the whole log. See `KeyService.verify`."""
        return inspect(self._database, self._roots, self._store, self._log_key())

    def bind(self, fingerprint: str) -> None:
        """Notes the database that this key store belongs to."""
        self._database.run(partial(rows.put_meta, "fingerprint", fingerprint.encode()))

    def fingerprint(self) -> str | None:
        """What `bind` noted last, or None."""
        found = self._database.run(partial(rows.get_meta, "fingerprint"))
        return None if found is None else found.decode()

    def close(self) -> None:
        """Releases what is open and forgets the deployment's secrets."""
        self._secrets = None
        self._roots.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _log_key(self) -> bytes:
        return self.deployment().log_key

    def _now(self) -> str:
        return text(self._clock())
