"""Commands that look after keys: checking, mirroring, escrow."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from shredsaver.adopting import adopt_keys
from shredsaver.commands.options import AsJson, Database, Keys, answer, console, print_json, working
from shredsaver.errors import ConfigurationError
from shredsaver.kms.base import open_key_service
from shredsaver.kms.escrow import pack, restore, unpack

PassphraseEnv = Annotated[
    str | None, typer.Option("--passphrase-env", help="The variable that holds the passphrase; asked for without it.")
]


def _named(keys: str | None) -> str:
    if keys is None:
        raise ConfigurationError("give --keys, or set SHREDSAVER_KEYS")
    return keys


def _passphrase(variable: str | None, *, confirm: bool) -> str:
    if variable is None:
        asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        return asked
    found = os.environ.get(variable)
    if found is None:
        raise ConfigurationError(f"the environment has no variable {variable}, which should hold the passphrase")
    return found


def keys_check(keys: Keys = None, as_json: AsJson = False) -> None:
    """Open every wrapped key and check the whole log of the dead. Exit status 1 if something is wrong."""
    with open_key_service(_named(keys), create=False) as service, working("keys"):
        report = service.verify()
    answer(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(1)


def keys_mirror(
    directory: Annotated[Path, typer.Argument(help="A directory on another disk: missing, or empty and mode 0700.")],
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Keep the keys in one more directory, always alike. Prints the key URI that every process then needs."""
    uri = _named(keys)
    if uri.partition(":")[0].lower() != "file":
        raise ConfigurationError("mirrors are for keys in local files; replicate another key store by its own means")
    if directory.exists() and any(directory.iterdir()):
        raise ConfigurationError(f"{directory} is not empty: a mirror begins in an empty directory")
    directory.mkdir(mode=0o700, exist_ok=True)
    mirrored = f"{uri}{'&' if '?' in uri else '?'}mirror={quote(str(directory.resolve()))}"
    with open_key_service(uri, create=False):
        pass
    with open_key_service(mirrored, create=False) as service, working("keys"):
        report = service.verify()
    if as_json:
        print_json({"keys": mirrored, "ok": report.ok})
    else:
        typer.echo(mirrored)
    if not report.ok:
        raise typer.Exit(1)


def keys_escrow(
    file: Annotated[Path, typer.Argument(help="The file to write; keep it away from the keys and the database.")],
    keys: Keys = None,
    passphrase_env: PassphraseEnv = None,
    kdf: Annotated[
        str, typer.Option(help="argon2id, or pbkdf2 where only approved algorithms may be used.")
    ] = "argon2id",
    as_json: AsJson = False,
) -> None:
    """Write the deployment's secrets to a file under a passphrase. They open no customer's data."""
    with open_key_service(_named(keys), create=False) as service:
        secrets = service.deployment()
    data = pack(secrets, _passphrase(passphrase_env, confirm=True), kdf=kdf)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be made: {error.strerror}") from None
    with os.fdopen(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    if as_json:
        print_json({"deployment": secrets.deployment.hex(), "file": str(file)})
    else:
        console.print(f"wrote {file}, the secrets of deployment {secrets.deployment.hex()}")


def keys_restore_escrow(
    file: Annotated[Path, typer.Argument(help="What keys escrow wrote.", exists=True, dir_okay=False)],
    keys: Keys = None,
    passphrase_env: PassphraseEnv = None,
    as_json: AsJson = False,
) -> None:
    """Put a deployment's secrets back into a key store that lost them, or into a new one. Customers' keys stay lost."""
    secrets = unpack(file.read_bytes(), _passphrase(passphrase_env, confirm=False))
    with restore(_named(keys), secrets):
        pass
    if as_json:
        print_json({"deployment": secrets.deployment.hex()})
    else:
        console.print(f"the key store has the secrets of deployment {secrets.deployment.hex()}")


def keys_adopt(
    database: Database = None,
    keys: Keys = None,
    journal: Annotated[
        Path | None, typer.Option(envvar="SHREDSAVER_JOURNAL", help="The journal outside database and key store.")
    ] = None,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="The database was restored as well, and is the one that the keys are for."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take an older key store into use where the current one is lost for good: the last resort, behind mirrors.

    Slots whose roots went on are lost, with the keys of all their customers, whose tokens are printed. Nobody who was
    shredded comes back.
    """
    if database is None:
        raise ConfigurationError("give --database, or set SHREDSAVER_DATABASE")
    uri = _named(keys)
    plan = adopt_keys(database, uri, journal=journal, restored=restored)
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise ConfigurationError(
                f"this would keep the keys of {plan.customers} customers and give up those of "
                f"{len(plan.lost_customers)}, for good, also if the current key store turns up: give --yes to say that "
                "it is meant"
            )
        answer(plan, as_json=False)
        typer.confirm("Give up the keys of these customers, also if the current key store turns up?", abort=True)
    with working("keys"):
        done = adopt_keys(database, uri, journal=journal, restored=restored, confirm=True)
    answer(done, as_json=as_json)
