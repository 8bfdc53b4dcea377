"""What stands above the key store: roots that can really be destroyed, one per slot and epoch.

`StoredKeyService` decides when a root is made and when it dies, and keeps the record of it; a `Roots` only makes, opens
and destroys. Several processes or hosts may do so at once; a call may have been made before by a process that then
crashed, so every call is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol


class Anchor(NamedTuple):
    """How long the log of the dead was when a root was made, and its last chain value (zeros for an empty log)."""

    length: int
    head: bytes


@dataclass(frozen=True)
class Epoch:
    """One root: a slot, an epoch from 1, and what the provider noted to find it again.

    Attributes:
        slot: 0 to ``slots - 1`` for customers; ``slots`` is the deployment's own.
        epoch: From 1, one more for each rotation of the slot.
        material: Opaque bytes of the provider, such as a key's name and the root encrypted under it; never the root
            itself. Empty at first.
        note: Replaces ``material`` durably in the key store, before the next outside step is taken. It raises
            `KeyServiceUnavailableError` if another host has taken the rotation over; the provider lets that pass.
            Absent for `Roots.open` and `Roots.check`.
        idle: For `Roots.make`: nothing is wrapped in the slot, and the answer will not be used. A provider whose roots
            cost money may put off making it until `Roots.open` asks for it.
    """

    slot: int
    epoch: int
    material: bytes = field(default=b"", repr=False)
    note: Callable[[bytes], None] | None = field(default=None, repr=False, compare=False)
    idle: bool = field(default=False, compare=False)


class Standing(NamedTuple):
    """A slot of a key store that is older than its roots.

    Attributes:
        slot: The slot.
        epoch: Where the key store has it; 0 where it does not know it.
        newest: The newest epoch that the roots have of it.
        readable: Whether the root of ``epoch`` is still there, so that what the key store has of the slot opens.
        material: What takes the newest root over, see `Epoch.material`; that root is destroyed in its turn.
    """

    slot: int
    epoch: int
    newest: int
    readable: bool
    material: bytes = b""


@dataclass(frozen=True)
class Death:
    """What is known of a root's end.

    Attributes:
        state: ``"destroyed"`` only with proof; ``"pending"`` while someone could still bring the root back.
        method: What was done, in a few words.
        at: When it was proven dead, ISO 8601 in UTC; None while pending.
        key_ids: Names of the destroyed keys, where they have any.
        pending_until: When a pending end becomes final, ISO 8601 in UTC.
        cached_until: Until when a process may still hold the root in memory, ISO 8601 in UTC.
        details: More for the receipt: text, numbers and booleans only.
    """

    state: Literal["destroyed", "pending"]
    method: str
    at: str | None
    key_ids: tuple[str, ...] = ()
    pending_until: str | None = None
    cached_until: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Roots(Protocol):
    """A provider of erasable roots."""

    @property
    def slots(self) -> int:
        """Number of slots that customers are spread over; fixed for the life of a key store."""
        ...

    @property
    def assurance(self) -> str:
        """How strong a destruction is, in a sentence for the receipt."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several hosts may use these roots at once."""
        ...

    @property
    def lease(self) -> float:
        """Seconds for which a rotation is claimed in the key store, renewed by each `Epoch.note`.

        0 where `exclusive` alone keeps every other process out.
        """
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Keeps other rotations out as far as the provider can; not re-entrant.

        Raises:
            KeyServiceUnavailableError: Another rotation takes too long.
        """
        ...

    def attach(self, deployment: bytes, *, fresh: bool) -> None:
        """Ties the roots to a deployment (16 bytes), once after opening; ``fresh``: the key store holds no key yet.

        Raises:
            ConfigurationError: They belong to another deployment.
            KeyStoreStaleError: The key store is fresh, but roots are in use.
            KeyNotFoundError: The key store is in use, but there are no roots.
        """
        ...

    def check(self, live: Sequence[Epoch]) -> Sequence[Anchor]:
        """Compares the key store's live epochs with the roots, before anything else is done after opening.

        Args:
            live: The live epoch of every slot; 0 for a slot whose first root was asked for and is not in use yet.

        Returns:
            The anchors of the newest roots, or as many as can be had at a reasonable cost.

        Raises:
            KeyStoreStaleError: The roots have gone on without this key store: a slot's live epoch is gone while a newer
                one is there, or a newer one is more than one ahead.
            KeyNotFoundError: A live root is missing or damaged, and there is no newer one.
        """
        ...

    def make(self, epochs: Sequence[Epoch], anchor: Anchor) -> list[bytes]:
        """Makes roots and returns them once they are durable and were read back; one made before is returned as it is.

        Returns:
            32 bytes for each, in order.
        """
        ...

    def open(self, epoch: Epoch, *, fresh: bool = False) -> bytes:
        """The 32 bytes of a root; with ``fresh`` from the source itself, past any cache.

        Raises:
            KeyStoreStaleError: It was destroyed and a newer one is there.
            KeyNotFoundError: It is missing or damaged.
        """
        ...

    def destroy(self, epochs: Sequence[Epoch]) -> list[Death]:
        """Destroys roots for good, or asks again about a pending destruction.

        The key store has proven before that nothing depends on them. Returns only when each is proven dead or pending.
        """
        ...

    def close(self) -> None:
        """Releases what is open and forgets cached roots."""
        ...
