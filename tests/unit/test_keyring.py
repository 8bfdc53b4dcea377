"""Opened key trees are kept as they are while the key service has nothing newer."""

from __future__ import annotations

from pathlib import Path

from shredsaver.keyring import Keyring
from shredsaver.keytree import KeyTree
from shredsaver.kms.local import LocalKeyService


def test_a_tree_that_is_loaded_again_unchanged_is_the_same_object(tmp_path: Path) -> None:
    """Two writers of a new customer load its tree for each other in turn, for ever, if each load makes a new one."""
    customer = bytes(16)
    with LocalKeyService(tmp_path / "keys", slots=4) as service:
        keyring = Keyring(service)
        keyring.create(customer)
        first = keyring.cached(customer, 1, 1)
        assert first is not None
        keyring.load(customer, 1)
        keyring.create(customer)
        assert keyring.cached(customer, 1, 1) is first
        service.replace(customer, 1, KeyTree.generate().to_bytes(), 1)
        keyring.load(customer, 1)
        assert keyring.cached(customer, 1, 2) is not first
