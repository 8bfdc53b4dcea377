"""`Shredder`: one database and one key service, opened together. It owns the saver, the store and erasure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import IndexConfig, TTLConfig

from shredsaver.administration import Administration
from shredsaver.core import Core
from shredsaver.customers import CustomerOption, CustomerResolver, exact_id
from shredsaver.db.base import Database, Plan, T
from shredsaver.db.opening import open_database
from shredsaver.db.setup import set_up
from shredsaver.errors import ConfigurationError
from shredsaver.kms.base import KeyService, open_key_service
from shredsaver.memory import Memory
from shredsaver.namespaces import CUSTOMER, Mark, Templates
from shredsaver.outside import Outside
from shredsaver.restraint import Restraint
from shredsaver.results import CustomerStatus, ShredPlan, ShredResult
from shredsaver.saver import ShredSaver
from shredsaver.shredding import Request, Shredding
from shredsaver.store import ShredStore
from shredsaver.targets import ErasureTarget, checked
from shredsaver.vectors import VectorCache


class Shredder:
    """One deployment: a database, the keys of its customers, and everything that uses both.

    Made by `open`. It is a context manager, sync and async; leaving it closes the database and the key service. Each
    method has an async twin with the prefix ``a`` that does not block the running event loop.

    Attributes:
        saver: The checkpointer to give to an agent.
        store: The long-term memory to give to an agent.
    """

    def __init__(
        self, database: str | Database, keys: str | KeyService, resolver: CustomerResolver, **options: Any
    ) -> None:
        self._database = database
        self._keys = keys
        self._resolver = resolver
        self._options = options
        self._lock = threading.Lock()
        self._started: _Started | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        database: str | Database,
        *,
        keys: str | KeyService,
        customer: CustomerOption = "customer_id",
        namespaces: Sequence[Sequence[Mark]] = (("users", CUSTOMER),),
        cross_customer_search: bool = False,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        targets: Sequence[ErasureTarget] = (),
        serde: SerializerProtocol | None = None,
        auto_setup: bool = True,
    ) -> Self:
        """Opens a database with its keys.

        Inside a running event loop nothing is opened yet, so that the loop is not blocked: ``async with`` opens it, and
        so does the first use.

        Args:
            database: A path, ``sqlite:///…`` or ``postgresql://…``.
            keys: Where the keys are: ``file:DIR``, ``awskms:…``, or a `KeyService`.
            customer: Whose data a call is about: the name of a ``configurable`` key, which is also looked up in the
                runtime context; or a callable ``config -> str | None``.
            namespaces: Templates of store namespaces: `CUSTOMER` marks the customer's label, `SHARED` ends those that
                belong to nobody.
            cross_customer_search: Let searches of the store that name no customer walk all live customers.
            index: LangGraph's configuration of semantic search.
            ttl: LangGraph's configuration of items' time to live.
            targets: What of a customer lives elsewhere and is erased with it, in this order.
            serde: The serializer of payloads; LangGraph's own without one.
            auto_setup: Create missing tables. Without it they must be there and current.

        Raises:
            ConfigurationError: An argument cannot work, or database and keys do not belong together.
            SchemaVersionError: The tables are not this library's version.
            DatabaseUnavailableError, KeyServiceError: One of the two cannot be opened.
        """
        shredder = cls(
            database,
            keys,
            CustomerResolver(customer),
            templates=Templates(namespaces),
            cross_customer_search=cross_customer_search,
            index=index,
            ttl=ttl,
            targets=checked(targets),
            serde=serde,
            auto_setup=auto_setup,
        )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            shredder._start()
        return shredder

    # -- life -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes database and key service. Closing twice does nothing."""
        with self._lock:
            started, self._started, self._closed = self._started, None, True
        if started is not None:
            started.core.database.close()
            started.core.keys.close()

    async def aclose(self) -> None:
        """As `close`."""
        with self._lock:
            started, self._started, self._closed = self._started, None, True
        if started is not None:
            await started.core.database.aclose()
            await asyncio.to_thread(started.core.keys.close)

    def _start(self) -> _Started:
        with self._lock:
            if self._closed:
                raise ConfigurationError("this Shredder was closed: open a new one")
            if self._started is None:
                self._started = _Started(self, self._database, self._keys, self._resolver, self._options)
            return self._started

    @property
    def saver(self) -> ShredSaver:
        """The checkpointer."""
        return self._start().saver

    @property
    def store(self) -> ShredStore:
        """The long-term memory."""
        return self._start().store

    # -- erasure ----------------------------------------------------------------------------------------------------

    def shred(
        self,
        customer_id: str,
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
        grace: timedelta | None = None,
        defer: bool = False,
    ) -> ShredResult:
        """Erases a customer: use ends in every process, the keys are destroyed, the rows are deleted.

        A second call finishes what the first left undone, or gives its result again.

        Args:
            customer_id: The customer. An id never seen gets a tombstone, and the result says ``known=False``.
            reason: A code or a case number stands in the receipt as it is; free text is sealed and only committed to.
            requested_by: Who asked, likewise.
            purge: Delete the rows too. They cannot be opened either way.
            grace: Stop use now, destroy when this has passed (at the next `resume` or opening); `reinstate` cancels it.
            defer: Under a hold, stop use now and destroy when the hold has ended.

        Raises:
            LegalHoldError: The customer is under a hold, and not ``defer``; nothing was changed.
            ShredIncompleteError: A step failed after use had ended; `resume` or another call goes on.
        """
        return self._run(self._shred([customer_id], Request(reason, requested_by, purge, grace, defer)))[0]

    async def ashred(
        self,
        customer_id: str,
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
        grace: timedelta | None = None,
        defer: bool = False,
    ) -> ShredResult:
        """As `shred`."""
        request = Request(reason, requested_by, purge, grace, defer)
        return (await self._arun(self._shred([customer_id], request)))[0]

    def shred_many(
        self,
        customer_ids: Sequence[str],
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
    ) -> list[ShredResult]:
        """Erases several customers, whose keys are destroyed together. Arguments, results and errors as `shred`."""
        return self._run(self._shred(customer_ids, Request(reason, requested_by, purge)))

    async def ashred_many(
        self,
        customer_ids: Sequence[str],
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
    ) -> list[ShredResult]:
        """As `shred_many`."""
        return await self._arun(self._shred(customer_ids, Request(reason, requested_by, purge)))

    def resume(self) -> list[ShredResult]:
        """Finishes every erasure that was interrupted. Gives those it worked on."""
        return self._run(self._start().shredding.resume)

    async def aresume(self) -> list[ShredResult]:
        """As `resume`."""
        return await self._arun(self._start().shredding.resume)

    # -- holds and restriction --------------------------------------------------------------------------------------

    def restrict(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Stops every use of a customer's data (GDPR, Art. 18); keys and data stay. `reinstate` ends it."""
        return self._restrain(customer_id, "restrict", reason, requested_by)

    async def arestrict(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `restrict`."""
        return await self._arestrain(customer_id, "restrict", reason, requested_by)

    def reinstate(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Ends a restriction, and cancels an erasure whose grace has not ended."""
        return self._restrain(customer_id, "reinstate", reason, requested_by)

    async def areinstate(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `reinstate`."""
        return await self._arestrain(customer_id, "reinstate", reason, requested_by)

    def hold(
        self, customer_id: str, reason: str, until: datetime | None = None, *, requested_by: str | None = None
    ) -> CustomerStatus:
        """Forbids erasure and deletion of a customer's data, in database and key service.

        Args:
            customer_id: The customer.
            reason: Why; it is sealed under the customer's keys.
            until: When it ends by itself, with a time zone; None: when it is released.
            requested_by: Who asked; sealed as well.
        """
        return self._restrain(customer_id, "hold", reason, requested_by, until)

    async def ahold(
        self, customer_id: str, reason: str, until: datetime | None = None, *, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `hold`."""
        return await self._arestrain(customer_id, "hold", reason, requested_by, until)

    def release(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Ends a hold. A deferred erasure goes on at the next `resume`."""
        return self._restrain(customer_id, "release", reason, requested_by)

    async def arelease(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `release`."""
        return await self._arestrain(customer_id, "release", reason, requested_by)

    # -- customers ----------------------------------------------------------------------------------------------------

    def plan(self, customer_id: str) -> ShredPlan:
        """What a shred would reach, counted; nothing is changed."""
        return self._run(partial(self._start().administration.plan, self._token(customer_id)))

    async def aplan(self, customer_id: str) -> ShredPlan:
        """As `plan`."""
        return await self._arun(partial(self._start().administration.plan, self._token(customer_id)))

    def status(self, customer_id: str) -> CustomerStatus:
        """Where a customer stands."""
        return self._run(partial(self._start().administration.status, self._token(customer_id)))

    async def astatus(self, customer_id: str) -> CustomerStatus:
        """As `status`."""
        return await self._arun(partial(self._start().administration.status, self._token(customer_id)))

    def enrol(self, customer_id: str) -> CustomerStatus:
        """Lets a shredded customer come back, empty, as a new generation. What was erased stays so.

        Raises:
            ConfigurationError: The customer was never shredded: a first write is all it needs.
            ShredIncompleteError: The erasure is not complete; `resume` first.
        """
        return self._run(self._enrol(customer_id))

    async def aenrol(self, customer_id: str) -> CustomerStatus:
        """As `enrol`."""
        return await self._arun(self._enrol(customer_id))

    def customers(self) -> Iterator[CustomerStatus]:
        """Everyone the database knows, page by page. Ids are given for those who live; the dead are tokens."""
        after = b""
        while True:
            found = self._run(partial(self._start().administration.page, after))
            yield from found
            if not found:
                return
            after = bytes.fromhex(found[-1].customer)

    async def acustomers(self) -> AsyncIterator[CustomerStatus]:
        """As `customers`."""
        after = b""
        while True:
            found = await self._arun(partial(self._start().administration.page, after))
            for one in found:
                yield one
            if not found:
                return
            after = bytes.fromhex(found[-1].customer)

    def rotate(self) -> int:
        """Puts every key under a new root and destroys the old roots; data does not change. Gives the number of slots."""
        return self._start().core.keys.rotate()

    async def arotate(self) -> int:
        """As `rotate`."""
        return await asyncio.to_thread(self.rotate)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _token(self, customer_id: object) -> bytes:
        return self._start().core.token("customer", exact_id(customer_id, "customer_id"))

    def _shred(self, customer_ids: Sequence[str], request: Request) -> Callable[[], Plan[list[ShredResult]]]:
        names = dict.fromkeys(exact_id(customer_id, "customer_id") for customer_id in customer_ids)
        return partial(self._start().shredding.shred, [(self._token(name), name) for name in names], request)

    def _restrain(
        self, customer_id: str, kind: str, reason: str | None, requested_by: str | None, *until: datetime | None
    ) -> CustomerStatus:
        token, why = self._token(customer_id), {"reason": reason, "requested_by": requested_by}
        self._run(partial(getattr(self._start().restraint, kind), token, why, *until))
        return self._run(partial(self._start().administration.status, token))

    async def _arestrain(
        self, customer_id: str, kind: str, reason: str | None, requested_by: str | None, *until: datetime | None
    ) -> CustomerStatus:
        token, why = self._token(customer_id), {"reason": reason, "requested_by": requested_by}
        await self._arun(partial(getattr(self._start().restraint, kind), token, why, *until))
        return await self._arun(partial(self._start().administration.status, token))

    def _enrol(self, customer_id: str) -> Callable[[], Plan[CustomerStatus]]:
        name = exact_id(customer_id, "customer_id")
        return partial(self._start().administration.enrol, self._token(name), name)

    def _run(self, factory: Callable[[], Plan[T]]) -> T:
        return self._start().core.database.run(factory)

    async def _arun(self, factory: Callable[[], Plan[T]]) -> T:
        return await self._start().core.database.arun(factory)


class _Started:
    """What an open `Shredder` works with."""

    def __init__(
        self,
        shredder: Shredder,
        database: str | Database,
        keys: str | KeyService,
        resolver: CustomerResolver,
        options: dict[str, Any],
    ) -> None:
        opened = open_database(database)
        service: KeyService | None = None
        try:
            bound = opened.run(partial(set_up, opened.location, auto_setup=options["auto_setup"]))
            service = open_key_service(keys, create=not bound.in_use)
            self.core = Core(opened, service)
            opened.run(partial(bound.check, self.core.deployment))
        except BaseException:
            opened.close()
            if service is not None and isinstance(keys, str):
                service.close()
            raise
        memory = Memory()
        vectors = VectorCache()
        self.shredding = Shredding(self.core, memory, vectors, Outside(self.core, options["targets"]))
        self.restraint = Restraint(self.core)
        self.administration = Administration(self.core)
        self.saver = ShredSaver(self.core, resolver, memory=memory, serde=options["serde"])
        self.saver.shredder = shredder
        self.store = ShredStore(
            self.core,
            options["templates"],
            cross_customer_search=options["cross_customer_search"],
            index=options["index"],
            ttl=options["ttl"],
            vectors=vectors,
        )
        self.store.shredder = shredder
