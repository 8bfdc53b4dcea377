"""A key service's holds: set, ended, asked for, and set anew where they do not verify."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from shredsaver.db.base import Database
from shredsaver.errors import ConfigurationError
from shredsaver.kms import holds
from shredsaver.kms.records import Hold
from shredsaver.kms.replies import check, shredded, text


class Holding:
    """The part of `StoredKeyService` that keeps holds; that class opens what it works with."""

    _database: Database

    def _slot(self, customer: bytes) -> int:
        raise NotImplementedError

    def _log_key(self) -> bytes:
        raise NotImplementedError

    def _now(self) -> str:
        raise NotImplementedError

    def hold(self, customer: bytes, until: datetime | None, reason_commitment: bytes) -> Hold:
        """Forbids `destroy`. See `KeyService.hold`."""
        check(customer)
        if until is not None and until.tzinfo is None:
            raise ConfigurationError("until has no time zone; give an aware datetime, such as one in UTC")
        hold = Hold(customer, text(until) if until else None, bytes(reason_commitment), self._now())
        dead = self._database.run(partial(holds.put, self._log_key(), self._slot(customer), hold))
        if dead is not None:
            raise shredded(dead)
        return hold

    def release(self, customer: bytes) -> None:
        """Ends a hold."""
        check(customer)
        self._database.run(partial(holds.drop, self._log_key(), self._slot(customer), customer))

    def held(self, customer: bytes) -> Hold | None:
        """The hold in force now, or None. See `KeyService.held`."""
        check(customer)
        return self._database.run(partial(holds.get, self._log_key(), self._slot(customer), customer, self._now()))

    def damaged_holds(self) -> int:
        """In how many slots the holds do not verify, so that nothing there is destroyed."""
        return len(self._database.run(partial(holds.damaged, self._log_key())))

    def mend_holds(self, known: Mapping[bytes, str]) -> None:
        """Sets anew what of the holds does not verify.

        Args:
            known: Who is held by a record that verifies, and until when, ISO 8601 in UTC; "" until it is released.
        """
        broken: dict[int, list[Hold]] = {
            slot: [] for slot in self._database.run(partial(holds.damaged, self._log_key()))
        }
        for customer, until in known.items():
            if (slot := self._slot(customer)) in broken:
                broken[slot].append(Hold(customer, until or None, b"", self._now()))
        self._database.run(partial(holds.mend, self._log_key(), broken))
