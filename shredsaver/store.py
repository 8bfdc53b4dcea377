"""`ShredStore`: LangGraph's long-term memory over the same database, keys and fence as the saver."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from shredsaver import filters
from shredsaver.core import Core
from shredsaver.errors import ConfigurationError
from shredsaver.items import pack_value
from shredsaver.namespaces import Owned, Templates
from shredsaver.putting import Put
from shredsaver.storing import Batch, Storing
from shredsaver.vectors import VectorCache, numpy

if TYPE_CHECKING:
    from shredsaver.shredder import Shredder

_MINUTE_MS: Final = 60_000
_SWEEP_MINUTES: Final = 5
_LONGEST: Final = 1_000_000_000
"""Minutes of the longest time to live: about 1,900 years."""


class ShredStore(BaseStore):
    """A store whose items are sealed under keys of the customer that their namespace names.

    Get one from `Shredder.open(...).store`, or with `from_conn_string`. One instance serves sync and async callers.
    A batch is one transaction: all of it is stored or nothing. Expired items are never returned, swept or not.

    Every operation may raise `NamespaceUnmatchedError`, `CustomerShreddedError`, `CustomerRestrictedError`,
    `UnsealError`, `KeyServiceError` and `DatabaseUnavailableError`; a put also `PayloadError`, a deletion
    `LegalHoldError`; LangGraph's ``InvalidNamespaceError`` is raised for labels that it does not allow.

    Attributes:
        shredder: The `Shredder` this store belongs to.
    """

    supports_ttl = True
    shredder: Shredder

    def __init__(
        self,
        core: Core,
        templates: Templates,
        *,
        cross_customer_search: bool = False,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        vectors: VectorCache | None = None,
    ) -> None:
        self._core = core
        self._templates = templates
        self.ttl_config = ttl
        self._embeddings = None
        self._fields: list[str] = []
        self._dims = dims = 0
        if index is not None:
            numpy()
            self._embeddings = ensure_embeddings(index.get("embed"))
            self._fields = list(index.get("fields") or ["$"])
            self._dims = dims = index["dims"]
        self._storing = Storing(
            core, templates, vectors or VectorCache(), dims=dims, cross_customer_search=cross_customer_search
        )
        self._sweeper: tuple[threading.Thread, threading.Event, concurrent.futures.Future[None]] | None = None
        self._sweeper_lock = threading.Lock()

    @classmethod
    @contextmanager
    def from_conn_string(cls, database: str, *, keys: Any, **options: Any) -> Iterator[ShredStore]:
        """Opens a `Shredder` and gives its store. Arguments as `Shredder.open`."""
        from shredsaver.shredder import Shredder

        with Shredder.open(database, keys=keys, **options) as shredder:
            yield shredder.store

    @classmethod
    @asynccontextmanager
    async def afrom_conn_string(cls, database: str, *, keys: Any, **options: Any) -> AsyncIterator[ShredStore]:
        """As `from_conn_string`, without blocking the running event loop."""
        from shredsaver.shredder import Shredder

        async with Shredder.open(database, keys=keys, **options) as shredder:
            yield shredder.store

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carries out operations in one transaction; reads see the state before the batch's puts."""
        request = _Request(self._templates, list(ops), self._fields, dims=self._dims)
        if self._embeddings is not None:
            request.embedded(
                self._embeddings.embed_documents(request.texts) if request.texts else [],
                {text: self._embeddings.embed_query(text) for text in request.query_texts},
            )
        return request.results(self._core.database.run(partial(self._storing.batch, request.batch)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        request = _Request(self._templates, list(ops), self._fields, dims=self._dims)
        if self._embeddings is not None:
            queries = await asyncio.gather(*(self._embeddings.aembed_query(text) for text in request.query_texts))
            request.embedded(
                await self._embeddings.aembed_documents(request.texts) if request.texts else [],
                dict(zip(request.query_texts, queries, strict=True)),
            )
        return request.results(await self._core.database.arun(partial(self._storing.batch, request.batch)))

    # -- time to live -----------------------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Deletes expired items and gives their number. They are out of sight already."""
        return self._core.database.run(self._storing.sweep)

    async def asweep_ttl(self) -> int:
        """As `sweep_ttl`."""
        return await self._core.database.arun(self._storing.sweep)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> concurrent.futures.Future[None]:
        """Sweeps now and then on a thread of its own, until `stop_ttl_sweeper`.

        Args:
            sweep_interval_minutes: Minutes between two sweeps; the store's ``ttl`` configuration without it, or 5.

        Returns:
            A future that is done when the sweeper has stopped, with the error that stopped it if one did.
        """
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        minutes = sweep_interval_minutes or configured or _SWEEP_MINUTES
        with self._sweeper_lock:
            if self._sweeper is not None and self._sweeper[0].is_alive():
                return self._sweeper[2]
            stop = threading.Event()
            future: concurrent.futures.Future[None] = concurrent.futures.Future()
            thread = threading.Thread(
                target=_sweep_until,
                args=(self.sweep_ttl, stop, minutes * 60, future),
                name="shredsaver-ttl",
                daemon=True,
            )
            self._sweeper = (thread, stop, future)
            thread.start()
            return future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper, waiting at most ``timeout`` seconds. True if none runs any more."""
        with self._sweeper_lock:
            sweeper, self._sweeper = self._sweeper, None
        if sweeper is None:
            return True
        sweeper[1].set()
        sweeper[0].join(timeout)
        return not sweeper[0].is_alive()


class _Request:
    """Operations, checked and taken apart; nothing has been read or written yet."""

    def __init__(self, templates: Templates, ops: Sequence[Op], fields: Sequence[str], *, dims: int) -> None:
        indexed = dims > 0
        self._dims = dims
        self._count = len(ops)
        self._reads: dict[int, GetOp | SearchOp | ListNamespacesOp] = {}
        self._puts: dict[tuple[tuple[str, ...], str], tuple[Put, list[str]]] = {}
        self._queries: dict[int, str] = {}
        self._vectors: Iterator[Sequence[float]] = iter(())
        self._embedded: Mapping[str, Sequence[float]] = {}
        for position, op in enumerate(ops):
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                self._puts[op.namespace, str(op.key)] = _put(templates, op, fields, indexed=indexed)
            elif isinstance(op, GetOp):
                templates.owner(op.namespace)
                self._reads[position] = op._replace(key=str(op.key))
            elif isinstance(op, SearchOp):
                filters.check(op.filter)
                self._reads[position] = op
                if indexed and op.query:
                    self._queries[position] = op.query
            elif isinstance(op, ListNamespacesOp):
                self._reads[position] = op
            else:
                raise ConfigurationError(f"a store has no operation {type(op).__name__}")

    @property
    def texts(self) -> list[str]:
        """What is to be embedded for the puts, in order."""
        return [text for _, texts in self._puts.values() for text in texts]

    @property
    def query_texts(self) -> list[str]:
        """The queries to be embedded, each once."""
        return list(dict.fromkeys(self._queries.values()))

    def embedded(self, vectors: Sequence[Sequence[float]], queries: Mapping[str, Sequence[float]]) -> None:
        """Takes the embeddings of `texts` and `query_texts`."""
        if len(vectors) != len(self.texts):
            raise ConfigurationError(f"the embedding function gave {len(vectors)} vectors for {len(self.texts)} texts")
        if any(len(vector) != self._dims for vector in queries.values()):
            raise ConfigurationError(f"the embedding function gave a query's vector without {self._dims} dimensions")
        self._vectors = iter(vectors)
        self._embedded = queries

    @property
    def batch(self) -> Batch:
        """What is to be carried out. To be asked for once."""
        puts = [
            put._replace(vectors=[next(self._vectors) for _ in texts]) if texts else put
            for put, texts in self._puts.values()
        ]
        return Batch(self._reads, puts, {position: self._embedded[text] for position, text in self._queries.items()})

    def results(self, answers: Mapping[int, Any]) -> list[Result]:
        """The answers in the order of the operations."""
        return [answers.get(position) for position in range(self._count)]


def _put(templates: Templates, op: PutOp, fields: Sequence[str], *, indexed: bool) -> tuple[Put, list[str]]:
    if not op.namespace:
        raise InvalidNamespaceError("an item needs a namespace")
    if op.namespace[0] == "langgraph":
        raise InvalidNamespaceError('the root label "langgraph" is reserved for LangGraph itself')
    owned: Owned = templates.owner(op.namespace)
    label = None if owned.customer_id is None else op.namespace[len(op.namespace) - len(owned.labels) - 1]
    if op.ttl is not None and not 0 < op.ttl <= _LONGEST:
        raise ConfigurationError(f"a time to live must be a number of minutes up to {_LONGEST:,}, or None")
    ttl_ms = None if op.ttl is None else int(op.ttl * _MINUTE_MS)
    value = None if op.value is None else pack_value(op.value)
    texts: list[str] = []
    if indexed and op.value is not None and op.index is not False:
        for path in fields if op.index is None else op.index:
            texts += get_text_at_path(op.value, path if path == "$" else tokenize_path(path))
    return Put(owned, label, str(op.key), value, (), ttl_ms), texts


def _sweep_until(
    sweep: Callable[[], int], stop: threading.Event, seconds: float, done: concurrent.futures.Future[None]
) -> None:
    try:
        while not stop.wait(seconds):
            sweep()
    except BaseException as error:
        done.set_exception(error)
        raise
    done.set_result(None)
