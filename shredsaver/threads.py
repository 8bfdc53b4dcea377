"""Threads and who owns them: looking one up behind the fence, and claiming one for its first write."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from shredsaver import erasure
from shredsaver.core import (
    CUSTOMER_COLUMNS,
    FIRST_NUMBER,
    GET_CUSTOMER,
    LOCK_CUSTOMER,
    SHARE_CUSTOMER,
    Core,
    Customer,
)
from shredsaver.customers import CustomerResolver
from shredsaver.db.base import Begin, Commit, Plan, Result, Rollback, Statement, call, run, sql
from shredsaver.errors import DatabaseUnavailableError, ThreadOwnershipError, UnsealError
from shredsaver.keytree import KeyTree
from shredsaver.memory import Memory, Place
from shredsaver.sealing import CUSTOMER_NAME, THREAD_NAME

LAST_NUMBER: Final = 2**32 - 1
FULL: Final = LAST_NUMBER - 1_000_000
"""A thread with a number from here on moves to fresh scopes before it is next written."""

SCOPE_COUNTER: Final = 0
"""The row of ``counters`` that hands out scopes to a customer's threads."""

FRESH_FROM: Final = 3
"""The row of ``counters`` that says from which scope on keys are fresh, after a rotation."""

CEILING: Final = 4
"""The row of ``counters`` that says where the fresh keys of the latest rotation begin, finished or not."""

THREAD_ROW: Final = (
    "SELECT t.thread, t.customer, t.generation, t.scope, t.next_record, t.next_part, t.epoch, t.name, "
    + ", ".join(f"c.{column}" for column in CUSTOMER_COLUMNS.split(", "))
    + " FROM threads t LEFT JOIN customers c ON c.customer = t.customer WHERE t.thread = ?"
)
GET_THREAD: Final = sql(THREAD_ROW)
GET_NAME: Final = sql("SELECT name FROM customers WHERE customer = ?")
ADD_CUSTOMER: Final = sql(
    f"INSERT INTO customers ({CUSTOMER_COLUMNS}, name) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (customer) DO NOTHING"
)
SET_CUSTOMER: Final = sql(
    f"INSERT INTO customers ({CUSTOMER_COLUMNS}, name) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (customer) DO "
    f"UPDATE SET "
    "generation = excluded.generation, state = excluded.state, key_version = excluded.key_version, "
    "held_until = excluded.held_until, mac = excluded.mac, name = excluded.name"
)
ADD_COUNTER: Final = sql(
    "INSERT INTO counters (customer, generation, scope, next) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (customer, generation, scope) DO NOTHING"
)
GET_COUNTER: Final = sql("SELECT next FROM counters WHERE customer = ? AND generation = ? AND scope = ?")
NEXT_SCOPES: Final = sql(
    "UPDATE counters SET next = next + 2 WHERE customer = ? AND generation = ? AND scope = 0 RETURNING next - 2"
)
ADD_THREAD: Final = sql(
    "INSERT INTO threads (thread, customer, generation, scope, next_record, next_part, epoch, uses_delta, name, "
    "touched_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?) ON CONFLICT (thread) DO NOTHING"
)
MOVE_THREAD: Final = sql(
    "UPDATE threads SET generation = ?, scope = ?, next_record = ?, next_part = ?, epoch = ?, name = ?, touched_at = ? "
    "WHERE thread = ? AND customer = ? AND generation = ? AND scope = ? AND epoch = ?"
)


class Ref(NamedTuple):
    """The thread that a call is about."""

    thread_id: str
    thread: bytes
    customer_id: str | None
    customer: bytes | None


class Found(NamedTuple):
    """A thread's row behind the fence."""

    place: Place
    name: bytes | None
    customer: Customer


def no_owner(place: Place) -> NoReturn:
    """The error for a thread without its customer's row."""
    raise UnsealError(f"threads/{place.thread.hex()}: the row of its customer {place.customer.hex()} is missing")


def admit_thread(core: Core, ref: Ref, row: Sequence[Any]) -> Plan[Found | None]:
    """Lets a row of `GET_THREAD` through the fence, within the open transaction.

    Returns:
        The thread, or None where its customer was shredded and enrolled again: then it starts empty.

    Raises:
        ThreadOwnershipError: The call names another customer than the thread's.
        CustomerShreddedError, CustomerRestrictedError, RevocationLogDamagedError: No entry.
    """
    place = Place(*row[:7])
    if ref.customer is not None and ref.customer != place.customer:
        yield from admit_named(core, ref)
        yield Rollback()
        raise ThreadOwnershipError(
            f"thread {place.thread.hex()} belongs to customer {place.customer.hex()}, the call names "
            f"{ref.customer.hex()}: a thread belongs to the customer that first wrote it"
        )
    if row[8] is None:
        no_owner(place)
    customer = yield from core.admit(row[8:14])
    if place.generation > customer.generation:
        raise (yield from core.refusal(customer, place.generation))
    if place.generation < customer.generation:
        return None
    return Found(place, row[7], customer)


def admit_named(core: Core, ref: Ref) -> Plan[Customer | None]:
    """Lets the customer that the call names through the fence; None where it is not known yet."""
    if ref.customer is None:
        return None
    (found,) = yield from run(Statement(GET_CUSTOMER, (ref.customer,)))
    if not found.rows:
        return None
    return (yield from core.admit(found.rows[0]))


def open_name(core: Core, tree: KeyTree, place: Place, name: bytes | None) -> str:
    """Opens the thread's sealed name: it binds thread, customer, generation and scope.

    Raises:
        UnsealError: The row is not this thread's.
    """
    where = ("threads", place.customer, place.thread)
    if name is None:
        raise UnsealError(f"threads/{place.customer.hex()}/{place.thread.hex()}: the thread's name is missing")
    opened = core.unseal(tree, THREAD_NAME, place.owner, place.scope, 0, name, where, place.thread)
    return opened.decode("utf-8")


def check_name(core: Core, tree: KeyTree, found: Found, ref: Ref) -> None:
    """Opens the thread's sealed name and compares it with the thread that was asked for.

    Raises:
        UnsealError: The row is not this thread's.
    """
    place = found.place
    if open_name(core, tree, place, found.name) != ref.thread_id:
        raise UnsealError(f"threads/{place.thread.hex()}: the row carries another thread's name")


class Stand(NamedTuple):
    """What a write to a thread rests on: where the thread stands, its customer's opened tree, and who let it through.

    ``fence`` is the customer's row, `CUSTOMER_COLUMNS`, as it was admitted.
    """

    place: Place
    tree: KeyTree
    fence: tuple[Any, ...]


def claim(core: Core, memory: Memory, resolver: CustomerResolver, ref: Ref) -> Plan[Stand]:
    """The thread to write to, claimed for the customer if nobody has it yet, with the customer's opened tree.

    Raises:
        CustomerUnresolvedError: It is a first write and names no customer.
        ThreadOwnershipError, CustomerShreddedError, CustomerRestrictedError: It may not be written.
    """
    while True:
        yield Begin("read")
        (threads,) = yield from run(Statement(GET_THREAD, (ref.thread,)))
        found, customer = None, None
        if threads.rows:
            found = yield from admit_thread(core, ref, threads.rows[0])
            customer = found.customer if found else core.customer(threads.rows[0][8:14])
        else:
            customer = yield from admit_named(core, ref)
        fresh = 0
        if found is not None:
            (marks,) = yield from run(Statement(GET_COUNTER, (*found.place.owner, FRESH_FROM)))
            fresh = int(marks.rows[0][0]) if marks.rows else 0
        yield Commit()
        if not threads.rows and ref.customer is None:
            raise resolver.missing()
        if customer is None:
            yield from introduce(core, ref)
            continue
        tree = core.tree(customer)
        if tree is None:
            yield from core.load_tree(customer)
            continue
        if found is None:
            old = Place(*threads.rows[0][:7]) if threads.rows else None
            yield from allot(core, ref, customer, tree, old)
        elif found.place.scope < fresh or max(found.place.next_record, found.place.next_part) > FULL:
            yield from allot(core, ref, customer, tree, found.place)
        else:
            check_name(core, tree, found, ref)
            memory.at(found.place)
            return Stand(found.place, tree, tuple(threads.rows[0][8:14]))


def introduce(core: Core, ref: Ref) -> Plan[None]:
    """Makes a customer's key and row. The key comes first: a key without a row does no harm."""
    customer_id, token = ref.customer_id, ref.customer
    if customer_id is None or token is None:
        raise ValueError("a customer is introduced by its id")
    record = yield from call(partial(core.keyring.create, token))
    customer = Customer(token, record.generation, erasure.LIVE, record.key_version, "")
    tree = core.tree(customer)
    if tree is None:
        return
    name = core.seal(tree, CUSTOMER_NAME, (token, record.generation), 0, 0, customer_id.encode("utf-8"))
    yield Begin("write")
    added, _ = yield from run(
        Statement(ADD_CUSTOMER, core.customer_row(customer, name)),
        Statement(ADD_COUNTER, (token, record.generation, 0, FIRST_NUMBER)),
        commit=True,
    )
    if added.changed:
        core.events.emit("created", token)


def unfinished(ceiling: Result, fresh_from: Result) -> int | None:
    """The ceiling of a rotation that has begun and not taken over, given the counters `CEILING` and `FRESH_FROM`."""
    return int(ceiling.rows[0][0]) if ceiling.rows and ceiling.rows != fresh_from.rows else None


def allot(core: Core, ref: Ref, customer: Customer, tree: KeyTree, old: Place | None) -> Plan[None]:
    """Gives a thread a fresh pair of scopes: it is new, its old generation is dead, or its scope is full."""
    owner = (customer.customer, customer.generation)
    yield Begin("write")
    lock = LOCK_CUSTOMER if old is not None else SHARE_CUSTOMER
    (row,) = yield from run(Statement(lock, (customer.customer,)))
    if not row.rows:
        raise UnsealError(f"customers/{customer.customer.hex()}: the row is missing")
    now = yield from core.admit(row.rows[0])
    if now[:4] != customer[:4]:
        # Another generation, or keys were rotated since the tree was looked up: the next look finds the right one.
        yield Rollback()
        return
    _, scopes, ceiling, fresh_from = yield from run(
        Statement(ADD_COUNTER, (*owner, 0, FIRST_NUMBER)),
        Statement(NEXT_SCOPES, owner),
        Statement(GET_COUNTER, (*owner, CEILING)),
        Statement(GET_COUNTER, (*owner, FRESH_FROM)),
    )
    scope = int(scopes.rows[0][0])
    if not FIRST_NUMBER <= scope <= LAST_NUMBER - 1:
        raise UnsealError(f"counters/{customer.customer.hex()}: the next scope is out of range")
    limit = unfinished(ceiling, fresh_from)
    if limit is not None and scope + 1 >= limit:
        yield Rollback()
        raise DatabaseUnavailableError(
            f"a rotation of the keys of customer {customer.customer.hex()} has begun and not ended, and there are no "
            "scopes left for new threads until it has: rotate the customer again",
            retryable=True,
        )
    name = core.seal(tree, THREAD_NAME, owner, scope, 0, ref.thread_id.encode("utf-8"), ref.thread)
    fresh = Place(ref.thread, *owner, scope, FIRST_NUMBER, FIRST_NUMBER, secrets.randbits(62))
    now_ms = int(core.clock() * 1000)
    if old is None:
        statement = Statement(ADD_THREAD, (*fresh, name, now_ms))
    else:
        statement = Statement(
            MOVE_THREAD,
            (*fresh[2:], name, now_ms, old.thread, old.customer, old.generation, old.scope, old.epoch),
        )
    (changed,) = yield from run(statement)
    yield Commit() if changed.changed else Rollback()
