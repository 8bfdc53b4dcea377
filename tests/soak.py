"""A soak by hand: ``python -m tests.soak MINUTES [DIRECTORY]``.

Two processes of eight threads write, read and shred over one SQLite database. One stays for all of the time, with the
caches it has; the other is started for each round and ended by kill -9, and once in a round one of them is stopped for
a second and let go on. After each round everything that was acknowledged is looked for, and everything that was
shredded is tried; at the end a sample of all rounds. Acknowledgements go to files by single appends, so that they
survive the process. The last lines are JSON.
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
CUSTOMERS = 200
MARKS = {"log", "go", "stop", "done", "end"}
CALL = Caller("sync")


def main(minutes: float, home: Path) -> dict[str, Any]:
    """Soaks for some minutes. Raises AssertionError for the first loss."""
    chance = random.Random()
    figures: dict[str, Any] = defaultdict(int)
    until, rounds = time.monotonic() + 60 * minutes, 0
    grown: dict[str, list[float]] = defaultdict(list)
    kept: dict[tuple[str, str], int] = {}
    begun: set[str] = set()
    (home / "go 0").touch()
    steady = CONTEXT.Process(target=stay, args=(home,))
    steady.start()
    while time.monotonic() < until:
        (home / f"go {rounds}").touch()
        logs = [home / f"log {rounds} {number}" for number in range(PROCESSES)]
        killed = CONTEXT.Process(target=work, args=(home, rounds, 1))
        killed.start()
        while not all(log.exists() for log in logs):
            time.sleep(0.1)
        part = chance.uniform(0.7, 1.0) * ROUND / 2
        time.sleep(part)
        stopped = chance.choice([steady, killed])
        assert stopped.pid is not None
        assert killed.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(stopped.pid, signal.SIGCONT)
        figures["stops"] += 1
        time.sleep(part)
        os.kill(killed.pid, signal.SIGKILL)
        (home / f"stop {rounds}").touch()
        killed.join(120)
        while not (home / f"done {rounds}").exists():
            assert steady.is_alive()
            time.sleep(0.1)
        assert killed.exitcode == -signal.SIGKILL
        figures["kills"] += 1
        memory, descriptors = check(home, logs, figures, kept, begun)
        grown["memory MB"].append(memory // 1024)
        grown["descriptors"].append(descriptors)
        for name, pattern in (("database MB", "atlas.sqlite*"), ("key store MB", "keys/*"), ("journal MB", "journal*")):
            grown[name].append(round(sum(file.stat().st_size for file in home.glob(pattern)) / 2**20, 2))
        grown["files"].append(sum(1 for file in home.rglob("*") if file.name.split()[0] not in MARKS))
        rounds += 1
        print(rounds, dict(figures), {name: values[-1] for name, values in grown.items()}, flush=True)
    (home / f"end {rounds}").touch()
    steady.join(120)
    assert steady.exitcode == 0
    with open_(home) as shredder:
        for customer, thread in chance.sample(sorted(kept), min(2000, len(kept))):
            if customer not in begun:
                look(shredder, customer, thread, kept[customer, thread], figures)
                figures["looked for again at the end"] += 1
    return {
        **figures,
        "minutes": minutes,
        "rounds": rounds,
        "after each tenth of the rounds": {
            name: [values[(len(values) - 1) * n // 10] for n in range(11)] for name, values in grown.items()
        },
    }


def open_(home: Path) -> Shredder:
    return Shredder.open(str(home / "atlas.sqlite"), keys=f"file:{home / 'keys'}", journal=home / "journal")


def stay(home: Path) -> None:
    """The process that stays: takes part in round after round until it finds that there is none."""
    with open_(home) as shredder:
        for round_ in range(1_000_000):
            while not (home / f"go {round_}").exists():
                if (home / f"end {round_}").exists():
                    return
                time.sleep(0.05)
            take_part(shredder, home, round_, 0)
            (home / f"done {round_}").touch()


def work(home: Path, round_: int, number: int) -> None:
    with open_(home) as shredder:
        take_part(shredder, home, round_, number)


def take_part(shredder: Shredder, home: Path, round_: int, number: int) -> None:
    log = os.open(home / f"log {round_} {number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    stop = home / f"stop {round_}"
    threads = [threading.Thread(target=act, args=(shredder, note, stop, round_, number, n)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    note("memory", pages * resource.getpagesize() // 1024, len(os.listdir("/proc/self/fd")))
    os.close(log)


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


def check(
    home: Path, logs: list[Path], figures: dict[str, Any], kept: dict[tuple[str, str], int], all_begun: set[str]
) -> tuple[int, int]:
    """Compares a round's acknowledgements with what is there.

    Gives memory (kB, resident) and open descriptors of the process that stayed.
    """
    wrote: dict[tuple[str, str], int] = {}
    begun, shredded, memory, descriptors = set(), set(), 0, 0
    for line in (line for log in logs for line in log.read_text().splitlines()):
        match line.split():
            case ["wrote", customer, thread, step]:
                wrote[customer, thread] = int(step)
                figures["writes"] += 1
            case ["begun", customer]:
                begun.add(customer)
            case ["shredded", customer]:
                figures["shreds asked for again" if customer in shredded else "shreds"] += 1
                shredded.add(customer)
            case ["memory", kilobytes, count]:
                memory, descriptors = int(kilobytes), int(count)
            case ["failed", *_]:
                raise AssertionError(line)
            case [kind]:
                figures[kind] += 1
    with open_(home) as shredder:
        shredder.resume()
        shredder.check_log()
        assert shredder.check_keys().ok
        for (customer, thread), step in wrote.items():
            if customer not in begun:
                look(shredder, customer, thread, step, figures)
            elif customer in shredded or shredder.status(customer).state != "live":
                figures["tried and refused"] += 1
                try:
                    found = shredder.saver.get_tuple(config(thread, customer))
                except ShredSaverError:
                    continue
                raise AssertionError(f"{thread} was shredded, and gave {found!r}")
        for customer in shredded:
            assert shredder.audit(customer).opens == 0
    kept.update(wrote)
    all_begun.update(begun)
    return memory, descriptors


def look(shredder: Shredder, customer: str, thread: str, step: int, figures: dict[str, Any]) -> None:
    """Looks for every checkpoint of a thread, and opens each."""
    found = {
        each.config["configurable"]["checkpoint_id"]: each.checkpoint["channel_values"]["x"]
        for each in shredder.saver.list(config(thread, customer))
    }
    lost = {f"{n:09d}" for n in range(1, step + 1)} - found.keys()
    figures["lost"] += len(lost)
    assert not lost, (thread, lost)
    assert all(text[0] == thread and len(text) == 1 + min(int(key), 30) for key, text in found.items()), thread


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="soak-", dir=sys.argv[2] if len(sys.argv) > 2 else None) as made:
        print(json.dumps(main(float(sys.argv[1]), Path(made)), indent=1))
