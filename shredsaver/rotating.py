"""Fresh keys for one customer: new writes go under keys that no earlier copy of the customer's tree can derive.

What is written stays readable under the keys it has. The key service replaces the tree first, and a store ahead of the
database wins; the database then refuses every writer that still holds the old tree, and threads move to new scopes as
they are next written.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final, NamedTuple

from shredsaver.core import FIRST_NUMBER, GET_CUSTOMER, LOCK_CUSTOMER, Core
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, call, run, sql
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError, KeyVersionError
from shredsaver.keytree import KeyTree
from shredsaver.threads import (
    ADD_COUNTER,
    CEILING,
    FRESH_FROM,
    GET_COUNTER,
    GET_NAME,
    LAST_NUMBER,
    SCOPE_COUNTER,
    SET_CUSTOMER,
    unfinished,
)
from shredsaver.upkeep import EPOCH_BITS

MARGIN: Final = 65_536
"""Scopes that threads may still take under the old keys while a rotation is under way: two a thread. Also those that a
later copy of the database may have handed out behind where the key store's tree was refreshed last."""

TURN: Final = 5
"""The row of ``counters`` with a random number of the latest rotation that began."""

ATTEMPTS: Final = 5
SET_COUNTER: Final = sql(
    "INSERT INTO counters (customer, generation, scope, next) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (customer, generation, scope) DO UPDATE SET next = excluded.next"
)
NEW_EPOCHS: Final = sql("UPDATE threads SET epoch = ? WHERE customer = ? AND generation = ? AND scope > 0")


def rotate_customer(core: Core, token: bytes) -> Plan[int]:
    """Gives a customer's unallocated scopes fresh keys. Gives the new key version.

    No scope from the ceiling on is allotted before the rotation has taken over; one that was left half done is taken up
    at the same ceiling. Of several at once the one whose turn was drawn last takes over, since the key service lets no
    other replace the tree after it.

    The tree knows more than a database that was taken back: where it was refreshed last. What lies behind may be in use
    by a later copy of the database, so fresh keys begin at a distance from there, and the ceiling stays below.

    Raises:
        ConfigurationError: The customer is not known.
        CustomerShreddedError, CustomerRestrictedError: It may not be used.
    """
    for _ in range(ATTEMPTS):
        generation = yield from _generation(core, token)
        record = yield from call(partial(core.keys.load, token, generation))
        tree = KeyTree.from_bytes(record.secret)
        begun = yield from _begin(core, token, generation, tree.refreshed_from())
        secret = tree.refresh(begun.first).to_bytes()
        try:
            replaced = yield from call(partial(core.keys.replace, token, generation, secret, record.key_version))
        except KeyVersionError:
            continue
        core.keyring.forget(token, generation)
        if (yield from _take_over(core, token, begun, replaced.key_version)):
            return replaced.key_version
    raise DatabaseUnavailableError(
        f"the keys of customer {token.hex()} are being rotated by others: call again", retryable=True
    )


class _Begun(NamedTuple):
    generation: int
    first: int
    turn: int


def _generation(core: Core, token: bytes) -> Plan[int]:
    yield Begin("read")
    (row,) = yield from run(Statement(GET_CUSTOMER, (token,)))
    if not row.rows:
        yield Rollback()
        raise ConfigurationError(f"customer {token.hex()} is not known: check the id")
    customer = yield from core.admit(row.rows[0])
    yield Commit()
    return customer.generation


def _begin(core: Core, token: bytes, generation: int, refreshed: int) -> Plan[_Begun]:
    """Draws a turn and sets the ceiling, or takes up the one of a rotation that was left half done.

    Its ceiling stays even if fresh keys begin higher now: the tree that holds below it may be in use by writers.
    """
    yield Begin("write")
    (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
    yield from core.admit(row.rows[0], generation)
    owner = (token, generation)
    _, counter, ceiling, fresh_from = yield from run(
        Statement(ADD_COUNTER, (*owner, SCOPE_COUNTER, FIRST_NUMBER)),
        *(Statement(GET_COUNTER, (*owner, scope)) for scope in (SCOPE_COUNTER, CEILING, FRESH_FROM)),
    )
    left = unfinished(ceiling, fresh_from)
    top = int(counter.rows[0][0]) + MARGIN if left is None else left
    first = max(top, refreshed + MARGIN) | 2  # 4n + 2: see `KeyTree.refreshed_from`
    if first >= LAST_NUMBER - MARGIN:
        yield Rollback()
        raise ConfigurationError(f"customer {token.hex()} has used up its scopes: no fresh keys can be given")
    turn = secrets.randbits(EPOCH_BITS)
    yield from run(
        Statement(SET_COUNTER, (*owner, CEILING, top)), Statement(SET_COUNTER, (*owner, TURN, turn)), commit=True
    )
    return _Begun(generation, first, turn)


def _take_over(core: Core, token: bytes, begun: _Begun, version: int) -> Plan[bool]:
    """From here on writers need the new tree, and threads get scopes from the ceiling on. False: not our turn."""
    owner = (token, begun.generation)
    yield Begin("write")
    (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
    now = yield from core.admit(row.rows[0], begun.generation)
    turn, kept = yield from run(Statement(GET_COUNTER, (*owner, TURN)), Statement(GET_NAME, (token,)))
    if turn.rows != [(begun.turn,)]:
        yield Rollback()
        return False
    moved = core.customer_row(now._replace(key_version=version), kept.rows[0][0])
    yield from run(
        Statement(SET_CUSTOMER, moved),
        *(Statement(SET_COUNTER, (*owner, scope, begun.first)) for scope in (SCOPE_COUNTER, CEILING, FRESH_FROM)),
        Statement(NEW_EPOCHS, (secrets.randbits(EPOCH_BITS), *owner)),
        commit=True,
    )
    return True
