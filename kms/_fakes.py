"""Roots in memory that stand in for a remote service in tests: shared by several hosts, slow, failing, pending."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from shredsaver.errors import ConfigurationError, KeyNotFoundError, KeyStoreStaleError
from shredsaver.kms._steps import step
from shredsaver.kms.roots import Anchor, Death, Epoch


@dataclass
class FakeRemote:
    """The remote side, which every host of a test shares.

    Attributes:
        keys: Roots by name.
        pending: While true, a destruction stays pending; the root is out of use, but still there.
        before: Called before each request with its name: raises to fail it, sleeps to delay it.
        after: Called after each request: raises to lose its answer.
    """

    keys: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    deployment: bytes = b""
    newest: dict[int, int] = field(default_factory=dict)
    anchors: dict[int, Anchor] = field(default_factory=dict)
    pending: bool = False
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def request(self, name: str, act: Callable[[], object]) -> None:
        """Carries out one request, with the faults of the test around it."""
        step(f"remote-{name}")
        self.before(name)
        with self.lock:
            act()
        self.after(name)


class FakeRoots:
    """A host's view of a `FakeRemote`. Implements `Roots`; nothing keeps two hosts apart but their claims."""

    assurance = "none: a fake for tests"
    shared = True

    def __init__(self, remote: FakeRemote, *, slots: int = 4, lease: float = 30.0) -> None:
        self.slots = slots
        self.lease = lease
        self._remote = remote

    def exclusive(self) -> AbstractContextManager[None]:
        """Keeps nobody out."""
        return nullcontext()

    def attach(self, deployment: bytes, *, fresh: bool) -> None:
        """See `Roots.attach`."""
        remote = self._remote
        with remote.lock:
            if fresh and remote.keys and remote.deployment != deployment:
                raise KeyStoreStaleError("the key store is fresh, the remote is not")
            remote.deployment = remote.deployment or deployment
            if remote.deployment != deployment:
                raise ConfigurationError("the remote belongs to another deployment")

    def check(self, live: Sequence[Epoch]) -> list[Anchor]:
        """See `Roots.check`."""
        for epoch in live:
            if self._remote.newest.get(epoch.slot, 0) > epoch.epoch + 1:
                raise KeyStoreStaleError(f"slot {epoch.slot} is at a later epoch at the remote")
        return list(self._remote.anchors.values())

    def make(self, epochs: Sequence[Epoch], anchor: Anchor) -> list[bytes]:
        """Names each root in the key store, then makes it; one that was named before is gone on with."""
        names = []
        for epoch in epochs:
            if epoch.note is None:
                raise RuntimeError("a root is made without a way to note it")
            name = epoch.material or f"{epoch.slot}/{epoch.epoch}/{os.urandom(4).hex()}".encode()
            epoch.note(name)
            self._remote.request("make", partial(self._made, name, epoch, anchor))
            names.append(name)
        return [self._remote.keys[name] for name in names]

    def _made(self, name: bytes, epoch: Epoch, anchor: Anchor) -> None:
        self._remote.keys.setdefault(name, os.urandom(32))
        self._remote.newest[epoch.slot] = max(self._remote.newest.get(epoch.slot, 0), epoch.epoch)
        self._remote.anchors[epoch.slot] = anchor

    def open(self, epoch: Epoch, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - nothing is cached
        """See `Roots.open`."""
        self._remote.request("open", lambda: None)
        root = self._remote.keys.get(epoch.material)
        if root is None:
            raise KeyNotFoundError(f"the remote has no root for slot {epoch.slot}, epoch {epoch.epoch}")
        return root

    def destroy(self, epochs: Sequence[Epoch]) -> list[Death]:
        """See `Roots.destroy`."""
        deaths = []
        for epoch in epochs:
            name = (epoch.material.decode(),)
            if self._remote.pending:
                deaths.append(Death("pending", "fake", None, name, pending_until="2999-01-01T00:00:00.000Z"))
                continue
            self._remote.request("destroy", partial(self._remote.keys.pop, epoch.material, None))
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            deaths.append(Death("destroyed", "fake", at, name))
        return deaths

    def close(self) -> None:
        """Does nothing."""
