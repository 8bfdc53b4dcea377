"""Where keys are kept: opened, copied as a backup would, and looked into with every root there is today."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from shredsaver import UnsealError
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_material import RootMaterial
from shredsaver.kms.aws_roots import TAG
from shredsaver.kms.roots import Epoch
from shredsaver.kms.rootsfile import RootsFile
from shredsaver.kms.wrapping import Store, Wrapped, unseal_secret, unwrap
from tests.fakes.kms_keys import KmsError
from tests.fakes.kms_server import KmsServer
from tests.stateful.opening import open_keys
from tests.support.waiting import SECONDS

Owner = tuple[bytes, int]
Secrets = dict[tuple[bytes, int, int], bytes]
"""What a copy of a key store gives: secrets by customer, generation and version."""


class KeyPlace(ABC):
    """A directory with a key store."""

    kind: str

    def __init__(self, home: Path) -> None:
        self.directory = home / "keys"
        self.directory.mkdir(mode=0o700)
        self._home = home
        self._copies = 0

    @abstractmethod
    def open(self, directory: Path | None = None) -> Any:
        """A key service on the key store or on a copy of it."""

    @abstractmethod
    def roots(self, epochs: Iterable[Epoch]) -> list[bytes]:
        """Every root that somebody with a copy of the key store and all rights gets today."""

    @property
    def environment(self) -> dict[str, str]:
        """What another process needs in its environment."""
        return {}

    def copy(self) -> Path:
        """A copy as a backup would take it, while the library has the original open."""
        self._copies += 1
        target = self._home / f"keys copy {self._copies}"
        subprocess.run(["cp", "-rp", self.directory, target], check=True)
        return target

    def put_back(self, copied: Path) -> None:
        """A copy in the place of the key store, which nobody has open."""
        shutil.rmtree(self.directory)
        shutil.copytree(copied, self.directory)

    def epochs(self, directory: Path) -> dict[int, int]:
        """The live epoch of each slot of a copy."""
        with closing(sqlite3.connect(directory / "keys.db", timeout=SECONDS)) as connection:
            return {slot: epoch for slot, epoch in connection.execute("SELECT slot, epoch FROM key_slots") if epoch}

    def secrets(self, directory: Path) -> Secrets:
        """The customers' secrets that a copy gives with today's roots."""
        with closing(sqlite3.connect(directory / "keys.db", timeout=SECONDS)) as connection:
            meta = dict(connection.execute("SELECT name, value FROM key_meta"))
            rows = connection.execute(
                "SELECT w.slot, w.customer, w.generation, w.epoch, w.key_version, w.wrapped, t.sealed FROM key_wraps w"
                " JOIN key_trees t ON t.customer = w.customer AND t.generation = w.generation WHERE w.customer <> x''"
            ).fetchall()
            epochs = [Epoch(*row) for row in connection.execute("SELECT slot, epoch, material FROM key_epochs")]
        identity = Store(meta["store"], meta["deployment"])
        roots = self.roots(epochs)
        found: Secrets = {}
        for *place, wrapped, sealed in rows:
            row = Wrapped(*place, wrapped)
            for root in roots:
                try:
                    secret = unseal_secret(identity, unwrap(identity, root, row), row, sealed)
                except UnsealError:
                    continue
                found[row.customer, row.generation, row.key_version] = secret
        return found


class LocalKeys(KeyPlace):
    """Roots in a file: what is not in today's file is gone."""

    kind = "local"

    def open(self, directory: Path | None = None) -> Any:
        return open_keys("local", directory or self.directory)

    def roots(self, epochs: Iterable[Epoch]) -> list[bytes]:
        # In another process's hands: closing the file here would drop the locks that this one has on it.
        copied = self._home / "roots to look at"
        subprocess.run(["cp", self.directory / "roots", copied], check=True)
        file = RootsFile(copied)
        try:
            return [root.key for root in file.scan()]
        finally:
            file.close()


class AwsKeys(KeyPlace):
    """Roots in the fake of AWS KMS, asked by somebody who may cancel deletions and enable what is disabled."""

    kind = "aws"

    def __init__(self, home: Path, kms: KmsServer, calls: KmsCalls) -> None:
        super().__init__(home)
        self.kms, self.calls = kms, calls

    @property
    def environment(self) -> dict[str, str]:
        return self.kms.environment

    def open(self, directory: Path | None = None) -> Any:
        return open_keys("aws", directory or self.directory, self.calls)

    def copy(self) -> Path:
        # Not by `cp`: a key may be made ahead at this moment, and noted.
        self._copies += 1
        target = self._home / f"keys copy {self._copies}"
        target.mkdir(mode=0o700)
        store, made = self.directory / "keys.db", target / "keys.db"
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(made)) as copied:
            source.backup(copied)
        shutil.copymode(self.directory / "keys.db", target / "keys.db")
        return target

    def roots(self, epochs: Iterable[Epoch]) -> list[bytes]:
        operations, found = self.kms.operations, []
        with closing(sqlite3.connect(self.directory / "keys.db", timeout=SECONDS)) as connection:
            deployment = dict(connection.execute("SELECT name, value FROM key_meta"))["deployment"]
        with operations._lock:  # a key may be made ahead at this moment
            materials = {key.arn: key.latest.material for key in operations.keys.values()}
        for epoch in epochs:
            if not epoch.material:
                continue
            root = RootMaterial.unpack(epoch)
            material = materials.get(root.arn)
            names = {"deployment": deployment.hex(), "slot": str(epoch.slot), "epoch": str(epoch.epoch)}
            if material is not None:
                try:
                    context = {f"{TAG}{name}": value for name, value in names.items()}
                    found.append(operations._ciphertexts.open(material, root.wrapped, context))
                except KmsError:
                    continue
        return found
