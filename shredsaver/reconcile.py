"""Who is dead according to whom: comparing the records of revocations. Pure.

The key service is the authority on who is dead; the database's log and a journal kept outside both are further records
of it. Whatever one lacks is applied to it, and only from records that verify.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

DESTRUCTIONS_UNASKED: Final = 10
"""So many keys may be destroyed on another record's word unasked: a wrong record must not kill everybody."""


class Dead(NamedTuple):
    """A customer whose generations up to this one are dead, and since when."""

    customer: bytes
    generation: int
    at: str


class Standing(NamedTuple):
    """What the database's row says of a customer."""

    generation: int
    dead: bool


@dataclass(frozen=True)
class Differences:
    """What the records do not agree on.

    Attributes:
        to_revoke: Dead by the key service or the journal, and in use (or not known) by the database.
        to_destroy: Dead by the database or the journal, and not by the key service.
        to_record: Dead by key service and database, and not in the database's log: an entry was lost.
    """

    to_revoke: tuple[Dead, ...]
    to_destroy: tuple[Dead, ...]
    to_record: tuple[Dead, ...]

    def __bool__(self) -> bool:
        return bool(self.to_revoke or self.to_destroy or self.to_record)


def compare(
    keys: Iterable[Dead], log: Iterable[Dead], journal: Iterable[Dead], rows: Mapping[bytes, Standing]
) -> Differences:
    """Compares who is dead by the key service, by the database's log, by the journal, and by the database's rows."""
    by_keys, by_log = latest(keys), latest(log)
    by_rows = (Dead(customer, row.generation, "") for customer, row in rows.items() if row.dead)
    elsewhere = latest([*by_log.values(), *journal, *by_rows])
    everyone = latest([*by_keys.values(), *elsewhere.values()])
    return Differences(
        tuple(dead for dead in everyone.values() if _in_use(rows.get(dead.customer), dead.generation)),
        tuple(dead for dead in elsewhere.values() if _lacks(by_keys, dead)),
        tuple(
            dead
            for dead in by_keys.values()
            if _lacks(by_log, dead) and not _in_use(rows.get(dead.customer), dead.generation)
        ),
    )


def _lacks(record: Mapping[bytes, Dead], dead: Dead) -> bool:
    known = record.get(dead.customer)
    return known is None or known.generation < dead.generation


def latest(dead: Iterable[Dead]) -> dict[bytes, Dead]:
    """The highest generation of each customer, with the earliest time known for it."""
    found: dict[bytes, Dead] = {}
    for one in dead:
        known = found.get(one.customer)
        if (
            known is None
            or one.generation > known.generation
            or (one.generation == known.generation and one.at and (not known.at or one.at < known.at))
        ):
            found[one.customer] = one
    return found


def _in_use(row: Standing | None, generation: int) -> bool:
    """Whether the database would still serve what is dead up to this generation."""
    return row is None or (row.generation <= generation and not row.dead)


@dataclass(frozen=True)
class Reconciliation:
    """What comparing the records of revocations found and did.

    Attributes:
        revoked: Customers that the database still had in use and that were revoked again.
        destroyed: Customers whose keys the key service still had and that were destroyed again.
        unconfirmed: Customers whose keys wait: for ``reconcile(confirm=True)``, because they are many, for the end of a
            hold that the key service knows, or for the key service to be there again. They stay shut.
        recorded: Erasures that had been lost from the database's log and were entered and verified again.
        repaired: Entries of the database's log that did not verify and were left behind in a new chain.
        holds: Slots of the key service whose holds did not verify and were set anew from the database's rows.
        forked: The database is a copy or a restore of the one the keys belong to: see `DatabaseForkedError`.
        shut: A record does not verify, so nobody can say who was shredded and nothing is served.
    """

    revoked: int = 0
    destroyed: int = 0
    unconfirmed: int = 0
    recorded: int = 0
    repaired: int = 0
    holds: int = 0
    forked: bool = False
    shut: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything had to be put right, or waits to be."""
        return any(
            (self.revoked, self.destroyed, self.unconfirmed, self.recorded, self.repaired, self.holds, self.shut)
        )
