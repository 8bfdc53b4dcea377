"""Erasable roots in AWS KMS: 32 random bytes for each slot and epoch, encrypted under a KMS key made for that epoch."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

from shredsaver.db.base import Database
from shredsaver.errors import (
    ConfigurationError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
    UnsealError,
)
from shredsaver.kms.aws_cache import RootCache
from shredsaver.kms.aws_calls import UNSETTLED, KmsCalls
from shredsaver.kms.aws_ending import Destroyer, Doomed
from shredsaver.kms.aws_errors import KmsKeyMissingError, KmsKeyPendingDeletionError, KmsKeyPendingImportError
from shredsaver.kms.aws_making import SUCCESSOR, TAG, KeyMaker, TakenOverError, log_tag
from shredsaver.kms.aws_material import PUT_OFF, RootMaterial
from shredsaver.kms.aws_older import OlderStore
from shredsaver.kms.aws_registry import Registry
from shredsaver.kms.roots import Anchor, Death, Epoch, Standing

Erasure = Literal["material", "scheduled"]

SLOTS: Final = 16
"""Slots of a new key store."""

CUSTOMER_SLOTS: Final = 2**62
"""Slots where each customer has one to itself."""

WINDOW_DAYS: Final = range(7, 31)
"""What AWS KMS accepts as days until a key is deleted."""

_ROOT: Final = 32
_PROBE: Final = b"shredsaver probe"
_CHECKED: Final = 32  # live epochs compared at open, so that opening stays cheap with a slot for each customer
_PATIENCE: Final = 300.0  # seconds to wait for this process's own other rotation
_ENDED: Final = (KmsKeyPendingImportError, KmsKeyPendingDeletionError, KmsKeyMissingError)
_UNSETTLED: Final = (*UNSETTLED, KmsKeyPendingImportError)


class AwsRoots:
    """Provider of roots in AWS KMS. Implements `Roots`.

    Args:
        calls: AWS KMS.
        database: The key store's driver: the KMS keys are recorded next to what they protect.
        slots: Slots that customers are spread over; None for those of the key store, which are 16 if it is new.
        erasure: ``"material"`` or ``"scheduled"``.
        days: Days until a scheduled key is deleted, 7 to 30.
        spares: KMS keys kept ready ahead; with ``"scheduled"`` none is.
        window: Seconds for which the proof of a destruction must hold.
        keep: Seconds until a cached root is asked for again, and past its last use.
        outage: Seconds for which cached roots serve while AWS cannot be reached.
        settle: Seconds for which a key whose answer was lost is looked for, and a new one is waited for.
        lease: Seconds for which a rotation is claimed; after them another host may finish it, which harms nothing.
        now: Gives the present in UTC.

    Raises:
        ConfigurationError: An argument is out of bounds.
    """

    def __init__(
        self,
        calls: KmsCalls,
        database: Database,
        *,
        slots: int | None = None,
        erasure: Erasure = "material",
        days: int = 7,
        spares: int = 1,
        window: float = 10.0,
        keep: float = 60.0,
        outage: float = 300.0,
        settle: float = 20.0,
        lease: float = 30.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if erasure not in ("material", "scheduled"):
            raise ConfigurationError(f"erasure is {erasure!r}; it must be 'material' or 'scheduled'")
        if days not in WINDOW_DAYS:
            raise ConfigurationError(f"days is {days}; AWS KMS waits 7 to 30 days before it deletes a key")
        if not 1 <= (slots or 1) <= CUSTOMER_SLOTS or slots == 0 or min(window, keep, outage, settle) < 0 or spares < 0:
            raise ConfigurationError("slots must be at least 1; window, keep, outage, settle and spares not negative")
        self._calls, self._erasure, self._days, self._settle = calls, erasure, days, settle
        self._asked_slots, self._slots = slots, slots or SLOTS
        self._registry = Registry(database)
        self._cache = RootCache(keep, outage, clock=calls.clock)
        external = erasure == "material"
        self._maker = KeyMaker(
            calls,
            self._registry,
            external=external,
            days=days,
            spares=spares if external else 0,
            settle=settle,
            now=now,
        )
        self._destroyer = Destroyer(
            calls, self._registry, self._maker, window=window, horizon=self._cache.horizon, now=now
        )
        self._deployment, self._lease, self._anchor = b"", lease, Anchor(0, bytes(32))
        self._rotating, self._making_late = threading.Lock(), threading.Lock()

    @property
    def slots(self) -> int:
        """Number of slots that customers are spread over."""
        return self._slots

    @property
    def assurance(self) -> str:
        """How strong a destruction is, in a sentence for the receipt."""
        if self._erasure == "scheduled":
            return (
                "pending until AWS KMS has deleted the key that the customer's keys were wrapped under; until then its "
                "deletion can be cancelled by whoever administers the account"
            )
        return (
            "AWS KMS confirmed that the key which the customer's keys were wrapped under has lost its imported "
            "material, of which no copy was kept; a recording of the import request could be replayed until its token "
            "ends, at the time given"
        )

    @property
    def shared(self) -> bool:
        """Several hosts may use one key store at once."""
        return True

    @property
    def lease(self) -> float:
        """Seconds for which a rotation is claimed."""
        return self._lease

    @property
    def registry(self) -> Registry:
        """The KMS keys of this key store."""
        return self._registry

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps this process's other rotations out; those of other hosts are kept out by the claim.

        Raises:
            KeyServiceUnavailableError: Another rotation takes too long.
        """
        if not self._rotating.acquire(timeout=_PATIENCE):
            raise KeyServiceUnavailableError("another rotation of this process takes too long")
        try:
            yield
        finally:
            self._rotating.release()

    def attach(self, deployment: bytes, *, fresh: bool) -> None:  # noqa: ARG002 - an account holds many deployments
        """Ties the roots to a deployment, which the tags of their keys and the encryption contexts name."""
        self._deployment = deployment
        self._registry.set_up()
        self._slots = int(self._registry.remember("slots", str(self._slots)))
        if self._asked_slots not in (None, self._slots):
            raise ConfigurationError(
                f"the key store was made with {_words(self._slots)}, not {_words(self._asked_slots)}: that cannot be "
                "changed, as it says which root a customer's keys are under"
            )
        self._maker.attach(deployment)

    def sweep(self) -> int:
        """Clears away KMS keys that crashes left. Does nothing, and asks AWS nothing, if there are none."""
        return self._maker.sweep()

    def leftovers(self) -> list[str]:
        """ARNs of KMS keys that a sweep would see to."""
        return self._maker.leftovers()

    # -- the life of a root -----------------------------------------------------------------------------------------

    def make(self, epochs: Sequence[Epoch], anchor: Anchor) -> list[bytes]:
        """Makes roots, encrypted under a KMS key each, and reads them back from KMS."""
        materials = {epoch: epoch.material for epoch in epochs}

        def beat() -> None:
            for epoch, material in materials.items():
                if epoch.note is not None:
                    epoch.note(material)

        self._anchor = anchor
        roots = []
        for epoch in epochs:
            if epoch.idle and self._slots == CUSTOMER_SLOTS:
                # The customer whose slot it is is gone: no KMS key is paid for unless the customer comes back.
                materials[epoch] = epoch.material or PUT_OFF.pack()
                beat()
                roots.append(os.urandom(_ROOT))
                continue
            if not epoch.material:
                materials[epoch] = self._make(epoch, beat)
            beat()
            made = Epoch(epoch.slot, epoch.epoch, materials[epoch])
            roots.append(self.open(made, fresh=True))
        if all(epoch.epoch == 1 for epoch in epochs):
            self._maker.replenish()  # otherwise `destroy` follows, and should not have to share the quotas
        self._raise_anchor(epochs)
        return roots

    def _raise_anchor(self, epochs: Sequence[Epoch]) -> None:
        """Tags the deployment's key, which is looked at whenever the key store is opened, with the log of the dead."""
        arn = self._registry.arn_of(self._slots)
        if arn is not None and all(epoch.slot != self._slots for epoch in epochs):
            self._calls.patiently(lambda: self._calls.tag(arn, log_tag(self._anchor)))

    def _make(self, epoch: Epoch, beat: Callable[[], None]) -> bytes:
        arn = self._maker.key_for(epoch.slot, epoch.epoch, self._anchor, beat).arn
        context = self._context(epoch)

        def encrypt(plaintext: bytes) -> bytes:
            return self._calls.patiently(
                lambda: self._calls.encrypt(arn, plaintext, context), beat=beat, unsettled=_UNSETTLED
            )

        wrapped = encrypt(os.urandom(_ROOT))
        own = self._registry.own(epoch.slot) or ""
        probe = b""
        if own:
            probe = encrypt(_PROBE)
            wrapped = self._calls.encrypt(own, wrapped, context)
        return RootMaterial(arn, wrapped, own, probe).pack()

    def open(self, epoch: Epoch, *, fresh: bool = False) -> bytes:
        """The 32 bytes of a root, decrypted by KMS or from memory."""
        material = RootMaterial.unpack(epoch)
        if material == PUT_OFF:
            late = self._registry.late(epoch.slot, epoch.epoch)
            if late is None and fresh:
                return os.urandom(_ROOT)  # nothing can be wrapped under it yet
            material = RootMaterial.unpack(epoch, self._make_late(epoch) if late is None else late)
        context = self._context(epoch)

        def decrypt(wrapped: bytes) -> bytes:
            try:
                return self._calls.decrypt(material.arn, wrapped, context)
            except _ENDED as error:
                raise self._explained(epoch, material, error) from error

        def load() -> bytes:
            wrapped = material.wrapped
            if material.own:
                wrapped = self._calls.decrypt(material.own, wrapped, context)
            # What another host made a moment ago may not be visible everywhere.
            root = self._calls.patiently(lambda: decrypt(wrapped), within=self._settle, unsettled=_UNSETTLED)
            if len(root) != _ROOT:
                raise UnsealError(f"the root of slot {epoch.slot}, epoch {epoch.epoch} has not {_ROOT} bytes")
            return root

        return self._cache.get(self._name(epoch), load, fresh=fresh)

    def _make_late(self, epoch: Epoch) -> bytes:
        slot, number = epoch.slot, epoch.epoch

        def attempt() -> bytes:
            made = self._registry.late(slot, number)
            return self._registry.settle_late(slot, number, self._make(epoch, _go_on)) if made is None else made

        with self._making_late:
            settled = self._calls.patiently(attempt, within=self._settle, unsettled=(TakenOverError,))
        if not settled:
            self._registry.unused(slot, number)
            raise KeyNotFoundError(f"slot {slot} left epoch {number} before a root was made for it")
        return settled

    def _explained(self, epoch: Epoch, material: RootMaterial, error: KeyServiceError) -> KeyServiceError:
        """Tells a root that a newer one has replaced from one that was lost or taken away."""
        try:
            successor = self._calls.tags(material.arn).get(SUCCESSOR)
        except KmsKeyMissingError:
            successor = self._newer(epoch)
        if successor is None:
            return error
        return KeyStoreStaleError(
            f"slot {epoch.slot} has gone on to epoch {successor}, the key store is at {epoch.epoch}: "
            "it is an older copy, whose keys are destroyed; use the current key store. If it is lost, `keys adopt` "
            "takes this one into use for the slots that still open"
        )

    def _newer(self, epoch: Epoch) -> str | None:
        """The epoch of a newer key of the slot, found by tags: the old one has been deleted, and its tags with it."""
        for arn in self._calls.key_arns():
            try:
                tags = self._calls.tags(arn)
            except KeyServiceError:
                continue  # a key that is not ours to see is not ours
            ours = tags.get(f"{TAG}deployment") == self._deployment.hex() and tags.get(f"{TAG}slot") == str(epoch.slot)
            number = tags.get(f"{TAG}epoch", "")
            if ours and number.isdecimal() and int(number) > epoch.epoch:
                return number
        return None

    def destroy(self, epochs: Sequence[Epoch]) -> list[Death]:
        """Destroys roots and proves it. See `Destroyer`."""
        for epoch in epochs:
            self._cache.forget(self._name(epoch))
        doomed = {epoch: root for epoch in epochs if (root := self._doomed(epoch)) is not None}
        # Made by KMS or imported: that was decided when the key was made, perhaps with another option than today's.
        imported = [epoch for epoch, root in doomed.items() if self._registry.imported(root.arn)]
        emptied = imported if self._erasure == "material" else []
        deaths = dict(zip(emptied, self._destroyer.delete_material([doomed[epoch] for epoch in emptied]), strict=True))
        if len(emptied) < len(doomed):
            witnesses = [key.arn for key in self._registry.all() if key.arn and not key.deletion_at]
        for epoch, root in doomed.items():
            if epoch not in deaths:
                witness = next((arn for arn in witnesses if arn != root.arn), None)
                deaths[epoch] = self._destroyer.schedule(root, self._days, witness)
        self._maker.replenish()
        return [deaths[epoch] if epoch in deaths else self._destroyer.never_made() for epoch in epochs]

    def _doomed(self, epoch: Epoch) -> Doomed | None:
        material = RootMaterial.unpack(epoch)
        if material == PUT_OFF:
            late = self._registry.settle_late(epoch.slot, epoch.epoch, b"")
            if not late:
                return None
            material = RootMaterial.unpack(epoch, late)
        probe = material.probe or material.wrapped
        return Doomed(epoch.slot, epoch.epoch, material.arn, probe, self._context(epoch))

    # -- anchors ----------------------------------------------------------------------------------------------------

    def check(self, live: Sequence[Epoch]) -> Sequence[Anchor]:
        """Looks at what the tags of live keys say; of many slots, at the deployment's and some others."""
        # Epoch 0 is a first root that was begun; one that was put off has no key yet.
        live = [epoch for epoch in live if epoch.epoch and epoch.material != PUT_OFF.pack()]
        chosen = live
        if len(chosen) > _CHECKED:
            own = [epoch for epoch in live if epoch.slot == self._slots]
            others = [epoch for epoch in live if epoch.slot != self._slots]
            chosen = own + random.sample(others, _CHECKED - len(own))
        return [anchor for epoch in chosen if (anchor := self._check(epoch)) is not None]

    def survey(self, live: Sequence[Epoch], *, take_over: bool = False) -> tuple[list[Standing], list[Anchor]]:
        """How an older key store stands to the account, and what its roots have seen. See `shredsaver.kms.adoption`."""
        opens, alone = partial(self.open, fresh=True), self._slots == CUSTOMER_SLOTS
        older = OlderStore(self._calls, self._registry, self._deployment, alone, opens, self._context)
        standings, anchors = older.survey(live, take_over=take_over)
        return standings, [anchor for tag in anchors if (anchor := _anchor(tag)) is not None]

    def _check(self, epoch: Epoch) -> Anchor | None:
        material = RootMaterial.unpack(epoch)
        missing = KmsKeyMissingError(f"{material.arn}: the key of slot {epoch.slot} is not in this account and Region")
        try:
            tags = self._calls.patiently(lambda: self._calls.tags(material.arn), within=self._settle)
        except KmsKeyMissingError as error:
            raise self._explained(epoch, material, missing) from error
        if SUCCESSOR in tags:
            raise self._explained(epoch, material, missing)
        if tags.get(f"{TAG}deployment") != self._deployment.hex():
            raise KeyNotFoundError(f"{material.arn}: the key's tags do not name this deployment; they were changed")
        return _anchor(tags.get(f"{TAG}log", ""))

    def close(self) -> None:
        """Forgets cached roots, and stops making keys ahead."""
        self._maker.close()
        self._cache.close()

    def _context(self, epoch: Epoch) -> dict[str, str]:
        return {
            f"{TAG}deployment": self._deployment.hex(),
            f"{TAG}slot": str(epoch.slot),
            f"{TAG}epoch": str(epoch.epoch),
        }

    @staticmethod
    def _name(epoch: Epoch) -> tuple[int, int, bytes]:
        return epoch.slot, epoch.epoch, hashlib.sha256(epoch.material).digest()


def _words(slots: int | None) -> str:
    return "slot=customer" if slots == CUSTOMER_SLOTS else f"slots={slots}"


def _anchor(tag: str) -> Anchor | None:
    length, _, head = tag.partition("-")
    try:
        return Anchor(int(length), bytes.fromhex(head))
    except ValueError:
        return None


def _go_on() -> None:
    """Nobody takes over what no claim is held for."""
