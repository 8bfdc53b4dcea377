"""The experiment: the same conversations and the same attempts to erase them on both sides.

In the first of seven turns the customer gives away something private, and a note of it goes to the store. Then the
state is cleared with ``RemoveMessage(REMOVE_ALL_MESSAGES)``, which is what an application would try first, and then the
customer is erased as thoroughly as the side can. After each step the same function counts, through the public API of
saver and store, in how many places the private thing can still be opened.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shredsaver.demo.person import ITEM, Person, refused
from shredsaver.demo.report import Outcome, Report
from shredsaver.demo.sides import Opened, SealedSide, Side, StockSide

TURNS: Final = 7


def run_demo(database: str | None = None, keys: str | None = None) -> Report:
    """Runs the experiment on both sides.

    Args:
        database: Where this library's side lives, as for `Shredder.open`; None for a temporary directory. The stock
            side always lives in a temporary directory.
        keys: The key URI that belongs to ``database``.

    Raises:
        ShredSaverError: The database or the key service could not be used.
    """
    with tempfile.TemporaryDirectory(prefix="shredsaver-demo-") as directory:
        base = Path(directory)
        with StockSide.open(base / "stock.sqlite") as stock:
            first = _experiment(stock, base / "stock-backup.sqlite")
        with SealedSide.open(database or str(base / "sealed.sqlite"), keys or f"file:{base / 'keys'}") as sealed:
            second = _experiment(sealed, base / "sealed-backup.sqlite")
    return Report(first, second)


def _experiment(side: Side, backup: Path) -> Outcome:
    nonce = secrets.token_hex(8)  # a database that was given may hold earlier runs
    secret, hobby = f"MARKER-{nonce}", f"chess-{nonce}"
    ana, ben = Person(side.opened, f"ana-{nonce}"), Person(side.opened, f"ben-{nonce}")
    outcome = Outcome()

    ana.say(f"My diagnosis is {secret}, please plan around it.")
    ana.remember(secret)
    ben.say(f"My hobby is {hobby}.")
    ben.remember(hobby)
    for turn in range(1, TURNS):
        ana.say(f"Question {turn}?")
    outcome.before = ana.count(secret)
    outcome.raw.append(_readable(side, secret))

    ana.clear()
    outcome.cleared = ana.count(secret)
    outcome.raw.append(_readable(side, secret))
    backed_up = side.back_up(backup)
    if backed_up:
        with _backup_opened(side, backup) as opened:
            outcome.backup_before = Person(opened, ana.customer).count(secret)
    old = ana.old_snapshot(secret)
    outcome.fork_before = secret in ana.say("What do you know about me?", old)

    side.erase(ana.customer, ana.thread, ITEM)
    outcome.erased = ana.count(secret)
    outcome.raw.append(_readable(side, secret))
    if backed_up:
        with _backup_opened(side, backup) as opened:
            outcome.backup_after = Person(opened, ana.customer).count(secret)
    if side.refuses:
        calls = ana.calls(old)
        outcome.attempted = list(calls)
        outcome.refused = [name for name, call in calls.items() if refused(call)]

    ben.say("Go on.")
    outcome.other_goes_on = ben.knows(hobby, "Go on.")
    return outcome


@contextmanager
def _backup_opened(side: Side, backup: Path) -> Iterator[Opened]:
    """Opens a fresh duplicate each time, so that one opening leaves nothing behind for the next."""
    with tempfile.TemporaryDirectory(dir=backup.parent) as directory:
        duplicate = shutil.copyfile(backup, Path(directory) / backup.name)
        with side.reopen(duplicate) as opened:
            yield opened


def _readable(side: Side, secret: str) -> bool:
    return any(secret.encode() in data for data in side.raw())
