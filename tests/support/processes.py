"""Other processes: one that does as it is told and stays open, and one that is killed at a given step."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langgraph.types import Command

import shredsaver
from tests.support.calls import Caller
from tests.support.checkpoints import put
from tests.support.graphs import line
from tests.support.steps import hooked
from tests.support.waiting import SECONDS

CONTEXT = multiprocessing.get_context("forkserver")
PRELOAD = ["pytest", "tests.support.processes", "shredsaver.kms.local"]
"""What other processes have behind them when they begin; more may be added before the first one does."""


@functools.cache
def start_forks() -> None:
    """Starts the process that every other one is forked from: it has the imports behind it and no threads."""
    root = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    # Python 3.11 does not pass its path on to this process.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before)))
    try:
        CONTEXT.set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class RemoteError(Exception):
    """What the other process raised: its class's name, and whether it was one of this library's."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


# What a worker can be told to do.

CALL = Caller("sync")


def get(shredder: Any, here: dict[str, Any]) -> Any:
    found = shredder.saver.get_tuple(here)
    return None if found is None else found.checkpoint["channel_values"]


def write(shredder: Any, here: dict[str, Any], values: dict[str, Any]) -> Any:
    return put(CALL, shredder.saver, here, values)


def write_pending(shredder: Any, here: dict[str, Any], task: str) -> None:
    shredder.saver.put_writes(here, [("x", task)], task)


def shred(shredder: Any, customer: str, **options: Any) -> str:
    return str(shredder.shred(customer, **options).erasure_id)


def invoke(shredder: Any, here: dict[str, Any], value: Any) -> Any:
    return line("a", "b").compile(checkpointer=shredder.saver).invoke(value, here)


def resume(shredder: Any, build: Callable[[Any], Any], here: dict[str, Any], value: Any) -> Any:
    return build(shredder.saver).invoke(Command(resume=value), here)


def apply(shredder: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(shredder, *args)


def _open(database: str, options: dict[str, Any]) -> shredsaver.Shredder:
    """Opens with these options, or with those that ``prepare`` among them makes here, in the other process."""
    if prepare := options.get("prepare"):
        options = prepare()
    return shredsaver.Shredder.open(database, **options)


def _serve(pipe: Connection, database: str, options: dict[str, Any]) -> None:
    with _open(database, options) as shredder:
        pipe.send(("ok", "open"))
        while True:
            try:
                function, args, kwargs = pipe.recv()
            except EOFError:
                return
            try:
                answer: tuple[str, Any] = ("ok", function(shredder, *args, **kwargs))
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                answer = ("error", (type(error).__name__, str(error)))
            pipe.send(answer)


class Worker:
    """Another process with a Shredder of its own open."""

    def __init__(self, database: str, **options: Any) -> None:
        start_forks()
        self._pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, database, options), daemon=True)
        self.process.start()
        theirs.close()
        self.answer()

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Tells it to call ``function(shredder, …)``, without waiting."""
        self._pipe.send((function, args, kwargs))

    def answer(self) -> Any:
        """Waits for what it was told last."""
        if not self._pipe.poll(SECONDS):
            raise TimeoutError("the other process does not answer")
        kind, value = self._pipe.recv()
        if kind == "error":
            raise RemoteError(*value)
        return value

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.ask(function, *args, **kwargs)
        return self.answer()

    def close(self) -> None:
        self._pipe.close()
        self.process.join(SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def worker(database: str, **options: Any) -> Iterator[Worker]:
    one = Worker(database, **options)
    try:
        yield one
    finally:
        one.close()


def _suffer(
    pipe: Connection, database: str, options: dict[str, Any], at: int, keys: bool, deed: Any, args: tuple[Any, ...]
) -> None:
    steps = 0

    def count(name: str) -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def done(value: Any) -> None:
        pipe.send(("acknowledged", value))

    if deed is None:
        with hooked(count, keys=keys), _open(database, options):
            done("open")
    else:
        with _open(database, options) as shredder, hooked(count, keys=keys):
            deed(shredder, done, *args)
    pipe.send(("finished", steps))


def killed_at(
    step: int, database: str, options: dict[str, Any], deed: Callable[..., None] | None, *args: Any, keys: bool = False
) -> tuple[list[Any], bool]:
    """Runs ``deed(shredder, done, *args)`` in a process that is killed at the given step; ``keys`` as in `hooked`.

    Returns:
        What it had acknowledged by ``done(…)``, and whether it came to its end.
    """
    start_forks()
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_suffer, args=(theirs, database, options, step, keys, deed, args), daemon=True)
    process.start()
    theirs.close()
    acknowledged: list[Any] = []
    finished = False
    try:
        while ours.poll(SECONDS):
            kind, value = ours.recv()
            if kind == "finished":
                finished = True
            else:
                acknowledged.append(value)
    except EOFError:
        pass
    process.join(SECONDS)
    assert process.exitcode == (0 if finished else -signal.SIGKILL), process.exitcode
    return acknowledged, finished


class Pause:
    """A hook that stops its thread at the n-th step until it is let go.

    Attributes:
        inside: Whether it may be within a transaction there, which keeps others from what it has locked.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._steps = 0
        self._thread: int | None = None
        self.inside = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def only(self, thread: int) -> None:
        """Counts the steps of this thread only."""
        self._thread = thread

    def __call__(self, name: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self._steps += 1
        if name in ("begun", "after Commit", "after Rollback", "after Run and commit"):
            self.inside = False
        elif name == "after Begin":
            self.inside = True
        if self._steps == self._at:
            self.reached.set()
            assert self.go_on.wait(SECONDS)
