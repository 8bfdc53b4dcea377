"""``shredsaver demo``: runs the experiment and shows it as one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from shredsaver.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from shredsaver.demo.report import Counts, Outcome, Report

_WIDTH: Final = 100


def demo(
    database: Annotated[str | None, typer.Option(help="Path or URL of the database for the shredsaver side.")] = None,
    keys: Annotated[str | None, typer.Option(help="Key URI that goes with --database, such as file:DIR.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Show what stays of a customer who asks to be forgotten: LangGraph's saver and this one, side by side.

    Runs a real agent in a temporary directory, without network or model. Exit status 1 if any number is not what it
    should be.
    """
    if (database is None) != (keys is None):
        raise ConfigurationError(
            "give --database and --keys together or not at all: a key store belongs to one database"
        )
    try:
        from shredsaver.demo.experiment import run_demo
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(("langchain", "langgraph")):
            raise
        raise MissingDependencyError(
            f"the demo needs {error.name}, which is not installed: pip install 'shredsaver[demo]'"
        ) from None
    report = run_demo(database, keys)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _show(report)
    if report.failed:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    console = Console(width=_WIDTH, highlight=False)
    console.print(
        "\nA customer tells an agent something private, once. Six turns later its own state has lost it.\n"
        "In how many places can it still be opened?\n"
    )
    console.print(_table(report))
    console.print(
        "cleared:  agent.update_state(..., RemoveMessage(REMOVE_ALL_MESSAGES))\n"
        "deleted:  saver.delete_thread(...) and store.delete(...)\n"
        "shredded: shredder.shred(customer)\n"
        "backup:   a copy of the database made when the state was cleared, opened with today's keys\n"
    )
    sealed = report.sealed
    _say(
        console,
        sealed.attempted == sealed.refused,
        f"{len(sealed.refused)} of {len(sealed.attempted)} ways into the shredded customer's thread are refused: "
        "get_state, get_state_history, update_state, invoke, blocking and async, by customer, thread or old snapshot",
    )
    _say(console, sealed.other_goes_on, "the other customer in the same database kept everything and went on")
    if sealed.backup_after is None:
        console.print("- the backup was not tried: a server's database is not copied from here")
    for check in report.failed:
        _say(console, False, f"{check.name}: expected {check.expected}, found {check.found}")
    good = len(report.checks) - len(report.failed)
    _say(console, not report.failed, f"{good} of {len(report.checks)} results are as they should be")


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for heading in ("\n7 turns", "SqliteSaver\ncleared", "\ndeleted"):
        table.add_column(heading, justify="center")
    table.add_column("│\n│")
    for heading in ("\n7 turns", "shredsaver\ncleared", "\nshredded"):
        table.add_column(heading, justify="center")

    def add(label: str, cells: Callable[[Outcome], Sequence[str]]) -> None:
        table.add_row(label, *cells(report.stock), "│", *cells(report.sealed))

    add("checkpoint rows", lambda side: [_number(each.checkpoint_rows) for each in _moments(side)])
    add("pending-write rows", lambda side: [_number(each.write_rows) for each in _moments(side)])
    add("store items", lambda side: [_number(each.store_keys) for each in _moments(side)])
    add("= stored locations", lambda side: [_number(each.locations) for each in _moments(side)])
    add("the same, in a backup", _backups)
    add("snapshots to resume from", lambda side: [_number(each.resumable) for each in _moments(side)])
    add("a fork brings it back", _forks)
    add("readable in the raw files", lambda side: [_yes(raw) for raw in side.raw])
    return table


def _moments(side: Outcome) -> tuple[Counts, Counts, Counts]:
    return side.before, side.cleared, side.erased


def _number(value: int) -> str:
    return f"[red]{value}[/red]" if value else "[green]0[/green]"


def _yes(value: bool) -> str:
    return "[red]yes[/red]" if value else "[green]no[/green]"


def _forks(side: Outcome) -> tuple[str, str, str]:
    after = (
        "" if not side.attempted else "[green]refused[/green]" if side.attempted == side.refused else "[red]no[/red]"
    )
    return "", _yes(side.fork_before), after


def _backups(side: Outcome) -> Sequence[str]:
    return ["", *("" if each is None else _number(each.locations) for each in (side.backup_before, side.backup_after))]


def _say(console: Console, good: bool, text: str) -> None:
    console.print(f"[green]✓[/green] {text}" if good else f"[red]✗ {text}[/red]")
