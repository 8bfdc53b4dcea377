"""Time that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from shredsaver.core import Core

BEGIN: Final = 1_900_000_000.0


class Clock:
    """Seconds since the epoch."""

    def __init__(self) -> None:
        self.now = BEGIN

    def seconds(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


CLOCK: Final = Clock()
"""The one of this process."""


def stop() -> Any:
    """From here on every deployment that is opened in this process has this time. Gives what was there before."""
    defaults: Any = Core.__init__.__kwdefaults__
    before, defaults["clock"] = defaults["clock"], CLOCK.seconds
    return before


@contextmanager
def stopped() -> Iterator[Clock]:
    """As `stop`, until the end of the block."""
    CLOCK.now = BEGIN
    before = stop()
    try:
        yield CLOCK
    finally:
        Core.__init__.__kwdefaults__["clock"] = before  # type: ignore[index]
