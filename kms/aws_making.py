"""Bringing KMS keys into being, each step recorded before it is taken, and clearing away those that nobody needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from shredsaver.errors import KeyAccessDeniedError, KeyServiceError, KeyServiceUnavailableError
from shredsaver.kms.aws_calls import KmsCalls, OutcomeUnknownError
from shredsaver.kms.aws_errors import KmsKeyMissingError, KmsKeyPendingImportError, KmsMaterialRefusedError
from shredsaver.kms.aws_registry import INTENDED, LOST, MADE, READY, SPARE, USED, KmsKey, Registry
from shredsaver.kms.roots import Anchor

_log = logging.getLogger("shredsaver.kms")

TAG: Final = "shredsaver:"
SUCCESSOR: Final = f"{TAG}successor"
_FORGET: Final = 3600.0  # seconds; AWS takes no request whose signature is older than a quarter of that
_SKEW: Final = 900.0  # seconds by which our clock may differ from that of KMS
_TOKEN: Final = timedelta(hours=24)
_ATTEMPTS: Final = 4


def text(moment: datetime) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_tag(anchor: Anchor) -> dict[str, str]:
    """The tag that says how long the log of the dead is, and how it ends."""
    return {f"{TAG}log": f"{anchor.length}-{anchor.head.hex()}"}


class TakenOverError(KeyServiceUnavailableError):
    """Another host makes the same key, and was faster."""


class KeyMaker:
    """Makes the KMS keys of one deployment.

    Args:
        calls: AWS KMS.
        registry: Where each key is recorded.
        external: Keys take imported material; otherwise KMS makes it.
        days: Days until a cleared key is deleted, 7 to 30.
        spares: How many keys are kept ready ahead.
        settle: Seconds for which a key whose answer was lost is looked for.
        now: Gives the present in UTC.
        abandoned: Seconds after which a spare that was begun and not finished is given up.
    """

    def __init__(
        self,
        calls: KmsCalls,
        registry: Registry,
        *,
        external: bool,
        days: int,
        spares: int,
        settle: float,
        now: Callable[[], datetime],
        abandoned: float = 600.0,
    ) -> None:
        self._calls, self._registry = calls, registry
        self._external, self._days, self._spares = external, days, spares
        self._settle, self._abandoned, self._now = settle, abandoned, now
        self._deployment = b""
        self._replenishing: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def attach(self, deployment: bytes) -> None:
        """Names the deployment whose tag the keys get."""
        self._deployment = deployment

    def key_for(self, slot: int, epoch: int, anchor: Anchor, beat: Callable[[], None]) -> KmsKey:
        """The KMS key of an epoch, usable: the one recorded for it, a spare, or a new one.

        Args:
            slot: The slot.
            epoch: The epoch.
            anchor: Length and head of the log of the dead, for the key's tag.
            beat: Called before each step outside; raises if another host has taken over.
        """
        tags = {f"{TAG}slot": str(slot), f"{TAG}epoch": str(epoch), **log_tag(anchor)}
        begun = self._registry.take(slot, epoch)
        if begun is not None and begun.state == INTENDED:
            begun = self._look_for(begun)
        beat()
        key = begun or self._create(self._registry.intend(slot, epoch), tags)
        key = self._finish(key, beat)
        if key.state == USED:
            return key
        beat()
        arn = key.arn
        # A spare does not have them yet; for the others this changes nothing.
        self._calls.patiently(lambda: self._calls.tag(arn, tags))
        return self._moved(key, self._registry.step(key, USED))

    def _create(self, key: KmsKey, tags: Mapping[str, str]) -> KmsKey:
        own = {f"{TAG}deployment": self._deployment.hex(), f"{TAG}nonce": key.nonce.hex()}
        try:
            arn = self._calls.create(
                external=self._external, tags={**own, **tags}, description="Root of a shredsaver key store"
            )
        except OutcomeUnknownError:
            deadline = self._calls.clock() + self._settle
            while (found := self._search({key.nonce}, key.since).get(key.nonce)) is None:
                if self._calls.clock() > deadline:
                    self._registry.lose(key)
                    raise
                self._calls.sleep(min(1.0, self._settle / 4))
            arn = found
        return self._made(key, arn)

    def _made(self, key: KmsKey, arn: str) -> KmsKey:
        moved = self._registry.step(key, MADE, arn=arn)
        if moved is None and self._registry.orphaned(key, arn):
            self.clear(arn)
        return self._moved(key, moved)

    @staticmethod
    def _moved(key: KmsKey, moved: KmsKey | None) -> KmsKey:
        if moved is None:
            where = "a spare" if key.slot == SPARE else f"slot {key.slot}"
            raise TakenOverError(f"another host has taken over making the KMS key for {where}")
        return moved

    def _look_for(self, key: KmsKey) -> KmsKey | None:
        """The key that a crashed attempt may have made; None if there is none, and then a late one is cleared away."""
        found = self._search({key.nonce}, key.since).get(key.nonce)
        if found is None:
            self._registry.lose(key)
            return None
        return self._made(key, found)

    def _finish(self, key: KmsKey, beat: Callable[[], None]) -> KmsKey:
        """Imports material where there is none yet."""
        if key.state != MADE:
            return key
        until = ""
        if self._external:
            until = self._import(key, beat)
        return self._moved(key, self._registry.step(key, READY, token_until=until))

    def _import(self, key: KmsKey, beat: Callable[[], None]) -> str:
        """Material for a key, whichever attempt's it is in the end: nobody keeps it. Gives the token's last moment."""
        for _ in range(_ATTEMPTS):
            if self._calls.patiently(lambda: self._calls.describe(key.arn), beat=beat).state == "Enabled":
                return text(self._now() + _TOKEN)
            try:
                return text(self._calls.import_random(key.arn, beat))
            except (OutcomeUnknownError, KmsMaterialRefusedError) as error:
                # Done without an answer, or done before by an attempt that did not live to record it: look again.
                unknown = error
                self._calls.sleep(self._settle / _ATTEMPTS)
        self._registry.clear(key)  # another key takes its place
        raise KeyServiceUnavailableError(f"{key.arn}: its material cannot be imported; retry") from unknown

    def _search(self, nonces: Collection[bytes], since: float) -> dict[bytes, str]:
        """Keys by the nonce they are tagged with, among those made since a time that are not recorded."""
        known = {key.arn for key in self._registry.all()}
        wanted = {nonce.hex(): nonce for nonce in nonces}
        found: dict[bytes, str] = {}
        for arn in self._calls.key_arns():
            if len(found) == len(wanted):
                break
            if arn in known:
                continue
            try:
                if self._calls.describe(arn).created_at.timestamp() < since - _SKEW:
                    continue
                nonce = wanted.get(self._calls.tags(arn).get(f"{TAG}nonce", ""))
            except (KmsKeyMissingError, KeyAccessDeniedError):
                continue  # a key that is not ours to see is not ours
            if nonce is not None:
                found[nonce] = arn
        return found

    # -- ahead and behind -------------------------------------------------------------------------------------------

    def replenish(self) -> None:
        """Makes spares on a thread of its own, so that the next rotation need not wait for an import."""
        with self._lock:
            if self._closed or not self._spares or (self._replenishing and self._replenishing.is_alive()):
                return
            self._replenishing = threading.Thread(target=self._make_spares, name="shredsaver-aws", daemon=True)
            self._replenishing.start()

    def _make_spares(self) -> None:
        try:
            while not self._closed and (key := self._registry.intend_spare(self._spares)) is not None:
                self._finish(self._create(key, {f"{TAG}slot": "spare"}), self._go_on)
        except KeyServiceError as error:
            _log.warning("no KMS key could be made ahead, the next rotation makes one itself: %s", error)

    def _go_on(self) -> None:
        if self._closed:
            raise KeyServiceUnavailableError("the key service was closed")

    def sweep(self) -> int:
        """Clears away what crashes left: keys lost, spares never finished, dead keys not yet scheduled for deletion.

        Returns:
            How many are seen to.
        """
        now = time.time()
        left = self._registry.left(now - self._abandoned)
        lost = [key for key in left if not key.arn]
        found = self._search({key.nonce for key in lost}, min(key.since for key in lost)) if lost else {}
        done = 0
        for key in left:
            arn = key.arn or found.get(key.nonce, "")
            if arn:
                if not key.arn:
                    self._registry.lose(key)
                    self._registry.orphaned(key, arn)
                self.clear(arn)
                done += 1
            elif now - key.since > _FORGET:
                self._registry.drop(key)
            elif key.state != LOST:
                self._registry.lose(key)
        return done

    def leftovers(self) -> list[str]:
        """ARNs of keys that `sweep` would see to."""
        return [key.arn for key in self._registry.left(time.time() - self._abandoned) if key.arn]

    def clear(self, arn: str) -> str:
        """Schedules a dead or unused key for deletion, and records it. Gives the date."""
        try:
            date = text(self._calls.schedule_deletion(arn, self._days))
        except KmsKeyMissingError:
            date = text(self._now())
        except KmsKeyPendingImportError:
            raise KeyServiceUnavailableError(f"{arn}: its deletion cannot be scheduled yet; retry") from None
        self._registry.cleared(arn, date)
        return date

    def close(self) -> None:
        """Stops making spares; one that is begun is recorded, and finished or cleared by a later sweep."""
        self._closed = True
        thread = self._replenishing
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)
