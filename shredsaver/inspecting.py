"""Looking and proving, each blocking and async: audits, receipts, keys, what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from shredsaver import erasures, signing
from shredsaver.audit import Audit
from shredsaver.customers import exact_id
from shredsaver.db.base import Plan, T
from shredsaver.kms.base import Report

if TYPE_CHECKING:
    from shredsaver.shredder import Started


class Inspecting:
    """The operations of a `Shredder` that look, and change nothing but the signing key."""

    def _start(self) -> Started:
        raise TypeError("operations need a Shredder")

    # -- proof ------------------------------------------------------------------------------------------------------

    def audit(self, customer_id: str | None = None) -> Audit:
        """Counts by route what is there of a customer, and how much of it opens: before, during and after a shred.

        Without a customer, of everybody whom the database knows, one after the other.
        """
        if customer_id is None:
            return Audit.of_all(self.audits())
        return self._run(partial(self._start().auditor.audit, self._token(customer_id), customer_id))

    async def aaudit(self, customer_id: str | None = None) -> Audit:
        """As `audit`."""
        if customer_id is None:
            return Audit.of_all([one async for one in self.aaudits()])
        return await self._arun(partial(self._start().auditor.audit, self._token(customer_id), customer_id))

    def audits(self) -> Iterator[Audit]:
        """The audit of each customer whom the database knows, in the order of their tokens."""
        after = b""
        while page := self._run(partial(self._start().administration.page, after)):
            for one in page:
                after = bytes.fromhex(one.customer)
                yield self._run(partial(self._start().auditor.audit, after, None))

    async def aaudits(self) -> AsyncIterator[Audit]:
        """As `audits`."""
        after = b""
        while page := await self._arun(partial(self._start().administration.page, after)):
            for one in page:
                after = bytes.fromhex(one.customer)
                yield await self._arun(partial(self._start().auditor.audit, after, None))

    def receipts(self) -> Iterator[str]:
        """Every receipt of the deployment in the order of the chain, for `receipts.verify_chain`."""
        after = 0
        while page := self._run(partial(erasures.page_of_receipts, after)):
            yield from (receipt for _, receipt in page)
            after = page[-1][0]

    async def areceipts(self) -> AsyncIterator[str]:
        """As `receipts`."""
        after = 0
        while page := await self._arun(partial(erasures.page_of_receipts, after)):
            for _, receipt in page:
                yield receipt
            after = page[-1][0]

    def public_key(self) -> str:
        """The key that new receipts are verified with, as PEM."""
        return self.public_keys()[-1]

    async def apublic_key(self) -> str:
        """As `public_key`."""
        return (await self.apublic_keys())[-1]

    def public_keys(self) -> list[str]:
        """Every key that receipts of this deployment were signed with, oldest first."""
        return self._run(partial(signing.public_keys, self._start().core))

    async def apublic_keys(self) -> list[str]:
        """As `public_keys`."""
        return await self._arun(partial(signing.public_keys, self._start().core))

    def renew_signing_key(self) -> str:
        """Signs receipts with a new key from now on. Gives the receipt that says so, signed by the old key and the new.

        It ends the time for which a key is used. It is no answer to stolen secrets of the deployment: whoever has them
        has all keys that follow.
        """
        return self._run(partial(signing.renew, self._start().core))

    async def arenew_signing_key(self) -> str:
        """As `renew_signing_key`."""
        return await self._arun(partial(signing.renew, self._start().core))

    def check_keys(self) -> Report:
        """Opens every key and checks the key service's whole log."""
        return self._start().core.keys.verify()

    async def acheck_keys(self) -> Report:
        """As `check_keys`."""
        return await asyncio.to_thread(self.check_keys)

    def check_log(self) -> int:
        """Checks the chain of the log of erasures; gives its length.

        Raises:
            RevocationLogDamagedError: An entry is missing, altered or out of order.
        """
        return self._run(partial(erasures.check, self._start().core))

    async def acheck_log(self) -> int:
        """As `check_log`."""
        return await self._arun(partial(erasures.check, self._start().core))

    def unfinished(self) -> int:
        """How many erasures are not complete."""
        return len(self._run(partial(erasures.unfinished, self._start().core)))

    async def aunfinished(self) -> int:
        """As `unfinished`."""
        return len(await self._arun(partial(erasures.unfinished, self._start().core)))

    def target_names(self) -> list[str]:
        """The names of the erasure targets."""
        return self._start().outside.names

    # -- steps ------------------------------------------------------------------------------------------------------

    def _token(self, customer_id: object) -> bytes:
        return self._start().core.token("customer", exact_id(customer_id, "customer_id"))

    def _run(self, factory: Callable[[], Plan[T]]) -> T:
        return self._start().core.database.run(factory)

    async def _arun(self, factory: Callable[[], Plan[T]]) -> T:
        return await self._start().core.database.arun(factory)
