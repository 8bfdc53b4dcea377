"""A destruction in AWS KMS, cut off at every single call: by kill -9, and by an answer that never arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shredsaver.errors import CustomerShreddedError, KeyServiceUnavailableError
from tests.fakes.kms_faults import ConnectionLostError
from tests.fakes.kms_server import KmsServer
from tests.support.aws import FAST, World, secret, token
from tests.support.waiting import SECONDS, join

CUSTOMERS = 60

# Loads everything once, then forks a child for each line it reads: a child costs no imports.
FORKER = """
import json, os, sys
from shredsaver.kms.aws import AwsKeyService
import botocore.session
botocore.session.get_session().create_client("kms")
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        service = AwsKeyService(order["store"], **order["options"])
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        service.destroy([bytes.fromhex(order["customer"])])
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print(json.dumps({"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}), flush=True)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with KmsServer() as kms:
        for name, value in kms.environment.items():
            monkeypatch.setenv(name, value)
        world = World(kms, tmp_path)
        service = world.open()
        for number in range(CUSTOMERS):
            service.create(token(number), secret(number))
        world.close()
        yield world
        world.close()


class Children:
    """Processes that destroy one customer each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **world.kms.environment},
        )

    def start(self, customer: int) -> int:
        """A child that has opened the key service and waits. Gives its pid."""
        order = {"store": str(self.world.store), "options": FAST, "customer": token(customer).hex()}
        return int(self.say(json.dumps(order)))

    def say(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def go(self) -> int:
        """Lets it destroy. Gives the signal that ended it, 0 for none."""
        return int(json.loads(self.say("go"))["signal"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def children(world: World) -> Iterator[Children]:
    children = Children(world)
    yield children
    children.close()


def calls_of_a_destruction(world: World, customer: int) -> list[str]:
    """The calls of one that is not disturbed."""
    service = world.open()
    world.kms.calls.clear()
    assert service.destroy([token(customer)])[0].state == "destroyed"
    calls = [name for name, _ in world.kms.calls]
    world.close()
    assert {"CreateKey", "ImportKeyMaterial", "DeleteImportedKeyMaterial", "ScheduleKeyDeletion"} <= set(calls)
    return calls


def assert_whole(world: World, dead: set[int], *, look_at: int) -> None:
    """On reopening exactly those are dead, all others read, and no KMS key is left that nobody recorded."""
    service = world.open()
    revoked = {bytes(row[0]) for row in world.query("SELECT customer FROM key_tombstones")}
    assert {token(number) for number in dead - {look_at}} <= revoked <= {token(number) for number in dead}
    for number in dead:
        if token(number) in revoked:
            with pytest.raises(CustomerShreddedError):
                service.load(token(number), 1)
        else:  # it was cut off before it had begun
            assert service.load(token(number), 1).secret == secret(number)
    for number in {look_at + 1, look_at + 2, CUSTOMERS - 2, CUSTOMERS - 1} - dead:
        assert service.load(token(number), 1).secret == secret(number)
    assert service.destroy([token(look_at)])[0].state == "destroyed"
    world.assert_no_orphans()
    world.close()


def assert_everyone(world: World, dead: set[int]) -> None:
    service = world.open()
    report = service.verify()
    assert report.problems == ()
    assert report.customers == CUSTOMERS - len(dead)
    assert report.tombstones == len(dead)


def killer(pid: int) -> Callable[[], None]:
    """Kills, and ends the request: what it asks for must not be done when the key store is looked at already."""

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        raise ConnectionLostError

    return kill


def kill_at(world: World, children: Children, point: int, when: Any, customer: int) -> int:
    pid = children.start(customer)
    world.kms.faults.hook(None, killer(pid), when=when, skip=point)
    ended = children.go()
    world.kms.faults.clear()
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call(world: World, children: Children, when: Any) -> None:
    points = len(calls_of_a_destruction(world, 0))
    dead = {0}
    killed = 0
    for point in range(points):
        customer = point + 1
        killed += kill_at(world, children, point, when, customer) == signal.SIGKILL
        dead.add(customer)
        assert_whole(world, dead, look_at=customer)
    assert killed >= points - 6  # how often the proof is looked at varies a little
    assert_everyone(world, dead)


@pytest.mark.parametrize(
    ("operation", "when"),
    [
        ("CreateKey", "after"),
        ("ImportKeyMaterial", "after"),
        ("Encrypt", "after"),
        ("DeleteImportedKeyMaterial", "before"),
        ("DeleteImportedKeyMaterial", "after"),
        ("ScheduleKeyDeletion", "before"),
    ],
)
def test_killed_at_the_calls_that_change_something(world: World, children: Children, operation: str, when: Any) -> None:
    pid = children.start(1)
    world.kms.faults.hook(operation, killer(pid), when=when)
    assert children.go() == signal.SIGKILL
    world.kms.faults.clear()
    assert_whole(world, {1}, look_at=1)
    assert_everyone(world, {1})


def attempt(act: Callable[[], Any]) -> Any:
    """What it gives; None where it failed in a way that a retry mends."""
    try:
        return act()
    except KeyServiceUnavailableError as error:
        if not error.retryable:
            raise
        return None


def create_first(world: World) -> Any:
    return world.open().create(token(1), secret(1))


@pytest.mark.parametrize("fault", ["lose", "drop"])
def test_answer_lost_at_every_call(world: World, fault: str) -> None:
    points = len(calls_of_a_destruction(world, 0))
    dead = {0}
    for point in range(points):
        customer = point + 1
        service = world.open()
        getattr(world.kms.faults, fault)(None, skip=point)
        dead.add(customer)
        assert attempt(partial(service.destroy, [token(customer)])) != []
        world.kms.faults.clear()
        world.close()
        assert_whole(world, dead, look_at=customer)
    assert_everyone(world, dead)


@pytest.mark.parametrize("fault", ["lose", "drop"])
def test_first_root_of_a_slot_lost_at_every_call(world: World, fault: str) -> None:
    """Making a root, without anything to destroy."""
    for point in range(12):
        store = world.store.with_name(f"{fault}-{point}.db")
        other = World.__new__(World)
        other.kms, other.store, other.calls, other.opened = world.kms, store, world.calls, []
        before = set(world.kms.live_keys())
        getattr(world.kms.faults, fault)(None, skip=point)
        tries = 0
        while attempt(partial(create_first, other)) is None:
            other.close()
            tries += 1
            assert tries <= 3
        world.kms.faults.clear()
        other.close()
        service = other.open()
        assert service.load(token(1), 1).secret == secret(1)
        made = {key.arn for key_id, key in world.kms.live_keys().items() if key_id not in before}
        assert made == other.live_roots()
        other.close()


def test_a_key_store_that_is_closed_while_a_key_is_made_ahead(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread says so in the log, and raises nothing where nobody can catch it."""
    service = world.open(spares=1)
    world.kms.faults.hook("CreateKey", service._database.close)
    maker = service._aws._maker
    maker.replenish()
    join([maker._replenishing])
    assert "no KMS key could be made ahead" in caplog.text
    assert "was closed" in caplog.text
