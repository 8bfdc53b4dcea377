"""The certificate: all that a certificate of sanitisation names, in one page that needs nothing and does nothing."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from shredsaver import ShredIncompleteError
from shredsaver.certificate import page
from shredsaver.receipts import verify
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Notes

CALL = Caller("sync")
HARMLESS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th"}
HARMLESS |= {"td", "code", "ul", "li", "pre"}
SANITISATION = {
    "what was sanitised": ("What was held, and what is left", "checkpoints", "items", "namespaces"),
    "kind": ("kind", "cryptographic erase"),
    "method": ("method", "overwritten"),
    "how strong": ("assurance", "Clear (NIST SP 800-88)"),
    "tool and version": ("tool", "shredsaver 0."),
    "how it was verified": ("verified by", "counting all routes again"),
    "when": ("requested", "revoked", "destroyed", "purged", "verified"),
    "why and who asked": ("reason", "art-17/7", "requested by", "dpo"),
    "who did it, where, signed": ("carried out by (name, role)", "place and date", "signature"),
    "backups": ("every copy of the data is ciphertext", "Not covered by this certificate"),
    "how to check it": ("How to check it", "shredsaver verify receipt.txt --key public.pem", "signing key"),
}
"""What NIST SP 800-88 names for a certificate of sanitisation, and where the page has it."""


class Page(HTMLParser):
    """A page's tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def certified(shredder: Any, receipt: str) -> Page:
    text = page(verify(receipt, shredder.public_key()), receipt)
    for outside in ("url(", "@import", "http:", "https:", "//"):
        assert outside not in text, outside
    return Page(text)


def test_everything_has_its_place_and_nothing_is_from_outside(call: Caller, make_shredder: Callable[..., Any]) -> None:
    notes = Notes()
    shredder = make_shredder(targets=[notes])
    put(call, shredder.saver, config(), {"x": 1})
    result = call(shredder, "shred", "c-1", reason="art-17/7", requested_by="dpo")
    found = certified(shredder, result.receipt)
    for field, texts in SANITISATION.items():
        for text in texts:
            assert text in found.text, field
    assert found.tags <= HARMLESS
    assert set(found.attributes) <= {"lang", "charset", "name", "content", "http-equiv", "class"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in found.attributes["content"]
    assert "@page{size:A4" in found.text
    assert "notes\nerased at" in found.text
    assert result.receipt in found.text
    assert "Complete\n" in found.text


def test_what_is_still_pending_is_said_first(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder(targets=[Notes(failures=None)])
    shredder._start().outside._sleep = lambda _: None
    put(CALL, shredder.saver, config(), {"x": 1})
    with pytest.raises(ShredIncompleteError) as caught:
        shredder.shred("c-1")
    (result,) = caught.value.results
    assert result.pending == ("target:notes",)
    found = certified(shredder, result.receipt)
    assert found.text.index("Not complete yet") < found.text.index("Who")
    assert "Still to be done\ntarget:notes" in found.text
    assert "failed at" in found.text
