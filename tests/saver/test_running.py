"""In a running program: threads, loops, cancellation, several openers, and calls from the wrong place."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shredsaver import ConfigurationError, DatabaseUnavailableError, Shredder, ShredSaver, ShredSaverError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import checkpoint, config, metadata, put
from tests.support.graphs import line
from tests.support.waiting import join

CALL = Caller("sync")


def test_from_conn_string(backend: Backend, keys: str) -> None:
    with ShredSaver.from_conn_string(backend.url, keys=keys) as saver:
        put(CALL, saver, config(), {"x": 1})
        saver.shred("c-2")
    with Shredder.open(backend.url, keys=keys) as shredder:
        assert shredder.saver.get_tuple(config()).checkpoint["channel_values"] == {"x": 1}


def test_async_with_opens_and_closes(backend: Backend, keys: str) -> None:
    async def main() -> Any:
        async with Shredder.open(backend.url, keys=keys) as shredder:
            graph = line("a", "b").compile(checkpointer=shredder.saver)
            here = {"configurable": {"thread_id": "t-1", "customer_id": "c-1"}}
            await graph.ainvoke({"items": []}, here)
            await shredder.ashred("c-2")
            return await graph.aget_state(here)

    assert asyncio.run(main()).values == {"items": ["a:0", "b:1"]}


def test_one_shredder_serves_loop_after_loop_and_threads_too(backend: Backend, keys: str) -> None:
    with Shredder.open(backend.url, keys=keys) as shredder:

        async def converse(number: int) -> None:
            made = checkpoint({"x": number})
            await shredder.saver.aput(config(f"t-{number}"), made, metadata(), made["channel_versions"])
            found = await shredder.saver.aget_tuple(config(f"t-{number}"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"x": number}

        for number in range(4):
            asyncio.run(converse(number))
        loops = [threading.Thread(target=lambda n=n: asyncio.run(converse(n))) for n in range(4, 8)]  # type: ignore[misc]
        for loop in loops:
            loop.start()
        for number in range(8, 12):
            put(CALL, shredder.saver, config(f"t-{number}"), {"x": number})
        join(loops)
        assert sorted(t.checkpoint["channel_values"]["x"] for t in shredder.saver.list(None)) == list(range(12))


def test_many_conversations_on_one_loop(backend: Backend, keys: str) -> None:
    async def main() -> list[Any]:
        async with Shredder.open(backend.url, keys=keys) as shredder:
            graph = line("a", "b").compile(checkpointer=shredder.saver)

            async def one(number: int) -> Any:
                here = {"configurable": {"thread_id": f"t-{number}", "customer_id": f"c-{number % 5}"}}
                await graph.ainvoke({"items": [number]}, here)
                return (await graph.aget_state(here)).values["items"][0]

            return await asyncio.gather(*map(one, range(60)))

    assert asyncio.run(main()) == list(range(60))


def test_cancelled_calls_leave_the_next_one_untouched(backend: Backend, keys: str) -> None:
    async def main() -> None:
        async with Shredder.open(backend.url, keys=keys) as shredder:
            saver = shredder.saver
            for number in range(60):
                made = checkpoint({"x": ["text " * 100] * 20, "n": number})
                writing = asyncio.ensure_future(saver.aput(config(), made, metadata(), made["channel_versions"]))
                await asyncio.sleep(0.0004 * (number % 12))
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await writing
                at = config(checkpoint_id=made["id"])
                for _ in range(2):  # it may still be on its way: either there or not, and never in part
                    found = await saver.aget_tuple(at)
                    assert found is None or found.checkpoint["channel_values"] == made["channel_values"]
                    await saver.aput(config(), made, metadata(), made["channel_versions"])
            found = [t async for t in saver.alist(config())]
            assert len(found) == 60

    asyncio.run(main())


def test_a_clone_with_an_allowlist_outlives_the_original_and_closes_nothing(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    shredder.saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    clones = [shredder.saver.with_allowlist([("tests.support.types", name)]) for name in ("Address", "Point")]
    put(CALL, clones[0], config(), {"x": 1})
    del clones[0]
    gc.collect()
    put(CALL, clones[0], config(), {"x": 2})
    assert len(list(shredder.saver.list(config()))) == 2


def test_what_is_closed_says_so(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    saver = shredder.saver
    put(call, saver, config(), {"x": 1})
    call(shredder, "close")
    call(shredder, "close")
    with pytest.raises((ConfigurationError, DatabaseUnavailableError)):
        call(shredder, "shred", "c-1")
    with pytest.raises((ConfigurationError, DatabaseUnavailableError)):
        call(saver, "get_tuple", config())
    with pytest.raises(ShredSaverError):
        put(call, saver, config(), {"x": 1})


def test_two_shredders_in_one_process_do_not_loosen_each_others_locks(
    backend: Backend, keys: str, make_shredder: Callable[..., Any]
) -> None:
    """Opening and closing one must not drop what the other holds on the same file."""
    from tests.support.processes import get, worker, write

    first = make_shredder()
    put(CALL, first.saver, config(), {"x": 0})
    for number in range(1, 5):
        with Shredder.open(backend.url, keys=keys) as second:
            put(CALL, second.saver, config(), {"x": -number})
        with worker(backend.url, keys=keys) as other:
            other(write, config(), {"x": number})
        assert first.saver.get_tuple(config()).checkpoint["channel_values"] == {"x": number}
        put(CALL, first.saver, config("t-2"), {"x": number})
        with worker(backend.url, keys=keys) as other:
            assert other(get, config("t-2")) == {"x": number}
    assert len(list(first.saver.list(config()))) == 9
