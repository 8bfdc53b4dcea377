"""The reference of the command line is made of the help texts. ``python -m tests.docs.test_command_line`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from shredsaver.commands import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
BEGIN, END = "<!-- commands -->\n", "<!-- end of commands -->\n"
SHARED = {"--database", "--keys", "--json", "--help"}
"""Options that the page explains once."""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key, value in inner.items():
        yield from commands(value, f"{name} {key}".strip())


def described(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{parameter.name.upper()}` | {parameter.help} |"
    needed = " Required." if parameter.required else ""
    return f"| {', '.join(f'`{option}`' for option in parameter.opts)} | {parameter.help}{needed} |"


def generated() -> str:
    """One section a command: its help text, and the options that are its own."""
    sections = []
    for name, command in sorted(commands(get_command(app), "")):
        own = [each for each in command.params if not SHARED & {*each.opts}]
        table = ["", "| option | meaning |", "|---|---|", *map(described, own)] if own else []
        sections.append("\n".join([f"### `{name}`", "", " ".join(command.help.split()), *table]))
    return "\n" + "\n\n".join(sections) + "\n\n"


def test_the_page_says_what_help_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == generated(), "python -m tests.docs.test_command_line"


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + generated() + END + rest.partition(END)[2], encoding="utf-8")
