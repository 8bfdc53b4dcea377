"""Asking about customers, and letting one come back."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

from shredsaver import erasure
from shredsaver.core import CUSTOMER_COLUMNS, FIRST_NUMBER, GET_CUSTOMER, GET_ERASURE, LOCK_CUSTOMER, Core, Customer
from shredsaver.db.base import Begin, Commit, Plan, Statement, call, run, sql
from shredsaver.erasures import SCHEDULED_OF
from shredsaver.errors import ConfigurationError, CustomerShreddedError, ShredIncompleteError
from shredsaver.keytree import KeyTree
from shredsaver.outside import Outside
from shredsaver.purging import count
from shredsaver.results import CustomerStatus, ShredPlan
from shredsaver.sealing import CUSTOMER_NAME
from shredsaver.threads import ADD_COUNTER, SET_CUSTOMER

PAGE: Final = 100
LIST_CUSTOMERS: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS}, name FROM customers WHERE customer > ? ORDER BY customer LIMIT ?"
)


class Administration:
    """The plans that ask about customers. Holds what they share; one for each deployment."""

    def __init__(self, core: Core, outside: Outside) -> None:
        self._core = core
        self._outside = outside

    def status(self, token: bytes) -> Plan[CustomerStatus]:
        """Where a customer stands."""
        yield Begin("read")
        status = yield from self._status(token)
        yield Commit()
        return status

    def plan(self, token: bytes) -> Plan[ShredPlan]:
        """What a shred would reach."""
        yield Begin("read")
        status = yield from self._status(token)
        counts = yield from count(token, max(status.generation, 1))
        yield Commit()
        return ShredPlan(status, counts)

    def page(self, after: bytes) -> Plan[list[CustomerStatus]]:
        """Some customers in the order of their tokens, behind ``after``."""
        while True:
            yield Begin("read")
            (rows,) = yield from run(Statement(LIST_CUSTOMERS, (after, PAGE)))
            customers = [(self._core.customer(row[:6]), row[6]) for row in rows.rows]
            statuses = []
            for customer, _ in customers:
                statuses.append((yield from self._described(customer)))
            yield Commit()
            page = []
            for status, (customer, name) in zip(statuses, customers, strict=True):
                page.append((yield from self._named(status, customer, name)))
            return page

    def enrol(self, token: bytes, customer_id: str) -> Plan[CustomerStatus]:
        """A new generation after a destroyed one. The key comes first: a key without a row does no harm."""
        core = self._core
        before = yield from self.status(token)
        if before.state in (erasure.LIVE, erasure.RESTRICTED, "unknown"):
            raise ConfigurationError(
                f"customer {token.hex()} was not shredded, so there is nothing to enrol: the first write is enough"
            )
        if before.state == erasure.REVOKED:
            raise ShredIncompleteError(
                f"the erasure of customer {token.hex()} is not complete: resume first",
                pending=erasure.remaining(erasure.REVOKED, purge=True),
            )
        generation = yield from call(partial(core.keys.current, token))
        if generation is None:
            record = yield from call(partial(core.keyring.enrol, token))
            generation, version = record.generation, record.key_version
        else:  # an earlier enrolment was interrupted between key and row
            version = yield from call(partial(core.keyring.load, token, generation))
        customer = Customer(token, generation, erasure.LIVE, version, "")
        tree = core.tree(customer)
        if tree is None:
            raise CustomerShreddedError(f"customer {token.hex()} was shredded again while it was enrolled")
        yield Begin("write")
        (row,) = yield from run(Statement(LOCK_CUSTOMER, (token,)))
        now = core.customer(row.rows[0])
        if now.state in erasure.DEAD and now.generation < generation:
            yield from run(
                Statement(SET_CUSTOMER, core.customer_row(customer, self._name(tree, customer, customer_id))),
                Statement(ADD_COUNTER, (token, generation, 0, FIRST_NUMBER)),
            )
        yield Commit()
        core.events.emit("enrolled", token, generation=generation)
        return (yield from self.status(token))

    def _status(self, token: bytes) -> Plan[CustomerStatus]:
        (row,) = yield from run(Statement(GET_CUSTOMER, (token,)))
        if not row.rows:
            return CustomerStatus(token.hex(), known=False, state="unknown", generation=0)
        return (yield from self._described(self._core.customer(row.rows[0])))

    def _described(self, customer: Customer) -> Plan[CustomerStatus]:
        last = customer.generation if customer.state in erasure.DEAD else customer.generation - 1
        found, due_at = [], None
        if last:
            (result,) = yield from run(Statement(GET_ERASURE, (customer.customer, last)))
            found = [self._core.erasure(row) for row in result.rows]
        if customer.state == erasure.RESTRICTED:
            (waiting,) = yield from run(Statement(SCHEDULED_OF, (customer.customer,)))
            due_at = next((self._core.erasure(row).record["due_at"] for row in waiting.rows), None)
        return CustomerStatus(
            customer.customer.hex(),
            known=True,
            state=customer.state,
            generation=customer.generation,
            held_until=customer.held_until or None,
            erasure_id=found[0].erasure_id if found else None,
            shredded_at=datetime.fromisoformat(found[0].record["revoked_at"]) if found else None,
            due_at=due_at,
            pending=self._outside.steps(found[0]) if found else (),
        )

    def _name(self, tree: KeyTree, customer: Customer, customer_id: str) -> bytes:
        owner = (customer.customer, customer.generation)
        return self._core.seal(tree, CUSTOMER_NAME, owner, 0, 0, customer_id.encode("utf-8"))

    def _named(self, status: CustomerStatus, customer: Customer, name: bytes | None) -> Plan[CustomerStatus]:
        """Adds the id of a customer that lives."""
        core = self._core
        if customer.state != erasure.LIVE or name is None:
            return status
        tree = core.tree(customer)
        if tree is None:
            try:
                yield from core.load_tree(customer)
            except CustomerShreddedError:
                return status  # shredded since the page was read: a token from now on
            tree = core.tree(customer)
        if tree is None:
            return status
        owner = (customer.customer, customer.generation)
        opened = core.unseal(tree, CUSTOMER_NAME, owner, 0, 0, name, ("customers", customer.customer))
        return CustomerStatus(**{**vars(status), "customer_id": opened.decode("utf-8")})
