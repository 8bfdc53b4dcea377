"""The commands of the ``shredsaver`` command line, a module each; needs the extra ``cli``.

A command's module gives a function with typer's annotations and is registered here. It raises this library's errors
and leaves turning them into an exit status to `shredsaver.cli`.
"""

from __future__ import annotations

import typer

from shredsaver.commands.demo import demo

__all__ = ["app"]

app = typer.Typer(
    name="shredsaver",
    help="Crypto-shredding for LangGraph: erase a customer by destroying the customer's keys.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a rich traceback prints local variables, and those hold payloads
)


@app.callback()
def group() -> None:
    """Keeps commands named, however few there are."""


app.command()(demo)
