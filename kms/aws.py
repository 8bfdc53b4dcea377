"""Keys in AWS KMS: `AwsKeyService` (``awskms:…``), for several hosts that share a key store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs

from shredsaver.db.base import Begin, Commit, Database, Plan, Sql, Statement, run
from shredsaver.db.sqlite import SqliteDatabase
from shredsaver.errors import (
    ConfigurationError,
    CustomerShreddedError,
    DatabaseUnavailableError,
    FormatError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    UnsealError,
)
from shredsaver.kms import schema
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_roots import CUSTOMER_SLOTS, AwsRoots, Erasure
from shredsaver.kms.directory import check_private
from shredsaver.kms.driver import KeyDatabase
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.kms.records import Report
from shredsaver.kms.rotation import Rotation

_POSTGRES: Final = ("postgresql://", "postgres://")
_NUMBERS: Final = {"slots": int, "days": int, "spares": int, "window": float, "outage": float}
_OPTIONS: Final = ("region", "store", "slot", "erasure", "single-copy", "same-database", *_NUMBERS)
_DAMAGE: Final = (UnsealError, FormatError, KeyNotFoundError, KeyStoreStaleError)
_SCHEMA: Final = "shredsaver_keys"
_STANDBYS: Final = Sql(
    "SELECT 0",
    "SELECT count(*)::bigint FROM pg_stat_replication WHERE sync_state IS NULL OR sync_state = 'async'",
)
_TABLE: Final = Sql("SELECT name FROM sqlite_master WHERE name = 'key_meta'", "SELECT to_regclass('key_meta')::text")


class AwsKeyService(StoredKeyService):
    """Keys under roots that AWS KMS holds. Implements `KeyService`.

    Of each customer, KMS sees the token at most. ``erasure="material"`` deletes imported key material and waits until
    AWS shows that it is gone; ``"scheduled"`` is for accounts that may not import any, and is pending for at least
    seven days. Regions, endpoints, profiles and roles are boto3's own configuration.

    The role needs ``kms:`` ``CreateKey``, ``TagResource``, ``GetParametersForImport``, ``ImportKeyMaterial``,
    ``DeleteImportedKeyMaterial``, ``ScheduleKeyDeletion``, ``CancelKeyDeletion``, ``DescribeKey``, ``Encrypt``,
    ``Decrypt``, ``ListResourceTags`` and ``ListKeys``; `docs/howto/aws-kms.md` has the policy.

    Args:
        store: The key store: a path, or a PostgreSQL URL (schema ``shredsaver_keys`` unless it names one).
        region: AWS Region; None for boto3's own default.
        slot: ``"shared"``: customers are spread over ``slots`` roots. ``"customer"``: each has a KMS key of its own, at
            AWS's price of a key.
        slots: For a new key store: roots that customers are spread over, 16 if not given.
        erasure: ``"material"`` or ``"scheduled"``.
        days: Days until a key scheduled for deletion is deleted, 7 to 30.
        spares: KMS keys kept ready ahead, so that a shred need not wait for an import.
        window: Seconds for which the proof of a destruction must hold.
        keep: Seconds until a cached root is asked for again, and past its last use.
        outage: Seconds for which cached roots serve while AWS cannot be reached.
        settle: Seconds for which a key whose answer was lost is looked for, and a new one is waited for.
        lease: Seconds after which another host may finish a rotation that this one does not go on with.
        single_copy: Accept asynchronous PostgreSQL standbys: a failover to one may lose keys, and revive dead ones.
        same_database: Accept the key store in the database that holds the sealed data: their backups then hold both.
        create: Whether a key store that does not exist yet is made.
        calls: Requests to AWS KMS, for tests.
        clock: Gives the present in UTC.
        older: Do not compare key store and KMS keys: `survey` and `adopt` are what may follow.

    Raises:
        KeyNotFoundError: There is no key store, with ``create`` false.
        ConfigurationError: An option is out of bounds, or others can read the key store's file.
        KeyStoreStaleError: The key store is older than its roots.
    """

    def __init__(
        self,
        store: str,
        *,
        region: str | None = None,
        slot: str = "shared",
        slots: int | None = None,
        erasure: Erasure = "material",
        days: int = 7,
        spares: int = 1,
        window: float = 10.0,
        keep: float = 60.0,
        outage: float = 300.0,
        settle: float = 20.0,
        lease: float = 30.0,
        single_copy: bool = False,
        same_database: bool = False,
        create: bool = True,
        calls: KmsCalls | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        older: bool = False,
    ) -> None:
        if slot not in ("shared", "customer"):
            raise ConfigurationError(f"slot is {slot!r}; it must be 'shared' or 'customer'")
        self._own_slots = slot == "customer"
        self._same_database = same_database
        kms = calls or KmsCalls(region)
        driver = _open_store(store, create)
        database = KeyDatabase(driver)  # for what runs beside the key service
        try:
            self._aws = AwsRoots(
                kms,
                database,
                slots=CUSTOMER_SLOTS if self._own_slots else slots,
                erasure=erasure,
                days=days,
                spares=spares,
                window=window,
                keep=keep,
                outage=outage,
                settle=settle,
                lease=lease,
                now=clock,
            )
            self._calls = kms
            durable = _nothing if single_copy else partial(_check_standbys, database)
            super().__init__(driver, self._aws, durable=durable, clock=clock, older=older)
        except BaseException:
            driver.close()
            raise
        self._rotation = _SharedRotation(database, self._aws, self._store, durable)

    @classmethod
    def from_uri(cls, uri: str, *, create: bool = True, older: bool = False) -> Self:
        """Opens ``awskms:?store=PATH-OR-URL``.

        Options are ``region``, ``slots``, ``slot``, ``erasure``, ``days``, ``spares``, ``window``, ``outage``,
        ``single-copy=1`` and ``same-database=1``, joined by ``&``. Values with ``&``, ``#``, ``+`` or ``%`` in them are
        percent-encoded.

        Raises:
            ConfigurationError: The URI has an unknown option, a value that is none, or no ``store``.
        """
        rest, _, query = uri.partition(":")[2].partition("?")
        if rest.strip("/"):
            raise ConfigurationError("an awskms: key URI has options only; write awskms:?store=PATH-OR-URL")
        options = parse_qs(query, keep_blank_values=True)
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigurationError(
                f"awskms: has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}. Endpoints, profiles and "
                "credentials are boto3's own configuration, such as AWS_ENDPOINT_URL_KMS and AWS_PROFILE"
            )
        given = {name: values[-1] for name, values in options.items()}
        store = given.pop("store", "")
        if not store:
            raise ConfigurationError("the key URI names no key store; write awskms:?store=PATH-OR-URL")
        arguments: dict[str, Any] = dict(given)
        for name, kind in _NUMBERS.items():
            if name in given:
                try:
                    arguments[name] = kind(given[name])
                except ValueError:
                    raise ConfigurationError(f"{name} in the key URI is no number") from None
        for name in ("single-copy", "same-database"):
            if name in given:
                arguments[name.replace("-", "_")] = _flag(name, arguments.pop(name))
        return cls(store, create=create, older=older, **arguments)

    def bind(self, fingerprint: str) -> None:
        """Notes the database that this key store belongs to.

        Raises:
            ConfigurationError: It holds the key store itself, and ``same_database`` is not set.
        """
        if not self._same_database and _place(self._database.fingerprint()) == _place(fingerprint):
            raise ConfigurationError(
                "the key store is in the database that holds the sealed data, so every backup of one holds the other; "
                "put it into a database of its own, or accept that with same-database=1"
            )
        super().bind(fingerprint)

    def bring_key(self, customer: bytes, arn: str) -> None:
        """Puts a customer's root under a KMS key of the customer's own as well, from the next root on, made now.

        If the key's owner revokes or disables it, the customer's data reads as denied until it is allowed again; that
        is no erasure. `destroy` needs no permission on the key: it destroys the root's own KMS key.

        Args:
            customer: The customer's token.
            arn: The ARN of a symmetric KMS key, of whatever account, that this role may use for ``kms:Encrypt`` and
                ``kms:Decrypt``.

        Raises:
            ConfigurationError: The key service does not give each customer a slot (``slot="customer"``).
            CustomerShreddedError: The customer was destroyed and has not come back.
            KeyAccessDeniedError: The key may not be used.
        """
        if not self._own_slots:
            raise ConfigurationError("a key of a customer's own needs slot=customer: otherwise others share its root")
        if not arn.startswith("arn:"):
            raise ConfigurationError("the key must be named by its ARN, so that nobody can point an alias elsewhere")
        context = {"shredsaver:deployment": self.deployment().deployment.hex()}
        if self._calls.decrypt(arn, self._calls.encrypt(arn, b"shredsaver probe", context), context) == b"":
            raise ConfigurationError("the key does not decrypt what it encrypted")
        slot = self._slot(customer)
        look = self._look(customer)
        if look.dead is not None and look.live is None:
            raise CustomerShreddedError(f"the keys of customer {customer.hex()} were destroyed")
        self._aws.registry.set_own(slot, arn)
        self._database.run(partial(_due, slot))
        self._rotation.run([slot])

    def resume(self) -> int:
        """Rolls forward what a crash left half done, and clears away KMS keys that nobody needs."""
        return super().resume() + self._aws.sweep()

    def verify(self) -> Report:
        """Opens every key and checks the whole log and the record of KMS keys. See `KeyService.verify`."""
        report = super().verify()
        left = [f"KMS key {name} is not cleared away yet; `resume` does that" for name in self._aws.leftovers()]
        return Report(report.customers, report.slots, report.tombstones, (*report.problems, *left))

    def _slot(self, customer: bytes) -> int:
        if not self._own_slots or not customer:
            return super()._slot(customer)
        return int.from_bytes(hashlib.sha256(customer).digest()[:8]) % CUSTOMER_SLOTS


class _SharedRotation(Rotation):
    """Does whatever is due in one go, so that calls which arrive together share epochs and one wait for their proof."""

    def run(self, only: Collection[int] | None = None) -> int:
        """As `Rotation.run`, with the slots of others too; a damaged slot of others is none of this caller's."""
        try:
            return super().run(None)
        except _DAMAGE:
            if only is None:
                raise
            return super().run(only)


def _nothing() -> None:
    """Where a single copy is accepted, there is nothing to wait for."""


def _flag(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise ConfigurationError(f"{name} in the key URI is 0 or 1")
    return value == "1"


def _open_store(store: str, create: bool) -> Database:
    missing = KeyNotFoundError(
        "there is no key store where the key URI says, but the database depends on one: check the URI, or restore it; "
        "it is not made anew, as its keys would open nothing"
    )
    if store.startswith(_POSTGRES):
        from shredsaver.db.postgres import PostgresDatabase

        database: Database = PostgresDatabase(store, schema=_SCHEMA)
        if not create and not database.run(_exists):
            database.close()
            raise missing
        return database
    path = Path(store).absolute()
    if path.exists():
        check_private(path)
    elif not create:
        raise missing
    try:
        return SqliteDatabase(path, journal_mode="TRUNCATE", secure_delete=True, readers=2)
    except DatabaseUnavailableError as error:
        raise ConfigurationError(f"the key store cannot be opened: {error}") from error


def _exists() -> Plan[bool]:
    yield Begin("read")
    (found,) = yield from run(Statement(_TABLE), commit=True)
    return bool(found.rows and found.rows[0][0])


def _due(slot: int) -> Plan[None]:
    yield Begin("write")
    yield from run(Statement(schema.SLOT_ADD, (slot, b"")), Statement(schema.SLOT_DUE, (slot,)))
    yield Commit()


def _check_standbys(database: Database) -> None:
    """A standby that is behind would come into use with keys wrapped under a dead root, or without them."""

    def plan() -> Plan[int]:
        yield Begin("read")
        (found,) = yield from run(Statement(_STANDBYS), commit=True)
        return int(found.rows[0][0])

    behind = database.run(plan)
    if behind:
        raise KeyServiceUnavailableError(
            f"the key store has {behind} asynchronous standbys (or this role may not see what they are): make them "
            "synchronous, grant pg_monitor, or accept the risk with single-copy=1; the old root was not destroyed",
            retryable=False,
        )


def _place(fingerprint: str) -> tuple[str, ...]:
    """The database that a fingerprint tells of, leaving out PostgreSQL's timeline and schema."""
    parts = tuple(fingerprint.split(":"))
    return (parts[0], parts[1], parts[3]) if parts[0] == "postgresql" else parts
