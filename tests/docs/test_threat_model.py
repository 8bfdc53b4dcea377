"""The threat model names every guarantee with its parts, and the tests that show it exist and are collected."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(
        r"^## (G\d+): .*?$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
}


def test_every_guarantee_has_a_section() -> None:
    assert list(SECTIONS) == [f"G{number}" for number in range(1, 11)]


@pytest.mark.parametrize("guarantee", SECTIONS)
def test_a_guarantee_is_whole(guarantee: str) -> None:
    parts = re.findall(r"^\*\*(\w+)\.\*\*", SECTIONS[guarantee], re.MULTILINE)
    assert parts == ["Promise", "Attacker", "Limits", "Tests"]


@pytest.mark.parametrize("guarantee", SECTIONS)
def test_a_guarantee_is_shown_by_tests(guarantee: str) -> None:
    files = re.findall(r"\]\((\.\./tests/[\w/]+\.py)\)", SECTIONS[guarantee].split("**Tests.**")[1])
    assert files
    for file in files:
        tree = ast.parse((PAGE.parent / file).read_text(encoding="utf-8"))
        names = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        assert any(name.startswith(("test_", "Test")) for name in names) or "TestCase" in ast.dump(tree), file
