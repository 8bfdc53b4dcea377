"""`ShredSaver`: LangGraph's checkpointer over sealed records. Each method is a plan, run blocking or async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from shredsaver.core import Core
from shredsaver.customers import CustomerResolver, in_runtime
from shredsaver.db.base import Plan, call
from shredsaver.errors import ConfigurationError
from shredsaver.listing import Cursor, Lister, Page, Query, Walk
from shredsaver.memory import Memory
from shredsaver.reading import Reader
from shredsaver.requests import Requests
from shredsaver.reviving import Reviver, config_of
from shredsaver.upkeep import STRATEGIES, Upkeep
from shredsaver.writing import Writer

if TYPE_CHECKING:
    from shredsaver.shredder import Shredder

list_ = list  # inside the class, `list` is the method


class ShredSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose every payload is sealed under keys of the customer that the thread belongs to.

    Get one from `Shredder.open(...).saver`, or with `from_conn_string`. One instance serves sync and async callers, any
    number of threads and event loops. Every method that reads or writes a customer's data may raise
    `CustomerShreddedError`, `CustomerRestrictedError`, `UnsealError`, `FormatError`, `RevocationLogDamagedError`,
    `KeyServiceError` and `DatabaseUnavailableError`.

    Attributes:
        shredder: The `Shredder` this saver belongs to.
    """

    shredder: Shredder

    def __init__(
        self,
        core: Core,
        resolver: CustomerResolver,
        *,
        memory: Memory | None = None,
        serde: SerializerProtocol | None = None,
        fingerprints: bool = True,
    ) -> None:
        super().__init__(serde=serde)
        # `with_allowlist` copies this object shallowly on every run: all state is in objects that the copies share.
        self._core = core
        self._requests = Requests(core, resolver)
        memory = memory or Memory()
        self._memory = memory
        self._reviver = Reviver(memory, fingerprints=fingerprints)
        self._writer = Writer(core, memory, resolver, fingerprints=fingerprints)
        self._reader = Reader(core, memory, resolver)
        self._lister = Lister(self._reader)
        self._upkeep = Upkeep(core, memory)

    @classmethod
    @contextmanager
    def from_conn_string(cls, database: str, *, keys: Any, **options: Any) -> Iterator[ShredSaver]:
        """Opens a `Shredder` and gives its saver. Arguments as `Shredder.open`."""
        from shredsaver.shredder import Shredder

        with Shredder.open(database, keys=keys, **options) as shredder:
            yield shredder.saver

    @classmethod
    @asynccontextmanager
    async def afrom_conn_string(cls, database: str, *, keys: Any, **options: Any) -> AsyncIterator[ShredSaver]:
        """As `from_conn_string`, without blocking the running event loop."""
        from shredsaver.shredder import Shredder

        async with Shredder.open(database, keys=keys, **options) as shredder:
            yield shredder.saver

    def shred(self, customer_id: str, **options: Any) -> Any:
        """Erases a customer: `Shredder.shred`."""
        return self.shredder.shred(customer_id, **options)

    async def ashred(self, customer_id: str, **options: Any) -> Any:
        """Erases a customer: `Shredder.ashred`."""
        return await self.shredder.ashred(customer_id, **options)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> ShredSaver:
        """A copy whose serializer also revives these types. It shares everything else with this one."""
        return cast("ShredSaver", super().with_allowlist(extra_allowlist))

    # -- reading ----------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, the latest one without ``checkpoint_id``.

        Raises:
            CustomerUnresolvedError: A running graph asks for a thread that is new, and names no customer.
            ThreadOwnershipError: The thread belongs to another customer than the config names.
        """
        return self._core.database.run(partial(self._get, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._core.database.arun(partial(self._get, config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first; without a config, those of all customers that can be read.

        Args:
            config: The thread; a ``checkpoint_ns`` or ``checkpoint_id`` in it restrict further.
            filter: What the metadata must equal, key by key.
            before: Only checkpoints with smaller ids than this config's.
            limit: The most to give.
        """
        walk = Walk(self._requests.query(config, filter, before), limit)
        while not walk.done:
            yield from walk.take(self._core.database.run(partial(self._page, walk.query, walk.after, walk.size)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        walk = Walk(self._requests.query(config, filter, before), limit)
        while not walk.done:
            page = await self._core.database.arun(partial(self._page, walk.query, walk.after, walk.size))
            for found in walk.take(page):
                yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What delta channels' values are made of, along the parents of a checkpoint."""
        return self._core.database.run(partial(self._history, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await self._core.database.arun(partial(self._history, config, channels))

    # -- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint; one with the same id is replaced. It is durable when this returns.

        Raises:
            CustomerUnresolvedError: It is the thread's first write, and nothing says whose it is.
            ThreadOwnershipError: The thread belongs to another customer than the config names.
            PayloadError: A value cannot be serialised or is too large.
        """
        ref, new = self._requests.checkpoint(config, checkpoint, metadata, new_versions)
        self._core.database.run(partial(self._writer.put, ref, new, self.serde))
        return config_of(ref.thread_id, new.ns, new.checkpoint_id)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        ref, new = self._requests.checkpoint(config, checkpoint, metadata, new_versions)
        await self._core.database.arun(partial(self._writer.put, ref, new, self.serde))
        return config_of(ref.thread_id, new.ns, new.checkpoint_id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores pending writes of a task. Errors as `put`."""
        plan = self._put_writes(config, writes, task_id, task_path)
        if plan is not None:
            self._core.database.run(plan)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        plan = self._put_writes(config, writes, task_id, task_path)
        if plan is not None:
            await self._core.database.arun(plan)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread in every namespace. It frees the id, unless the thread's customer was shredded.

        Raises:
            LegalHoldError: The customer is under a hold.
            CustomerRestrictedError: Use is restricted, so the data is kept as it is.
        """
        self._core.database.run(partial(self._upkeep.delete, self._requests.thread(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self._core.database.arun(partial(self._upkeep.delete, self._requests.thread(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of some runs with their writes. A delta channel may lose what it is made of."""
        self._core.database.run(partial(self._delete_for_runs, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await self._core.database.arun(partial(self._delete_for_runs, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread with its whole history to another one of the same customer.

        Raises:
            ThreadOwnershipError: The target belongs to somebody else.
            LegalHoldError: The customer is under a hold, and the target is there already.
        """
        self._core.database.run(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await self._core.database.arun(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Thins out threads, each in a transaction of its own.

        Args:
            thread_ids: The threads.
            strategy: ``"keep_latest"`` leaves the latest checkpoint of each namespace; ``"delete"`` or ``"delete_all"``
                leaves nothing.

        Raises:
            ConfigurationError: There is no such strategy, or a thread uses delta channels and cannot be thinned out.
        """
        for plan in self._prune(thread_ids, strategy):
            self._core.database.run(plan)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        for plan in self._prune(thread_ids, strategy):
            await self._core.database.arun(plan)

    # -- plans ------------------------------------------------------------------------------------------------------

    def _get(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        ref = self._requests.ref(config)
        configurable = config["configurable"]
        ns, checkpoint_id = configurable.get("checkpoint_ns") or "", configurable.get("checkpoint_id") or ""
        got = yield from self._reader.get(ref, ns, checkpoint_id, running=in_runtime(config))
        if got is None:
            return None
        place, loaded = got

        return (yield from call(partial(self._reviver.resumed, self.serde, place, loaded)))

    def _page(
        self, query: Query, after: Cursor | None, size: int
    ) -> Plan[tuple[list_[CheckpointTuple], Cursor | None]]:
        page: Page = yield from self._lister.page(query, self.serde, size, after)
        return (yield from call(lambda: [self._reviver.listed(self.serde, *found) for found in page.found])), page.after

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Plan[Mapping[str, DeltaChannelHistory]]:
        if not channels:
            return {}
        configurable = config["configurable"]
        ns, checkpoint_id = configurable.get("checkpoint_ns") or "", configurable.get("checkpoint_id") or ""
        return (yield from self._lister.history(self._requests.ref(config), ns, checkpoint_id, channels, self.serde))

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Callable[[], Plan[None]] | None:
        new = self._requests.writes(writes)
        if not new:
            return None
        ref = self._requests.ref(config)
        ns, checkpoint_id = (
            config["configurable"].get("checkpoint_ns") or "",
            config["configurable"].get("checkpoint_id"),
        )
        if not checkpoint_id:
            raise ConfigurationError('pending writes belong to a checkpoint: give configurable["checkpoint_id"]')
        task = (str(task_id), str(task_path))
        return partial(self._writer.put_writes, ref, ns, str(checkpoint_id), task, new, self.serde)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Plan[None]:
        _refuse_text(run_ids, "run_ids")
        for run_id in run_ids:
            token = self._core.token("run", str(run_id))
            for thread in (yield from self._upkeep.threads_of(token)):
                yield from self._upkeep.delete_run(thread, token)

    def _copy(self, source_thread_id: str, target_thread_id: str) -> Callable[[], Plan[None]]:
        source, target = self._requests.thread(source_thread_id), self._requests.thread(target_thread_id)
        if source.thread == target.thread:
            raise ConfigurationError("a thread cannot be copied onto itself")
        return partial(self._upkeep.copy, source, target)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Iterator[Callable[[], Plan[None]]]:
        if strategy not in STRATEGIES:
            raise ConfigurationError(f"there is no pruning strategy {strategy!r}; known are {', '.join(STRATEGIES)}")
        _refuse_text(thread_ids, "thread_ids")
        for thread_id in thread_ids:
            ref = self._requests.thread(thread_id)
            if strategy == "keep_latest":
                yield partial(self._upkeep.prune, ref, self.serde)
            else:
                yield partial(self._upkeep.delete, ref)


def _refuse_text(ids: object, what: str) -> None:
    """One id is a sequence of letters, each of which would be taken for an id."""
    if isinstance(ids, str):
        raise ConfigurationError(f"{what} must be a list of ids, not one id")
