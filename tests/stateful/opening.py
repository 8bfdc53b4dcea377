"""How every process opens the deployment: the same keys, the same time. It imports little, as many processes do so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.stateful import clock
from tests.stateful.clock import CLOCK

SLOTS = 3


def open_keys(kind: str, directory: Path, calls: Any = None) -> Any:
    """A key service in the frozen time."""
    service: Any
    if kind == "aws":
        from shredsaver.kms.aws import AwsKeyService
        from tests.support.aws import FAST

        service = AwsKeyService(str(directory / "keys.db"), calls=calls, **{**FAST, "slots": SLOTS, "spares": 1})
    else:
        from shredsaver.kms.local import LocalKeyService

        service = LocalKeyService(directory, slots=SLOTS)
    service._clock = CLOCK.utc
    return service


def prepare(kind: str, directory: Path, environment: dict[str, str], now: float, options: dict[str, Any]) -> Any:
    """For another process: gives the options to open a `Shredder` with."""
    os.environ.update(environment)
    CLOCK.now = now
    clock.stop()
    return {**options, "keys": open_keys(kind, directory)}
