"""What a shred costs by the data of the customer and by the number of others, and how often keys are asked for."""

from __future__ import annotations

import os
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from .contenders import Place, Saver, shredder_at
from .harness import Sample, rounds, timed
from .observed import ObservedKeys, create_in_bulk
from .results import Result
from .suite import Bench, benchmark
from .targets import KEY_CALLS, SHRED_CUSTOMERS, SHRED_RECORDS, SHRED_TIME
from .workload import CUSTOMER, Thread, message, text

MILLISECONDS = 1000
PER_THREAD = 25_000
SEALED_AT_MOST = 100_000
"""Records of a customer that is written anew for each sample."""

_ELEMENT = text(1, 140)  # above the size from which an element is a record of its own


@contextmanager
def observed(place: Place) -> Iterator[tuple[Any, ObservedKeys]]:
    """Ours with its key service watched."""
    keys = ObservedKeys(place)
    with shredder_at(place, keys=keys) as shredder:
        yield shredder, keys


def write_records(saver: Saver, customer: str, count: int) -> None:
    """Gives a customer about ``count`` sealed records in as few calls as it takes."""
    for first in range(0, count, PER_THREAD):
        thread = Thread(saver, f"{customer}-{first}", {"log": []}, customer=customer)
        rows = [f"{number} {_ELEMENT}" for number in range(first, min(count, first + PER_THREAD))]
        thread.change("log", rows, rows)()


def shred_of(shredder: Any, keys: ObservedKeys, records: int, name: str) -> Sample:
    """Samples the shred of a new customer each time: seconds from the call until its keys were destroyed."""
    made = 0

    def sample() -> float:
        nonlocal made
        made += 1
        customer = f"{name}-{made}"
        write_records(shredder.saver, customer, records)
        start = time.perf_counter()
        shredder.shred(customer, purge=False)
        return keys.destroyed - start

    return sample


def write_rows(shredder: Any, place: Place, customer: str, count: int) -> None:
    """Gives a customer ten records, and so many more as rows beside them that were never sealed.

    Sealing a million takes minutes. Until a key is destroyed a shred looks at no row's content.
    """
    write_records(shredder.saver, customer, 10)
    token = shredder._start().core.token("customer", customer)
    series = f"WITH RECURSIVE f(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM f WHERE value < {count}) "
    rows = (
        "INSERT INTO parts (thread, generation, scope, number, sealed) SELECT t.thread, t.generation, t.scope + 1, "
        "1000 + f.value, randomblob(100) FROM f, threads t WHERE t.customer = ?"
    )
    with closing(sqlite3.connect(place.file)) as connection, connection:
        connection.execute(series + rows, (token,))


def shred_of_rows(shredder: Any, keys: ObservedKeys, place: Place, rows: int) -> Sample:
    """As `shred_of`, with `write_rows`."""
    made = 0

    def sample() -> float:
        nonlocal made
        made += 1
        customer = f"rows-{made}"
        write_rows(shredder, place, customer, rows)
        start = time.perf_counter()
        shredder.shred(customer, purge=False)
        return keys.destroyed - start

    return sample


@benchmark("shred by records", sqlite=40, postgres=30, quick=True, ours_only=True)
def by_records(bench: Bench) -> Iterator[Result]:
    """A customer with many records beside one with ten, in one database."""
    sizes: tuple[int, ...] = bench.pick((100,), (1_000, 100_000), (1_000, 10_000, 100_000))
    if bench.level == "full" and bench.backend == "sqlite":
        sizes += (1_000_000,)
    for many in sizes:
        place, few = bench.place(), bench.place()
        direct = many > SEALED_AT_MOST
        with observed(place) as (shredder, keys):
            samples = {
                "ours": shred_of_rows(shredder, keys, place, many)
                if direct
                else shred_of(shredder, keys, many, "many"),
                "theirs": shred_of(shredder, keys, 10, "few"),
            }
            least, warm_up = (3, 0) if direct else (bench.pick(2, 3, 6), 1)
            series = rounds(samples, seconds=bench.pick(0.2, 1.0, bench.share(0.15)), least=least, warm_up=warm_up)
        with observed(few) as (shredder, _):
            write_records(shredder.saver, CUSTOMER, 10)
        case = f"{many:,} records"
        opens = {"ours": _open(place), "theirs": _open(few)}
        opened = rounds(opens, seconds=bench.pick(0.1, 0.3, bench.share(0.03)), least=3, warm_up=1)
        bench.discard(place, few)
        yield bench.result(
            "open, by records", case, "shredsaver, 10 records", "ms", opened["ours"], opened["theirs"], MILLISECONDS
        )
        yield bench.result(
            SHRED_RECORDS, case, "shredsaver, 10 records", "ms", series["ours"], series["theirs"], MILLISECONDS
        )
        yield bench.alone(SHRED_TIME, case, "ms", statistics.median(series["ours"]) * MILLISECONDS)


@benchmark("shred by customers", sqlite=50, quick=True, ours_only=True)
def by_customers(bench: Bench) -> Iterator[Result]:
    """The same shred, and opening, beside many other customers and beside a hundred."""
    few = bench.pick(10, 100, 100)
    for many in bench.pick((100,), (1_000, 100_000), (1_000, 10_000, 100_000, 1_000_000)):
        places = {"ours": bench.place(), "theirs": bench.place()}
        with ExitStack() as stack:
            samples = {}
            for (name, place), count in zip(places.items(), (many, few), strict=True):
                shredder, keys = stack.enter_context(observed(place))
                populate(shredder, keys, place, count)
                samples[name] = shred_of(shredder, keys, 10, "shredded")
            series = rounds(samples, seconds=bench.pick(0.2, 1.0, bench.share(0.09)), least=bench.pick(2, 8, 12))
        case, baseline = f"{many:,} others", f"shredsaver, {few:,} others"
        yield bench.result(SHRED_CUSTOMERS, case, baseline, "ms", series["ours"], series["theirs"], MILLISECONDS)
        opens = {name: _open(place) for name, place in places.items()}
        series = rounds(opens, seconds=bench.pick(0.2, 1.0, bench.share(0.04)), least=bench.pick(3, 3, 5), warm_up=1)
        yield bench.result("open, by customers", case, baseline, "ms", series["ours"], series["theirs"], MILLISECONDS)
        bench.discard(*places.values())


def populate(shredder: Any, keys: ObservedKeys, place: Place, count: int) -> None:
    """Adds customers with keys and with rows in the database; they hold no data: a shred of another never sees it."""
    from shredsaver.core import Customer

    tokens = [os.urandom(16) for _ in range(count)]
    create_in_bulk(keys.service, tokens)
    write_records(shredder.saver, CUSTOMER, 10)  # the tables are there
    core = shredder._start().core
    rows = [core.customer_row(Customer(token, 1, "live", 1, ""), None) for token in tokens]
    with closing(sqlite3.connect(place.file)) as connection, connection:
        connection.executemany(
            "INSERT INTO customers (customer, generation, state, key_version, held_until, mac, name) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def _open(place: Place) -> Sample:
    def sample() -> float:
        start = time.perf_counter()
        with shredder_at(place):
            return time.perf_counter() - start

    return sample


@benchmark("audit", sqlite=70, postgres=20, ours_only=True)
def audit(bench: Bench) -> Iterator[Result]:
    """Counting a customer's records and opening each: it grows with them, and should with nothing else."""
    sizes: tuple[int, ...] = bench.pick((10, 100), (10, 1_000, 10_000), (10, 1_000, 10_000, 100_000))
    if bench.level == "full" and bench.backend == "sqlite":
        sizes += (1_000_000,)
    with observed(bench.place()) as (shredder, _keys):
        for size in sizes:
            write_records(shredder.saver, f"audited-{size}", size)
        for size in sizes:
            series = rounds(
                {"ours": lambda size=size: timed(lambda: _audited(shredder, size))},  # type: ignore[misc]
                seconds=bench.pick(0.1, 1.0, bench.share(0.08)),
                least=1 if size > SEALED_AT_MOST else 2,
                warm_up=0,
            )
            yield bench.alone("audit", f"{size:,} records", "ms", statistics.median(series["ours"]) * MILLISECONDS)


def _audited(shredder: Any, size: int) -> None:
    if shredder.audit(f"audited-{size}").opens < size:
        raise RuntimeError("the audit opened fewer records than were written")


@benchmark("key-service calls", sqlite=8, quick=True, ours_only=True)
def key_calls(bench: Bench) -> Iterator[Result]:
    """Calls of the key service while one customer's conversations make supersteps: a new customer, then a known one."""
    count, place = bench.pick(20, 1000, 1000), bench.place()
    for whose in ("a new customer", "one customer"):
        with observed(place) as (shredder, keys):
            calls = _calls(shredder, keys, count, whose)
        yield bench.alone(KEY_CALLS, f"{count:,} supersteps of {whose}", "calls", calls)


def _calls(shredder: Any, keys: ObservedKeys, count: int, name: str) -> int:
    """How often the key service is called, from the first superstep in a process on."""
    shredder.saver.get_tuple({"configurable": {"thread_id": "opens", "customer_id": "somebody else"}})
    keys.forget()

    def supersteps() -> None:
        for first in range(0, count, 100):
            thread = Thread(shredder.saver, f"{name}-{first}")
            thread.grow([message(number) for number in range(min(100, count - first))])

    seconds = timed(supersteps)
    if seconds > 60:
        raise RuntimeError(f"{count} supersteps took {seconds:.0f} s: not within a minute")
    return sum(keys.calls.values())
