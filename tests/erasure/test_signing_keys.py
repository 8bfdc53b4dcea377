"""The key that signs receipts is renewed: the chain vouches for each new one, and only the last one signs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pytest

from shredsaver import Event, ReceiptError, receipts, signing
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put


def test_a_renewed_key_signs_from_then_on_and_the_chain_vouches_for_it(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    heard: list[Event] = []
    shredder, other = make_shredder(on_event=heard.append), make_shredder()
    for number in (1, 2, 3):
        put(call, shredder.saver, config(f"t-{number}", f"c-{number}"), {"x": 1})
    (first,) = call(shredder, "public_keys")
    made = [call(shredder, "shred", "c-1").receipt]
    made.append(call(shredder, "renew_signing_key"))
    made.append(call(other, "shred", "c-2").receipt)
    made.append(call(other, "renew_signing_key"))
    made.append(call(shredder, "shred", "c-3").receipt)
    public = call(other, "public_keys")
    assert public[0] == first
    assert len(set(public)) == 3
    assert call(shredder, "public_key") == public[2]
    assert list(call(shredder, "receipts")) == made

    verified = receipts.verify_chain(made, [first])
    ids = [receipts.verify(made[at], key).key_id for at, key in ((0, public[0]), (2, public[1]), (4, public[2]))]
    assert [one.key_id for one in verified] == [ids[0], ids[0], ids[1], ids[1], ids[2]]
    assert [one.payload["number"] for one in verified] == [1, 2, 3, 4, 5]
    with pytest.raises(ReceiptError):
        receipts.verify(made[4], public[1])

    said = verified[1].payload
    issued = datetime.fromisoformat(said["issued_at"])
    assert issued.tzinfo is not None
    assert issued <= datetime.now(UTC)
    assert {name: said[name] for name in ("format", "tool", "deployment", "previous")} == {
        "format": "shredsaver-key-change/1",
        "tool": f"shredsaver {version('shredsaver')}",
        "deployment": verified[0].payload["deployment"],
        "previous": verified[0].digest,
    }
    assert [event.fields for event in heard if event.kind == "signing key renewed"] == [{"number": 1}]
    stood = [row["erasure_id"] for row in sorted(backend.rows("receipts"), key=lambda row: row["number"])]
    assert (stood[1], stood[3]) == ("signing-key", "signing-key"), "later releases look for this"


def test_every_further_key_follows_from_the_first_by_its_number() -> None:
    first = b"s" * 32
    assert signing.seed(first, 0) == first
    for number in (1, 2):
        text = f"shredsaver/v1/signing-key/{number}".encode()
        assert signing.seed(first, number) == hmac.digest(first, text, hashlib.sha256)
