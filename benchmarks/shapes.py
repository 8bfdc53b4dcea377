"""States that are not a list of messages: many channels, many files, one large value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from langchain_core.runnables import RunnableConfig

from .contenders import PLAIN, Contender, Place, Saver
from .harness import Sample, rounds, timed
from .results import Result
from .sizes import data_bytes
from .suite import Bench, benchmark
from .workload import Thread, text

MILLISECONDS = 1000

Change = Callable[[Thread, int], tuple[str, Any, Any]]


def _wide(_thread: Thread, number: int) -> tuple[str, Any, Any]:
    value = {"step": number, "notes": text(number, 1900)}
    return f"channel_{number % 50:02d}", value, value


def _files(thread: Thread, number: int) -> tuple[str, Any, Any]:
    name = f"/notes/file_{number * 7 % 200:03d}.md"
    value = {"content": text(number, 2000), "modified_at": f"2026-01-01T00:00:{number % 60:02d}"}
    return "files", {**thread.values["files"], name: value}, {name: value}


def _large(thread: Thread, number: int) -> tuple[str, Any, Any]:
    value = random.Random(number).randbytes(len(thread.values["blob"]))
    return "blob", value, value


LARGE = 10_000_000
SHAPES: dict[str, tuple[dict[str, Any], Change]] = {
    "50 channels of 2 KB, one changes": (
        {f"channel_{number:02d}": {"step": 0, "notes": text(number, 1900)} for number in range(50)},
        _wide,
    ),
    "a dict of 200 files of 2 KB, one changes": (
        {
            "files": {
                f"/notes/file_{number:03d}.md": {"content": text(number, 2000), "modified_at": "2026-01-01T00:00:00"}
                for number in range(200)
            }
        },
        _files,
    ),
    "one value of 10 MB": ({"blob": bytes(LARGE)}, _large),
}


@benchmark("state shapes", sqlite=30, postgres=25)
def shapes(bench: Bench) -> Iterator[Result]:
    """A superstep, both reads and the bytes a superstep adds, for each shape."""
    contenders = {"ours": bench.ours, "theirs": PLAIN[bench.backend]}
    baseline = PLAIN[bench.backend].name
    for shape, (state, change) in SHAPES.items():
        if bench.level == "smoke" and "blob" in state:
            shape, state = "one value of 100 kB", {"blob": bytes(100_000)}  # noqa: PLW2901
        places = {name: bench.place() for name in contenders}
        steps = bench.pick(1, 3, 8) if "blob" in state else bench.pick(2, 10, 40)
        with ExitStack() as stack:
            threads = {
                name: Thread(stack.enter_context(one.opened(places[name])), "thread-1", state)
                for name, one in contenders.items()
            }
            for thread in threads.values():
                channel = next(iter(state))
                thread.change(channel, state[channel], state[channel])()
            samples = {name: _steps(thread, change) for name, thread in threads.items()}
            series = rounds(samples, seconds=60, least=steps, most=steps, warm_up=1)
            yield bench.result(
                "superstep write, other states", shape, baseline, "ms", series["ours"], series["theirs"], MILLISECONDS
            )
            sizes = {name: data_bytes(place) for name, place in places.items()}
            yield bench.result(
                "bytes on disk, other states", f"{shape}, {steps + 2} supersteps", baseline, "bytes", [sizes["ours"]],
                [sizes["theirs"]],
            )  # fmt: skip
            samples = {name: _again(thread.saver, thread) for name, thread in threads.items()}
            warm = rounds(samples, seconds=bench.pick(0.2, 1.0, bench.share(0.08)), least=3)
            configs = {name: thread.latest for name, thread in threads.items()}

        samples = {name: _first(one, places[name], configs[name]) for name, one in contenders.items()}
        first = rounds(samples, seconds=bench.pick(0.2, 1.5, bench.share(0.1)), least=3)
        for figure, taken in (("resume read, other states, first", first), ("resume read, other states, again", warm)):
            yield bench.result(figure, shape, baseline, "ms", taken["ours"], taken["theirs"], MILLISECONDS)
        bench.discard(*places.values())


def _steps(thread: Thread, change: Change) -> Sample:
    number = 0

    def sample() -> float:
        nonlocal number
        number += 1
        return timed(thread.change(*change(thread, number)))

    return sample


def _first(contender: Contender, place: Place, config: RunnableConfig) -> Sample:
    def sample() -> float:
        with contender.opened(place) as saver:
            return timed(lambda: _found(saver.get_tuple(config)))

    return sample


def _again(saver: Saver, thread: Thread) -> Sample:
    return lambda: timed(lambda: _found(saver.get_tuple(thread.latest)))


def _found(answer: object) -> None:
    if answer is None:
        raise RuntimeError("the thread that was written is not there")
