"""`Shredder`: one database and one key service, opened together. It owns the saver, the store and erasure."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import IndexConfig, TTLConfig

from shredsaver.administration import Administration
from shredsaver.audit import Auditor
from shredsaver.core import Core
from shredsaver.customers import CustomerOption, CustomerResolver
from shredsaver.db.base import Database
from shredsaver.db.opening import open_database
from shredsaver.db.setup import set_up
from shredsaver.errors import ConfigurationError, RevocationLogDamagedError
from shredsaver.events import Event, Events, WatchedDatabase
from shredsaver.exporting import Exporter
from shredsaver.guarding import GuardedKeys
from shredsaver.journal import Journal
from shredsaver.kms.base import KeyService, open_key_service
from shredsaver.memory import Memory
from shredsaver.namespaces import CUSTOMER, Mark, Templates
from shredsaver.operations import Operations
from shredsaver.outside import Outside
from shredsaver.reconcile import Dead, Reconciliation
from shredsaver.restoring import Restoring
from shredsaver.restraint import Restraint
from shredsaver.saver import ShredSaver
from shredsaver.shredding import Shredding
from shredsaver.store import ShredStore
from shredsaver.targets import ErasureTarget, checked
from shredsaver.vectors import VectorCache


class Shredder(Operations):
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
        self._started: Started | None = None
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
        journal: str | os.PathLike[str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        auto_setup: bool = True,
        fingerprints: bool = True,
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
            journal: A file outside database and key store that also keeps who was shredded, so that restoring both
                brings nobody back. Recommended.
            on_event: Called with each `Event`, on the thread where it happened; it must be quick.
            auto_setup: Create missing tables. Without it they must be there and current.
            fingerprints: Do not serialise and revive again messages of a growing list that are what they were, nor
                validate messages that were written by the serializer. The stored bytes and what is read are the same
                without it; only the time differs.

        Raises:
            ConfigurationError: An argument cannot work, or database and keys do not belong together.
            SchemaVersionError: The tables are not this library's version.
            DatabaseUnavailableError, KeyServiceError: One of the two cannot be opened.

        What a restore took back is put right before anything is served: see `reconciliation`.
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
            journal=journal,
            on_event=on_event,
            auto_setup=auto_setup,
            fingerprints=fingerprints,
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

    def _start(self) -> Started:
        with self._lock:
            if self._closed:
                raise ConfigurationError("this Shredder was closed: open a new one")
            if self._started is None:
                self._started = Started(self, self._database, self._keys, self._resolver, self._options)
            return self._started

    @property
    def saver(self) -> ShredSaver:
        """The checkpointer."""
        return self._start().saver

    @property
    def store(self) -> ShredStore:
        """The long-term memory."""
        return self._start().store


class Started:
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
            guarded = GuardedKeys(service, opened)
            events = Events(options["on_event"])
            self.core = Core(WatchedDatabase(opened, events), guarded, events=events)
            opened.run(partial(bound.check, self.core.deployment))
            if guarded.fingerprint() is None:
                guarded.adopt()
        except BaseException:
            opened.close()
            if service is not None and isinstance(keys, str):
                service.close()
            raise
        memory = Memory()
        vectors = VectorCache()
        self.outside = Outside(self.core, options["targets"])
        path = options["journal"]
        journal = None if path is None else Journal(path, self.core.secrets.log_key)
        self.shredding = Shredding(self.core, guarded, memory, vectors, self.outside, journal)
        self.restoring = Restoring(self.core, guarded, self.shredding, journal)
        self.guarded = guarded
        self.journal = journal
        self.restraint = Restraint(self.core)
        self.administration = Administration(self.core, self.outside)
        self.auditor = Auditor(self.core, self.administration, self.outside)
        self.saver = ShredSaver(
            self.core, resolver, memory=memory, serde=options["serde"], fingerprints=options["fingerprints"]
        )
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
        self.exporter = Exporter(self.core, self.saver, options["templates"])
        try:
            self.reconciliation = self.reconcile(confirm=False, quick=True)
            if not self.reconciliation.forked and not self.reconciliation.shut:
                opened.run(self.shredding.resume_due)
        except BaseException:
            opened.close()
            if isinstance(keys, str):
                service.close()
            raise

    def reconcile(self, *, confirm: bool, sources: Sequence[Dead] = (), quick: bool = False) -> Reconciliation:
        """Compares the records of revocations; where they do not verify, nothing is served. Blocks."""
        try:
            plan = partial(self.restoring.reconcile, confirm=confirm, sources=sources, quick=quick)
            found = self.core.database.run(plan)
        except RevocationLogDamagedError as error:
            self.core.shut = error
            return Reconciliation(shut=True)
        self.core.shut = None
        return found
