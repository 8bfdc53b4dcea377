"""A soak by hand: ``python -m tests.soak MINUTES [DIRECTORY]``.

Two processes of eight threads write, read and shred over one SQLite database; each round ends one of them by
kill -9 and the other in peace. After each round everything that was acknowledged is looked for, and everything that was
shredded is tried. Acknowledgements go to files by single appends, so that they survive the process. The last line is
JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from shredsaver import CustomerShreddedError, Shredder, ShredSaverError
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import CONTEXT

PROCESSES, THREADS, ROUND = 2, 8, 20.0
CUSTOMERS = 40
CALL = Caller("sync")


def main(minutes: float, home: Path) -> dict[str, Any]:
    """Soaks for some minutes. Raises AssertionError for the first loss."""
    chance = random.Random()
    figures: dict[str, Any] = defaultdict(int)
    until, rounds = time.monotonic() + 60 * minutes, 0
    sizes, memory = [], []
    while time.monotonic() < until:
        logs = [home / f"log {rounds} {number}" for number in range(PROCESSES)]
        processes = [CONTEXT.Process(target=work, args=(home, rounds, number)) for number in range(PROCESSES)]
        for process in processes:
            process.start()
        while not all(log.exists() for log in logs):
            time.sleep(0.1)
        time.sleep(chance.uniform(0.7, 1.0) * ROUND)
        victim = processes[chance.randrange(PROCESSES)]
        if victim.pid is not None:
            os.kill(victim.pid, signal.SIGKILL)
        (home / f"stop {rounds}").touch()
        for process in processes:
            process.join(120)
        assert sorted(process.exitcode or 0 for process in processes) == [-signal.SIGKILL, 0]
        figures["kills"] += 1
        memory.append(check(home, logs, figures))
        sizes.append(sum(file.stat().st_size for file in home.glob("atlas.sqlite*")))
        rounds += 1
        print(rounds, dict(figures), flush=True)
    return {
        **figures,
        "minutes": minutes,
        "rounds": rounds,
        "database MB, first and last round": [round(sizes[0] / 2**20, 1), round(sizes[-1] / 2**20, 1)],
        "MB of memory of a process, least and most of all rounds": [min(memory) // 1024, max(memory) // 1024],
    }


def open_(home: Path) -> Shredder:
    return Shredder.open(str(home / "atlas.sqlite"), keys=f"file:{home / 'keys'}", journal=home / "journal")


def work(home: Path, round_: int, number: int) -> None:
    log = os.open(home / f"log {round_} {number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    stop = home / f"stop {round_}"
    with open_(home) as shredder:
        threads = [threading.Thread(target=act, args=(shredder, note, stop, round_, number, n)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    note("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def act(shredder: Shredder, note: Any, stop: Path, round_: int, number: int, thread: int) -> None:
    chance, steps = random.Random(), defaultdict(int)
    while not stop.exists():
        customer = f"c-{round_}-{chance.randrange(CUSTOMERS)}"
        name = f"{customer}/{number}/{thread}"
        here, draw = config(name, customer), chance.random()
        try:
            if draw < 0.01:
                note("begun", customer)
                shredder.shred(customer)
                note("shredded", customer)
            elif draw < 0.25:
                found = shredder.saver.get_tuple(here)
                assert found is None or found.checkpoint["channel_values"]["x"][0] == name
                note("read")
            else:
                step = steps[customer] + 1
                if step > 1:
                    here["configurable"]["checkpoint_id"] = f"{step - 1:09d}"
                text = [name, *(f"turn {n} " * 40 for n in range(min(step, 30)))]
                put(CALL, shredder.saver, here, {"x": text}, id=f"{step:09d}", version=step, step=step)
                steps[customer] = step
                note("wrote", customer, name, step)
        except CustomerShreddedError:
            note("refused")
        except BaseException as error:
            note("failed", repr(error).replace("\n", " "))
            raise


def check(home: Path, logs: list[Path], figures: dict[str, Any]) -> int:
    """Compares a round's acknowledgements with what is there. Gives the memory of the process that ended in peace."""
    wrote: dict[tuple[str, str], int] = {}
    begun, shredded, memory = set(), set(), 0
    for line in (line for log in logs for line in log.read_text().splitlines()):
        match line.split():
            case ["wrote", customer, thread, step]:
                wrote[customer, thread] = int(step)
                figures["writes"] += 1
            case ["begun", customer]:
                begun.add(customer)
            case ["shredded", customer]:
                shredded.add(customer)
                figures["shreds"] += 1
            case ["memory", kilobytes]:
                memory = int(kilobytes)
            case ["failed", *_]:
                raise AssertionError(line)
            case [kind]:
                figures[kind] += 1
    with open_(home) as shredder:
        shredder.resume()
        shredder.check_log()
        assert shredder.check_keys().ok
        for (customer, thread), step in wrote.items():
            here = config(thread, customer)
            if customer not in begun:
                keys = {found.config["configurable"]["checkpoint_id"] for found in shredder.saver.list(here)}
                lost = {f"{n:09d}" for n in range(1, step + 1)} - keys
                figures["lost"] += len(lost)
                assert not lost, (thread, lost)
            elif customer in shredded or shredder.status(customer).state != "live":
                figures["tried and refused"] += 1
                try:
                    found = shredder.saver.get_tuple(here)
                except ShredSaverError:
                    continue
                raise AssertionError(f"{thread} was shredded, and gave {found!r}")
        for customer in shredded:
            assert shredder.audit(customer).opens == 0
    return memory


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="soak-", dir=sys.argv[2] if len(sys.argv) > 2 else None) as made:
        print(json.dumps(main(float(sys.argv[1]), Path(made)), indent=1))
