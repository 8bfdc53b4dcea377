"""What a superstep and a shred cost beside many threads of others in the same tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

from .contenders import Place
from .harness import rounds
from .results import Result
from .shredding import observed, write_records
from .suite import Bench, benchmark
from .supersteps import Stepper
from .workload import CUSTOMER

MILLISECONDS = 1000
FEW = 10
_CHECKPOINTS = 4  # of a thread of others; twice as many writes, and parts
_SIZE = 400  # bytes of a record of theirs


def fill(place: Place, threads: int) -> None:
    """Adds rows of threads, each of a customer of its own. They are never opened: any bytes will do."""
    if place.dsn is None:
        series = (
            f"WITH RECURSIVE t(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM t WHERE value < {threads}), "
            f"f(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM f WHERE value < {2 * _CHECKPOINTS}) "
        )
        with closing(sqlite3.connect(place.file)) as connection, connection:
            for statement in _rows(f"randomblob({_SIZE})", "CAST(t.value AS BLOB)", "t", "f"):
                connection.execute(series + statement)
        return
    import psycopg

    blob = f"(SELECT string_agg(sha256(i::text::bytea), '') FROM generate_series(1, {_SIZE // 32}) i)"
    with psycopg.connect(place.dsn, autocommit=True, options="-c search_path=shredsaver") as server:
        some = f"generate_series(1, {2 * _CHECKPOINTS}) AS f(value)"
        for statement in _rows(blob, "t.value::text::bytea", f"generate_series(1, {threads}) AS t(value)", some):
            server.execute(statement.encode())
        server.execute("VACUUM ANALYZE")


def _rows(sealed: str, token: str, threads: str, some: str) -> Iterator[str]:
    yield (
        "INSERT INTO threads (thread, customer, generation, scope, next_record, next_part, epoch, uses_delta, "
        f"touched_at) SELECT {token}, {token}, 1, 16, 16, 16, 1, 0, 0 FROM {threads}"
    )
    yield (
        "INSERT INTO checkpoints (thread, ns, checkpoint_id, generation, parent_id, run, source, step, scope, number, "
        f"sealed) SELECT {token}, '', 'id-' || f.value, 1, '', {token}, 'loop', '1', 16, f.value, {sealed} "
        f"FROM {threads} CROSS JOIN {some} WHERE f.value <= {_CHECKPOINTS}"
    )
    yield (
        "INSERT INTO writes (thread, ns, checkpoint_id, task_id, idx, generation, task_path, channel, scope, number, "
        f"sealed) SELECT {token}, '', 'id-' || f.value, 'task', 0, 1, '', 'messages', 16, f.value, {sealed} "
        f"FROM {threads} CROSS JOIN {some}"
    )
    yield (
        "INSERT INTO parts (thread, generation, scope, number, sealed) "
        f"SELECT {token}, 1, 17, f.value, {sealed} FROM {threads} CROSS JOIN {some}"
    )


def _shred(shredder: Any) -> Iterator[float]:
    number = 0
    while True:
        number += 1
        write_records(shredder.saver, f"shredded-{number}", FEW)
        start = time.perf_counter()
        shredder.shred(f"shredded-{number}")
        yield time.perf_counter() - start


@benchmark("growth by threads", sqlite=30, postgres=25, ours_only=True)
def by_threads(bench: Bench) -> Iterator[Result]:
    """A superstep, and a whole shred with its purge, beside many threads of others and beside ten."""
    for many in bench.pick((100,), (1_000, 30_000), (1_000, 30_000)):
        places = {"ours": bench.place(), "theirs": bench.place()}
        with ExitStack() as stack:
            steps, shreds = {}, {}
            for (name, place), count in zip(places.items(), (many, FEW), strict=True):
                shredder, _ = stack.enter_context(observed(place))
                write_records(shredder.saver, CUSTOMER, FEW)  # the tables are there
                fill(place, count)
                steps[name] = Stepper(shredder.saver, 10)
                shreds[name] = _shred(shredder).__next__
            case, baseline = f"{many:,} threads", f"shredsaver, {FEW} threads"
            for figure, samples in (("superstep write, by threads", steps), ("shred with purge, by threads", shreds)):
                series = rounds(
                    samples, seconds=bench.pick(0.2, 2.0, bench.share(0.17)), least=bench.pick(2, 8, 12), warm_up=2
                )
                yield bench.result(figure, case, baseline, "ms", series["ours"], series["theirs"], MILLISECONDS)
        bench.discard(*places.values())
