"""Three pictures from a results document: bytes over turns, a superstep over thread length, a shred over data held."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .results import Result
from .targets import CREATE_AGENT, FIRST_READ, SHRED_CUSTOMERS, SHRED_RECORDS, SIZE, WRITE

OURS, THEIRS, OTHER = "#0b6e4f", "#c8553d", "#8a817c"

Line = tuple[str, str, list[tuple[float, float]]]


def draw(results: Sequence[Result], directory: Path) -> list[Path]:
    """Writes what the results hold enough points for, as SVG. Gives the files.

    Raises:
        ModuleNotFoundError: matplotlib is missing; the extra ``bench`` brings it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, title, across, up, lines, logarithmic in (
        ("bytes", "Database size of one create_agent conversation", "turns", "megabytes", _sizes(results), "both"),
        ("superstep", "Saving one superstep", "messages in the thread", "milliseconds", _times(results, WRITE), "both"),
        ("read", "First read of a thread in a process", "messages in the thread", "milliseconds",
         _times(results, FIRST_READ), "both"),
        ("shred", "Destroying a customer's keys", "records of the customer, or other customers", "milliseconds",
         _shreds(results), "x"),
    ):  # fmt: skip
        if any(len(points) > 1 for _, _, points in lines):
            made.append(_draw(directory / f"{name}.svg", title, across, up, lines, logarithmic))
    return made


def _number(case: str) -> float | None:
    found = re.search(r"([\d,]+) (?:messages?|turns|records|others)\b", case)
    return None if found is None else float(found.group(1).replace(",", ""))


def _lines(
    results: Sequence[Result], figure: str, pattern: str, scale: float, names: dict[str, str]
) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, dict[float, float]] = {}
    for one in results:
        across = _number(one.case)
        if one.figure != figure or one.backend != "sqlite" or across is None or not re.fullmatch(pattern, one.case):
            continue
        lines.setdefault("shredsaver", {})[across] = one.ours * scale
        if one.baseline in names and one.theirs is not None:
            lines.setdefault(names[one.baseline], {})[across] = one.theirs * scale
    return {name: sorted(points.items()) for name, points in lines.items()}


_STOCK = {"SqliteSaver": "SqliteSaver", "SqliteSaver with EncryptedSerializer": "SqliteSaver, EncryptedSerializer"}
_COLOURS = {"shredsaver": OURS, "SqliteSaver": THEIRS, "SqliteSaver, EncryptedSerializer": OTHER}


def _coloured(lines: dict[str, list[tuple[float, float]]]) -> list[Line]:
    return [(name, _COLOURS[name], points) for name, points in lines.items()]


def _sizes(results: Sequence[Result]) -> list[Line]:
    return _coloured(_lines(results, SIZE, rf"{CREATE_AGENT}, [\d,]+ turns", 1e-6, _STOCK))


def _times(results: Sequence[Result], figure: str) -> list[Line]:
    return _coloured(_lines(results, figure, r"[\d,]+ messages?", 1, _STOCK))


def _shreds(results: Sequence[Result]) -> list[Line]:
    records = _lines(results, SHRED_RECORDS, r"[\d,]+ records", 1, {}).get("shredsaver", [])
    others = _lines(results, SHRED_CUSTOMERS, r"[\d,]+ others", 1, {}).get("shredsaver", [])
    return [("by the customer's own records", OURS, records), ("by the number of other customers", OTHER, others)]


def _draw(path: Path, title: str, across: str, up: str, lines: Sequence[Line], logarithmic: str) -> Path:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    style: Any = {"svg.hashsalt": "shredsaver", "svg.fonttype": "path", "font.size": 11}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for name, colour, points in lines:
            if not points:
                continue
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, marker="o", markersize=4, linewidth=2)
            axes.annotate(name, (xs[-1], ys[-1]), (6, 0), textcoords="offset points", color=colour, va="center")
        axes.set_xscale("log")
        if logarithmic == "both":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
            axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({x for _, _, points in lines for x, _ in points}), minor=False)
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.05)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.5)  # room for the names at the lines' ends
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    return path
