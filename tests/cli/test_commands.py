"""Each command as a process: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from shredsaver import ConfigurationError, CustomerShreddedError, KeyNotFoundError, Shredder
from shredsaver.commands import app
from shredsaver.commands.options import whole_file
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.waiting import SECONDS

CALL = Caller("sync")
TARGETS = """
class Notes:
    name, after = "notes", "revoked"
    def erase(self, context):
        if __import__("os").path.exists("away"):
            raise OSError
    def remaining(self, context):
        return 0
TARGETS = [Notes()]
"""


class World:
    """A deployment in a directory, and the command line."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **os.environ,
            "SHREDSAVER_DATABASE": str(home / "atlas.sqlite"),
            "SHREDSAVER_KEYS": f"file:{home / 'keys'}?slots=4",
            "COLUMNS": "200",
        }

    def open(self) -> Any:
        return Shredder.open(self.environment["SHREDSAVER_DATABASE"], keys=self.environment["SHREDSAVER_KEYS"])

    def write(self, *customers: str) -> None:
        with self.open() as shredder:
            for customer in customers:
                put(CALL, shredder.saver, config(f"t-{customer}", customer), {"x": "TEXT"})
                shredder.store.put(("users", customer), "note", {"v": "TEXT"})

    def __call__(self, *arguments: str, expect: int = 0, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "shredsaver", *arguments],
            cwd=self.home,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
        if expect in (2, 3):
            assert "Traceback" not in done.stderr
            return done.stderr
        return done.stdout

    def json(self, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", expect=expect))


@pytest.fixture
def run(home: Path) -> World:
    return World(home)


def test_a_customers_whole_way(run: World) -> None:
    assert "ready" in run("init")
    run.write("c-1", "c-2", "c-3")
    assert run.json("status", "c-1")["state"] == "live"
    assert {one["customer_id"] for one in run.json("customers")} == {"c-1", "c-2", "c-3"}
    plan = run.json("plan", "c-1")
    audit = run.json("audit", "c-1")
    assert audit["routes"]["items"] == {"rows": 1, "opens": 1}
    run("export", "c-1", "--to", "c-1.jsonl")
    assert "TEXT" in (run.home / "c-1.jsonl").read_text()
    assert run.json("restrict", "c-1", "--reason", "art-18")["state"] == "restricted"
    assert "TEXT" in run("export", "c-1"), "whose use is restricted can still be told what is held"
    assert run.json("reinstate", "c-1")["state"] == "live"
    assert run.json("hold", "c-1", "--reason", "case 7", "--until", "2999-01-01T00:00:00+00:00")["held_until"]
    assert len(run.json("customers", "--held")) == 1
    assert "hold" in run("shred", "c-1", "--yes", expect=3)
    assert run.json("release", "c-1")["held_until"] is None

    assert "--yes" in run("shred", "c-1", expect=2)
    assert "never seen" in run("shred", "c-9", "--yes", expect=2)
    (done,) = run.json("shred", "c-1", "--yes", "--reason", "art-17/7", "--by", "dpo", "--receipt", "receipts.txt")
    assert (done["state"], done["before"]) == ("purged", plan["counts"])
    assert run.json("audit", "c-1")["routes"]["checkpoints"] == {"rows": 0, "opens": 0}
    assert "shredded" in run("export", "c-1", expect=3)
    assert "shredded" in run("import", "c-1.jsonl", expect=3)
    (run.home / "no-text").write_bytes(b"\xff\n")
    assert "line 1" in run("import", "no-text", expect=3)
    (run.home / "public.pem").write_text(run("public-key"))
    # Whoever checks has the two files and nothing else.
    checker = {"SHREDSAVER_DATABASE": "", "SHREDSAVER_KEYS": ""}
    assert "verifies" in run("verify", "receipts.txt", "--key", "public.pem", **checker)
    run("certificate", "receipts.txt", "--key", "public.pem", "--to", "certificate.html", **checker)
    assert "art-17/7" in (run.home / "certificate.html").read_text()
    text = (run.home / "receipts.txt").read_text()
    (run.home / "forged.txt").write_text(text[:-6] + ("AAAA" if text[-6:-2] != "AAAA" else "BBBB") + text[-2:])
    assert "signature" in run("verify", "forged.txt", "--key", "public.pem", expect=3)
    (run.home / "other.pem").write_text("no key")
    run("verify", "receipts.txt", "--key", "other.pem", expect=3)

    assert run.json("enrol", "c-1")["generation"] == 2
    assert run.json("import", "c-1.jsonl") == {"lines": 3}
    assert run.json("audit", "c-1")["routes"]["items"]["opens"] == 1
    (later,) = run.json("shred", "c-2", "--yes", "--grace", "24")
    assert later["state"] == "scheduled"
    assert run.json("resume") == []
    assert run.json("reinstate", "c-2")["state"] == "live"
    run("shred", "c-2", "c-3", "--yes", "--no-purge")
    assert len(run("receipts").split()) == 3


def test_an_export_is_its_owners_alone_and_whole_or_not_there(run: World) -> None:
    run("init")
    run.write("c-1")
    before = {path.name for path in run.home.iterdir()}
    assert "cannot be written" in run("export", "c-1", "--to", "nowhere/c-1.jsonl", expect=2)
    assert "is no file" in run("export", "c-1", "--to", "keys", expect=2)
    (run.home / "link.jsonl").symlink_to("c-1.jsonl")
    run("export", "c-1", "--to", "link.jsonl")
    made = run.home / "c-1.jsonl"
    assert made.stat().st_mode & 0o777 == 0o600
    whole = made.read_text()
    run("export", "c-9", "--to", "c-1.jsonl", expect=2)
    assert made.read_text() == whole, "an export that was refused takes nothing away"
    assert {path.name for path in run.home.iterdir()} == before | {"c-1.jsonl", "link.jsonl"}


def test_a_file_that_could_not_be_finished_is_not_left_behind(home: Path) -> None:
    def write_until_the_disk_is_full() -> None:
        with whole_file(home / "c-1.jsonl") as file:
            file.write("half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigurationError, match="cannot be written: No space left"):
        write_until_the_disk_is_full()
    assert list(home.iterdir()) == []


def test_progress_is_shown_on_a_terminal_and_nowhere_else(run: World) -> None:
    run("init")
    run.write("c-1")
    main, other = pty.openpty()
    command = [sys.executable, "-m", "shredsaver", "export", "c-1"]
    environment = {**run.environment, "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=run.home, env=environment, stdout=subprocess.PIPE, stderr=other)
    os.close(other)
    shown = b""
    with suppress(OSError):  # what a terminal says when nobody writes to it any more
        while more := os.read(main, 4096):
            shown += more
    os.close(main)
    lines = process.communicate(timeout=SECONDS)[0].decode()
    assert process.returncode == 0
    assert b"lines" in shown
    assert [json.loads(line)["type"] for line in lines.splitlines()] == ["export", "checkpoint", "item"]


def test_looking_after_a_deployment(run: World) -> None:
    run("init")
    run.write("c-1")
    names = [one["name"] for one in run.json("routes")]
    assert "store items" in names
    assert "replicas" in run("routes", SHREDSAVER_DATABASE="", SHREDSAVER_KEYS="")
    findings = {one["name"]: one for one in run.json("doctor")}
    assert {one["verdict"] for one in findings.values()} <= {"good", "warning"}
    for name in ("versions", "clock", "keys", "log of erasures", "receipts", "schema", "permissions", "copies of keys"):
        assert name in findings
    assert findings["copies of keys"]["advice"]
    everybody = run.json("audit")
    assert (everybody["status"], everybody["routes"]["items"]) == (None, {"rows": 1, "opens": 1})
    assert run.json("keys", "check")["problems"] == []
    assert run.json("rotate")["slots"] >= 1
    assert run.json("rotate", "c-1")["key_version"] == 2
    run("shred", "c-1", "--yes")
    run("rotate", "--signing-key")
    run.write("c-2")
    run("shred", "c-2", "--yes")
    (run.home / "all.txt").write_text(run("receipts"))
    (run.home / "first.pem").write_text(run.json("public-key", "--all")[0])
    (run.home / "keys.pem").write_text(run("public-key", "--all"))
    for trusted in ("first.pem", "keys.pem"):
        assert "3 receipts verify" in run("verify", "all.txt", "--key", trusted)
    assert run.json("reconcile")["revoked"] == 0
    assert run.json("adopt", "restore")["forked"] is False
    assert "restore" in run("adopt", "something", expect=2)


def test_keys_are_mirrored_and_escrowed(run: World) -> None:
    run("init")
    run.write("c-1", "c-2")
    run("shred", "c-1", "--yes")
    mirrored = run("keys", "mirror", "second").strip()
    assert "mirror=" in mirrored
    assert "named" in run("status", "c-2", expect=2), "a process that does not know the mirror is refused"
    run.environment["SHREDSAVER_KEYS"] = mirrored
    assert run.json("status", "c-2")["state"] == "live"
    assert (run.home / "second" / "roots").stat().st_mode & 0o077 == 0

    secret = {"PASS": "correct horse battery"}
    run("keys", "escrow", "escrow.bin", "--passphrase-env", "PASS", **secret)
    assert (run.home / "escrow.bin").stat().st_mode & 0o077 == 0
    assert "made" in run("keys", "escrow", "escrow.bin", "--passphrase-env", "PASS", expect=2, **secret)
    run("keys", "restore-escrow", "escrow.bin", "--passphrase-env", "PASS", **secret)
    new = {"SHREDSAVER_KEYS": f"file:{run.home / 'new'}?slots=4"}
    assert "wrong" in run(
        "keys", "restore-escrow", "escrow.bin", "--passphrase-env", "PASS", PASS="another one", expect=3, **new
    )
    other = {"SHREDSAVER_KEYS": f"file:{run.home / 'other'}"}
    run("init", SHREDSAVER_DATABASE=str(run.home / "other.sqlite"), **other)
    assert "belongs to" in run(
        "keys", "restore-escrow", "escrow.bin", "--passphrase-env", "PASS", expect=2, **secret, **other
    )
    # All keys are lost. With the escrow the database says who was erased, and the others' data is known to be lost.
    run("keys", "restore-escrow", "escrow.bin", "--passphrase-env", "PASS", **secret, **new)
    assert json.loads(run("status", "c-1", "--json", **new))["state"] == "purged"
    assert "no generation" in run("export", "c-2", expect=3, **new)
    (run.home / "public.pem").write_text(run("public-key", **new))
    (run.home / "receipts.txt").write_text(run("receipts", **new))
    run("verify", "receipts.txt", "--key", "public.pem")


def test_targets_and_journal_come_from_the_environment(run: World) -> None:
    (run.home / "our_targets.py").write_text(TARGETS)
    run.environment |= {"SHREDSAVER_TARGETS": "our_targets:TARGETS", "SHREDSAVER_JOURNAL": str(run.home / "journal")}
    run("init")
    run.write("c-1")
    assert "target notes" in run("routes")
    (run.home / "away").touch()
    assert "target:notes" in run("shred", "c-1", "--yes", expect=3)
    assert run.json("status", "c-1")["pending"] == ["target:notes"]
    (run.home / "away").unlink()
    (done,) = run.json("resume")
    assert done["targets"]["notes"]["status"] == "erased"
    assert (run.home / "journal").read_text().count("\n") == 1
    assert "there is no such list" in run("status", "c-1", expect=2, SHREDSAVER_TARGETS="nowhere:TARGETS")


def test_a_restored_database(run: World) -> None:
    run("init")
    run.write("c-1", "c-2")
    old = (run.home / "atlas.sqlite").read_bytes()
    run("shred", "c-1", "--yes")
    (run.home / "receipts.txt").write_text(run("receipts"))
    for damaged in run.home.glob("atlas.sqlite*"):
        damaged.rename(run.home / f"damaged-{damaged.name}")  # a file in the place of a deleted one may get its number
    (run.home / "atlas.sqlite").write_bytes(old)
    assert "restore" in run("shred", "c-2", "--yes", expect=3)
    found = run.json("reconcile", "--receipts", "receipts.txt", "--confirm")
    assert found["forked"]
    assert run.json("status", "c-1")["state"] == "revoked"
    assert run.json("adopt", "restore")["forked"] is False
    assert run.json("status", "c-1")["state"] == "purged"
    with run.open() as shredder, pytest.raises(CustomerShreddedError):
        shredder.saver.get_tuple(config("t-c-1", "c-1"))
    run("shred", "c-2", "--yes")


def test_an_older_key_store(run: World) -> None:
    run("init")
    names = [f"c-{number}" for number in range(8)]
    run.write(*names)
    old = (run.home / "keys" / "keys.db").read_bytes()
    run("shred", "c-0", "--yes")
    assert "nothing to adopt" in run("keys", "adopt", "--yes", expect=2)
    (run.home / "keys" / "keys.db").write_bytes(old)
    assert "keys adopt" in run("status", "c-1", expect=3)
    assert "--yes" in run("keys", "adopt", expect=2)
    assert "keys adopt" in run("status", "c-1", expect=3)
    done = run.json("keys", "adopt", "--yes")
    assert (done["adopted"], done["lost"], done["erasures"]) == (True, 1, 1)
    assert done["customers"] + len(done["lost_customers"]) == 7
    assert run.json("keys", "check")["problems"] == []
    with run.open() as shredder:
        for name in names:
            lost = shredder.status(name).customer in done["lost_customers"]
            expected = CustomerShreddedError if name == "c-0" else KeyNotFoundError
            if lost or name == "c-0":
                with pytest.raises(expected):
                    shredder.saver.get_tuple(config(f"t-{name}", name))
            else:
                assert shredder.saver.get_tuple(config(f"t-{name}", name)) is not None


def test_shred_shows_what_it_is_about_to_do_and_asks(run: World) -> None:
    run("init")
    run.write("c-1")

    def asked(answer: bytes) -> tuple[int, str]:
        main, other = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "shredsaver", "shred", "c-1"],
            cwd=run.home,
            env=run.environment,
            stdin=other,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.write(main, answer + b"\n")
        said = process.communicate(timeout=SECONDS)[0].decode()
        os.close(main)
        os.close(other)
        return process.returncode, said

    code, said = asked(b"n")
    assert code == 1
    assert "1 checkpoints" in said
    assert run.json("status", "c-1")["state"] == "live"
    assert asked(b"y")[0] == 0
    assert run.json("status", "c-1")["state"] == "purged"


def test_wrong_calls_end_in_one_line(run: World) -> None:
    nothing = {"SHREDSAVER_DATABASE": "", "SHREDSAVER_KEYS": ""}
    assert "SHREDSAVER_DATABASE" in run("status", "c-1", expect=2, **nothing)
    assert "SHREDSAVER_KEYS" in run("keys", "check", expect=2, **nothing)
    assert run("status", "c-1", expect=3).count("\n") == 1  # no tables yet: init makes them
    run("no-such-command", expect=2)


def test_every_command_has_a_help_text_and_options_with_one() -> None:
    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        yield name, command
        for inner, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, f"{name} {inner}")

    names = []
    for name, command in walk(get_command(app), "shredsaver"):
        names.append(name)
        assert command.help or name == "shredsaver", name
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", (name, parameter.name)
    wanted = "init demo status customers shred enrol hold release resume audit export import plan restrict reinstate"
    wanted += " verify certificate public-key reconcile adopt rotate routes doctor"
    for one in wanted.split():
        assert f"shredsaver {one}" in names
    for one in ("check", "mirror", "escrow", "restore-escrow", "adopt"):
        assert f"shredsaver keys {one}" in names


def test_completion_is_offered() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shredsaver", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "complete" in done.stdout
