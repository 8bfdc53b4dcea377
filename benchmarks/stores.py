"""Long-term memory: ours beside LangGraph's own stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from langgraph.store.base import BaseStore, PutOp

from .contenders import POOL_SIZE, Backend, Place, durable, shredder_at
from .harness import Sample, rounds, timed
from .results import Result
from .suite import Bench, benchmark
from .workload import CUSTOMER, text

MILLISECONDS = 1000
NAMESPACE = ("users", CUSTOMER, "memories")

Opened = Callable[[Place], Any]


@contextmanager
def _ours(place: Place) -> Iterator[BaseStore]:
    with shredder_at(place) as shredder:
        yield shredder.store


@contextmanager
def _sqlite(place: Place) -> Iterator[BaseStore]:
    from langgraph.store.sqlite import SqliteStore

    with closing(sqlite3.connect(place.file, check_same_thread=False, isolation_level=None)) as connection:
        durable(connection)
        store = SqliteStore(connection)
        store.setup()
        yield store


@contextmanager
def _postgres(place: Place) -> Iterator[BaseStore]:
    from langgraph.store.postgres import PostgresStore

    with PostgresStore.from_conn_string(place.dsn or "", pool_config={"min_size": 1, "max_size": POOL_SIZE}) as store:
        store.setup()
        yield store


STOCK: dict[Backend, tuple[str, Opened]] = {
    "sqlite": ("SqliteStore", _sqlite),
    "postgres": ("PostgresStore", _postgres),
}


def value(number: int) -> dict[str, Any]:
    """A memory as agents keep them, about 500 bytes."""
    return {"kind": ("preference", "fact", "episode")[number % 3], "number": number, "text": text(number, 420)}


@benchmark("store")
def store(bench: Bench) -> Iterator[Result]:
    """One item put and got, 100 items in a batch, and search with and without a filter, among 1,000 items."""
    held = bench.pick(20, 1000, 1000)
    name, stock = STOCK[bench.backend]
    opened = {"ours": stock if bench.calibrate else _ours, "theirs": stock}
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {key: stack.enter_context(one(bench.place())) for key, one in opened.items()}
        for one in stores.values():
            one.batch([PutOp(NAMESPACE, f"key-{number}", value(number)) for number in range(held)])
        for case, sample_of in _CASES.items():
            samples = {key: sample_of(one, held) for key, one in stores.items()}
            series = rounds(samples, seconds=bench.pick(0.1, 1.0, 5.0), least=bench.pick(2, 5, 10))
            yield bench.result(
                "store", f"{case}, {held:,} items", name, "ms", series["ours"], series["theirs"], MILLISECONDS
            )


def _put(store: BaseStore, held: int) -> Sample:
    number = held

    def sample() -> float:
        nonlocal number
        number += 1
        return timed(lambda: store.put(NAMESPACE, f"key-{number}", value(number)))

    return sample


def _get(store: BaseStore, held: int) -> Sample:
    number = 0

    def sample() -> float:
        nonlocal number
        number = (number + 1) % held
        return timed(lambda: _present(store.get(NAMESPACE, f"key-{number}")))

    return sample


def _batch(store: BaseStore, held: int) -> Sample:
    number = 0

    def sample() -> float:
        nonlocal number
        number += 1
        operations = [PutOp(NAMESPACE, f"key-{index}", value(index + number)) for index in range(min(100, held))]
        return timed(lambda: store.batch(operations))

    return sample


def _search(store: BaseStore, _held: int) -> Sample:
    return lambda: timed(lambda: _present(store.search(("users", CUSTOMER), limit=10)))


def _filtered(store: BaseStore, _held: int) -> Sample:
    return lambda: timed(lambda: _present(store.search(NAMESPACE, filter={"kind": "fact"}, limit=10)))


def _present(found: object) -> None:
    if not found:
        raise RuntimeError("what was put is not there")


_CASES: dict[str, Callable[[BaseStore, int], Sample]] = {
    "put": _put,
    "get": _get,
    "batch of 100 puts": _batch,
    "search, first 10": _search,
    "search with a filter, first 10": _filtered,
}
