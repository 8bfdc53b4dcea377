"""One measured figure, and the document they are kept in."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

POWER: Final = "power"
"""The unit of an order of growth: the exponent of the power of the size. What does not grow has about 0."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report.

    Attributes:
        figure: What was measured.
        case: At what size or shape.
        backend: ``"sqlite"`` or ``"postgres"``.
        baseline: What ours is compared with; None for a figure that stands alone.
        ours: Our median, in ``unit``.
        theirs: The baseline's median, in ``unit``; None without a baseline.
        unit: Of ``ours`` and ``theirs``.
        ratio: Ours divided by theirs, the median over rounds; None without a baseline.
        spread: Interquartile range of the ratios divided by their median; None for fewer than four rounds, or for what
            does not vary.
        target: Upper bound of ``ratio`` (of ``ours`` where there is no baseline), where the design sets one.
    """

    figure: str
    case: str
    backend: str
    baseline: str | None
    ours: float
    theirs: float | None
    unit: str
    ratio: float | None
    spread: float | None
    target: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        return (self.ours if self.ratio is None else self.ratio) <= self.target


@dataclass(frozen=True, slots=True)
class Failure:
    """A benchmark that did not end well.

    Attributes:
        benchmark: Its name.
        backend: ``"sqlite"`` or ``"postgres"``.
        error: What went wrong, in a line.
    """

    benchmark: str
    backend: str
    error: str


def document(
    machine: dict[str, Any], versions: dict[str, str], results: list[Result], failures: Sequence[Failure] = ()
) -> dict[str, Any]:
    """The JSON document, as plain dicts and lists; it has ``failures`` only where there were some."""
    data = {"machine": machine, "versions": versions, "results": [asdict(result) for result in results]}
    return data | {"failures": [asdict(failure) for failure in failures]} if failures else data


def load(path: Path) -> tuple[dict[str, Any], dict[str, str], list[Result]]:
    """Reads a document back, checked.

    Raises:
        ValueError: It is not a whole document of this suite.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    check(data)
    return data["machine"], data["versions"], [Result(**row) for row in data["results"]]


def check(data: Any) -> None:
    """Makes sure that a document is whole.

    Raises:
        ValueError: Naming the first thing that is missing or out of place.
    """
    if not isinstance(data, dict) or set(data) - {"failures"} != {"machine", "versions", "results"}:
        raise ValueError("the document must hold exactly machine, versions and results, and failures if there were any")
    names = {field.name for field in fields(Result)}
    seen: set[tuple[object, ...]] = set()
    for number, row in enumerate(data["results"]):
        where = f"result {number}"
        if set(row) != names:
            raise ValueError(f"{where}: keys {sorted(set(row) ^ names)} are missing or unknown")
        for name in ("figure", "case", "backend", "unit"):
            if not isinstance(row[name], str) or not row[name]:
                raise ValueError(f"{where}: {name} must be a non-empty string")
        for name in ("ours", "theirs", "ratio", "spread", "target"):
            value = row[name]
            if value is None and name != "ours":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{where}: {name} must be a finite number, not {value!r}")
            if value < 0 and row["unit"] != POWER:
                raise ValueError(f"{where}: {name} must be at least 0, not {value!r}")
        if len({row[name] is None for name in ("baseline", "theirs", "ratio")}) != 1:
            raise ValueError(f"{where}: baseline, theirs and ratio belong together")
        key = (row["figure"], row["case"], row["backend"], row["baseline"])
        if key in seen:
            raise ValueError(f"{where}: {key} is there twice")
        seen.add(key)
