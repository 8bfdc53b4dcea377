"""A key service that is older than its roots: asked what it is good for, and taken into use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from shredsaver.db.base import Database
from shredsaver.errors import ConfigurationError, KeyStoreStaleError, RevocationLogDamagedError
from shredsaver.kms import adoption, rows
from shredsaver.kms._steps import step
from shredsaver.kms.roots import Anchor, Roots, Standing
from shredsaver.kms.rotation import Rotation
from shredsaver.kms.wrapping import Store


class Adopting:
    """The part of `StoredKeyService` that takes an older key store into use; that class opens what it works with."""

    _database: Database
    _roots: Roots
    _rotation: Rotation
    _store: Store

    def _slot(self, customer: bytes) -> int:
        raise NotImplementedError

    def _look(self, customer: bytes) -> rows.Look:
        raise NotImplementedError

    def _log_key(self) -> bytes:
        raise NotImplementedError

    def _now(self) -> str:
        raise NotImplementedError

    def _open_up(self) -> None:
        raise NotImplementedError

    def _anchors(self) -> Sequence[Anchor]:
        raise NotImplementedError

    def rotate(self) -> int:
        """Puts every slot under a new root."""
        raise NotImplementedError

    def survey(self) -> adoption.Survey:
        """What a key store that is older than its roots is good for; nothing is changed."""
        standings, anchors = self._standings(take_over=False)
        return self._database.run(partial(adoption.survey, standings, anchors))

    def keeps(self, customer: bytes, generation: int, lost: Collection[int]) -> bool:
        """Whether a live generation has keys that open, where these slots are lost."""
        return self._slot(customer) not in lost and self._look(customer).live == generation

    def adopt(self, dead: Collection[tuple[bytes, int]]) -> None:
        """Takes an older key store into use, and opens it. See `shredsaver.kms.adoption`.

        Args:
            dead: Who is dead by records that verify, as customer and generation.

        Raises:
            KeyStoreStaleError: The deployment's own slot is lost: nothing of this key store can be used.
            RevocationLogDamagedError: The records do not tell of all whom the roots have seen dead.
        """
        standings, anchors = self._standings(take_over=True)
        if any(standing.slot == self._roots.slots and not standing.readable for standing in standings):
            raise KeyStoreStaleError(
                "the deployment's own keys are under a root that is gone: nothing of this key store can be used. Make "
                "a new one, with `keys restore-escrow`"
            )
        slots = {(customer, generation): self._slot(customer) for customer, generation in dead}
        seen = max((anchor.length for anchor in anchors), default=0)
        plan = partial(adoption.adopt, self._store, self._log_key(), standings, seen, slots, self._now())
        with self._roots.exclusive():
            self._database.run(plan)
        step("adopted")
        self._open_up()

    def _standings(self, *, take_over: bool) -> tuple[Sequence[Standing], Sequence[Anchor]]:
        survey = getattr(self._roots, "survey", None)
        if survey is None:
            raise ConfigurationError(
                "these roots cannot tell what an older key store is good for: restore a current one"
            )
        with self._roots.exclusive():
            found: tuple[Sequence[Standing], Sequence[Anchor]] = survey(
                self._database.run(rows.live), take_over=take_over
            )
        return found

    def _finish_adoption(self, note: bytes) -> None:
        """Replaces every root, until none is left that speaks of the lost key store's log."""
        self._database.run(partial(adoption.begun, self._store, self._log_key(), note))
        self._rotation.run()
        step("adoption-rotated")
        try:
            self._database.run(partial(rows.compare, self._anchors()))
        except (KeyStoreStaleError, RevocationLogDamagedError):
            self.rotate()  # a root that the lost key store had begun to make was taken over, and is seen off now
        self._database.run(partial(rows.drop_meta, adoption.NOTE))
        step("adoption-finished")
