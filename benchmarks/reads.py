"""Reading a thread back: first in a process, again, and as history."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from langchain_core.runnables import RunnableConfig

from .contenders import PLAIN, Contender, Place, Saver
from .harness import Sample, rounds, timed
from .results import Result
from .suite import Bench, benchmark
from .targets import FIRST_READ, NEXT_READ, messages
from .workload import Thread, message

MILLISECONDS = 1000
THREAD = "thread-1"


def written(contender: Contender, place: Place, count: int, at_once: int) -> RunnableConfig:
    """Writes a thread of ``count`` messages and gives the config that resumes it."""
    with contender.opened(place) as saver:
        thread = Thread(saver, THREAD)
        thread.grow([message(number) for number in range(count)], at_once)
        return thread.latest


def _read(saver: Saver, config: RunnableConfig, count: int) -> Callable[[], None]:
    def read() -> None:
        found = saver.get_tuple(config)
        if found is None or len(found.checkpoint["channel_values"]["messages"]) != count:
            raise RuntimeError("the thread that was written is not the one that was read")

    return read


@benchmark("resume read", sqlite=35, postgres=25, quick=True)
def resume(bench: Bench) -> Iterator[Result]:
    """`get_tuple` of the newest checkpoint, with everything just opened and with everything warm."""
    contenders = {"ours": bench.ours, "theirs": PLAIN[bench.backend]}
    name_of_theirs = PLAIN[bench.backend].name
    costs: dict[str, dict[str, list[tuple[int, float]]]] = {}
    counts: tuple[int, ...] = bench.pick((10,), (100, 1000), (1, 10, 100, 300, 1000, 3000))
    for count in counts:
        places, configs = {}, {}
        for name, one in contenders.items():
            places[name] = bench.place()
            at_once = bench.pick(10, 5 if count >= 1000 else 1, 5 if count >= 1000 else 1) if name == "ours" else count
            configs[name] = written(one, places[name], count, at_once)
        seconds, least = bench.pick(0.2, 1.6, bench.share(0.06)), bench.pick(3, 12, 12)
        first = {name: _first(one, places[name], configs[name], count) for name, one in contenders.items()}
        taken = {FIRST_READ: rounds(first, seconds=seconds, least=least)}
        with ExitStack() as stack:
            again = {
                name: _again(stack.enter_context(one.opened(places[name])), configs[name], count)
                for name, one in contenders.items()
            }
            taken[NEXT_READ] = rounds(again, seconds=seconds, least=least)
        for figure, series in taken.items():
            yield bench.result(
                figure, messages(count), name_of_theirs, "ms", series["ours"], series["theirs"], MILLISECONDS
            )
            for name, values in series.items():
                costs.setdefault(figure, {}).setdefault(name, []).append((count, statistics.median(values)))
        bench.discard(*places.values())
    for figure, by_name in costs.items():
        yield from bench.order(figure, "messages", name_of_theirs, by_name["ours"], by_name["theirs"])


def _first(contender: Contender, place: Place, config: RunnableConfig, count: int) -> Sample:
    def sample() -> float:
        with contender.opened(place) as saver:
            return timed(_read(saver, config, count))

    return sample


def _again(saver: Saver, config: RunnableConfig, count: int) -> Sample:
    read = _read(saver, config, count)
    return lambda: timed(read)


@benchmark("opening", sqlite=6, postgres=6)
def opening(bench: Bench) -> Iterator[Result]:
    """Opening what exists and reading a thread of 100 messages: what a short-lived process pays."""
    contenders = {"ours": bench.ours, "theirs": PLAIN[bench.backend]}
    samples = {}
    for name, one in contenders.items():
        place = bench.place()
        config = written(one, place, 100, bench.pick(50, 1, 1))
        samples[name] = _open_and_read(one, place, config)
    series = rounds(samples, seconds=bench.pick(0.2, 2.0, bench.share(0.7)))
    yield bench.result(
        "open and first read", messages(100), PLAIN[bench.backend].name, "ms", series["ours"], series["theirs"],
        MILLISECONDS,
    )  # fmt: skip


def _open_and_read(contender: Contender, place: Place, config: RunnableConfig) -> Sample:
    def all_of_it() -> None:
        with contender.opened(place) as saver:
            _read(saver, config, 100)()

    return lambda: timed(all_of_it)


@benchmark("history", sqlite=15, postgres=12)
def history(bench: Bench) -> Iterator[Result]:
    """`get_state_history` of 200 checkpoints through a compiled graph, just opened and again."""
    from .agents import state_graph

    count = bench.pick(10, 100, 200)
    contenders = {"ours": bench.ours, "theirs": PLAIN[bench.backend]}
    with ExitStack() as stack:
        samples = {}
        for name, one in contenders.items():
            place = bench.place()
            config = written(one, place, count, 1)
            graph = state_graph([], stack.enter_context(one.opened(place)))
            samples[name] = _history(graph, config, count)
        series = rounds(samples, seconds=bench.pick(0.2, 4.0, bench.share(0.7)), least=bench.pick(2, 3, 5), warm_up=1)
    yield bench.result(
        "get_state_history", f"{count} checkpoints", PLAIN[bench.backend].name, "ms", series["ours"],
        series["theirs"], MILLISECONDS,
    )  # fmt: skip


def _history(graph: object, config: RunnableConfig, count: int) -> Sample:
    def read() -> None:
        found = list(graph.get_state_history(config))  # type: ignore[attr-defined]
        if len(found) != count or len(found[0].values["messages"]) != count:
            raise RuntimeError("the history that was written is not the one that was read")

    return lambda: timed(read)
