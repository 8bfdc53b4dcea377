"""The benchmarks by command: the smallest of them, so small that nothing is measured."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_commands import World


def test_benchmarks_run(home: Path) -> None:
    run = World(home)
    assert "20 supersteps of one customer" in run("bench", "--smoke", "--only", "^key-service calls$")
    assert run("bench", "--smoke", "--only", "no such benchmark", expect=1) == ""
