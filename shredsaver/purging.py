"""A customer's rows by route, and deleting them. Deleting is hygiene: they cannot be opened any more."""

from __future__ import annotations

import secrets
from typing import Final

from shredsaver import erasure
from shredsaver.core import LOCK_CUSTOMER, Core, Erasure
from shredsaver.db.base import Begin, Commit, Plan, Statement, run, sql
from shredsaver.erasures import moved, now
from shredsaver.upkeep import DELETE_OF_THREAD, EPOCH_BITS

THREADS_TO_PURGE: Final = sql(
    "SELECT thread FROM threads WHERE customer = ? AND generation <= ? AND scope > 0 LIMIT 64"
)
EMPTY_THREAD: Final = sql(
    "UPDATE threads SET scope = 0, next_record = 0, next_part = 0, epoch = ?, uses_delta = 0, name = NULL, "
    "touched_at = 0, expires_at = NULL WHERE thread = ?"
)
DELETE_OF_CUSTOMER: Final = tuple(
    sql(f"DELETE FROM {table} WHERE customer = ? AND generation <= ?") for table in ("items", "namespaces", "counters")
)
"""What belongs to a customer and to no thread."""

DELETE_LEFT_OVER: Final = tuple(
    sql(
        f"DELETE FROM {table} WHERE generation <= ? AND thread IN "
        "(SELECT thread FROM threads WHERE customer = ? AND generation > ?)"
    )
    for table in ("checkpoints", "writes", "parts")
)
"""What lies in threads that the customer, enrolled again meanwhile, has taken over."""

_OF_THREADS: Final = (
    "SELECT count(*) FROM {} x WHERE x.generation <= ? AND x.thread IN (SELECT thread FROM threads WHERE customer = ?)"
)
ROUTES: Final = {
    "threads": sql("SELECT count(*) FROM threads WHERE generation <= ? AND customer = ? AND scope > 0"),
    "checkpoints": sql(_OF_THREADS.format("checkpoints")),
    "writes": sql(_OF_THREADS.format("writes")),
    "parts": sql(_OF_THREADS.format("parts")),
    "items": sql("SELECT count(*) FROM items WHERE generation <= ? AND customer = ?"),
    "namespaces": sql("SELECT count(*) FROM namespaces WHERE generation <= ? AND customer = ?"),
}
"""Rows of a customer's generations, by route."""


def count(customer: bytes, generation: int) -> Plan[dict[str, int]]:
    """Counts a customer's rows by route, within the open transaction."""
    results = yield from run(*(Statement(statement, (generation, customer)) for statement in ROUTES.values()))
    return {route: int(result.rows[0][0]) for route, result in zip(ROUTES, results, strict=True)}


def purge(core: Core, one: Erasure) -> Plan[Erasure]:
    """Deletes the customer's rows, thread by thread; only who a thread belonged to stays, so that it stays refused."""
    owner = (one.customer, one.generation)
    if "before" not in one.record:
        yield Begin("write")
        counts = yield from count(*owner)
        one, statements = yield from moved(core, one._replace(record={**one.record, "before": counts}))
        yield from run(*statements, commit=True)
    while True:
        yield Begin("write")
        # With the customer's row: a thread that an enrolled customer takes over now must not lose what is new in it.
        _, threads = yield from run(Statement(LOCK_CUSTOMER, (one.customer,)), Statement(THREADS_TO_PURGE, owner))
        if not threads.rows:
            break
        for (thread,) in threads.rows:
            yield from run(
                *(Statement(delete, (thread,)) for delete in DELETE_OF_THREAD),
                Statement(EMPTY_THREAD, (secrets.randbits(EPOCH_BITS), thread)),
            )
        yield Commit()
    state = erasure.PURGED if one.state == erasure.DESTROYED else one.state
    one = one._replace(state=state, record={**one.record, "purged_at": now(core)})
    one, statements = yield from moved(core, one, state if state in erasure.DEAD else None)
    left_over = (one.generation, one.customer, one.generation)
    yield from run(
        *(Statement(delete, left_over) for delete in DELETE_LEFT_OVER),
        *(Statement(delete, owner) for delete in DELETE_OF_CUSTOMER),
        *statements,
        commit=True,
    )
    return one
