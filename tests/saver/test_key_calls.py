"""How often the key service is asked, what happens when it cannot answer, and that waiting for it blocks nobody."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import pytest

from shredsaver import (
    CustomerShreddedError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyServiceUnavailableError,
    ShredIncompleteError,
    open_key_service,
)
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.waiting import SECONDS, join


class Observed:
    """A key service that counts its calls, and fails or waits when told to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls = Counter[str]()
        self.error: Exception | None = None
        self.failing: frozenset[str] = frozenset({"create", "load", "enrol", "destroy", "current", "replace"})
        self.wait: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name in self.failing:
                self.wait()
                if self.error is not None:
                    raise self.error
            return found(*args, **kwargs)

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@pytest.fixture
def service(keys: str) -> Any:
    with Observed(open_key_service(keys)) as observed:
        yield observed


def key_calls(service: Observed) -> int:
    return sum(service.calls[name] for name in service.failing)


def keep_trees(shredder: Any) -> None:
    """However slow the machine is, no key is asked for again because it is a minute old."""
    shredder.saver._core.keyring._max_age = math.inf


def test_many_checkpoints_cost_a_constant_number_of_calls(
    call: Caller, make_shredder: Callable[..., Any], service: Observed
) -> None:
    shredder = make_shredder(keys=service)
    keep_trees(shredder)
    service.calls.clear()
    for step in range(500):
        stored = put(call, shredder.saver, config(f"t-{step % 5}"), {"x": ["text " * 30] * (step % 20)}, step=step)
        call(shredder.saver, "put_writes", stored, [("x", 1)], "task")
        call(shredder.saver, "get_tuple", stored)
    assert key_calls(service) == 1
    service.calls.clear()
    fresh = make_shredder(keys=service)
    keep_trees(fresh)
    service.calls.clear()
    assert len(call(fresh.saver, "list", None)) == 500
    assert key_calls(service) == 1


def test_many_threads_with_a_cache_that_holds_two_keys_for_a_moment(
    make_shredder: Callable[..., Any], service: Observed, backend: Backend
) -> None:
    from shredsaver import keyring

    shredder = make_shredder(keys=service)
    ring = shredder.saver._core.keyring
    ring._max_trees, ring._max_age = 2, 0.002
    assert isinstance(ring, keyring.Keyring)
    failures: list[BaseException] = []

    def converse(number: int) -> None:
        call = Caller("sync")
        try:
            for step in range(6):
                here = config(f"t-{number}", f"c-{number % 8}")
                put(call, shredder.saver, here, {"x": [number, step]}, version=step + 1)
                found = shredder.saver.get_tuple(here)
                assert found.checkpoint["channel_values"] == {"x": [number, step]}
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=converse, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    join(threads)
    assert failures == []
    assert key_calls(service) > 8
    assert backend.count("checkpoints") == 32 * 6


@pytest.mark.parametrize(
    "error",
    [
        KeyServiceUnavailableError("expired credentials", retryable=True),
        KeyServiceUnavailableError("throttled", retryable=True),
        KeyAccessDeniedError("denied"),
        KeyNotFoundError("no such key"),
    ],
    ids=["expired", "throttled", "denied", "not found"],
)
class TestFailures:
    def test_a_failing_key_service_is_never_an_erasure(
        self,
        error: KeyServiceError,
        call: Caller,
        make_shredder: Callable[..., Any],
        service: Observed,
        backend: Backend,
    ) -> None:
        put(call, make_shredder(keys=service).saver, config("t-1", "c-1"), {"x": 1})
        cold = make_shredder(keys=service)
        before = backend.contents()
        service.error = error
        for act in (
            lambda: call(cold.saver, "get_tuple", config("t-1", "c-1")),
            lambda: call(cold.saver, "list", config("t-1", "c-1")),
            lambda: put(call, cold.saver, config("t-1", "c-1"), {"x": 2}),
            lambda: put(call, cold.saver, config("t-2", "c-2"), {"x": 2}),
        ):
            with pytest.raises(type(error)) as caught:
                act()
            assert caught.value.retryable is error.retryable
        assert backend.contents() == before
        service.error = None
        assert call(cold.saver, "get_tuple", config("t-1")).checkpoint["channel_values"] == {"x": 1}
        put(call, cold.saver, config("t-2", "c-2"), {"x": 2})

    def test_a_shred_that_cannot_destroy_has_stopped_use_and_goes_on_later(
        self, error: KeyServiceError, call: Caller, make_shredder: Callable[..., Any], service: Observed
    ) -> None:
        shredder = make_shredder(keys=service)
        put(call, shredder.saver, config("t-1", "c-1"), {"x": 1})
        put(call, shredder.saver, config("t-2", "c-2"), {"x": 2})
        service.error, service.failing = error, frozenset({"destroy"})
        with pytest.raises(ShredIncompleteError) as caught:
            call(shredder, "shred", "c-1")
        assert caught.value.pending
        with pytest.raises(CustomerShreddedError):
            call(shredder.saver, "get_tuple", config("t-1", "c-1"))
        assert call(shredder, "status", "c-1").state == "revoked"
        assert call(shredder.saver, "get_tuple", config("t-2", "c-2")) is not None
        service.error = None
        call(shredder, "resume")
        assert call(shredder, "status", "c-1").state == "purged"


def test_a_slow_key_service_does_not_block_the_loop(make_shredder: Callable[..., Any], service: Observed) -> None:
    """The service answers only once the loop has gone on meanwhile: on the loop's own thread it never would."""
    shredder = make_shredder(keys=service)
    for number in range(3):
        put(Caller("sync"), shredder.saver, config(f"t-{number}", f"c-{number}"), {"x": number})
    cold = make_shredder(keys=service)
    asked, loop_went_on = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        asked.release()
        assert loop_went_on.wait(SECONDS)

    service.wait = wait

    async def main() -> list[Any]:
        reading = [asyncio.create_task(cold.saver.aget_tuple(config(f"t-{n}", f"c-{n}"))) for n in range(3)]
        assert await asyncio.to_thread(asked.acquire, timeout=SECONDS)
        loop_went_on.set()
        return await asyncio.gather(*reading)

    found = asyncio.run(main())
    assert [t.checkpoint["channel_values"]["x"] for t in found] == [0, 1, 2]
