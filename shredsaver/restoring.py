"""Opening after a restore: the records of revocations are compared and merged before anything is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from shredsaver import erasure
from shredsaver.applying import GET_CUSTOMERS, Applying, among, pages
from shredsaver.core import CUSTOMER_COLUMNS, Core, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Statement, call, run, sql
from shredsaver.erasures import CANCELLED, LOG_COUNTER, LOG_PAGE, SCHEDULED, chained
from shredsaver.errors import RevocationLogDamagedError
from shredsaver.guarding import GuardedKeys
from shredsaver.heads import START, Heads, intact, remember, remembered
from shredsaver.journal import Journal
from shredsaver.kms.base import Tombstone
from shredsaver.reconcile import DESTRUCTIONS_UNASKED, Dead, Differences, Reconciliation, Standing, compare, latest
from shredsaver.restraint import FOREVER
from shredsaver.shredding import Shredding
from shredsaver.threads import GET_COUNTER

RESET_COUNTER: Final = sql("UPDATE counters SET next = ? WHERE customer = ? AND generation = ? AND scope = ?")
HELD_PAGE: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer > ? AND held_until <> '' "
    "AND state IN ('live', 'restricted') ORDER BY customer LIMIT 200"
)
DELETE_ENTRY: Final = sql("DELETE FROM erasures WHERE seq = ?")
RENUMBER: Final = sql("UPDATE erasures SET seq = ?, record = ?, mac = ?, chain = ? WHERE seq = ?")


class Restoring:
    """The plans of reconciliation. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, keys: GuardedKeys, shredding: Shredding, journal: Journal | None) -> None:
        self._core = core
        self._keys = keys
        self._applying = Applying(core, keys, shredding)
        self._journal = journal

    def reconcile(self, *, confirm: bool, sources: Sequence[Dead], quick: bool) -> Plan[Reconciliation]:
        """Compares the records and applies to each what it lacks.

        Args:
            confirm: Destroy keys even if they are many.
            sources: Further records that the caller vouches for, such as a receipt chain that verified.
            quick: Begin where the last comparison ended, if what was compared then still stands.

        Raises:
            RevocationLogDamagedError: The key service's log or the journal does not verify: everything stays shut.
        """
        forked = yield from call(lambda: self._keys.forked)
        heads = (yield from remembered(self._core)) if quick and not forked else START
        differences, damaged, compared = yield from self._look(heads, sources)
        if heads != START and (damaged or differences):
            # What is new may concern what was compared before: only the whole tells what is to be done.
            differences, damaged, compared = yield from self._look(START, sources)
        if damaged:
            yield from self._repair()
        mended = 0 if quick or forked else (yield from self._mend_holds())
        many = len(differences.to_destroy) > DESTRUCTIONS_UNASKED and not confirm
        unsure = {dead.customer for dead in differences.to_destroy} if many else set()
        sure = [dead for dead in differences.to_revoke if dead.customer not in unsure]
        yield from self._applying.shut([dead for dead in differences.to_revoke if dead.customer in unsure])
        yield from self._applying.revoke([*sure, *differences.to_record], forked=forked)
        waiting = [] if forked or many else differences.to_destroy
        destroyed = yield from self._applying.destroy(waiting)
        found = Reconciliation(
            revoked=len(sure),
            destroyed=destroyed,
            unconfirmed=len(differences.to_destroy) - destroyed,
            recorded=len(differences.to_record),
            repaired=len(damaged),
            holds=mended,
            forked=forked,
        )
        if found.changed:
            self._core.events.emit("reconciled", **asdict(found))
        elif compared != heads and not forked:
            yield from remember(self._core, compared)
        return found

    def _look(self, heads: Heads, sources: Sequence[Dead]) -> Plan[tuple[Differences, list[int], Heads]]:
        """Compares the records behind some heads. Gives the differences, damaged positions of the log, and its end."""
        stones = yield from call(partial(self._stones, heads))
        if stones is None or not (yield from intact(heads)):
            heads, stones = START, (yield from call(self._keys.tombstones))
        by_keys = [Dead(stone.customer, stone.generation, stone.at) for stone in stones]
        told: tuple[list[Dead], int, str] = ([], *heads[4:])
        if self._journal is not None:
            told = yield from call(partial(self._journal.read_after, *heads[4:]))
        journal = [*sources, *told[0]]
        log, damaged, last = yield from log_of_dead(self._core, heads)
        rows = yield from self._rows(list(latest([*by_keys, *log, *journal])))
        first = (stones[-1].seq, stones[-1].chain) if stones else heads[:2]
        return compare(by_keys, log, journal, rows), damaged, Heads(*first, *last, *told[1:])

    def _stones(self, heads: Heads) -> Sequence[Tombstone] | None:
        """The key service's log behind the head that was compared; None if it has another one there."""
        if not heads.key_seq:
            return self._keys.tombstones()
        found = self._keys.tombstones(heads.key_seq - 1)
        known = found and (found[0].seq, found[0].chain) == heads[:2]
        return found[1:] if known else None

    def _rows(self, tokens: Sequence[bytes]) -> Plan[dict[bytes, Standing]]:
        """What the rows of some customers say; an altered one counts as in use, so that every other record wins."""
        rows: dict[bytes, Standing] = {}
        for some in pages(tokens):
            yield Begin("read")
            (found,) = yield from run(Statement(GET_CUSTOMERS, among(some)))
            yield Commit()
            for row in found.rows:
                try:
                    customer = self._core.customer(row)
                except RevocationLogDamagedError:
                    rows[bytes(row[0])] = Standing(0, dead=False)
                else:
                    rows[customer.customer] = Standing(customer.generation, customer.state in erasure.DEAD)
        return rows

    def _mend_holds(self) -> Plan[int]:
        """Sets holds of the key service anew that do not verify there: the database's rows say who is held, too."""
        broken = yield from call(self._keys.damaged_holds)
        if not broken:
            return 0
        after, known = b"", {}
        while True:
            yield Begin("read")
            (page,) = yield from run(Statement(HELD_PAGE, (after,)))
            yield Commit()
            if not page.rows:
                break
            for row in page.rows:
                after = bytes(row[0])
                customer = self._core.customer(row)
                if erasure.held(customer.held_until, self._core.clock()):
                    until = customer.held_until
                    known[customer.customer] = "" if until == FOREVER else until.replace("+00:00", "Z")
        yield from call(partial(self._keys.mend_holds, known))
        return broken

    def _repair(self) -> Plan[None]:
        """Chains the log anew without what does not verify: the key service, whose log does, is the authority."""
        core = self._core
        yield Begin("write")
        seq, previous, position = 0, b"", 0
        while True:
            (page,) = yield from run(Statement(LOG_PAGE, (position,)))
            if not page.rows:
                break
            for row in page.rows:
                position = int(row[0])
                try:
                    one = core.erasure(row[:7])
                except RevocationLogDamagedError:
                    yield from run(Statement(DELETE_ENTRY, (position,)))
                    continue
                seq += 1
                moved = one._replace(seq=seq)
                chain = chained(core, previous, moved)
                stored = core.erasure_row(moved)
                yield from run(Statement(RENUMBER, (seq, stored[5], stored[6], chain, position)))
                previous = chain
        yield from run(Statement(RESET_COUNTER, (seq + 1, *LOG_COUNTER)), commit=True)


def log_of_dead(core: Core, heads: Heads) -> Plan[tuple[list[Dead], list[int], tuple[int, bytes]]]:
    """Who is dead by the database's log, the positions at which its chain does not hold, and its last entry."""
    dead: list[Dead] = []
    damaged: list[int] = []
    seq, previous = heads.log_seq, heads.log_chain
    while True:
        yield Begin("read")
        page, counter = yield from run(Statement(LOG_PAGE, (seq,)), Statement(GET_COUNTER, LOG_COUNTER))
        yield Commit()
        if not page.rows:
            if counter.rows and int(counter.rows[0][0]) != seq + 1:  # the last entries are missing
                damaged.append(seq + 1)
            return dead, damaged, (seq, previous)
        for row in page.rows:
            try:
                one: Erasure | None = core.erasure(row[:7])
            except RevocationLogDamagedError:
                one = None
            if one is None or row[0] != seq + 1 or chained(core, previous, one) != bytes(row[7]):
                damaged.append(int(row[0]))
            if one is not None and one.state not in (SCHEDULED, CANCELLED):
                dead.append(Dead(one.customer, one.generation, one.record.get("revoked_at", "")))
            seq, previous = int(row[0]), bytes(row[7])
