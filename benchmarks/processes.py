"""What only a process of its own shows: peak memory, and what is left after ``kill -9``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from .contenders import PLAIN, PLAIN_ASYNC, Contender, Place
from .probe import KILLED_THREAD
from .results import Result
from .stores import OURS, STOCK
from .suite import Bench, benchmark

MEGABYTES = 1e-6
MESSAGES = 20


def run(name: str, place: Place, probe: str, size: int, *, killed: bool = False) -> str:
    """Runs a probe and gives what it printed.

    Raises:
        RuntimeError: It ended otherwise than it should have.
    """
    module = f"{__package__}.probe"
    command = [sys.executable, "-m", module, name, str(place.directory), place.dsn or "", probe, str(size)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if (done.returncode < 0) is not killed or (done.returncode > 0):
        raise RuntimeError(f"the probe {probe} of {name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def _probes(bench: Bench) -> Iterator[tuple[str, str, int, str, str | None]]:
    """Probe, case, size, and the names of ours and of the baseline."""
    count, megabytes = bench.pick(50, 1000, 1000), bench.pick(1, 10, 10)
    ours, plain = bench.ours.name, PLAIN[bench.backend].name
    turns, checkpoints, items = bench.pick(3, 100, 100), bench.pick(10, 200, 200), bench.pick(50, 10_000, 10_000)
    conversations, records = bench.pick(3, 200, 200), bench.pick(100, 100_000, 100_000)
    yield "open", "opened, nothing written", 0, ours, plain
    yield "thread", f"a thread of {count:,} messages, written and read", count, ours, plain
    yield "large", f"a value of {megabytes} MB, written three times and read", megabytes * 1_000_000, ours, plain
    if bench.backend == "sqlite":  # the state is what counts here, whatever keeps it
        yield "wide", "50 channels of 2 KB, one changes, 20 supersteps", 20, ours, plain
        yield "files", "a dict of 200 files of 2 KB, one changes, 20 supersteps", 20, ours, plain
        yield "agent", f"create_agent, {turns} turns", turns, ours, plain
        yield "history", f"get_state_history of {checkpoints} checkpoints", checkpoints, ours, plain
        yield "crowd", "16 threads, 100 messages each", 16, ours, plain
    yield "gathered", f"{conversations} async conversations of 2 turns", conversations, *_names(bench)
    stock, _ = STOCK[bench.backend]
    yield (
        "store",
        f"a store of {items:,} items, searched with a filter",
        items,
        stock if bench.calibrate else OURS,
        stock,
    )
    if not bench.calibrate:
        yield "shred", f"{records:,} records written, audited and shredded", records, ours, None


def _names(bench: Bench) -> tuple[str, str]:
    return bench.ours_async.name, PLAIN_ASYNC[bench.backend].name


@benchmark("memory", sqlite=60, postgres=30)
def memory(bench: Bench) -> Iterator[Result]:
    """Peak resident memory of a process that does nothing else."""
    for probe, case, size, ours, theirs in _probes(bench):
        peaks: dict[str, list[float]] = {"ours": [], "theirs": []}
        for key, name in (("ours", ours), ("theirs", theirs)):
            if name is not None:
                place = bench.place()
                peaks[key].append(int(run(name, place, probe, size)))
                bench.discard(place)
        if theirs is None:
            yield bench.alone("peak memory", case, "MB", peaks["ours"][0] * MEGABYTES)
        else:
            yield bench.result("peak memory", case, theirs, "MB", peaks["ours"], peaks["theirs"], MEGABYTES)


@benchmark("kill -9", sqlite=10, postgres=8, quick=True)
def killed(bench: Bench) -> Iterator[Result]:
    """Nothing is bought with durability: a checkpoint whose `put` has returned survives the process being killed."""
    times = bench.pick(1, 1, 10)
    lost = sum(_lost(bench.ours, bench.place()) for _ in range(times))
    case = f"{times} process{'es' if times > 1 else ''} killed right after put returned"
    yield bench.alone("checkpoints lost by kill -9", case, "checkpoints", lost)


def _lost(contender: Contender, place: Place) -> int:
    last = run(contender.name, place, "kill", MESSAGES, killed=True)
    with contender.opened(place) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": KILLED_THREAD, "checkpoint_ns": ""}})
    return int(
        found is None
        or found.checkpoint["id"] != last
        or len(found.checkpoint["channel_values"]["messages"]) != MESSAGES
    )
