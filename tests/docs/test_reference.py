"""The reference names every public name, every public method and every option: what is not there is not public."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

import shredsaver
from shredsaver import errors
from shredsaver.commands import app
from shredsaver.kms import KeyService

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
PROSE = "\n".join(FENCE.sub("", page.read_text(encoding="utf-8")) for page in PAGES)
NAMED = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", PROSE))))
ERRORS = [name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__]


def methods(kind: type) -> list[str]:
    """The public methods of a class, its bases in this library included."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("shredsaver")]
    return sorted({name for base in ours for name in vars(base) if not name.startswith("_")})


@pytest.mark.parametrize("name", shredsaver.__all__)
def test_public_names(name: str) -> None:
    assert name in NAMED
    assert inspect.getdoc(getattr(shredsaver, name))


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    assert name in NAMED
    assert name in shredsaver.__all__ or name == "KeyVersionError"


@pytest.mark.parametrize("kind", [shredsaver.Shredder, KeyService], ids=lambda kind: kind.__name__)
def test_methods(kind: type) -> None:
    assert [name for name in methods(kind) if name not in NAMED] == []


def test_commands() -> None:
    assert [name for name in get_command(app).commands if not {*name.split("-")} <= NAMED] == []


def test_options_of_open() -> None:
    options = set(inspect.signature(shredsaver.Shredder.open).parameters)
    assert options - NAMED == set()
