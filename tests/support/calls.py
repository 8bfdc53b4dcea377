"""One test body for blocking methods and for their async twins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

Mode = Literal["sync", "async"]


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def _wait_for(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class Caller:
    """Calls ``target.name(...)``, or ``target.aname(...)`` on a loop of its own; iterators come back as lists."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode
        self._runner = asyncio.Runner() if mode == "async" else None

    def __call__(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._runner is None:
            result = getattr(target, name)(*args, **kwargs)
            return list(result) if isinstance(result, Iterator) else result
        result = getattr(target, "a" + name)(*args, **kwargs)
        if isinstance(result, AsyncIterator):
            return self._runner.run(_collect(result))
        return self._runner.run(_wait_for(result))

    def enter(self, context: Any) -> Any:
        """Enters a context manager that has both protocols."""
        if self._runner is None:
            return context.__enter__()
        return self._runner.run(_wait_for(context.__aenter__()))

    def exit(self, context: Any) -> None:
        """Leaves what `enter` entered."""
        if self._runner is None:
            context.__exit__(None, None, None)
        else:
            self._runner.run(_wait_for(context.__aexit__(None, None, None)))

    def run(self, function: Callable[[], Any]) -> Any:
        """Calls a plain function: on the loop's own thread in async mode, so that it runs *inside* a running loop."""
        if self._runner is None:
            return function()

        async def on_the_loop() -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(on_the_loop())

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


class SyncThroughAsync(BaseCheckpointSaver[Any]):
    """A saver whose async methods call the blocking ones of another: lets an async-only suite test those."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:  # type: ignore[override]
        for item in self.saver.list(config, **options):
            yield item

    async def aput(
        self, config: Any, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> Any:
        return self.saver.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)
