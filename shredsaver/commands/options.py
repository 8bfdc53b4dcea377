"""What the commands share: options, opening, output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from shredsaver.errors import ConfigurationError
from shredsaver.namespaces import CUSTOMER, SHARED, Mark
from shredsaver.results import ShredResult
from shredsaver.shredder import Shredder
from shredsaver.targets import ErasureTarget

Database = Annotated[
    str | None,
    typer.Option(
        "--database", "-d", envvar="SHREDSAVER_DATABASE", help="Path, sqlite:///… or postgresql://… of the database."
    ),
]
Keys = Annotated[
    str | None, typer.Option("--keys", "-k", envvar="SHREDSAVER_KEYS", help="Key URI: file:DIR or awskms:….")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Reason = Annotated[str | None, typer.Option(help="A code or case number; free text is sealed and only committed to.")]
By = Annotated[str | None, typer.Option("--by", help="Who asks, as a code.")]
Receipt = Annotated[
    Path | None,
    typer.Option(help="Write the signed receipts to this file, one a line; also where an erasure is not complete."),
]
Namespace = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        envvar="SHREDSAVER_NAMESPACES",
        help="Shape of store namespaces, such as users/CUSTOMER or policies/SHARED; may be repeated.",
    ),
]

console = Console(highlight=False)
progress_console = Console(stderr=True)


@contextmanager
def opened(
    database: str | None,
    keys: str | None,
    *,
    namespaces: list[str] | None = None,
    journal: Path | None = None,
    auto_setup: bool = False,
) -> Iterator[Shredder]:
    """Opens the database with its keys, and with the journal and the erasure targets that the environment names."""
    if database is None or keys is None:
        raise ConfigurationError("give --database and --keys, or set SHREDSAVER_DATABASE and SHREDSAVER_KEYS")
    options: dict[str, Any] = {"targets": targets(os.environ.get("SHREDSAVER_TARGETS", ""))}
    if namespaces:
        options["namespaces"] = [template(text) for text in namespaces]
    if journal is None and (named := os.environ.get("SHREDSAVER_JOURNAL")):
        journal = Path(named)
    with Shredder.open(database, keys=keys, journal=journal, auto_setup=auto_setup, **options) as shredder:
        yield shredder


def targets(named: str) -> Sequence[ErasureTarget]:
    """The application's erasure targets from ``MODULE:NAME``: a list of them, or a function that gives one.

    Raises:
        ConfigurationError: There is nothing of that name.
    """
    if not named:
        return ()
    module, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ConfigurationError(f"SHREDSAVER_TARGETS is {named}: there is no such list; write MODULE:NAME") from None
    finally:
        sys.path.pop(0)
    given: Sequence[ErasureTarget] = found() if callable(found) else found
    return given


def template(text: str) -> tuple[Mark, ...]:
    """A template of namespaces from its form ``users/CUSTOMER``."""
    marks: Mapping[str, Mark] = {"CUSTOMER": CUSTOMER, "SHARED": SHARED}
    return tuple(marks.get(label, label) for label in text.split("/"))


def plain(value: Any) -> Any:
    """An answer as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value


def print_json(value: Any) -> None:
    """Prints an answer as JSON."""
    typer.echo(json.dumps(plain(value), indent=2))


def print_fields(value: Any) -> None:
    """Prints an answer, a field a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, inner in plain(value).items():
        if name != "receipt" and inner not in (None, "", [], {}):
            shown = inner if isinstance(inner, str) else json.dumps(inner)
            table.add_row(name.replace("_", " "), str(shown))
    console.print(table)


def answer(value: Any, *, as_json: bool) -> None:
    """Prints an answer as the caller asked for."""
    if as_json:
        print_json(value)
    else:
        print_fields(value)


def checked_file(path: Path | None) -> None:
    """Refuses a place for receipts that cannot be written, before anything is done that cannot be undone.

    Raises:
        ConfigurationError: It is a directory, or in none, or may not be written.
    """
    if path is None:
        return
    there = path.exists()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if there else path.parent, os.W_OK):
        raise ConfigurationError(f"{path} cannot be written, so nothing was done: name a file for the receipts")


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file to write that only its owner may read, and that takes its place when it is whole.

    What was there stays until then.

    Raises:
        ConfigurationError: There can be no such file.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise ConfigurationError(f"{path} is no file: name one to write")
    try:
        handle, beside = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        os.replace(beside, place)
    except BaseException as error:
        os.unlink(beside)
        if isinstance(error, OSError):
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
        raise


def hand_out(results: Sequence[ShredResult], receipt: Path | None, *, as_json: bool) -> None:
    """Prints what became of erasures, and writes the receipts there are; says of each that has none why."""
    if as_json:
        print_json(results)
    else:
        for one in results:
            print_fields(one)
    issued = [one.receipt for one in results if one.receipt]
    if receipt is not None and issued:
        receipt.write_text("".join(f"{jws}\n" for jws in issued), encoding="ascii")
    elif receipt is not None:
        typer.echo(f"{receipt} was not written: there is no receipt yet", err=True)
    for one in results:
        if one.receipt is None:
            why = {
                "scheduled": f"nothing is destroyed before {one.due_at}, nor while a hold lasts",
                "revoked": "its keys are not destroyed yet",
            }.get(one.state, "it is not verified yet")
            typer.echo(f"no receipt yet of customer {one.customer}: {why}; resume goes on and issues it", err=True)
        elif one.pending:
            left = ", ".join(one.pending)
            typer.echo(f"the receipt of customer {one.customer} says what is still to be done: {left}", err=True)


@contextmanager
def working(what: str) -> Iterator[Progress]:
    """Shows on a terminal that something long goes on."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
        console=progress_console,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        progress.add_task(what, total=None)
        yield progress


def counted(progress: Progress, items: Iterable[Any]) -> Iterator[Any]:
    """Gives items and counts them on the progress bar."""
    for item in items:
        progress.advance(progress.task_ids[0])
        yield item
