"""Facts about the machine and the versions a run was made with."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "shredsaver",
    "cryptography",
    "msgpack",
    "ormsgpack",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langchain",
    "langchain-core",
    "aiosqlite",
    "psycopg",
    "pycryptodome",
)


def facts(directory: Path) -> dict[str, Any]:
    """What the figures may depend on. ``directory`` is where the databases will stand: its disk is timed."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "load_before": round(os.getloadavg()[0], 2),
        "disk_sync_ms": round(_disk_sync(directory) * 1000, 3),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def versions() -> dict[str, str]:
    """Versions of everything that takes part."""
    found = {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: what the platform module knows has to do
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _disk_sync(directory: Path) -> float:
    """Median seconds to append 8 KiB and have the disk confirm it."""
    taken = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(50):
            file.write(b"\0" * 8192)
            start = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def peak_memory() -> int:
    """Bytes this process has held at most.

    On Linux from ``VmHWM``: ``ru_maxrss`` would count the process that started this one too.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
