"""Commands about customers: looking, erasing, keeping, exporting."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from shredsaver.audit import Audit
from shredsaver.commands.options import (
    AsJson,
    By,
    Database,
    Keys,
    Namespace,
    Reason,
    Receipt,
    answer,
    checked_file,
    console,
    counted,
    hand_out,
    opened,
    print_json,
    whole_file,
    working,
)
from shredsaver.errors import ConfigurationError, ShredIncompleteError

Customer = Annotated[str, typer.Argument(help="The customer's id, exactly as the application gives it.")]


def status(customer: Customer, database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Show where a customer stands."""
    with opened(database, keys) as shredder:
        answer(shredder.status(customer), as_json=as_json)


def customers(
    database: Database = None,
    keys: Keys = None,
    held: Annotated[bool, typer.Option("--held", help="Only those under a hold.")] = False,
    as_json: AsJson = False,
) -> None:
    """List everyone the database knows. The ids of those who live are shown; the dead are tokens."""
    with opened(database, keys) as shredder:
        found = (one for one in shredder.customers() if one.held_until or not held)
        if as_json:
            print_json(list(found))
            return
        table = Table("token", "state", "generation", "held until", "id", box=None, pad_edge=False)
        for one in found:
            table.add_row(one.customer, one.state, str(one.generation), one.held_until or "", one.customer_id or "")
        console.print(table)


def plan(customer: Customer, database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Count what a shred would reach; nothing is changed."""
    with opened(database, keys) as shredder:
        answer(shredder.plan(customer), as_json=as_json)


def audit(
    customer: Annotated[
        str | None,
        typer.Argument(help="The customer's id, to the letter; everybody without one."),
    ] = None,
    database: Database = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Count by route what is there, and how much of it opens. Exit status 1 if a record is damaged or a target away."""
    with opened(database, keys) as shredder, working("opening records") as progress:
        found = Audit.of_all(counted(progress, shredder.audits())) if customer is None else shredder.audit(customer)
    if as_json:
        print_json(found)
    else:
        table = Table("route", "rows", "open", box=None, pad_edge=False)
        for route, count in found.routes.items():
            table.add_row(route, f"{count.rows:,}", f"{count.opens:,}")
        console.print(f"customer {found.status.customer}: {found.status.state}" if found.status else "everybody")
        console.print(table)
        for damage in found.damaged:
            console.print(f"damaged: {damage}")
        for name in found.unanswered:
            console.print(f"no answer from target {name}")
    if found.damaged or found.unanswered:
        raise typer.Exit(1)


def shred(
    customer: Annotated[list[str], typer.Argument(help="The customers' ids, exactly as the application gives them.")],
    database: Database = None,
    keys: Keys = None,
    reason: Reason = None,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    unknown: Annotated[bool, typer.Option("--unknown", help="Accept ids that were never seen.")] = False,
    no_purge: Annotated[bool, typer.Option("--no-purge", help="Destroy the keys and leave the ciphertext.")] = False,
    grace: Annotated[float | None, typer.Option(help="Hours until the keys die, to think again.")] = None,
    defer: Annotated[bool, typer.Option("--defer", help="Under a hold: stop use now, destroy when it ends.")] = False,
    receipt: Receipt = None,
    as_json: AsJson = False,
) -> None:
    """Erase customers: end use, destroy keys, delete rows, sign a receipt. There is no way back.

    Exit status 3 if a step failed after use had ended: it says what is left, and resume goes on.
    """
    if grace is not None and (len(customer) > 1 or grace < 0):
        raise ConfigurationError("--grace takes hours from now, and one customer")
    if defer and len(customer) > 1:
        raise ConfigurationError("--defer takes one customer")
    checked_file(receipt)
    with opened(database, keys) as shredder:
        plans = [shredder.plan(one) for one in customer]
        strangers = [found.status.customer for found in plans if not found.status.known]
        if strangers and not unknown:
            raise ConfigurationError(
                f"{len(strangers)} of the ids were never seen here ({', '.join(strangers)}): a typing error must not "
                "look like an erasure. Check them, or give --unknown to set tombstones all the same"
            )
        if not yes:
            if as_json or not sys.stdin.isatty():
                raise ConfigurationError("this cannot be undone: give --yes to say that it is meant")
            for found in plans:
                rows = ", ".join(f"{count:,} {route}" for route, count in found.counts.items())
                console.print(f"customer {found.status.customer} ({found.status.state}): {rows}")
            typer.confirm("Destroy the keys of all this, for ever?", abort=True)
        hours = None if grace is None else timedelta(hours=grace)
        try:
            with working("erasing"):
                if len(customer) == 1:
                    results = [
                        shredder.shred(
                            customer[0], reason=reason, requested_by=by, purge=not no_purge, grace=hours, defer=defer
                        )
                    ]
                else:
                    results = shredder.shred_many(customer, reason=reason, requested_by=by, purge=not no_purge)
        except ShredIncompleteError as error:
            hand_out(error.results, receipt, as_json=as_json)
            raise
    hand_out(results, receipt, as_json=as_json)


def enrol(customer: Customer, database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Let a shredded customer come back, empty."""
    with opened(database, keys) as shredder:
        answer(shredder.enrol(customer), as_json=as_json)


def restrict(
    customer: Customer,
    database: Database = None,
    keys: Keys = None,
    reason: Reason = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Stop every use of a customer's data and keep it; reinstate ends that."""
    with opened(database, keys) as shredder:
        answer(shredder.restrict(customer, reason=reason, requested_by=by), as_json=as_json)


def reinstate(
    customer: Customer,
    database: Database = None,
    keys: Keys = None,
    reason: Reason = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """End a restriction, and cancel an erasure whose grace has not ended."""
    with opened(database, keys) as shredder:
        answer(shredder.reinstate(customer, reason=reason, requested_by=by), as_json=as_json)


def hold(
    customer: Customer,
    reason: Annotated[str, typer.Option(help="Why; sealed under the customer's keys.")],
    until: Annotated[str | None, typer.Option(help="When it ends by itself: 2027-01-31T00:00:00+00:00.")] = None,
    database: Database = None,
    keys: Keys = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Forbid erasure and deletion of a customer's data."""
    try:
        ends = None if until is None else datetime.fromisoformat(until)
    except ValueError:
        raise ConfigurationError("--until takes a time like 2027-01-31T00:00:00+00:00") from None
    with opened(database, keys) as shredder:
        answer(shredder.hold(customer, reason, ends, requested_by=by), as_json=as_json)


def release(
    customer: Customer,
    database: Database = None,
    keys: Keys = None,
    reason: Reason = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """End a hold."""
    with opened(database, keys) as shredder:
        answer(shredder.release(customer, reason=reason, requested_by=by), as_json=as_json)


def export(
    customer: Customer,
    database: Database = None,
    keys: Keys = None,
    namespace: Namespace = None,
    to: Annotated[Path | None, typer.Option(help="The file to write; standard output without it.")] = None,
) -> None:
    """Write everything that is held on a customer, decrypted, as lines of JSON."""
    with (
        opened(database, keys, namespaces=namespace) as shredder,
        nullcontext(sys.stdout) if to is None else whole_file(to) as file,
        working("lines") as progress,
    ):
        file.writelines(counted(progress, shredder.export(customer)))


def import_(
    source: Annotated[Path, typer.Argument(help="An export.", exists=True, dir_okay=False)],
    database: Database = None,
    keys: Keys = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Take an export back as new data. Refused for a shredded customer who was not enrolled again."""
    with (
        opened(database, keys, namespaces=namespace) as shredder,
        source.open("rb") as file,
        working("lines") as progress,
    ):
        count = shredder.import_(counted(progress, file))
    if as_json:
        print_json({"lines": count})
    else:
        console.print(f"{count:,} lines taken")
