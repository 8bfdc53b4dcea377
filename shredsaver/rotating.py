"""Fresh keys for one customer: new writes go under keys that no earlier copy of the customer's tree can derive.

What is written stays readable under the keys it has. The key service replaces the tree first, and a store ahead of the
database wins; the database then refuses every writer that still holds the old tree, and threads move to new scopes as
they are next written.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final

from shredsaver.core import LOCK_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, call, run, sql
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError
from shredsaver.threads import (
    ADD_COUNTER,
    FRESH_FROM,
    GET_COUNTER,
    GET_NAME,
    LAST_NUMBER,
    SCOPE_COUNTER,
    SET_CUSTOMER,
)
from shredsaver.upkeep import EPOCH_BITS

MARGIN: Final = 1024
"""Scopes that threads may still take under the old keys while a rotation is under way."""

ATTEMPTS: Final = 5
SET_COUNTER: Final = sql(
    "INSERT INTO counters (customer, generation, scope, next) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (customer, generation, scope) DO UPDATE SET next = excluded.next"
)
NEW_EPOCHS: Final = sql("UPDATE threads SET epoch = ? WHERE customer = ? AND generation = ? AND scope > 0")


def rotate_customer(core: Core, token: bytes) -> Plan[int]:
    """Gives a customer's unallocated scopes fresh keys. Gives the new key version.

    Raises:
        ConfigurationError: The customer is not known.
        CustomerShreddedError, CustomerRestrictedError: It may not be used.
    """
    for _ in range(ATTEMPTS):
        customer, taken = yield from _look(core, token)
        tree = core.tree(customer)
        if tree is None:
            yield from core.load_tree(customer)
            continue
        record = yield from call(partial(core.keys.load, token, customer.generation))
        first = taken + MARGIN
        if first >= LAST_NUMBER - MARGIN:
            raise ConfigurationError(f"customer {token.hex()} has used up its scopes: no fresh keys can be given")
        secret = tree.refresh(first).to_bytes()
        replaced = yield from call(partial(core.keys.replace, token, customer.generation, secret, record.key_version))
        core.keyring.forget(token, customer.generation)
        if (yield from _take_over(core, customer, replaced.key_version, first)):
            return replaced.key_version
    raise DatabaseUnavailableError(f"customer {token.hex()} is too busy to be rotated: call again", retryable=True)


def _look(core: Core, token: bytes) -> Plan[tuple[Customer, int]]:
    """The customer behind the fence, and the next scope that a thread would get."""
    yield Begin("write")
    (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
    if not row.rows:
        yield Rollback()
        raise ConfigurationError(f"customer {token.hex()} is not known: check the id")
    customer = yield from core.admit(row.rows[0])
    owner = (token, customer.generation, SCOPE_COUNTER)
    _, counter = yield from run(Statement(ADD_COUNTER, (*owner, 16)), Statement(GET_COUNTER, owner))
    yield Commit()
    return customer, int(counter.rows[0][0])


def _take_over(core: Core, customer: Customer, version: int, first: int) -> Plan[bool]:
    """From here on writers need the new tree, and threads get scopes from ``first`` on."""
    token, generation = customer.customer, customer.generation
    yield Begin("write")
    (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
    now = yield from core.admit(row.rows[0], generation)
    owner = (token, generation, SCOPE_COUNTER)
    counter, kept = yield from run(Statement(GET_COUNTER, owner), Statement(GET_NAME, (token,)))
    if int(counter.rows[0][0]) > first:
        yield Rollback()
        return False
    moved = core.customer_row(now._replace(key_version=max(version, now.key_version)), kept.rows[0][0])
    yield from run(
        Statement(SET_CUSTOMER, moved),
        Statement(SET_COUNTER, (*owner, first)),
        Statement(SET_COUNTER, (token, generation, FRESH_FROM, first)),
        Statement(NEW_EPOCHS, (secrets.randbits(EPOCH_BITS), token, generation)),
        commit=True,
    )
    return True
