"""What one superstep costs on a thread of so many messages, and how close that is to the machine's limit."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from .contenders import ENCRYPTED, PLAIN, Contender, Saver, durable
from .harness import rounds, timed
from .results import Result
from .sizes import data_bytes
from .suite import Bench, benchmark
from .targets import WRITE, messages
from .workload import Thread, message

MILLISECONDS = 1000
_TICK = time.get_clock_info("process_time").resolution
"""Less cannot be told from nothing: some systems count processor time in steps longer than a superstep."""


class Stepper:
    """Samples supersteps on threads of about ``count`` messages.

    A thread is left for a new one when it has grown by a fifth, so that it stays the size it is named after.

    Attributes:
        processor: Seconds of processor time of each sample so far, of all threads of this process.
    """

    def __init__(self, saver: Saver, count: int, *, at_once: int = 1) -> None:
        self.processor: list[float] = []
        self._saver = saver
        self._count = count
        self._at_once = at_once
        self._threads = 0
        self._thread: Thread | None = None

    def __call__(self) -> float:
        """One superstep. Gives its seconds."""
        thread = self._thread
        if thread is None or len(thread.values["messages"]) >= self._count + max(1, self._count // 5):
            self._threads += 1
            thread = self._thread = Thread(self._saver, f"thread-{self._threads}")
            thread.grow([message(number) for number in range(self._count)], self._at_once)
        calls = thread.append(message(len(thread.values["messages"])))
        before = time.process_time()
        seconds = timed(calls)
        self.processor.append(max(time.process_time() - before, _TICK))
        return seconds


def _growth(bench: Bench, contender: Contender, count: int) -> int:
    """How many messages a superstep brings while a thread is made ready.

    A stock saver writes the whole state whatever came before, so its long threads are made in one superstep; ours in as
    many as a conversation has (some at once where time is short), since its records refer to earlier ones.
    """
    if contender is not bench.ours or bench.calibrate:
        return max(1, count)
    return bench.pick(10, 5 if count >= 1000 else 1, 5 if count >= 1000 else 1)


@benchmark("superstep", sqlite=55, postgres=40, quick=True)
def supersteps(bench: Bench) -> Iterator[Result]:
    """`put_writes` and `put`, ours beside the plain and the encrypting saver."""
    contenders = [bench.ours, PLAIN[bench.backend], ENCRYPTED[bench.backend]]
    if bench.calibrate:
        contenders[0] = contenders[0]._replace(name="shredsaver")
    counts: tuple[int, ...] = bench.pick((1, 10), (1, 10, 100, 1000), (1, 10, 100, 300, 1000, 3000))
    costs: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for count in counts:
        with ExitStack() as stack:
            places = [bench.place() for _ in contenders]
            samples = {
                one.name: Stepper(stack.enter_context(one.opened(place)), count, at_once=_growth(bench, one, count))
                for one, place in zip(contenders, places, strict=True)
            }
            seconds = bench.pick(0.3, 2.2 if count < 1000 else 4.0, bench.share(0.13 if count < 1000 else 0.22))
            series = rounds(samples, seconds=seconds, least=bench.pick(3, 12, 12))
        ours, *baselines = (one.name for one in contenders)
        for name in baselines:
            yield bench.result(WRITE, messages(count), name, "ms", series[ours], series[name], MILLISECONDS)
        plain, measured = baselines[0], len(series[ours])
        processor = {name: samples[name].processor[-measured:] for name in (ours, *baselines)}
        yield bench.result(
            f"{WRITE}, processor time", messages(count), plain, "ms", processor[ours], processor[plain], MILLISECONDS
        )
        for figure, taken in ((WRITE, series), (f"{WRITE}, processor time", processor)):
            for name, values in taken.items():
                costs.setdefault(figure, {}).setdefault(name, []).append((count, statistics.median(values)))
        bench.discard(*places)
    for figure, by_name in costs.items():
        for name in baselines:
            yield from bench.order(figure, "messages", name, by_name[ours], by_name[name])


@benchmark("machine's limit", sqlite=6, quick=True, ours_only=True)
def limit(bench: Bench) -> Iterator[Result]:
    """Our superstep beside the same bytes through the AEAD alone, and through SQLite alone in as many transactions."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    count = bench.pick(10, 100, 100)
    place, other = bench.place(), bench.place()
    with bench.ours.opened(place) as saver:
        thread = Thread(saver, "limit")
        thread.grow([message(number) for number in range(count)])
        before = data_bytes(place)
        grown = bench.pick(50, 200, 400)
        thread.grow([message(number) for number in range(count, count + grown)])
        size = max(512, (data_bytes(place) - before) // grown)
        sealer, payload, key = AESGCM, b"\0" * (size // 3), bytes(32)

        def through_aead() -> None:
            for _ in range(3):
                sealer(key).encrypt(bytes(12), payload, b"")

        with closing(sqlite3.connect(other.file, isolation_level=None)) as connection:
            durable(connection)
            connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT")
            half = b"\0" * (size // 2)

            def through_sqlite() -> None:
                for _ in range(2):
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("INSERT INTO plain (content) VALUES (?)", (half,))
                    connection.execute("COMMIT")

            series = rounds(
                {
                    "ours": Stepper(saver, count),
                    "aead": lambda: timed(through_aead),
                    "sqlite": lambda: timed(through_sqlite),
                },
                seconds=bench.pick(0.2, 1.0, bench.share(0.6)),
            )
    figure, case = f"{WRITE}, the machine's limit", messages(count)
    for name, key_name in (("the same bytes through the AEAD", "aead"), ("the same bytes through SQLite", "sqlite")):
        yield bench.result(figure, case, name, "ms", series["ours"], series[key_name], MILLISECONDS)
