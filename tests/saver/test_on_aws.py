"""The whole library on keys in AWS KMS: the demo, a customer's conversation and its end, and what KMS is asked."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shredsaver import CustomerShreddedError, Shredder
from shredsaver.demo.experiment import run_demo
from shredsaver.errors import KeyServiceUnavailableError, KeyStoreStaleError
from tests.fakes.kms_server import KmsServer
from tests.support.backends import Backend, SqliteBackend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config, put

CALL = Caller("sync")


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[KmsServer]:
    with KmsServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def keys(kms: KmsServer, home: Path) -> str:
    return f"awskms:?region={kms.region}&store={home}/keys.db&slots=2&window=0.1&spares=0"


def test_the_demo(backend: Backend, keys: str) -> None:
    report = run_demo(backend.url, keys)
    assert [check.name for check in report.failed] == []


def test_a_thousand_supersteps_are_one_call(backend: Backend, keys: str, kms: KmsServer) -> None:
    here = config("t-1", "c-1")
    with Shredder.open(backend.url, keys=keys) as shredder:
        put(CALL, shredder.saver, here, {"x": 0})
    with Shredder.open(backend.url, keys=keys) as shredder:
        shredder.saver._core.keyring._max_age = math.inf  # the machine may take longer than a key is kept
        kms.calls.clear()
        started = time.monotonic()
        where = here
        for step in range(1000):
            where = put(CALL, shredder.saver, where, {"x": step})
            shredder.saver.put_writes(where, [("x", step)], f"task-{step}")
            if step > 100 and time.monotonic() - started > 45:
                break  # on a machine as slow as this, what was done has shown it
        assert Counter(name for name, _ in kms.calls) == {"Decrypt": 1}


def test_fresh_keys_for_one_customer(backend: Backend, keys: str, kms: KmsServer) -> None:
    here, other = config("t-1", "c-1"), config("t-2", "c-2")
    with Shredder.open(backend.url, keys=keys) as shredder, Shredder.open(backend.url, keys=keys) as warm:
        for one in (here, other):
            put(CALL, warm.saver, one, {"x": "before"})
        assert shredder.rotate("c-1") == 2
        for one in (here, other):
            put(CALL, warm.saver, one, {"x": "after"})
        put(CALL, warm.saver, config("t-3", "c-1"), {"x": "after"})
    with Shredder.open(backend.url, keys=keys) as shredder:
        for one in (here, other):
            assert [found.checkpoint["channel_values"]["x"] for found in shredder.saver.list(one)] == [
                "after",
                "before",
            ]
        assert shredder.audit("c-1").damaged == ()
        shredder.shred("c-1")
        with pytest.raises(CustomerShreddedError):
            shredder.saver.get_tuple(here)


def test_copies_from_before_open_nothing(backend: Backend, keys: str, kms: KmsServer, home: Path) -> None:
    here, other = config("t-1", "c-1"), config("t-2", "c-2")
    with Shredder.open(backend.url, keys=keys) as shredder:
        chain(CALL, shredder.saver, here, [{"x": "a secret"}, {"x": "a secret", "y": 2}])
        chain(CALL, shredder.saver, other, [{"x": "kept"}])
    old = backend.copy()
    shutil.copy(home / "keys.db", home / "old.db")
    with Shredder.open(backend.url, keys=keys) as shredder:
        receipt = shredder.shred("c-1")
        assert receipt is not None
        with pytest.raises(CustomerShreddedError):
            shredder.saver.get_tuple(here)
        found = shredder.saver.get_tuple(other)
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == "kept"
    with pytest.raises(KeyStoreStaleError):
        Shredder.open(old.url, keys=keys.replace("keys.db", "old.db"))


async def test_a_slow_kms_does_not_block_the_loop(home: Path, keys: str, kms: KmsServer) -> None:
    """Each request is answered only once the loop has gone on meanwhile: from the loop's own thread it never would."""
    database = SqliteBackend(home / "slow.sqlite")
    async with Shredder.open(database.url, keys=keys) as shredder:
        await shredder.saver.aget_tuple(config("t-0", "c-0"))
        loop_went_on, waited, done = threading.Condition(), Counter[str](), asyncio.Event()

        def wait() -> None:
            with loop_went_on:
                waited["in time" if loop_went_on.wait(60) else "in vain"] += 1

        async def beat() -> None:
            while not done.is_set():
                with loop_went_on:
                    loop_went_on.notify_all()
                await asyncio.sleep(0.01)

        kms.faults.hook(None, wait, times=10_000)
        beating = asyncio.create_task(beat())
        here = config("t-1", "c-1")
        await put_async(shredder, here)
        await shredder.ashred("c-1")
        done.set()
        await beating
        kms.faults.clear()
        assert kms.count("Decrypt") > 0
        assert waited["in time"] > 4
        assert waited["in vain"] == 0


async def put_async(shredder: Any, here: dict[str, Any]) -> None:
    from tests.support.checkpoints import checkpoint, metadata

    made = checkpoint({"x": 1})
    await shredder.saver.aput(here, made, metadata(), made["channel_versions"])


def test_an_outage_is_no_shred(backend: Backend, keys: str, kms: KmsServer) -> None:
    here = config("t-1", "c-1")
    with Shredder.open(backend.url, keys=keys + "&outage=0") as shredder:
        put(CALL, shredder.saver, here, {"x": 1})
    kms.faults.expire_credentials()
    with pytest.raises(KeyServiceUnavailableError) as caught:
        Shredder.open(backend.url, keys=keys)
    assert caught.value.retryable
    kms.faults.clear()
    with Shredder.open(backend.url, keys=keys) as shredder:
        found = shredder.saver.get_tuple(here)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}
