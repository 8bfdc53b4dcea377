"""What a receipt says: composed from an erasure's entry, numbered, chained and signed in one transaction."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, Final

from shredsaver import erasures, receipts, signing
from shredsaver.core import Core, Erasure
from shredsaver.db.base import Begin, Plan, Rollback, Statement, run

FORMAT: Final = "shredsaver-erasure/1"
CODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:#-]{0,63}")
"""What may stand in a receipt as a reason or a requester: a code or a case number. Anything else is committed to."""

OUT_OF_SCOPE: Final = (
    "copies of plaintext that were made elsewhere, backups of them included",
    "what model and embedding providers keep",
    "traces, logs and analytics of the application",
    "tables of an agent server's own, and node caches",
)


def reason(core: Core, erasure_id: str, text: str | None, kind: str) -> dict[str, str] | None:
    """A reason or a requester for the record: a code as it is, free text sealed, with a commitment for the receipt."""
    if text is None:
        return None
    if CODE.fullmatch(text):
        return {"code": text}
    salt = receipts.salt(core.secrets.receipt_key, erasure_id)
    sealed = core.seal_own(kind, erasure_id, text.encode("utf-8"))
    return {"commitment": receipts.commitment(salt, kind, text), "sealed": sealed.hex()}


def issue(core: Core, one: Erasure, pending: tuple[str, ...]) -> Plan[Erasure]:
    """Issues a receipt for an erasure as it stands; with nothing pending the erasure is complete by that.

    Then what the targets needed is wiped, in the same transaction.
    """
    yield Begin("write")
    one, statements = yield from erasures.moved(core, one)
    if one.state == erasures.COMPLETE:  # another process was faster: there is one last receipt
        yield Rollback()
        return one
    number, previous = yield from erasures.next_receipt()
    statement = payload(core, one, pending, number, previous)
    receipt = receipts.sign(statement, (yield from signing.current(core)))
    if not pending:
        one = one._replace(state=erasures.COMPLETE)
        statements = [erasures.changed(core, one), Statement(erasures.SET_RETRY, (None, one.erasure_id))]
    added = Statement(erasures.ADD_RECEIPT, (number, one.erasure_id, receipt))
    yield from run(*statements, added, commit=True)
    return one


def payload(core: Core, one: Erasure, pending: tuple[str, ...], number: int, previous: str | None) -> dict[str, Any]:
    """What a receipt says. No id, no text, no token."""
    record = one.record
    destruction = dict(record.get("destruction", {}))
    for name in ("customer", "known", "tombstone"):
        destruction.pop(name, None)
    return {
        "format": FORMAT,
        "tool": f"shredsaver {version('shredsaver')}",
        "deployment": core.deployment.hex(),
        "number": number,
        "previous": previous,
        "issued_at": erasures.now(core),
        "erasure": one.erasure_id,
        "who": {"commitment": record.get("who"), "generation": one.generation, "known": record["known"]},
        "why": {"reason": _public(record.get("reason")), "requested_by": _public(record.get("requested_by"))},
        "state": "pending" if pending else "complete",
        "when": {
            "requested": record["requested_at"],
            "revoked": record.get("revoked_at"),
            "destroyed": record.get("destroyed_at"),
            "purged": record.get("purged_at"),
            "verified": record.get("verified_at"),
        },
        "what": {
            "before": record.get("before", {}),
            "after": record.get("after", {}),
            "purge": record["purge"],
            "threads_unnamed": record.get("threads_unnamed", 0),
        },
        "how": destruction,
        "verification": record.get("verification", {}),
        "targets": record.get("targets", {}),
        "pending": list(pending),
        "out_of_scope": list(OUT_OF_SCOPE),
    }


def _public(found: dict[str, str] | None) -> dict[str, str] | None:
    return None if found is None else {key: value for key, value in found.items() if key != "sealed"}
