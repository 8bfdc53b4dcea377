"""The demo as a process and in-process: its numbers, and that it says so when one is wrong."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from typer.testing import CliRunner

from shredsaver.commands import app
from shredsaver.demo.experiment import run_demo
from shredsaver.demo.person import Person, refused
from shredsaver.demo.report import FOUND, GONE, WAYS_IN, Counts
from shredsaver.demo.sides import SealedSide, StockSide
from shredsaver.errors import CustomerShreddedError, KeyServiceUnavailableError
from tests.support.backends import Backend
from tests.support.waiting import SECONDS

TIMEOUT = 120
# The second: Python 3.14 deprecates what LangSmith, which LangChain brings, calls as it is imported.
WARNINGS = (
    "-Werror",
    "-Wignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning:langsmith._internal._beta_decorator",
)


def run(*arguments: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command as a process; ``blocked`` modules cannot be imported there, as if they were not installed."""
    program = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        f"sys.argv = ['shredsaver', *{arguments!r}]\n"
        "from shredsaver.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, *WARNINGS, "-c", program], check=False, capture_output=True, text=True, timeout=SECONDS
    )


def test_as_a_process_for_machines() -> None:
    done = run("demo", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["failed"] == []
    twenty = {"checkpoint_rows": 18, "write_rows": 1, "store_keys": 1, "resumable": 17}
    nothing = dict.fromkeys(twenty, 0)
    for side in ("stock", "shredsaver"):
        assert report[side]["before"] == report[side]["cleared"] == report[side]["backup_before"] == twenty
        assert report[side]["erased"] == nothing
        assert report[side]["fork_before"] is True
        assert report[side]["other_goes_on"] is True
    assert report["stock"]["backup_after"] == twenty
    assert report["stock"]["raw"][:2] == [True, True]
    assert report["shredsaver"]["backup_after"] == nothing
    assert report["shredsaver"]["raw"] == [False, False, False]
    assert len(report["shredsaver"]["attempted"]) == WAYS_IN
    assert report["shredsaver"]["refused"] == report["shredsaver"]["attempted"]


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """The lines that the demo prints for people."""
    done = subprocess.run(
        [sys.executable, "-m", "shredsaver", "demo"], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_as_a_process_for_people(printed: list[str]) -> None:
    rows = {line.split("  ")[0].strip(): line.replace("│", " ").split()[-6:] for line in printed}
    assert rows["checkpoint rows"] == ["18", "18", "0", "18", "18", "0"]
    assert rows["pending-write rows"] == ["1", "1", "0", "1", "1", "0"]
    assert rows["store items"] == ["1", "1", "0", "1", "1", "0"]
    assert rows["= stored locations"] == ["20", "20", "0", "20", "20", "0"]
    assert rows["the same, in a backup"][-4:] == ["20", "20", "20", "0"]
    assert rows["snapshots to resume from"] == ["17", "17", "0", "17", "17", "0"]
    assert rows["readable in the raw files"][-3:] == ["no", "no", "no"]
    assert max(map(len, printed)) <= 100


def test_the_readme_shows_what_the_demo_prints(printed: list[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = [line.split() for line in readme.splitlines() if "│" in line]
    assert shown == [line.split() for line in printed if "│" in line]


def test_on_every_backend_and_again_in_the_same_database(backend: Backend, keys: str) -> None:
    for _ in range(2):
        report = run_demo(backend.url, keys)
        assert not report.failed
        assert report.sealed.before == FOUND
        assert report.sealed.erased == GONE


def test_counting_through_the_api_agrees_with_counting_rows(tmp_path: Path) -> None:
    path = tmp_path / "stock.sqlite"
    with StockSide.open(path) as side:
        ana = Person(side.opened, "ana")
        ana.say("My diagnosis is MARKER.")
        ana.remember("MARKER")
        for turn in range(6):
            ana.say(f"Question {turn}?")
        assert ana.count("MARKER") == FOUND
        with closing(sqlite3.connect(path)) as connection:
            found = [
                connection.execute(f"SELECT count(*) FROM {table} WHERE instr({value}, x'4d41524b4552')").fetchone()
                for table, value in (
                    ("checkpoints", "checkpoint"),
                    ("writes", "value"),
                    ("store", "CAST(value AS BLOB)"),
                )
            ]
        assert found == [(18,), (1,), (1,)]
        assert not ana.knows("diagnosis is MARKER")


def test_an_erasure_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SealedSide, "erase", lambda *_: None)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 1
    for name in ("customer erased", "calls that are refused", "the backup after"):
        assert f"✗ shredsaver: {name}" in done.output


def test_a_store_that_still_serves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SealedSide.__init__

    def beside(side: SealedSide, *arguments: Any) -> None:
        made(side, *arguments)
        side.opened = side.opened._replace(store=InMemoryStore())

    monkeypatch.setattr(SealedSide, "__init__", beside)
    report = run_demo()
    assert "shredsaver: customer erased" in [check.name for check in report.failed]
    assert report.sealed.erased == Counts(store_keys=1)


def test_a_database_that_leaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def legible(side: SealedSide) -> list[bytes]:
        return [repr([row.checkpoint for row in side.opened.saver.list(None)]).encode()]

    monkeypatch.setattr(SealedSide, "raw", legible)
    report = run_demo()
    assert [check.name for check in report.failed] == ["shredsaver: readable in the files"]
    assert report.sealed.raw[:2] == [True, True]


def test_any_other_error_is_no_refusal() -> None:
    def denied() -> None:
        raise KeyServiceUnavailableError("the key service cannot be reached")

    def shredded() -> None:
        raise CustomerShreddedError("shredded")

    assert refused(shredded)
    assert not refused(lambda: None)
    with pytest.raises(KeyServiceUnavailableError):
        refused(denied)


@pytest.mark.parametrize("option", ["--database", "--keys"])
def test_database_and_keys_go_together(option: str, tmp_path: Path) -> None:
    done = run("demo", option, str(tmp_path / "x"))
    assert done.returncode == 2
    assert done.stderr.startswith("shredsaver: give --database and --keys together")
    assert not list(tmp_path.iterdir())


def test_unknown_keys_are_one_line(tmp_path: Path) -> None:
    done = run("demo", "--database", str(tmp_path / "x.sqlite"), "--keys", "nonsense:x")
    assert done.returncode == 2
    assert done.stderr.startswith("shredsaver: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("typer", "cli"), ("rich", "cli"), ("langchain", "demo"), ("langgraph.checkpoint.sqlite", "demo")],
)
def test_what_is_not_installed_is_named_with_the_cure(missing: str, extra: str) -> None:
    done = run("demo", blocked=(missing,))
    assert done.returncode == 2
    assert missing.split(".", maxsplit=1)[0] in done.stderr
    assert f"pip install 'shredsaver[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
