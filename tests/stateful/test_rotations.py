"""Rotations between the transactions of writes, of each other and of a shred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.stateful.rotations import Rotations
from tests.stateful.running import LONG, QUICK, run


@pytest.mark.parametrize("key_place", ["local"], indirect=True)
def test_some_rotations(home: Path, database_place: Any, key_place: Any) -> None:
    run(Rotations, home, database_place, key_place, settings(QUICK, stateful_step_count=20))


@pytest.mark.slow
def test_rotations_for_long(home: Path, database_place: Any, key_place: Any) -> None:
    done = run(Rotations, home, database_place, key_place, settings(LONG, stateful_step_count=60))
    print(f"{done.examples} examples, {done.taken} steps between transactions")
