"""The register of benchmarks, and what each of them is given to work with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from . import postgres
from .contenders import OURS, OURS_ASYNC, PLAIN, PLAIN_ASYNC, AsyncContender, Backend, Contender, Place
from .harness import compare
from .results import Result
from .targets import TARGETS

T = TypeVar("T")
Level = Literal["smoke", "quick", "full"]


@dataclass
class Bench:
    """One benchmark's run: its level, its backend, its contenders, its places."""

    level: Level
    backend: Backend
    directory: Path
    dsn: str | None
    calibrate: bool = False
    _databases: list[str] = field(default_factory=list)

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

    def alone(self, figure: str, case: str, unit: str, value: float) -> Result:
        """A figure of ours without a baseline."""
        target = self.target(figure, case, None)
        return Result(figure, case, self.backend, None, value, None, unit, None, None, target)


Function = Callable[[Bench], Iterator[Result]]


class Benchmark(NamedTuple):
    """A registered benchmark. ``quick``: also part of the quick set. ``ours_only``: nothing to calibrate with."""

    name: str
    function: Function
    backends: tuple[Backend, ...]
    quick: bool
    ours_only: bool


REGISTER: list[Benchmark] = []


def benchmark(
    name: str, *, backends: tuple[Backend, ...] = ("sqlite", "postgres"), quick: bool = False, ours_only: bool = False
) -> Callable[[Function], Function]:
    """Registers the function below it."""

    def register(function: Function) -> Function:
        REGISTER.append(Benchmark(name, function, backends, quick, ours_only))
        return function

    return register


@contextmanager
def bench(level: Level, backend: Backend, directory: Path, dsn: str | None, calibrate: bool) -> Iterator[Bench]:
    """A `Bench` whose places are gone at the end."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        made = Bench(level, backend, Path(own), dsn if backend == "postgres" else None, calibrate)
        try:
            yield made
        finally:
            made.close()
