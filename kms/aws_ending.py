"""The end of a root in AWS KMS, and its proof.

Imported material: deleted, then looked at until for the whole consistency window the key said `PendingImport` and
refused, as a key without material does, to decrypt what was encrypted under it. Nothing else counts: not a denial, a
throttle, an outage, nor a key that is not found. For "it typically takes less than a few seconds for the change to
propagate throughout the system, but in some cases it can take several minutes" (AWS KMS developer guide).

KMS-made material: scheduled for deletion. It is pending until KMS itself, after the date, knows the key no longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from shredsaver.errors import KeyServiceError, KeyServiceUnavailableError
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_errors import KmsKeyMissingError, KmsKeyPendingImportError
from shredsaver.kms.aws_making import SUCCESSOR, KeyMaker, text
from shredsaver.kms.aws_registry import KmsKey, Registry
from shredsaver.kms.roots import Death

_log = logging.getLogger("shredsaver.kms")

MATERIAL: Final = "imported key material deleted from AWS KMS"
SCHEDULED: Final = "AWS KMS key scheduled for deletion"


@dataclass(frozen=True)
class Doomed:
    """A root to be destroyed.

    Attributes:
        slot: Its slot.
        epoch: Its epoch.
        arn: Its KMS key.
        probe: Something encrypted under that key.
        context: The encryption context of the probe.
    """

    slot: int
    epoch: int
    arn: str
    probe: bytes = field(repr=False)
    context: Mapping[str, str]


class Destroyer:
    """Destroys roots and proves it.

    Args:
        calls: AWS KMS.
        registry: Where each key is recorded.
        maker: Schedules dead keys for deletion.
        window: Seconds for which the proof must hold.
        horizon: Seconds for which a process may still hold a dead root in memory.
        now: Gives the present in UTC.
    """

    def __init__(
        self,
        calls: KmsCalls,
        registry: Registry,
        maker: KeyMaker,
        *,
        window: float,
        horizon: float,
        now: Callable[[], datetime],
    ) -> None:
        self._calls, self._registry, self._maker = calls, registry, maker
        self._window, self._horizon, self._now = window, horizon, now

    # -- imported material ------------------------------------------------------------------------------------------

    def delete_material(self, doomed: Sequence[Doomed]) -> list[Death]:
        """Deletes the material of several keys, and proves it for all of them in one window.

        Raises:
            KeyServiceUnavailableError: It is not proven yet; calling again goes on.
        """
        unproven = [root for root in doomed if not _proven(self._registry.of(root.arn))]
        disarmed = [root for root in unproven if self._disarm(root)]
        if disarmed:
            self._hold_up(disarmed)
            at = text(self._now())
            for root in disarmed:
                self._registry.proven(root.arn, at)
        return [self._bury(root) for root in doomed]

    def never_made(self) -> Death:
        """The end of a root that was put off, and never asked for."""
        return Death("destroyed", "no root was ever made", text(self._now()))

    def _disarm(self, root: Doomed) -> bool:
        """Deletes the material; false where that is over: KMS knows no such key, or another host has proven its end."""
        try:
            state = self._calls.describe(root.arn).state
        except KmsKeyMissingError:
            return False
        if state == "PendingDeletion":
            if _proven(self._registry.of(root.arn)):
                return False
            # Somebody scheduled it. Only a key that is not pending deletion shows whether it still has its material.
            self._calls.cancel_deletion(root.arn)
        # An older copy of the key store learns from this tag that it is old.
        self._calls.patiently(
            lambda: self._calls.tag(root.arn, {SUCCESSOR: str(root.epoch + 1)}),
            unsettled=(KeyServiceUnavailableError,) if state == "PendingDeletion" else (),
        )
        self._calls.delete_material(root.arn)
        return True

    def _hold_up(self, doomed: Sequence[Doomed]) -> None:
        pause = min(1.0, self._window / 4)
        started = self._calls.clock()
        since: float | None = None
        while True:
            # What another host has proven meanwhile it may have scheduled for deletion, too, and then it shows no more.
            doomed = [root for root in doomed if not _proven(self._registry.of(root.arn))]
            if not doomed:
                return
            dead = all(self._looks_dead(root) for root in doomed)
            now = self._calls.clock()
            if not dead:
                since = None
            elif since is None:
                since = now
            elif now - since >= self._window:
                return
            if now - started > self._window + self._calls.patience:
                names = ", ".join(root.arn for root in doomed)
                raise KeyServiceUnavailableError(f"AWS KMS does not show yet that the material is gone: {names}; retry")
            self._calls.sleep(pause)

    def _looks_dead(self, root: Doomed) -> bool:
        if self._calls.describe(root.arn).state != "PendingImport":
            return False
        try:
            self._calls.decrypt(root.arn, root.probe, root.context)
        except KmsKeyPendingImportError:
            return True
        except KeyServiceUnavailableError:
            return False
        return False

    def _bury(self, root: Doomed) -> Death:
        row = self._registry.of(root.arn)
        if row is None or not row.proven_at:
            # Deleted by somebody else before we could look: likely dead, but KMS has not shown it.
            return Death("pending", MATERIAL, None, (root.arn,), details={"kms_key_state": "not found"})
        details: dict[str, Any] = {"kms_key_state": "PendingImport", "window_seconds": self._window}
        if row.token_until:
            details["import_token_until"] = row.token_until
        try:
            details["deletion_date"] = row.deletion_at or self._maker.clear(root.arn)
        except KeyServiceError as error:
            # The root is dead; that its empty key still stands about is untidy, and the next sweep's business.
            _log.warning("a dead KMS key is not yet scheduled for deletion: %s", error)
        cached = self._cached(row.proven_at)
        return Death("destroyed", MATERIAL, row.proven_at, (root.arn,), cached_until=cached, details=details)

    def _cached(self, at: str) -> str:
        return text(datetime.fromisoformat(at) + timedelta(seconds=self._horizon))

    # -- scheduled deletion -----------------------------------------------------------------------------------------

    def schedule(self, root: Doomed, days: int, witness: str | None) -> Death:
        """Schedules a key for deletion, or asks what became of that.

        Args:
            root: The root.
            days: Days to wait, 7 to 30.
            witness: The ARN of another key of the account, which must be seen for "not found" to mean anything.
        """
        row = self._registry.of(root.arn)
        announced, cancelled = (row.deletion_at, row.cancelled) if row is not None else ("", 0)
        try:
            found = self._calls.describe(root.arn)
        except KmsKeyMissingError:
            return self._gone(root, announced, witness)
        date = text(found.deletion_at) if found.deletion_at else announced
        again = found.state != "PendingDeletion" and bool(announced)
        if found.state != "PendingDeletion":
            if again:
                _log.warning("somebody cancelled the deletion of %s; it is scheduled again", root.arn)
            self._calls.tag(root.arn, {SUCCESSOR: str(root.epoch + 1)})
            date = text(self._calls.schedule_deletion(root.arn, days))
        if date != announced:
            self._registry.scheduled(root.arn, date, cancelled=again)
        details: dict[str, Any] = {"kms_key_state": "PendingDeletion", "cancelled_times": cancelled + again}
        return Death("pending", SCHEDULED, None, (root.arn,), date, self._cached(text(self._now())), details)

    def _gone(self, root: Doomed, announced: str, witness: str | None) -> Death:
        final = bool(announced) and datetime.fromisoformat(announced) <= self._now()
        if final and witness is not None:
            self._calls.describe(witness)
        if not final or witness is None:
            details = {"kms_key_state": "not found", "why_pending": "before the date that KMS announced"}
            return Death("pending", SCHEDULED, None, (root.arn,), announced or None, None, details)
        deleted: dict[str, Any] = {"kms_key_state": "deleted", "deletion_date": announced}
        self._registry.cleared(root.arn, announced)
        return Death("destroyed", SCHEDULED, text(self._now()), (root.arn,), details=deleted)


def _proven(row: KmsKey | None) -> bool:
    return row is not None and bool(row.proven_at)
