"""What only a process of its own shows: peak memory, and what is left after ``kill -9``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from .contenders import PLAIN, Contender, Place
from .probe import KILLED_THREAD
from .results import Result
from .suite import Bench, benchmark

MEGABYTES = 1e-6
MESSAGES = 20


def run(contender: Contender, place: Place, probe: str, size: int, *, killed: bool = False) -> str:
    """Runs a probe and gives what it printed.

    Raises:
        RuntimeError: It ended otherwise than it should have.
    """
    command = [
        sys.executable,
        "-m",
        f"{__package__}.probe",
        contender.name,
        str(place.directory),
        place.dsn or "",
        probe,
        str(size),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if (done.returncode < 0) is not killed or (done.returncode > 0):
        raise RuntimeError(f"the probe {probe} of {contender.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.strip()


@benchmark("memory")
def memory(bench: Bench) -> Iterator[Result]:
    """Peak resident memory of a process that does nothing else."""
    baseline = PLAIN[bench.backend]
    count, megabytes = bench.pick(50, 1000, 1000), bench.pick(1, 10, 10)
    for probe, case, size in (
        ("memory-thread", f"a thread of {count:,} messages, written and read", count),
        ("memory-large", f"a value of {megabytes} MB, written three times and read", megabytes * 1_000_000),
    ):
        peaks: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(bench.pick(1, 1, 4)):
            for name, one in (("ours", bench.ours), ("theirs", baseline)):
                place = bench.place()
                peaks[name].append(int(run(one, place, probe, size)))
                bench.discard(place)
        yield bench.result("peak memory", case, baseline.name, "MB", peaks["ours"], peaks["theirs"], MEGABYTES)


@benchmark("kill -9", quick=True)
def killed(bench: Bench) -> Iterator[Result]:
    """Nothing is bought with durability: a checkpoint whose `put` has returned survives the process being killed."""
    times = bench.pick(1, 1, 10)
    lost = sum(_lost(bench.ours, bench.place()) for _ in range(times))
    case = f"{times} process{'es' if times > 1 else ''} killed right after put returned"
    yield bench.alone("checkpoints lost by kill -9", case, "checkpoints", lost)


def _lost(contender: Contender, place: Place) -> int:
    last = run(contender, place, "kill", MESSAGES, killed=True)
    with contender.opened(place) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": KILLED_THREAD, "checkpoint_ns": ""}})
    return int(
        found is None
        or found.checkpoint["id"] != last
        or len(found.checkpoint["channel_values"]["messages"]) != MESSAGES
    )
