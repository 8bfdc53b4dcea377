"""Puts measured figures into a Markdown page, between the comments that mark where they belong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import markdown
from .results import Result

BLOCKS = ("setting", "targets", "missed", "others")


def fill(page: Path, machine: dict[str, Any], versions: dict[str, str], results: Sequence[Result]) -> None:
    """Replaces what stands between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` for every name of `BLOCKS`.

    Raises:
        ValueError: The page lacks one of the marks.
    """
    content = {
        "setting": _setting(machine, versions),
        "targets": markdown([result for result in results if result.target is not None]),
        "missed": _missed(results),
        "others": markdown([result for result in results if result.target is None]),
    }
    text = page.read_text(encoding="utf-8")
    for name in BLOCKS:
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(marked.findall(text)) != 1:
            raise ValueError(f"{page}: {begin} … {end} must be there once")
        filled = f"{begin}\n\n{content[name]}\n\n{end}"
        text = marked.sub(lambda _match, filled=filled: filled, text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def _setting(machine: dict[str, Any], versions: dict[str, str]) -> str:
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in machine.items() if name != "durability"]
    for who, settings in machine.get("durability", {}).items():
        lines.append(f"- durability of {who}: " + ", ".join(f"{name} = {value}" for name, value in settings.items()))
    lines.append("- versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return "\n".join(lines)


def _missed(results: Sequence[Result]) -> str:
    measured = [result for result in results if result.target is not None]
    missed = [result for result in measured if not result.met]
    lines = [f"{len(measured) - len(missed)} of {len(measured)} targets were reached in this run."]
    for result in missed:
        value = result.ours if result.ratio is None else result.ratio
        against = f" against {result.baseline}" if result.baseline else f" {result.unit}"
        lines.append(f"- {result.figure}, {result.case}: {value:.3g}{against}, not {result.target:g}")
    return "\n".join([lines[0], *([""] if missed else []), *lines[1:]])
