"""An erasure that is not complete, by command: a receipt says what is known, or it is said why there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shredsaver.receipts import verify
from tests.cli.test_commands import TARGETS, World
from tests.support.waiting import SECONDS

AWAY = """
import sys
from shredsaver.cli import main
from shredsaver.errors import KeyServiceUnavailableError
from shredsaver.kms.local import LocalKeyService
def destroy(self, *_, **__):
    raise KeyServiceUnavailableError("the key service does not answer")
LocalKeyService.destroy = destroy
sys.argv = ["shredsaver", *sys.argv[1:]]
main()
"""
"""The command line of a process whose key service destroys nothing."""


class Told(World):
    """The command line, with all that a command says."""

    def tell(self, *arguments: str, code: str | None = None) -> tuple[int, str, str]:
        start = ["-c", code] if code else ["-m", "shredsaver"]
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def receipts(self, name: str) -> list[Any]:
        with self.open() as shredder:
            public = shredder.public_key()
        return [verify(line, public).payload for line in (self.home / name).read_text().split()]


@pytest.fixture
def run(home: Path) -> Told:
    (home / "our_targets.py").write_text(TARGETS)
    told = Told(home)
    with told.open():
        pass
    told.environment["SHREDSAVER_TARGETS"] = "our_targets:TARGETS"
    told.write("c-1", "c-2")
    return told


def test_a_target_that_fails(run: Told) -> None:
    (run.home / "away").touch()
    code, out, error = run.tell("shred", "c-1", "c-2", "--yes", "--receipt", "receipts.txt", "--json")
    assert code == 3
    assert error.count("says what is still to be done: target:notes") == 2
    assert error.splitlines()[-1].startswith("shredsaver: the erasure is not complete")
    results = json.loads(out)
    assert [one["pending"] for one in results] == [["target:notes"]] * 2
    said = run.receipts("receipts.txt")
    assert [(one["state"], one["pending"]) for one in said] == [("pending", ["target:notes"])] * 2
    assert [one["targets"]["notes"]["status"] for one in said] == ["failed"] * 2

    assert run.tell("resume", "--receipt", "receipts.txt")[0] == 3
    assert [one["number"] for one in run.receipts("receipts.txt")] == [3, 4]
    (run.home / "away").unlink()
    code, out, error = run.tell("resume", "--receipt", "receipts.txt")
    assert (code, error.strip()) == (0, "")  # older versions of rich end what shows progress with an empty line
    assert "2 erasures went on" in out
    assert [one["state"] for one in run.receipts("receipts.txt")] == ["complete"] * 2


def test_keys_that_cannot_be_destroyed_yet(run: Told) -> None:
    code, out, error = run.tell("shred", "c-1", "--yes", "--receipt", "receipts.txt", "--json", code=AWAY)
    assert code == 3
    assert not (run.home / "receipts.txt").exists()
    assert "receipts.txt was not written: there is no receipt yet" in error
    assert "its keys are not destroyed yet; resume goes on" in error
    assert "to be done" in error or "call resume" in error
    (result,) = json.loads(out)
    assert (result["state"], result["receipt"]) == ("revoked", None)
    assert run.tell("resume", "--receipt", "receipts.txt", code=AWAY)[0] == 3
    assert not (run.home / "receipts.txt").exists()
    assert run.tell("resume", "--receipt", "receipts.txt")[0] == 0
    assert [one["state"] for one in run.receipts("receipts.txt")] == ["complete"]


@pytest.mark.parametrize("how", ["--grace", "--defer"])
def test_an_erasure_that_waits(run: Told, how: str) -> None:
    (run.home / "receipts.txt").write_text("an earlier one\n")
    if how == "--defer":
        run("hold", "c-1", "--reason", "case 7")
    wait = (how, "24") if how == "--grace" else (how,)
    code, out, error = run.tell("shred", "c-1", "--yes", *wait, "--receipt", "receipts.txt")
    assert code == 0
    assert "scheduled" in out
    assert "nothing is destroyed before 20" in error
    assert "receipts.txt was not written" in error
    assert (run.home / "receipts.txt").read_text() == "an earlier one\n"
    if how == "--defer":
        run("release", "c-1")
        # The hold has ended: opening the database is enough.
        assert run.json("status", "c-1")["state"] == "purged"
        assert run.json("resume") == []


@pytest.mark.parametrize("place", [".", "nowhere/receipts.txt"])
def test_a_place_that_takes_no_receipt_is_refused_before_anything_is_done(run: Told, place: str) -> None:
    code, _, error = run.tell("shred", "c-1", "--yes", "--receipt", place)
    assert code == 2
    assert "nothing was done" in error
    assert run.json("status", "c-1")["state"] == "live"
    assert run.tell("resume", "--receipt", place)[0] == 2
