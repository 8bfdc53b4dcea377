"""The report for reading: one table a backend, targets beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .results import Result

HEADINGS = ("figure", "case", "against", "ours", "theirs", "ratio", "spread", "target", "")


def facts(machine: dict[str, Any], versions: dict[str, str]) -> str:
    """Machine, versions and durability settings, a line each."""
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in machine.items() if name != "durability"]
    lines.append("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    for who, settings in machine.get("durability", {}).items():
        lines.append(f"durability of {who}: " + ", ".join(f"{name}={value}" for name, value in settings.items()))
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """The results as aligned text, a table for each backend."""
    parts = []
    for backend in dict.fromkeys(result.backend for result in results):
        rows = [HEADINGS, *(cells(result) for result in results if result.backend == backend)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        lines = [_line(row, widths) for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        parts.append(f"{backend}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def markdown(results: Iterable[Result]) -> str:
    """The results as a Markdown table."""
    lines = ["| " + " | ".join(heading or "reached" for heading in HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += ["| " + " | ".join(cells(result)) + " |" for result in results]
    return "\n".join(lines)


def cells(result: Result) -> tuple[str, ...]:
    """One result, formatted."""
    alone = result.ratio is None
    target = "" if result.target is None else f"≤ {result.target:g}{' ' + result.unit if alone else ''}"
    return (
        result.figure,
        result.case,
        result.baseline or "",
        amount(result.ours, result.unit),
        "" if result.theirs is None else amount(result.theirs, result.unit),
        "" if result.ratio is None else f"{result.ratio:.3f}" if result.ratio < 0.1 else f"{result.ratio:.2f}",
        "" if result.spread is None else f"{result.spread:.0%}",
        target,
        {None: "", True: "yes", False: "NO"}[result.met],
    )


def amount(value: float, unit: str) -> str:
    """A value with its unit, to three figures; bytes in whole kilobytes and megabytes."""
    if unit == "bytes":
        for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if value >= factor:
                return f"{value / factor:.3g} {name}" if value < 1000 * factor else f"{value / factor:,.0f} {name}"
        return f"{value:.0f} B"
    if value == int(value) and unit not in ("ms", "s", "MB"):
        return f"{value:,.0f} {unit}"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    right = {3, 4, 5, 6, 7}
    return "  ".join(
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
