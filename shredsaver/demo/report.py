"""What the experiment found, and what it must find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Counts:
    """In how many places a private thing can be opened.

    Attributes:
        checkpoint_rows: Checkpoints that hold it in a channel or in metadata.
        write_rows: Pending writes that hold it.
        store_keys: Store items that hold it.
        resumable: Snapshots that hold it and that a run can be started from. They are some of the checkpoints.
    """

    checkpoint_rows: int = 0
    write_rows: int = 0
    store_keys: int = 0
    resumable: int = 0

    @property
    def locations(self) -> int:
        """Stored locations, each a row of its own."""
        return self.checkpoint_rows + self.write_rows + self.store_keys


FOUND: Final = Counts(checkpoint_rows=18, write_rows=1, store_keys=1, resumable=17)
GONE: Final = Counts()
WAYS_IN: Final = 24  # four calls, each blocking and async, each with the customer, the thread alone, an old snapshot


@dataclass
class Outcome:
    """What one side showed.

    Attributes:
        before: After the last turn.
        cleared: After the state was cleared.
        erased: After the customer was erased.
        raw: At these three moments: whether the private thing can be read in the database without any key.
        backup_before: What a copy made before the erasure gives when opened before it; None where none was made.
        backup_after: What the same copy gives when opened after it, with today's keys.
        fork_before: Whether forking from an old snapshot brings it back although the state was cleared.
        attempted: The calls that were tried on the erased customer's thread; none where nothing is promised.
        refused: Those of them that gave `CustomerShreddedError`.
        other_goes_on: Whether another customer kept everything and could go on.
    """

    before: Counts = GONE
    cleared: Counts = GONE
    erased: Counts = GONE
    raw: list[bool] = field(default_factory=list)
    backup_before: Counts | None = None
    backup_after: Counts | None = None
    fork_before: bool = False
    attempted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    other_goes_on: bool = False


@dataclass(frozen=True)
class Check:
    """One result and what it must be."""

    name: str
    expected: Any
    found: Any

    @property
    def ok(self) -> bool:
        """Whether it is what it must be."""
        return bool(self.expected == self.found)


@dataclass(frozen=True)
class Report:
    """Both sides."""

    stock: Outcome
    sealed: Outcome

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every result held against what it must be."""
        return tuple(_checks(self.stock, self.sealed))

    @property
    def failed(self) -> tuple[Check, ...]:
        """The results that are not what they must be."""
        return tuple(check for check in self.checks if not check.ok)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "ok": not self.failed,
            "checks": len(self.checks),
            "failed": [asdict(check) for check in self.failed],
            "stock": asdict(self.stock),
            "shredsaver": asdict(self.sealed),
        }


def _checks(stock: Outcome, sealed: Outcome) -> Iterator[Check]:
    for name, side in (("stock", stock), ("shredsaver", sealed)):
        yield Check(f"{name}: after the last turn", FOUND, side.before)
        yield Check(f"{name}: state cleared", FOUND, side.cleared)
        yield Check(f"{name}: customer erased", GONE, side.erased)
        yield Check(f"{name}: a fork brings it back while it is stored", True, side.fork_before)
        yield Check(f"{name}: another customer goes on", True, side.other_goes_on)
    # Whether deleted rows stay readable in a stock file depends on how its SQLite was built: shown, not required.
    yield Check("stock: readable in the files while stored", [True, True], stock.raw[:2])
    yield Check("stock: the backup before and after", (FOUND, FOUND), (stock.backup_before, stock.backup_after))
    yield Check("shredsaver: readable in the files", [False, False, False], sealed.raw)
    yield Check("shredsaver: ways into the thread tried", WAYS_IN, len(sealed.attempted))
    yield Check("shredsaver: calls that are refused", sealed.attempted, sealed.refused)
    if sealed.backup_before is not None:
        yield Check("shredsaver: the backup before", FOUND, sealed.backup_before)
        yield Check("shredsaver: the backup after", GONE, sealed.backup_after)
