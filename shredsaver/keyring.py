"""Opened key trees of one process, bounded in number and in age."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from shredsaver.errors import CustomerShreddedError
from shredsaver.keytree import KeyTree
from shredsaver.kms.base import KeyRecord, KeyService

MAX_AGE: Final = 60.0
"""Seconds after which the key service is asked again: the bound on someone who undoes a revocation in the database."""


class Keyring:
    """Caches trees by customer and generation; it never un-sees a revocation.

    Args:
        service: Where keys live. It may block, so `load` and `create` belong in a `Call` effect.
        max_trees: Most trees kept, the least recently used goes first.
        max_age: Seconds that a tree serves before the key service is asked again.
        clock: Seconds, never going back.
    """

    def __init__(
        self,
        service: KeyService,
        *,
        max_trees: int = 4096,
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._max_trees = max_trees
        self._max_age = max_age
        self._clock = clock
        self._lock = threading.Lock()
        self._trees: OrderedDict[tuple[bytes, int], tuple[KeyTree, int, float]] = OrderedDict()
        # Never shortened, about 150 bytes a customer: an entry that went would let a tree back in once key store and
        # database were both taken back under this process, which otherwise refuses for as long as it runs.
        self._revoked: dict[bytes, int] = {}

    def cached(self, customer: bytes, generation: int, key_version: int) -> KeyTree | None:
        """The tree, if it is here, young enough and of at least this version."""
        with self._lock:
            found = self._trees.get((customer, generation))
            if found is None:
                return None
            tree, version, loaded = found
            if version < key_version or self._clock() - loaded > self._max_age:
                return None
            self._trees.move_to_end((customer, generation))
            return tree

    def trees_of(self, customer: bytes) -> list[KeyTree]:
        """Every tree of a customer that is here, of whatever generation or age."""
        with self._lock:
            return [found[0] for key, found in self._trees.items() if key[0] == customer]

    def load(self, customer: bytes, generation: int) -> int:
        """Asks the key service for a tree and caches it. Blocks.

        Returns:
            The tree's key version.

        Raises:
            CustomerShreddedError: The generation was destroyed.
            KeyServiceError: The key service cannot say.
        """
        try:
            record = self._service.load(customer, generation)
        except CustomerShreddedError:
            self.revoke(customer, generation)
            raise
        self._keep(record)
        return record.key_version

    def create(self, customer: bytes) -> KeyRecord:
        """Makes the first generation's tree, or takes the one that another process made first. Blocks.

        Raises:
            CustomerShreddedError: The customer has a tombstone.
            KeyServiceError: The key service cannot say.
        """
        record = self._service.create(customer, KeyTree.generate().to_bytes())
        self._keep(record)
        return record

    def enrol(self, customer: bytes) -> KeyRecord:
        """Makes the next generation's tree after a destroyed one. Blocks."""
        record = self._service.enrol(customer, KeyTree.generate().to_bytes())
        self._keep(record)
        return record

    def revoke(self, customer: bytes, generation: int) -> None:
        """Drops every generation up to this one, for good."""
        with self._lock:
            self._revoked[customer] = max(generation, self._revoked.get(customer, 0))
            # All of a batch of erasures come by here: with few generations, each is looked up, not searched for.
            few = [(customer, dead) for dead in range(1, generation + 1)] if generation < self._max_trees else []
            for key in few or [key for key in self._trees if key[0] == customer and key[1] <= generation]:
                self._trees.pop(key, None)

    def forget(self, customer: bytes, generation: int) -> None:
        """Drops one tree, so that the next use asks the key service."""
        with self._lock:
            self._trees.pop((customer, generation), None)

    def _keep(self, record: KeyRecord) -> None:
        tree = KeyTree.from_bytes(record.secret)
        key = (record.customer, record.generation)
        with self._lock:
            # A load that was on its way when the customer was revoked must not bring the tree back.
            if record.generation <= self._revoked.get(record.customer, 0):
                raise CustomerShreddedError(f"customer {record.customer.hex()} was shredded")
            known = self._trees.get(key)
            if known is not None and known[1] == record.key_version and known[0].to_bytes() == record.secret:
                tree = known[0]  # the same object: who sealed with it sees that nothing changed and need not seal again
            if known is None or known[1] <= record.key_version:
                self._trees[key] = (tree, record.key_version, self._clock())
                self._trees.move_to_end(key)
            while len(self._trees) > self._max_trees:
                self._trees.popitem(last=False)
