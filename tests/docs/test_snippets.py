"""Every snippet of the documentation runs, and prints what the page says it prints.

The Python blocks of a page share one namespace and one empty directory, as for a reader who types them in order. A
``text`` block right after a Python block is what that block prints. Of ``bash`` blocks the lines that start with
``shredsaver`` run too; the others are installations and the like, which the CI script runs. A block under the comment
``<!-- needs postgres -->`` finds a real server behind the URL it names, one under ``<!-- needs aws -->`` the tests'
fake of AWS KMS.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.kms_server import KmsServer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
POSTGRES_URL = re.compile(r"postgresql://[^\s\"']+")


class Block(NamedTuple):
    """A fenced block: what it is, its text, the line it starts on, what stands between it and the block before."""

    language: str
    text: str
    line: int
    lead: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found, end = [], 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, text[end : match.start()].strip()))
        end = match.end()
    return found


def is_ours(block: Block) -> bool:
    """Whether a block is shell and calls nothing but this library."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return block.language == "bash" and all(line.startswith(("shredsaver ", "export SHREDSAVER_")) for line in lines)


def runnable(page: Path) -> bool:
    return any(block.language == "python" or is_ours(block) for block in blocks(page))


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ``shredsaver`` of this very interpreter, on the path."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "shredsaver"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m shredsaver "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def kms() -> Iterator[KmsServer]:
    with KmsServer() as server:
        yield server


def test_fences_are_closed() -> None:
    for page in PAGES:
        fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), page


@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_does_what_it_says(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    command: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    exported: list[str] = []
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        source = block.text
        if "<!-- needs postgres -->" in block.lead:
            database = request.getfixturevalue("postgres").database()
            request.addfinalizer(database.drop)
            source = POSTGRES_URL.sub(database.url, source)
        if "<!-- needs aws -->" in block.lead:
            for name, value in request.getfixturevalue("kms").environment.items():
                monkeypatch.setenv(name, value)
        if block.language == "python":
            # Line numbers of a traceback are then those of the page.
            exec(compile("\n" * (block.line - 1) + source, str(page), "exec"), namespace)
            printed = capsys.readouterr().out.strip()
        elif is_ours(block):
            # A reader has one shell for the page.
            exported += [line for line in source.splitlines() if line.startswith("export ")]
            source = "\n".join([*exported, source])
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", source], check=False, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
            printed = done.stdout.strip()
        elif block.language == "text" and printed is not None and not block.lead:
            assert printed == block.text.strip(), where
            printed = None
