"""What can be done with a deployment, each blocking and async: erasure, holds, customers, proof."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from shredsaver import receipts
from shredsaver.customers import exact_id
from shredsaver.db.base import Plan
from shredsaver.errors import ConfigurationError
from shredsaver.importing import Importer
from shredsaver.inspecting import Inspecting
from shredsaver.reconcile import Dead, Reconciliation
from shredsaver.results import CustomerStatus, ShredPlan, ShredResult
from shredsaver.revoking import Request
from shredsaver.rotating import rotate_customer
from shredsaver.serializer import ShredSerializer

if TYPE_CHECKING:
    pass


class Operations(Inspecting):
    """The operations of a `Shredder`, which opens what they work with."""

    # -- erasure ----------------------------------------------------------------------------------------------------

    def shred(
        self,
        customer_id: str,
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
        grace: timedelta | None = None,
        defer: bool = False,
    ) -> ShredResult:
        """Erases a customer: use ends in every process, the keys are destroyed, the rows are deleted.

        A second call finishes what the first left undone, or gives its result again.

        Args:
            customer_id: The customer. An id never seen gets a tombstone, and the result says ``known=False``.
            reason: A code or a case number stands in the receipt as it is; free text is sealed and only committed to.
            requested_by: Who asked, likewise.
            purge: Delete the rows too. They cannot be opened either way.
            grace: Stop use now, destroy when this has passed (at the next `resume` or opening); `reinstate` cancels it.
            defer: Under a hold, stop use now and destroy when the hold has ended.

        Raises:
            LegalHoldError: The customer is under a hold, and not ``defer``; nothing was changed.
            ShredIncompleteError: A step failed after use had ended; `resume` or another call goes on.
        """
        return self._run(self._shred([customer_id], Request(reason, requested_by, purge, grace, defer)))[0]

    async def ashred(
        self,
        customer_id: str,
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
        grace: timedelta | None = None,
        defer: bool = False,
    ) -> ShredResult:
        """As `shred`."""
        request = Request(reason, requested_by, purge, grace, defer)
        return (await self._arun(self._shred([customer_id], request)))[0]

    def shred_many(
        self,
        customer_ids: Sequence[str],
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
    ) -> list[ShredResult]:
        """Erases several customers, whose keys are destroyed together. Arguments, results and errors as `shred`."""
        return self._run(self._shred(customer_ids, Request(reason, requested_by, purge)))

    async def ashred_many(
        self,
        customer_ids: Sequence[str],
        *,
        reason: str | None = None,
        requested_by: str | None = None,
        purge: bool = True,
    ) -> list[ShredResult]:
        """As `shred_many`."""
        return await self._arun(self._shred(customer_ids, Request(reason, requested_by, purge)))

    def resume(self) -> list[ShredResult]:
        """Finishes every erasure that was interrupted. Gives those it worked on."""
        return self._run(self._start().shredding.resume)

    async def aresume(self) -> list[ShredResult]:
        """As `resume`."""
        return await self._arun(self._start().shredding.resume)

    # -- holds and restriction --------------------------------------------------------------------------------------

    def restrict(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Stops every use of a customer's data, and its deletion (GDPR, Art. 18), until `reinstate`.

        Keys and data stay; `export`, `audit` and `shred` go on working.
        """
        return self._restrain(customer_id, "restrict", reason, requested_by)

    async def arestrict(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `restrict`."""
        return await self._arestrain(customer_id, "restrict", reason, requested_by)

    def reinstate(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Ends a restriction, and cancels an erasure whose grace has not ended."""
        return self._restrain(customer_id, "reinstate", reason, requested_by)

    async def areinstate(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `reinstate`."""
        return await self._arestrain(customer_id, "reinstate", reason, requested_by)

    def hold(
        self, customer_id: str, reason: str, until: datetime | None = None, *, requested_by: str | None = None
    ) -> CustomerStatus:
        """Forbids erasure and deletion of a customer's data, in database and key service.

        Args:
            customer_id: The customer.
            reason: Why; it is sealed under the customer's keys.
            until: When it ends by itself, with a time zone; None: when it is released.
            requested_by: Who asked; sealed as well.
        """
        return self._restrain(customer_id, "hold", reason, requested_by, until)

    async def ahold(
        self, customer_id: str, reason: str, until: datetime | None = None, *, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `hold`."""
        return await self._arestrain(customer_id, "hold", reason, requested_by, until)

    def release(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """Ends a hold. A deferred erasure goes on at the next `resume`."""
        return self._restrain(customer_id, "release", reason, requested_by)

    async def arelease(
        self, customer_id: str, *, reason: str | None = None, requested_by: str | None = None
    ) -> CustomerStatus:
        """As `release`."""
        return await self._arestrain(customer_id, "release", reason, requested_by)

    # -- customers ----------------------------------------------------------------------------------------------------

    def plan(self, customer_id: str) -> ShredPlan:
        """What a shred would reach, counted; nothing is changed."""
        return self._run(partial(self._start().administration.plan, self._token(customer_id)))

    async def aplan(self, customer_id: str) -> ShredPlan:
        """As `plan`."""
        return await self._arun(partial(self._start().administration.plan, self._token(customer_id)))

    def status(self, customer_id: str) -> CustomerStatus:
        """Where a customer stands."""
        return self._run(partial(self._start().administration.status, self._token(customer_id)))

    async def astatus(self, customer_id: str) -> CustomerStatus:
        """As `status`."""
        return await self._arun(partial(self._start().administration.status, self._token(customer_id)))

    def enrol(self, customer_id: str) -> CustomerStatus:
        """Lets a shredded customer come back, empty, as a new generation. What was erased stays so.

        Raises:
            ConfigurationError: The customer was never shredded: a first write is all it needs.
            ShredIncompleteError: The erasure is not complete; `resume` first.
        """
        return self._run(self._enrol(customer_id))

    async def aenrol(self, customer_id: str) -> CustomerStatus:
        """As `enrol`."""
        return await self._arun(self._enrol(customer_id))

    def customers(self) -> Iterator[CustomerStatus]:
        """Everyone the database knows, page by page. Ids are given for those who live; the dead are tokens."""
        after = b""
        while True:
            found = self._run(partial(self._start().administration.page, after))
            yield from found
            if not found:
                return
            after = bytes.fromhex(found[-1].customer)

    async def acustomers(self) -> AsyncIterator[CustomerStatus]:
        """As `customers`."""
        after = b""
        while True:
            found = await self._arun(partial(self._start().administration.page, after))
            for one in found:
                yield one
            if not found:
                return
            after = bytes.fromhex(found[-1].customer)

    def rotate(self, customer_id: str | None = None) -> int:
        """Renews keys; data does not change, and what is written stays readable.

        Without a customer, every key is put under new roots and the old roots are destroyed; gives the number of slots.
        With one, what its threads write from now on is sealed under fresh keys; gives the customer's key version.
        """
        if customer_id is None:
            return self._start().core.keys.rotate()
        return self._run(partial(rotate_customer, self._start().core, self._token(customer_id)))

    async def arotate(self, customer_id: str | None = None) -> int:
        """As `rotate`."""
        if customer_id is None:
            return await asyncio.to_thread(self.rotate)
        return await self._arun(partial(rotate_customer, self._start().core, self._token(customer_id)))

    # -- restores ---------------------------------------------------------------------------------------------------

    @property
    def reconciliation(self) -> Reconciliation:
        """What opening found when it compared the records of revocations, and did."""
        return self._start().reconciliation

    def reconcile(
        self, *, adopt: str | None = None, confirm: bool = False, chain: Sequence[str] = ()
    ) -> Reconciliation:
        """Compares the records of revocations again and applies to each what it lacks.

        Args:
            adopt: ``"restore"``: this is now the database that the keys belong to. ``"fork"``: this is a copy, it
                goes on reading and never changes keys.
            confirm: Destroy keys on another record's word even if they are many.
            chain: Receipts, oldest first, as one more record; it must verify with the deployment's own key.

        Raises:
            ConfigurationError: ``adopt`` is neither.
            ReceiptError: The receipts do not verify.
            RevocationLogDamagedError: A record does not verify; everything stays shut.
        """
        started = self._start()
        if adopt not in (None, "restore", "fork"):
            raise ConfigurationError("adopt is 'restore' (this is now the database) or 'fork' (this is a copy)")
        sources = self._dead_by(chain)
        if adopt == "restore":
            started.guarded.adopt()
        started.reconciliation = started.reconcile(confirm=confirm, sources=sources)
        if adopt == "restore" and not started.reconciliation.shut:
            self._run(started.shredding.finish_revoked)
        if started.core.shut is not None:
            raise started.core.shut
        return started.reconciliation

    def _dead_by(self, chain: Sequence[str]) -> list[Dead]:
        """Whom of those in use a chain of receipts says to be dead. Receipts name nobody: all are tried on all."""
        verified = receipts.verify_chain(chain, self.public_keys()) if chain else []
        erased = [one.payload for one in verified if "erasure" in one.payload]
        living = [(one.customer_id, one.customer) for one in self.customers() if one.customer_id] if erased else []
        dead = []
        for said in erased:
            salt = receipts.salt(self._start().core.secrets.receipt_key, str(said["erasure"]))
            who, at = said["who"], str(said["when"]["revoked"])
            for customer_id, token in living:
                if receipts.commitment(salt, "customer", customer_id) == who["commitment"]:
                    dead.append(Dead(bytes.fromhex(token), int(who["generation"]), at))
        return dead

    async def areconcile(
        self, *, adopt: str | None = None, confirm: bool = False, chain: Sequence[str] = ()
    ) -> Reconciliation:
        """As `reconcile`."""
        return await asyncio.to_thread(self.reconcile, adopt=adopt, confirm=confirm, chain=chain)

    def serializer_for(self, customer_id: str) -> ShredSerializer:
        """Serialising and sealing for one customer, for the ``serde=`` of another saver; see `ShredSerializer`."""
        return ShredSerializer(self._start().core, exact_id(customer_id, "customer_id"))

    def export(self, customer_id: str) -> Iterator[str]:
        """Everything that is held on a customer, decrypted, as lines of JSON. Nothing is held between two lines.

        It works while use is restricted, in a grace or under a hold too: a person can be told what is held (GDPR,
        Art. 15) as long as something is.

        Raises:
            CustomerShreddedError: There is nothing left that could be exported.
            CustomerRestrictedError: Another record says that the customer was shredded, and nobody has confirmed it.
        """
        yield from self._start().exporter.lines(exact_id(customer_id, "customer_id"))

    async def aexport(self, customer_id: str) -> AsyncIterator[str]:
        """As `export`."""
        lines = self.export(customer_id)
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            yield line

    def import_(self, lines: Iterable[str | bytes]) -> int:
        """Takes an export of this or another deployment back, as new data of its customer. Gives the number of lines.

        Args:
            lines: An export, line by line, as text or as its UTF-8.

        Raises:
            CustomerShreddedError: The customer was shredded: an old export brings nobody back, `enrol` first.
            FormatError: It is no export.
        """
        started = self._start()
        return Importer(started.core, started.saver, started.store).load(lines)

    async def aimport_(self, lines: Iterable[str | bytes]) -> int:
        """As `import_`."""
        return await asyncio.to_thread(self.import_, lines)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _shred(self, customer_ids: Sequence[str], request: Request) -> Callable[[], Plan[list[ShredResult]]]:
        names = dict.fromkeys(exact_id(customer_id, "customer_id") for customer_id in customer_ids)
        return partial(self._start().shredding.shred, [(self._token(name), name) for name in names], request)

    def _restrain(
        self, customer_id: str, kind: str, reason: str | None, requested_by: str | None, *until: datetime | None
    ) -> CustomerStatus:
        token, why = self._token(customer_id), {"reason": reason, "requested_by": requested_by}
        self._run(partial(getattr(self._start().restraint, kind), token, why, *until))
        return self._run(partial(self._start().administration.status, token))

    async def _arestrain(
        self, customer_id: str, kind: str, reason: str | None, requested_by: str | None, *until: datetime | None
    ) -> CustomerStatus:
        token, why = self._token(customer_id), {"reason": reason, "requested_by": requested_by}
        await self._arun(partial(getattr(self._start().restraint, kind), token, why, *until))
        return await self._arun(partial(self._start().administration.status, token))

    def _enrol(self, customer_id: str) -> Callable[[], Plan[CustomerStatus]]:
        name = exact_id(customer_id, "customer_id")
        return partial(self._start().administration.enrol, self._token(name), name)
