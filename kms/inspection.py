"""Going over a whole key store: every key opened, nothing orphaned, the log of the dead unbroken."""

from __future__ import annotations

from functools import partial

from shredsaver.db.base import Begin, Commit, Database, Plan, Statement, run
from shredsaver.errors import FormatError, KeyServiceError, RevocationLogDamagedError, UnsealError
from shredsaver.kms import deadlog, holds, schema
from shredsaver.kms.records import Report
from shredsaver.kms.roots import Epoch, Roots
from shredsaver.kms.wrapping import Store, Wrapped, unseal_secret, unwrap


def inspect(database: Database, roots: Roots, store: Store, log_key: bytes) -> Report:
    """Opens every key of every slot with its root read anew, and reads the log of the dead to its end."""
    problems: list[str] = []
    live, odd = database.run(_overview)
    problems += odd
    customers = 0
    for epoch in live:
        try:
            root = roots.open(epoch, fresh=True)
        except KeyServiceError as error:
            problems.append(f"the root of slot {epoch.slot}, epoch {epoch.epoch} does not open: {error}")
            continue
        rows = database.run(partial(_slot, epoch.slot))
        for row, sealed in rows:
            customers += bool(row.customer)  # the deployment's own record has the empty token
            problem = _problem(store, root, epoch, row, sealed)
            if problem:
                problems.append(problem)
    entries, damage = database.run(partial(_log, log_key))
    held = database.run(partial(holds.damaged, log_key))
    problems += [
        f"the holds of slot {slot} do not verify: nothing of it is destroyed before reconcile" for slot in held
    ]
    return Report(customers, len(live), entries, (*problems, *damage))


def _problem(store: Store, root: bytes, epoch: Epoch, row: Wrapped, sealed: bytes | None) -> str | None:
    name = f"key_wraps/{row.customer.hex()}/{row.generation}"
    if row.epoch != epoch.epoch:
        return f"{name} is wrapped under epoch {row.epoch}, its slot is at {epoch.epoch}"
    if sealed is None:
        return f"key_trees/{row.customer.hex()}/{row.generation} is missing"
    try:
        unseal_secret(store, unwrap(store, root, row), row, sealed)
    except (UnsealError, FormatError) as error:
        return str(error)
    return None


def _overview() -> Plan[tuple[list[Epoch], list[str]]]:
    yield Begin("read")
    live, orphans, back, open_ = yield from run(
        Statement(schema.SLOTS_LIVE),
        Statement(schema.ORPHANS),
        Statement(schema.PUT_BACK),
        Statement(schema.WORK),
        commit=True,
    )
    problems = [f"key_trees/{bytes(row[0]).hex()}/{row[1]} belongs to no key" for row in orphans.rows]
    problems += [f"key_wraps/{bytes(row[0]).hex()}/{row[1]} was destroyed, and put back" for row in back.rows]
    problems += [f"slot {row[0]} has a rotation that is not finished" for row in open_.rows]
    return [Epoch(slot, epoch, bytes(material)) for slot, epoch, material in live.rows], problems


def _slot(slot: int) -> Plan[list[tuple[Wrapped, bytes | None]]]:
    yield Begin("read")
    (found,) = yield from run(Statement(schema.RECORDS_OF_SLOT, (slot,)), commit=True)
    return [
        (Wrapped(slot, bytes(customer), generation, at, version, bytes(wrapped)), None if seal is None else bytes(seal))
        for customer, generation, at, version, wrapped, seal in found.rows
    ]


def _log(log_key: bytes) -> Plan[tuple[int, list[str]]]:
    yield Begin("read")
    try:
        found = yield from deadlog.read(log_key, 0)
    except RevocationLogDamagedError as error:
        found, problems = [], [str(error)]
    else:
        problems = []
    yield Commit()
    return len(found), problems
