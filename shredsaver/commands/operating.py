"""Commands for those who run a deployment: setting up, going on, rotating, looking after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from shredsaver.commands.options import (
    AsJson,
    Database,
    Keys,
    Receipt,
    answer,
    checked_file,
    console,
    hand_out,
    opened,
    print_json,
    working,
)
from shredsaver.doctor import examine
from shredsaver.errors import ConfigurationError, ShredIncompleteError, ShredSaverError
from shredsaver.routes import routes as all_routes


def init(database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Create or upgrade the tables and the key store, with a role that may."""
    with opened(database, keys, auto_setup=True):
        pass
    if as_json:
        print_json({"ready": True})
    else:
        console.print("the database is ready")


def resume(database: Database = None, keys: Keys = None, receipt: Receipt = None, as_json: AsJson = False) -> None:
    """Finish every erasure that can be finished now. Exit status 3 if one could not be: it says what is left."""
    checked_file(receipt)
    with opened(database, keys) as shredder:
        try:
            with working("erasing"):
                results = shredder.resume()
        except ShredIncompleteError as error:
            hand_out(error.results, receipt, as_json=as_json)
            raise
    hand_out(results, receipt, as_json=as_json)
    if not as_json:
        console.print(f"{len(results)} erasures went on")


def rotate(
    customer: Annotated[str | None, typer.Argument(help="A customer: only its new writes get fresh keys.")] = None,
    database: Database = None,
    keys: Keys = None,
    signing_key: Annotated[
        bool, typer.Option("--signing-key", help="Sign receipts with a new key from now on; prints the receipt.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put every key under new roots and destroy the old ones; data does not change."""
    if signing_key and customer is not None:
        raise ConfigurationError("--signing-key concerns the deployment: name no customer")
    with opened(database, keys) as shredder, working("keys"):
        found = shredder.renew_signing_key() if signing_key else shredder.rotate(customer)
    if as_json:
        print_json({"receipt": found} if signing_key else {"slots" if customer is None else "key_version": found})
    elif signing_key:
        typer.echo(found)
    else:
        console.print(
            f"{found} slots have new roots" if customer is None else f"the customer's keys have version {found}"
        )


def reconcile(
    database: Database = None,
    keys: Keys = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Destroy keys on another record's word even if many.")
    ] = False,
    chain: Annotated[Path | None, typer.Option("--receipts", help="A chain of receipts as one more record.")] = None,
    journal: Annotated[Path | None, typer.Option(help="The journal outside database and key store.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare all records of who was shredded, and apply to each what it lacks."""
    receipts = chain.read_text(encoding="utf-8", errors="replace").split() if chain else []
    with opened(database, keys, journal=journal) as shredder, working("comparing"):
        first = shredder.reconciliation
        found = shredder.reconcile(confirm=confirm, chain=receipts)
    # Opening has put right what it found before this was asked for.
    answer(found if found.changed or not first.changed else first, as_json=as_json)
    if found.unconfirmed or found.shut:
        raise typer.Exit(1)


def adopt(
    role: Annotated[str, typer.Argument(help="restore: this is now the database; fork: this is a copy.")],
    database: Database = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Say what a database is that was copied or restored: the one that the keys belong to, or a copy."""
    with opened(database, keys) as shredder:
        answer(shredder.reconcile(adopt=role), as_json=as_json)


def routes(database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Show for every route where a customer's data can be: who holds it, what deletes it, how finely."""
    targets: list[str] = []
    if database is not None and keys is not None:
        with opened(database, keys) as shredder:
            targets = shredder.target_names()
    found = all_routes(targets)
    if as_json:
        print_json(found)
        return
    table = Table("route", "who holds it", "what deletes it", "how finely", pad_edge=False)
    for route in found:
        table.add_row(route.name, route.holder, route.deleted_by, route.granularity)
    console.print(table)


def doctor(database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Check versions, keys, clock and logs, and say what to do. Exit status 1 if something is wrong."""
    if database is None or keys is None:
        raise ConfigurationError("give --database and --keys, or set SHREDSAVER_DATABASE and SHREDSAVER_KEYS")
    try:
        with opened(database, keys) as shredder, working("checks"):
            found = examine(shredder)
    except ShredSaverError as error:
        console.print(f"cannot be opened: {error}")
        raise typer.Exit(1) from None
    if as_json:
        print_json(found)
    else:
        for check in found:
            mark = {"good": "+", "warning": "!", "bad": "-"}[check.verdict]
            console.print(f"{mark} {check.name}: {check.finding}" + (f". {check.advice}" if check.advice else ""))
    if any(check.verdict == "bad" for check in found):
        raise typer.Exit(1)


def bench(
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Tiny sizes: shows that the benchmarks work here, and measures nothing.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Only those whose name matches this regular expression.")] = None,
) -> None:
    """Run the quick set of benchmarks, on SQLite. Exit status 1 if one failed, or none was chosen."""
    try:
        from shredsaver.benchmarks.__main__ import main as run_benchmarks  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the benchmarks need {error.name}: pip install 'shredsaver[bench]'") from None
    chosen = [] if only is None else ["--only", only]
    raise typer.Exit(run_benchmarks(["--smoke" if smoke else "--quick", "--backend", "sqlite", *chosen]))
