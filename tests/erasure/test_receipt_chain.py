"""Receipts: what verifies and what does not, alone and in their chain."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from shredsaver import ReceiptError, certificate, receipts

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32


def chain(length: int, *, start: int = 1, previous: str | None = None, seed: bytes = OLD) -> list[str]:
    made: list[str] = []
    for number in range(start, start + length):
        made.append(receipts.sign({"number": number, "previous": previous, "erasure": f"e-{number}"}, seed))
        previous = receipts.digest(made[-1])
    return made


def renewed(before: list[str]) -> str:
    number = len(before) + 1
    return receipts.key_change({"number": number, "previous": receipts.digest(before[-1])}, OLD, NEW)


def key(seed: bytes) -> str:
    return receipts.public_key(seed)


def test_a_chain_verifies_whole_and_from_any_point() -> None:
    made = chain(5)
    for first in range(5):
        assert len(receipts.verify_chain(made[first:], [key(OLD)])) == 5 - first


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda made: made[:2] + made[3:], "missing"),
        (lambda made: [made[0], made[2], made[1], made[3]], "missing"),
        (lambda made: [made[1], made[0]], "out of order"),
        (lambda made: [made[0], made[0]], "out of order"),
        (lambda made: made[:2] + chain(1, start=3, previous="0" * 64), "forked"),
        (lambda made: made[:2] + chain(1, start=3, previous=receipts.digest(made[1]), seed=FOREIGN), "not among"),
        (lambda made: [*made[:2], made[2][:-6] + ("AAAAAA" if made[2][-6:] != "AAAAAA" else "BBBBBA")], "signature"),
    ],
    ids=["gap", "swapped", "reversed", "twice", "fork", "forgery", "signature"],
)
def test_what_is_wrong_with_a_chain_is_named(change: Any, says: str) -> None:
    with pytest.raises(ReceiptError, match=says):
        receipts.verify_chain(change(chain(4)), [key(OLD)])


def test_a_new_signing_key_counts_once_the_old_one_said_so() -> None:
    before = chain(2)
    change = renewed(before)
    after = chain(2, start=4, previous=receipts.digest(change), seed=NEW)
    verified = receipts.verify_chain([*before, change, *after], [key(OLD)])
    assert {one.key_id for one in verified[3:]} == {receipts.verify(after[0], key(NEW)).key_id}
    with pytest.raises(ReceiptError, match="not among"):
        receipts.verify_chain([*before, *after], [key(OLD)])


def test_a_key_that_did_not_sign_the_change_does_not_count() -> None:
    before = chain(1)
    said = json.loads(base64.urlsafe_b64decode(renewed(before).split(".")[1] + "=="))
    said["new_key"] = base64.urlsafe_b64encode(b"x" * 32).rstrip(b"=").decode()
    with pytest.raises(ReceiptError, match="did not sign"):
        receipts.verify_chain([*before, receipts.sign(said, OLD)], [key(OLD)])


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10_000), by=st.integers(1, 255))
def test_no_changed_receipt_verifies(position: int, by: int) -> None:
    (made,) = chain(1)
    data = bytearray(made.encode())
    data[position % len(data)] ^= by
    with pytest.raises(ReceiptError):
        receipts.verify(data.decode("latin-1"), key(OLD))


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c.d", "....", "é.é.é", "x" * 2_000_000, "[" * 5000])
def test_what_is_no_receipt(text: str) -> None:
    with pytest.raises(ReceiptError):
        receipts.verify(text, key(OLD))


@pytest.mark.parametrize("data", [b"[]", b'"x"', b"1", b"null", b"[" * 100_000, b"{", b"\xff", b""])
@pytest.mark.parametrize("place", [0, 1])
def test_a_header_and_a_statement_are_objects(data: bytes, place: int) -> None:
    parts = chain(1)[0].split(".")
    parts[place] = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    for public in (key(OLD), key(FOREIGN)):
        with pytest.raises(ReceiptError, match="this is no receipt"):
            receipts.verify(".".join(parts), public)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"alg": "none"}, "header"),
        ({"alg": "EdDSA"}, "header"),
        ({"crit": ["b64"]}, "header"),
        ({"typ": "JWT"}, "header"),
        ({"kid": "another"}, "another key"),
        ({"kid": None}, "another key"),
    ],
)
def test_another_kind_of_jws_is_none_of_ours(header: dict[str, Any], says: str) -> None:
    (made,) = chain(1)
    head, body, _ = made.split(".")
    said = json.loads(base64.urlsafe_b64decode(head + "=="))
    other = base64.urlsafe_b64encode(json.dumps({**said, **header}).encode()).rstrip(b"=").decode()
    signed = f"{other}.{body}"
    signature = base64.urlsafe_b64encode(Ed25519PrivateKey.from_private_bytes(OLD).sign(signed.encode()))
    with pytest.raises(ReceiptError, match=says):
        receipts.verify(f"{signed}.{signature.rstrip(b'=').decode()}", key(OLD))


def test_the_id_of_a_key_is_the_one_of_rfc_8037() -> None:
    """Appendix A.3, of the key in A.1."""
    seed = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    (made,) = chain(1, seed=seed)
    assert receipts.verify(made, key(seed)).key_id == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_commitments_and_the_proof_of_a_new_key_are_what_the_reference_says() -> None:
    salt = receipts.salt(b"k" * 32, "e-1")
    assert salt == hmac.digest(b"k" * 32, b"salt\x00e-1", "sha256")
    made = hmac.digest(salt, "customer\x00é".encode(), "sha256")
    assert receipts.commitment(salt, "customer", "é") == base64.urlsafe_b64encode(made).rstrip(b"=").decode()
    said = json.loads(base64.urlsafe_b64decode(renewed(chain(1)).split(".")[1] + "=="))
    raw, proof = (base64.urlsafe_b64decode(said.pop(name) + "==") for name in ("new_key", "new_key_proof"))
    plain = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    public = Ed25519PrivateKey.from_private_bytes(NEW).public_key()
    assert raw == public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    public.verify(proof, b"shredsaver/v1/new-signing-key\x00" + raw + plain)


def test_the_place_of_what_is_wrong_is_told() -> None:
    made = chain(4)
    for position in (2, 3, 4):
        with pytest.raises(ReceiptError, match=f"receipt {position} of the chain"):
            receipts.verify_chain([*made[: position - 1], *chain(1, start=9)], [key(OLD)])
    with pytest.raises(ReceiptError, match="receipt 1 of the chain was signed with a key that is not among"):
        receipts.verify_chain(chain(1, seed=FOREIGN), [key(OLD)])
    head = base64.urlsafe_b64encode(b'{"kid":["x"]}').rstrip(b"=").decode()
    with pytest.raises(ReceiptError, match="receipt 2 of the chain was signed with a key that is not among"):
        receipts.verify_chain([made[0], ".".join((head, *made[1].split(".")[1:]))], [key(OLD)])


def test_a_statement_may_hold_any_text() -> None:
    said = {"number": 1, "targets": {"büro": {"status": "erased"}}, "out_of_scope": ["\U0001f9fe"]}
    made = receipts.sign(said, OLD)
    assert made.isascii()
    assert receipts.verify(made, key(OLD)).payload == said


def test_what_was_verified_cannot_be_edited() -> None:
    verified = receipts.verify(chain(1)[0], key(OLD))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verified.digest = ""  # type: ignore[misc]


def test_a_receipt_has_one_form_and_a_longest_one() -> None:
    (made,) = chain(1)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = made[:-1] + letters[letters.index(made[-1]) ^ 1]  # four bits of the last letter say nothing
    data = [base64.urlsafe_b64decode(one.split(".")[2] + "==") for one in (made, other)]
    assert data[0] == data[1]
    with pytest.raises(ReceiptError, match="this is no receipt"):
        receipts.verify(other, key(OLD))
    whole = made.ljust(1024 * 1024)
    assert receipts.verify(whole, key(OLD)) == receipts.verify(made, key(OLD))
    with pytest.raises(ReceiptError, match="this is no receipt"):
        receipts.verify(whole + " ", key(OLD))


@pytest.mark.parametrize(("number", "says"), [(1, "out of order"), (3, "missing"), (4, "2 are missing")])
def test_a_number_must_follow_even_where_the_predecessor_is_right(number: int, says: str) -> None:
    made = chain(1)
    made += chain(1, start=number, previous=receipts.digest(made[0]))
    with pytest.raises(ReceiptError, match=says):
        receipts.verify_chain(made, [key(OLD)])


@pytest.mark.parametrize("change", [{"new_key_proof": None}, {"new_key": 7}, {"new_key": "?"}, {"new_key_proof": "A"}])
def test_a_change_of_the_key_that_is_damaged_does_not_count(change: dict[str, Any]) -> None:
    before = chain(1)
    said = json.loads(base64.urlsafe_b64decode(renewed(before).split(".")[1] + "=="))
    said |= change
    for damaged in (said, {name: value for name, value in said.items() if value is not None}):
        with pytest.raises(ReceiptError, match="did not sign"):
            receipts.verify_chain([*before, receipts.sign(damaged, OLD)], [key(OLD)])


@pytest.mark.parametrize("public", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"x" * 31])
def test_what_is_no_public_key(public: Any) -> None:
    with pytest.raises(ReceiptError):
        receipts.verify(chain(1)[0], public)


def test_a_key_of_another_kind_is_told_as_such() -> None:
    pem = X25519PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for public in (pem, pem.decode()):
        with pytest.raises(ReceiptError, match="no Ed25519 key"):
            receipts.verify(chain(1)[0], public)


@pytest.mark.parametrize("number", [None, "2", 2.0, True])
@pytest.mark.parametrize("position", [0, 1])
def test_a_receipt_without_a_number_stands_in_no_chain(number: Any, position: int) -> None:
    made = chain(2)
    (first, second) = ({"number": 1}, {"number": 2, "previous": receipts.digest(made[0])})
    odd = dict(second if position else first)
    odd["number"] = number
    if position:
        made[1] = receipts.sign(odd, OLD)
    else:
        made = [receipts.sign(odd, OLD)]
        made += chain(1, start=2, previous=receipts.digest(made[0]))
    with pytest.raises(ReceiptError, match="no number"):
        receipts.verify_chain(made, [key(OLD)])


def test_a_certificate_holds_nothing_active_and_escapes_what_it_shows() -> None:
    nasty = "<script>alert(1)</script>"
    made = receipts.sign(
        {"number": 1, "erasure": nasty, "pending": [nasty], "targets": {nasty: {"status": nasty}}, "tool": nasty}, OLD
    )
    page = certificate.page(receipts.verify(made, key(OLD)), made)
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page
    assert "Not complete yet" in page
