"""Commands about receipts. Verifying needs no database and no keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shredsaver import certificate as certificates
from shredsaver import receipts
from shredsaver.commands.options import AsJson, Database, Keys, console, opened, print_fields, print_json, whole_file
from shredsaver.errors import ReceiptError

Receipt = Annotated[Path, typer.Argument(help="A file of receipts, one a line.", exists=True, dir_okay=False)]
PublicKey = Annotated[
    list[Path],
    typer.Option("--key", help="The public key (PEM) that is trusted; may be repeated.", exists=True, dir_okay=False),
]


def public_key(
    database: Database = None,
    keys: Keys = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those of earlier receipts, oldest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the public key that new receipts are verified with, as PEM."""
    with opened(database, keys) as shredder:
        found = shredder.public_keys() if all_ else [shredder.public_key()]
    if as_json:
        print_json(found)
    else:
        typer.echo("".join(found), nl=False)


def list_receipts(database: Database = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """Print every receipt in the order of the chain, one a line."""
    with opened(database, keys) as shredder:
        if as_json:
            print_json(list(shredder.receipts()))
            return
        for receipt in shredder.receipts():
            typer.echo(receipt)


def trusted(files: list[Path]) -> list[str]:
    """The keys of some files, each of which may hold several, one after the other."""
    end = "-----END PUBLIC KEY-----"
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        found += [f"{each}{end}\n" for each in text.split(end)[:-1]] or [text]
    return found


def verify(receipt: Receipt, key: PublicKey, as_json: AsJson = False) -> None:
    """Check receipts with nothing but the file and the public key: each signature, and that they follow each other."""
    lines = receipt.read_text(encoding="utf-8", errors="replace").split()
    verified = receipts.verify_chain(lines, trusted(key))
    if not verified:
        raise ReceiptError("the file holds no receipt")
    if as_json:
        print_json([one.payload for one in verified])
        return
    for one in verified:
        print_fields(one.payload)
        console.print(f"signed by key {one.key_id}\n")
    console.print(
        f"{len(verified)} receipts verify and follow each other" if len(verified) > 1 else "the receipt verifies"
    )


def certificate(
    receipt: Receipt,
    key: PublicKey,
    to: Annotated[Path, typer.Option(help="The HTML page to write.")],
    as_json: AsJson = False,
) -> None:
    """Make a page from a receipt that a person can read and print. With several receipts, of the last one."""
    lines = receipt.read_text(encoding="utf-8", errors="replace").split()
    verified = receipts.verify_chain(lines, trusted(key))
    if not verified:
        raise ReceiptError("the file holds no receipt")
    if "erasure" not in verified[-1].payload:
        raise ReceiptError("the last receipt of the file changes the signing key: it certifies no erasure")
    with whole_file(to) as file:
        file.write(certificates.page(verified[-1], lines[-1]))
    if as_json:
        print_json({"file": str(to), "erasure": verified[-1].payload["erasure"]})
    else:
        console.print(f"wrote {to}")
