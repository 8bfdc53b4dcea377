"""The register of benchmarks, and what each of them is given to work with."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from . import postgres
from .contenders import OURS, OURS_ASYNC, PLAIN, PLAIN_ASYNC, AsyncContender, Backend, Contender, Place
from .harness import compare, power
from .results import POWER, Result
from .targets import TARGETS

GROWN = 10
"""How many times the largest size may be that of the smallest from which an order of growth is told."""

TOO_LONG = 3
"""How many times its seconds a benchmark may take before it is stopped."""

WHOLE = 19 * 60
"""Seconds after which a full run begins nothing more."""

T = TypeVar("T")
Level = Literal["smoke", "quick", "full"]


@dataclass
class Bench:
    """One benchmark's run: its level, its backend, its contenders, its places, and the seconds it may take."""

    level: Level
    backend: Backend
    directory: Path
    dsn: str | None
    calibrate: bool = False
    seconds: float = 60.0
    _databases: list[str] = field(default_factory=list)
    _begun: float = field(default_factory=time.perf_counter)

    @property
    def ours(self) -> Contender:
        """Ours; in a calibration the baseline once more."""
        return PLAIN[self.backend] if self.calibrate else OURS

    @property
    def ours_async(self) -> AsyncContender:
        """Ours within an event loop; in a calibration the baseline once more."""
        return PLAIN_ASYNC[self.backend] if self.calibrate else OURS_ASYNC

    def pick(self, smoke: T, quick: T, full: T) -> T:
        """One of three values, by level."""
        return {"smoke": smoke, "quick": quick, "full": full}[self.level]

    @property
    def left(self) -> float:
        """Seconds left of what it may take; 0 when they are over."""
        return max(0.0, self.seconds - (time.perf_counter() - self._begun))

    def share(self, part: float) -> float:
        """A part of all its seconds, or what is left of them."""
        return min(part * self.seconds, self.left)

    def place(self) -> Place:
        """A new, empty place."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        if self.dsn is None:
            return Place(directory, None)
        name = f"bench_{directory.name.lower()}"
        dsn = postgres.create(self.dsn, name)
        self._databases.append(name)
        return Place(directory, dsn)

    def discard(self, *places: Place) -> None:
        """Deletes places that are not needed any more."""
        for place in places:
            shutil.rmtree(place.directory)

    def close(self) -> None:
        """Drops the databases that were made."""
        while self._databases and self.dsn is not None:
            postgres.drop(self.dsn, self._databases.pop())

    def target(self, figure: str, case: str, baseline: str | None) -> float | None:
        """What to reach; nothing in a smoke run, which measures nothing."""
        return None if self.level == "smoke" else TARGETS.get((figure, case, self.backend, baseline))

    def result(
        self,
        figure: str,
        case: str,
        baseline: str,
        unit: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        scale: float = 1,
    ) -> Result:
        """Compares two series taken in the same rounds; ``scale`` brings a sample to ``unit``."""
        found = compare(ours, theirs)
        target = self.target(figure, case, baseline)
        return Result(
            figure, case, self.backend, baseline, found.ours * scale, found.theirs * scale, unit, found.ratio,
            found.spread, target,
        )  # fmt: skip

    def order(
        self,
        figure: str,
        of: str,
        baseline: str,
        ours: Sequence[tuple[int, float]],
        theirs: Sequence[tuple[int, float]],
    ) -> Iterator[Result]:
        """With which power of its size a figure grows, ours and the baseline's, over the upper sizes of both."""
        shared = sorted({size for size, _ in ours} & {size for size, _ in theirs})
        sizes = [size for size in shared if size * GROWN >= shared[-1]]
        if len(sizes) < 2:
            return
        one, other = (power([point for point in points if point[0] in sizes]) for points in (ours, theirs))
        case = f"{sizes[0]:,} to {sizes[-1]:,} {of}"
        ratio = one / other if other else 0.0
        yield Result(f"order of {figure}", case, self.backend, baseline, one, other, POWER, ratio, None, None)

    def alone(self, figure: str, case: str, unit: str, value: float) -> Result:
        """A figure of ours without a baseline."""
        target = self.target(figure, case, None)
        return Result(figure, case, self.backend, None, value, None, unit, None, None, target)


Function = Callable[[Bench], Iterator[Result]]


class Benchmark(NamedTuple):
    """A registered benchmark.

    Attributes:
        name: What ``--only`` matches.
        function: Gives the results as they are measured.
        seconds: Where it runs, and what it may take there in a full run; it is stopped at `TOO_LONG` times that.
        quick: Whether the quick set has it too.
        ours_only: Whether there is nothing to calibrate with.
    """

    name: str
    function: Function
    seconds: Mapping[Backend, float]
    quick: bool
    ours_only: bool


REGISTER: list[Benchmark] = []


def benchmark(
    name: str, *, sqlite: float = 0, postgres: float = 0, quick: bool = False, ours_only: bool = False
) -> Callable[[Function], Function]:
    """Registers the function below it, for the backends on which it may take any seconds."""
    seconds: dict[Backend, float] = {}
    if sqlite:
        seconds["sqlite"] = sqlite
    if postgres:
        seconds["postgres"] = postgres

    def register(function: Function) -> Function:
        REGISTER.append(Benchmark(name, function, seconds, quick, ours_only))
        return function

    return register


class TookTooLongError(Exception):
    """A benchmark did not end in several times the time it should take."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Stops what runs in it after so many seconds, where the system can (not on Windows), so that others get a turn.

    Raises:
        TookTooLongError: They were over.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise TookTooLongError(f"stopped after {seconds:.0f} s")

    if seconds <= 0:
        raise TookTooLongError("left out: the time of the whole run is over")
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bench(
    level: Level, backend: Backend, directory: Path, dsn: str | None, calibrate: bool, seconds: float
) -> Iterator[Bench]:
    """A `Bench` whose places are gone at the end."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        made = Bench(level, backend, Path(own), dsn if backend == "postgres" else None, calibrate, seconds)
        try:
            yield made
        finally:
            made.close()
