"""No command is without a test that runs it as a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from shredsaver.commands import app

RUNNERS = {"run", "json", "tell", "shredsaver"}
"""What calls of the tests of this folder run the command line, its words as their arguments."""


def names(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of the application, as the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words
        return
    for word, one in inner.items():
        yield from names(one, (*words, word))


def texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "" for node in nodes]


def run_as_processes(source: str) -> Iterator[list[str]]:
    """The command lines that a test module runs: calls of a runner, and lists that name the program."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RUNNERS:
                yield texts(node.args)
        elif isinstance(node, ast.List) and "shredsaver" in texts(node.elts):
            found = texts(node.elts)
            yield found[found.index("shredsaver") + 1 :]


def test_every_command_is_run_as_a_process() -> None:
    lines = [line for path in Path(__file__).parent.glob("test_*.py") for line in run_as_processes(path.read_text())]
    commands = list(names(get_command(app)))
    assert len(commands) > 25
    without = [" ".join(words) for words in commands if not any(line[: len(words)] == [*words] for line in lines)]
    assert without == []


def test_every_command_answers_machines_too() -> None:
    def options(words: tuple[str, ...]) -> set[str]:
        command: Any = get_command(app)
        for word in words:
            command = command.commands[word]
        return {option for parameter in command.params for option in parameter.opts}

    without = {" ".join(words) for words in names(get_command(app)) if "--json" not in options(words)}
    assert without == {"export", "bench"}, "an export is JSON anyway, benchmarks have a command of their own for it"
