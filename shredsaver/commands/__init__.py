"""The commands of the ``shredsaver`` command line, a module each; needs the extra ``cli``.

A command's module gives a function with typer's annotations and is registered here. It raises this library's errors
and leaves turning them into an exit status to `shredsaver.cli`.
"""

from __future__ import annotations

import typer

from shredsaver.commands import keeping, operating, people, proving
from shredsaver.commands.demo import demo

__all__ = ["app"]

app = typer.Typer(
    name="shredsaver",
    help="Crypto-shredding for LangGraph: erase a customer by destroying the customer's keys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a rich traceback prints local variables, and those hold payloads
)


@app.callback()
def group() -> None:
    """Keeps commands named, however few there are."""


app.command()(demo)
for command in (
    operating.init,
    people.status,
    people.customers,
    people.plan,
    people.audit,
    people.shred,
    people.enrol,
    people.restrict,
    people.reinstate,
    people.hold,
    people.release,
    people.export,
    proving.verify,
    proving.certificate,
    operating.resume,
    operating.rotate,
    operating.reconcile,
    operating.adopt,
    operating.routes,
    operating.doctor,
    operating.bench,
):
    app.command()(command)
app.command(name="import")(people.import_)
app.command(name="receipts")(proving.list_receipts)
app.command(name="public-key")(proving.public_key)
keys = typer.Typer(help="Look after the keys.", no_args_is_help=True)
for name, act in (
    ("check", keeping.keys_check),
    ("mirror", keeping.keys_mirror),
    ("escrow", keeping.keys_escrow),
    ("restore-escrow", keeping.keys_restore_escrow),
    ("adopt", keeping.keys_adopt),
):
    keys.command(name=name)(act)
app.add_typer(keys, name="keys")
