"""A key service that only the database it belongs to may change.

A copy of the database (a staging system, a restored backup) opens with the same keys. It may use them, but must not
destroy, create or move any: so before each change the database is compared with the one the key store is bound to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from shredsaver.db.base import Database
from shredsaver.errors import DatabaseForkedError
from shredsaver.kms.base import DeploymentSecrets, Destruction, Hold, KeyRecord, KeyService, Report, Tombstone


class GuardedKeys:
    """A `KeyService` in front of another: reading passes, changing needs the right database.

    Args:
        keys: The key service.
        database: The database that was opened with it.
    """

    def __init__(self, keys: KeyService, database: Database) -> None:
        self._keys = keys
        self._database = database

    @property
    def assurance(self) -> str:
        """See `KeyService`."""
        return self._keys.assurance

    @property
    def shared(self) -> bool:
        """See `KeyService`."""
        return self._keys.shared

    @property
    def copies(self) -> int | None:
        """How many copies of the key store are kept alike here; None where the key service sees to that itself."""
        found: int | None = getattr(self._keys, "copies", None)
        return found

    @property
    def forked(self) -> bool:
        """Whether the database is another one than the key store belongs to."""
        bound = self._keys.fingerprint()
        return bound is not None and bound != self._database.fingerprint()

    def adopt(self) -> None:
        """Binds the key store to this database: from now on it is the one."""
        self._keys.bind(self._database.fingerprint())

    def check(self) -> None:
        """Raises `DatabaseForkedError` unless this is the database that the keys belong to."""
        if self.forked:
            raise DatabaseForkedError(
                f"{self._database.location} is a copy or a restore of the database that the keys belong to, so it may "
                "not change them. If it is the database now, reconcile with adopt='restore'; if a copy, with 'fork'"
            )

    def create(self, customer: bytes, secret: bytes) -> KeyRecord:
        """See `KeyService`."""
        self.check()
        return self._keys.create(customer, secret)

    def enrol(self, customer: bytes, secret: bytes) -> KeyRecord:
        """See `KeyService`."""
        self.check()
        return self._keys.enrol(customer, secret)

    def load(self, customer: bytes, generation: int) -> KeyRecord:
        """See `KeyService`."""
        return self._keys.load(customer, generation)

    def current(self, customer: bytes) -> int | None:
        """See `KeyService`."""
        return self._keys.current(customer)

    def replace(self, customer: bytes, generation: int, secret: bytes, expected_version: int) -> KeyRecord:
        """See `KeyService`."""
        self.check()
        return self._keys.replace(customer, generation, secret, expected_version)

    def destroy(self, customers: Sequence[bytes], up_to: Sequence[int] | None = None) -> list[Destruction]:
        """See `KeyService`."""
        self.check()
        return self._keys.destroy(customers, up_to)

    def hold(self, customer: bytes, until: datetime | None, reason_commitment: bytes) -> Hold:
        """See `KeyService`."""
        self.check()
        return self._keys.hold(customer, until, reason_commitment)

    def release(self, customer: bytes) -> None:
        """See `KeyService`."""
        self.check()
        self._keys.release(customer)

    def held(self, customer: bytes) -> Hold | None:
        """See `KeyService`."""
        return self._keys.held(customer)

    def damaged_holds(self) -> int:
        """In how many places the key service's holds do not verify; 0 where it sees to that itself."""
        look = getattr(self._keys, "damaged_holds", None)
        return 0 if look is None else int(look())

    def mend_holds(self, known: Mapping[bytes, str]) -> None:
        """Sets those holds anew, from who is held by the database and until when."""
        self.check()
        getattr(self._keys, "mend_holds")(known)  # noqa: B009 - not of the protocol: only where `damaged_holds` is

    def tombstones(self, after: int = 0) -> Sequence[Tombstone]:
        """See `KeyService`."""
        return self._keys.tombstones(after)

    def deployment(self) -> DeploymentSecrets:
        """See `KeyService`."""
        return self._keys.deployment()

    def rotate(self) -> int:
        """See `KeyService`."""
        self.check()
        return self._keys.rotate()

    def resume(self) -> int:
        """See `KeyService`."""
        self.check()
        return self._keys.resume()

    def verify(self) -> Report:
        """See `KeyService`."""
        return self._keys.verify()

    def bind(self, fingerprint: str) -> None:
        """See `KeyService`."""
        self._keys.bind(fingerprint)

    def fingerprint(self) -> str | None:
        """See `KeyService`."""
        return self._keys.fingerprint()

    def close(self) -> None:
        """See `KeyService`."""
        self._keys.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
