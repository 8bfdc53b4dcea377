"""Long-term memory: ours beside LangGraph's own stores."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, cast

from langgraph.store.base import BaseStore, IndexConfig, PutOp

from . import postgres
from .contenders import POOL_SIZE, Backend, Place, durable, shredder_at
from .harness import Sample, rounds, timed
from .results import Result
from .suite import Bench, benchmark
from .workload import CUSTOMER, text

MILLISECONDS = 1000
NAMESPACE = ("users", CUSTOMER, "memories")

DIMENSIONS = 384
PER_BATCH = 500

Opened = Callable[..., Any]


@contextmanager
def _ours(place: Place, index: IndexConfig | None = None) -> Iterator[BaseStore]:
    with shredder_at(place, index=index) as shredder:
        yield shredder.store


@contextmanager
def _sqlite(place: Place, index: IndexConfig | None = None) -> Iterator[BaseStore]:
    from langgraph.store.sqlite import SqliteStore

    with closing(sqlite3.connect(place.file, check_same_thread=False, isolation_level=None)) as connection:
        durable(connection)
        store = SqliteStore(connection, index=cast(Any, index))
        store.setup()
        yield store


@contextmanager
def _postgres(place: Place, index: IndexConfig | None = None) -> Iterator[BaseStore]:
    from langgraph.store.postgres import PostgresStore

    pool: Any = {"min_size": 1, "max_size": POOL_SIZE}
    with PostgresStore.from_conn_string(place.dsn or "", pool_config=pool, index=cast(Any, index)) as store:
        store.setup()
        yield store


OURS = "shredsaver"
STOCK: dict[Backend, tuple[str, Opened]] = {
    "sqlite": ("SqliteStore", _sqlite),
    "postgres": ("PostgresStore", _postgres),
}


BY_NAME: dict[str, Opened] = {OURS: _ours, **dict(STOCK.values())}


def filled(store: BaseStore, place: Place, held: int) -> BaseStore:
    """Puts so many items, and lets PostgreSQL gather its statistics, as its own process would within the minute."""
    for start in range(0, held, PER_BATCH):
        numbers = range(start, min(held, start + PER_BATCH))
        store.batch([PutOp(NAMESPACE, f"key-{number}", value(number)) for number in numbers])
    if place.dsn is not None:
        postgres.analyze(place.dsn)
    return store


def value(number: int) -> dict[str, Any]:
    """A memory as agents keep them, about 500 bytes."""
    return {"kind": ("preference", "fact", "episode")[number % 3], "number": number, "text": text(number, 420)}


@benchmark("store", sqlite=20, postgres=20)
def store(bench: Bench) -> Iterator[Result]:
    """One item put and got, and 100 items in a batch, among 1,000 items."""
    held = bench.pick(20, 1000, 1000)
    yield from _compared(bench, held, STOCK[bench.backend], {}, _WRITING, 0.2)


@benchmark("store-search", sqlite=45, postgres=40)
def search(bench: Bench) -> Iterator[Result]:
    """Listing, searching with and without a filter, and by likeness to a text, among more and more items."""
    sizes: tuple[int, ...] = bench.pick((10, 20), (10, 1000), (100, 1000, 10_000))
    for held in sizes:
        yield from _compared(bench, held, STOCK[bench.backend], {}, _SEARCHING, 0.04)
        index: IndexConfig = {"dims": DIMENSIONS, "embed": embed, "fields": ["text"]}
        yield from _compared(bench, held, _with_vectors(bench), {"index": index}, _BY_MEANING, 0.06)


def _compared(
    bench: Bench,
    held: int,
    against: tuple[str, Opened],
    options: dict[str, Any],
    cases: dict[str, Callable[[BaseStore, int], Sample]],
    share: float,
) -> Iterator[Result]:
    name, stock = against
    opened = {"ours": stock if bench.calibrate else _ours, "theirs": stock}
    with ExitStack() as stack:
        places = {key: bench.place() for key in opened}
        stores: dict[str, BaseStore] = {
            key: filled(stack.enter_context(one(places[key], **options)), places[key], held)
            for key, one in opened.items()
        }
        for case, sample_of in cases.items():
            samples = {key: sample_of(one, held) for key, one in stores.items()}
            series = rounds(samples, seconds=bench.pick(0.1, 1.0, bench.share(share)), least=bench.pick(2, 5, 8))
            yield bench.result(
                "store", f"{case}, {held:,} items", name, "ms", series["ours"], series["theirs"], MILLISECONDS
            )
    bench.discard(*places.values())


def _with_vectors(bench: Bench) -> tuple[str, Opened]:
    """LangGraph's store for the search by meaning; the one in memory where this machine lacks an extension of SQL."""
    name, stock = STOCK[bench.backend]
    if bench.backend == "sqlite":
        able = hasattr(sqlite3.Connection, "enable_load_extension")
    else:
        able = postgres.has_extension(bench.dsn or "", "vector")
    return (name, stock) if able else ("InMemoryStore", _memory)


@contextmanager
def _memory(_place: Place, index: IndexConfig | None = None) -> Iterator[BaseStore]:
    from langgraph.store.memory import InMemoryStore

    yield InMemoryStore(index=index)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text, always the same: as random as an embedding, and made in no time."""
    return [[draw.gauss(0, 1) for _ in range(DIMENSIONS)] for draw in (random.Random(one) for one in texts)]


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


def _alike(store: BaseStore, _held: int) -> Sample:
    return lambda: timed(lambda: _present(store.search(NAMESPACE, query="what do they like?", limit=10)))


def _filtered(store: BaseStore, _held: int) -> Sample:
    return lambda: timed(lambda: _present(store.search(NAMESPACE, filter={"kind": "fact"}, limit=10)))


def _rare(store: BaseStore, held: int) -> Sample:
    number = 0

    def sample() -> float:
        nonlocal number
        number = (number + 7) % held
        return timed(lambda: _present(store.search(NAMESPACE, filter={"number": number}, limit=10)))

    return sample


def _listed(store: BaseStore, _held: int) -> Sample:
    return lambda: timed(lambda: _present(store.list_namespaces(prefix=("users", CUSTOMER))))


def _present(found: object) -> None:
    if not found:
        raise RuntimeError("what was put is not there")


_Cases = dict[str, Callable[[BaseStore, int], Sample]]
_WRITING: _Cases = {"put": _put, "get": _get, "batch of 100 puts": _batch}
_SEARCHING: _Cases = {
    "search, newest 10": _search,
    "search with a filter that a third passes, first 10": _filtered,
    "search with a filter that one passes": _rare,
    "list_namespaces": _listed,
}
_BY_MEANING: _Cases = {"search by meaning, first 10": _alike}
