"""Somebody edits what a key store notes of its slots and roots: nothing is called destroyed that still opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shredsaver import CustomerShreddedError, ShredSaverError, UnsealError
from shredsaver.kms.local import LocalKeyService
from shredsaver.kms.rootsfile import RootsFile
from shredsaver.kms.wrapping import Wrapped, unwrap
from tests.faults.test_keystore_tampering import change, open_keys, rows

A, B, C = b"\x00A" * 8, b"\x00B" * 8, b"\x01C" * 8  # A and B share a slot
COLUMNS = "slot, customer, generation, epoch, key_version, wrapped"
EDITS = [
    "UPDATE key_slots SET epoch = epoch + 1 WHERE slot = 0",
    "UPDATE key_slots SET epoch = epoch - 1 WHERE slot = 0",
    "UPDATE key_slots SET epoch = 2000000000 WHERE slot = 0",
    "UPDATE key_slots SET epoch = -1 WHERE slot = 0",
    "UPDATE key_slots SET due = epoch - 1 WHERE slot = 0",
    "UPDATE key_slots SET due = 2000000000 WHERE slot = 0",
    "UPDATE key_slots SET claim = x'ff', claimed_until = 9e9 WHERE slot = 0",
    "UPDATE key_slots SET epoch = (SELECT epoch FROM key_slots WHERE slot = 0) WHERE slot = 1",
    "DELETE FROM key_slots WHERE slot = 0",
    "DELETE FROM key_epochs WHERE slot = 0",
    "INSERT OR REPLACE INTO key_epochs SELECT slot, epoch, 4, x'', 'forged' FROM key_slots WHERE slot = 0",
    "INSERT OR REPLACE INTO key_epochs SELECT slot, epoch + 1, 4, x'', 'forged' FROM key_slots WHERE slot = 0",
    "INSERT OR REPLACE INTO key_epochs SELECT slot, epoch + 1, 1, x'', 'forged' FROM key_slots WHERE slot = 0",
    *(f"UPDATE key_epochs SET state = {state}" for state in range(6)),
    "UPDATE key_epochs SET material = x'00', proof = 'forged'",
    "UPDATE key_wraps SET slot = 1 WHERE customer = x'" + A.hex() + "'",
    "UPDATE key_wraps SET first_epoch = 9 WHERE customer = x'" + A.hex() + "'",
    "UPDATE key_wraps SET first_epoch = -9 WHERE customer = x'" + A.hex() + "'",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A closed key store of two slots that were rotated once, so that there is something to note of them."""
    directory = tmp_path / "keys"
    with LocalKeyService(directory, slots=2) as service:
        for customer in (A, B, C):
            service.create(customer, customer * 2)
        service.rotate()
    return directory


@pytest.mark.parametrize("edit", EDITS)
def test_nothing_is_called_destroyed_that_still_opens(place: Path, tmp_path: Path, edit: str) -> None:
    old = [Wrapped(*row) for row in rows(place, f"SELECT {COLUMNS} FROM key_wraps WHERE customer = ?", A)]
    before = tmp_path / "before"
    shutil.copytree(place, before)
    change(place, edit)
    destroyed = False
    try:
        with open_keys(place) as service:
            store = service._store
            destroyed = service.destroy([A])[0].state == "destroyed"
            service.verify()
    except ShredSaverError:
        with LocalKeyService(before) as service:
            store = service._store
    if destroyed:
        file = RootsFile(place / "roots")
        for root in file.scan():
            for row in old:
                with pytest.raises(UnsealError):
                    unwrap(store, root.key, row)
        file.close()
    # Whoever is read is read rightly, or not at all; and the copy from before the edit has lost nobody.
    for directory in (place, before):
        try:
            service = open_keys(directory)
        except ShredSaverError:
            assert directory == place
            continue
        with service:
            for customer in (A, B, C):
                try:
                    assert service.load(customer, 1).secret == customer * 2
                    assert directory == before or customer != A or not destroyed
                except CustomerShreddedError:
                    assert (directory, customer) == (place, A)
                except ShredSaverError:
                    assert directory == place
