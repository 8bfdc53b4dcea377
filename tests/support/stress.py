"""Processes of many threads that write, read and shred at random, and tell what they were answered and when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import shredsaver
from shredsaver import CustomerShreddedError
from shredsaver.errors import DatabaseUnavailableError, ShredIncompleteError
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import CONTEXT, start_forks
from tests.support.waiting import SECONDS

CALL = Caller("sync")


class Event(NamedTuple):
    """One call: times are of the monotonic clock, which all processes share."""

    deed: str
    customer: str
    thread: str
    checkpoint: str
    value: Any
    began: float
    ended: float
    outcome: str


@dataclass
class Plan:
    """What one process is to do.

    ``threads`` write to threads of their own of ``customers`` customers for ``seconds``; about one call in
    ``shred_every`` shreds a customer, of whom ``spared`` are never chosen. However slow the machine is, each thread
    goes on until ``least`` writes came to their end, and two of them have shredded a customer, each another one.
    """

    database: str
    keys: str
    number: int
    seconds: float
    threads: int = 8
    customers: int = 50
    spared: int = 20
    shred_every: int = 250
    least: int = 4


@dataclass
class Record:
    """What came of it."""

    events: list[Event] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(plans: list[Plan], meanwhile: Callable[[float], None] | None = None) -> Record:
    """Runs one process for each plan, and ``meanwhile`` (given the time to stop) in this one."""
    start_forks()
    results, barrier = CONTEXT.Queue(), CONTEXT.Barrier(len(plans) + 1)
    processes = [CONTEXT.Process(target=_process, args=(plan, barrier, results), daemon=True) for plan in plans]
    for process in processes:
        process.start()
    barrier.wait(SECONDS)
    if meanwhile is not None:
        meanwhile(time.monotonic() + plans[0].seconds)
    record = Record()
    for _ in processes:
        found: Record = results.get(timeout=plans[0].seconds + 2 * SECONDS)
        record.events += found.events
        record.failures += found.failures
    for process in processes:
        process.join(SECONDS)
    return record


def _process(plan: Plan, barrier: Any, results: Any) -> None:
    record = Record()
    with shredsaver.Shredder.open(plan.database, keys=plan.keys) as shredder:
        barrier.wait(SECONDS)
        until = time.monotonic() + plan.seconds
        threads = [
            threading.Thread(target=_thread, args=(plan, shredder, number, until, record))
            for number in range(plan.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.put(record)


def _thread(plan: Plan, shredder: Any, number: int, until: float, record: Record) -> None:
    chance = random.Random(f"{plan.number} {number}")
    steps: dict[str, int] = {}
    written = 0
    first = plan.spared + 2 * plan.number + number if number < 2 else None
    while time.monotonic() < until or written < plan.least or first is not None:
        customer = f"c-{chance.randrange(plan.customers)}"
        thread = f"{customer} of {plan.number} {number}"
        draw = chance.random()
        if first is not None and written == plan.least // 2:
            customer, first = f"c-{first}", None
            _note(record, "shred", customer, "", "", None, lambda c=customer: shredder.shred(c))
        elif draw < 1 / plan.shred_every:
            customer = f"c-{chance.randrange(plan.spared, plan.customers)}"
            _note(record, "shred", customer, "", "", None, lambda c=customer: shredder.shred(c))
        elif draw < 0.2:
            here = config(thread, customer)
            _note(record, "read", customer, thread, "", None, lambda h=here: _read(shredder, h))
        else:
            step = steps[customer] = steps.get(customer, 0) + 1
            key, value = f"{step:012d}", [f"{thread} {step}", "text " * chance.randrange(5, 300)]
            here = config(thread, customer)
            if step > 1:
                here["configurable"]["checkpoint_id"] = f"{step - 1:012d}"

            def write(here: Any = here, key: str = key, value: Any = value, step: int = step) -> None:
                at = put(CALL, shredder.saver, here, {"x": value}, id=key, version=step, step=step)
                if step % 3 == 0:
                    shredder.saver.put_writes(at, [("x", "pending"), ("__error__", "none")], "task")

            written += _note(record, "write", customer, thread, key, value, write) == "done"


def _read(shredder: Any, here: Any) -> None:
    found = shredder.saver.get_tuple(here)
    if found is not None:
        (text, _), thread = found.checkpoint["channel_values"]["x"], here["configurable"]["thread_id"]
        if not text.startswith(thread):
            raise AssertionError(f"{thread} reads {text}")


def _note(
    record: Record, deed: str, customer: str, thread: str, key: str, value: Any, act: Callable[[], object]
) -> str:
    began = time.monotonic()
    outcome = "done"
    try:
        act()
    except CustomerShreddedError:
        outcome = "shredded"
    except (DatabaseUnavailableError, ShredIncompleteError) as error:
        outcome = f"unknown: {error}"
    except BaseException as error:  # noqa: BLE001 - told to the test
        record.failures.append(f"{deed} of {customer}: {error!r}")
        outcome = "failed"
    record.events.append(Event(deed, customer, thread, key, value, began, time.monotonic(), outcome))
    return outcome
