"""Several threads at once, blocking and async: seconds for one superstep, all of them counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack

from langchain_core.messages import HumanMessage

from .agents import Turn, config, state_graph, turns
from .contenders import PLAIN, PLAIN_ASYNC, Saver
from .harness import Sample, rounds, timed
from .results import Result
from .suite import Bench, benchmark
from .targets import WRITE, messages
from .workload import Thread, message

MILLISECONDS = 1000


def _crowd(pool: ThreadPoolExecutor, saver: Saver, size: int, count: int, steps: int) -> Sample:
    """Samples ``size`` threads that make ``steps`` supersteps each, on conversations of about ``count`` messages."""
    crowd: list[Thread] = []
    made = 0

    def sample() -> float:
        nonlocal crowd, made
        if not crowd or len(crowd[0].values["messages"]) >= count * 1.3:
            made += 1
            crowd = [Thread(saver, f"crowd-{made}-{number}") for number in range(size)]
            for thread in crowd:
                thread.grow([message(number) for number in range(count)], at_once=10)

        def run(thread: Thread) -> None:
            for _ in range(steps):
                thread.append(message(len(thread.values["messages"])))()

        return timed(lambda: list(pool.map(run, crowd))) / (size * steps)

    return sample


@benchmark("concurrent threads", sqlite=25, postgres=25)
def threads(bench: Bench) -> Iterator[Result]:
    """1, 4 and 16 threads of one process, each on a conversation of its own."""
    count = bench.pick(10, 100, 100)
    contenders = {"ours": bench.ours, "theirs": PLAIN[bench.backend]}
    for size in bench.pick((2,), (4, 16), (1, 4, 16)):
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(size))
            samples = {
                name: _crowd(pool, stack.enter_context(one.opened(bench.place())), size, count, bench.pick(1, 3, 3))
                for name, one in contenders.items()
            }
            series = rounds(samples, seconds=bench.pick(0.3, 4.0, bench.share(0.27)), least=bench.pick(2, 5, 6))
        case = f"{messages(count)}, {size} thread{'s' if size > 1 else ''}"
        yield bench.result(WRITE, case, PLAIN[bench.backend].name, "ms", series["ours"], series["theirs"], MILLISECONDS)


@benchmark("async superstep", sqlite=10, postgres=8)
def async_superstep(bench: Bench) -> Iterator[Result]:
    """`aput_writes` and `aput` on a thread of about 100 messages."""
    count = bench.pick(10, 100, 100)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        samples: dict[str, Sample] = {}
        for name, one in {"ours": bench.ours_async, "theirs": PLAIN_ASYNC[bench.backend]}.items():
            saver = runner.run(stack.enter_async_context(one.opened(bench.place())))
            samples[name] = _async_steps(runner, saver, count)
        try:
            series = rounds(samples, seconds=bench.pick(0.3, 3.0, bench.share(0.8)))
        finally:
            runner.run(stack.aclose())
    baseline = PLAIN_ASYNC[bench.backend].name
    yield bench.result(
        "async superstep write", messages(count), baseline, "ms", series["ours"], series["theirs"], MILLISECONDS
    )


def _async_steps(runner: asyncio.Runner, saver: Saver, count: int) -> Sample:
    thread: Thread | None = None
    made = 0

    async def step() -> float:
        nonlocal thread, made
        if thread is None or len(thread.values["messages"]) >= count * 1.2:
            made += 1
            thread = Thread(saver, f"async-{made}")
            await thread.astep(*(message(number) for number in range(count)))
        return await thread.astep(message(len(thread.values["messages"])))

    return lambda: runner.run(step())


@benchmark("async conversations", sqlite=35, postgres=30)
def async_conversations(bench: Bench) -> Iterator[Result]:
    """200 conversations of five turns through a compiled graph in one event loop."""
    size, length = bench.pick(4, 50, 200), bench.pick(2, 5, 5)
    script = turns(length)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        samples: dict[str, Sample] = {}
        for name, one in {"ours": bench.ours_async, "theirs": PLAIN_ASYNC[bench.backend]}.items():
            saver = runner.run(stack.enter_async_context(one.opened(bench.place())))
            samples[name] = _gathered(runner, saver, size, script)
        try:
            series = rounds(
                samples,
                seconds=bench.pick(0.3, 6.0, bench.share(0.7)),
                least=bench.pick(1, 2, 2),
                warm_up=bench.pick(0, 1, 0),
            )
        finally:
            runner.run(stack.aclose())
    case = f"{size} conversations of {length} turns at once"
    yield bench.result(
        "async conversations", case, PLAIN_ASYNC[bench.backend].name, "s", series["ours"], series["theirs"]
    )


async def converse(saver: Saver, script: list[Turn], thread: str) -> None:
    """A conversation through a compiled graph."""
    graph = state_graph(script, saver)
    for turn in script:
        await graph.ainvoke({"messages": [HumanMessage(turn.person)]}, config(thread))


def _gathered(runner: asyncio.Runner, saver: Saver, size: int, script: list[Turn]) -> Sample:
    made = 0

    async def all_of_them() -> None:
        await asyncio.gather(*(converse(saver, script, f"gathered-{made}-{number}") for number in range(size)))

    def sample() -> float:
        nonlocal made
        made += 1
        return timed(lambda: runner.run(all_of_them()))

    return sample
