"""Readers against bytes that nobody here wrote: only documented errors escape, soon, and without much memory."""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shredsaver import Shredder
from shredsaver.errors import (
    FormatError,
    KeyServiceError,
    ReceiptError,
    RevocationLogDamagedError,
    ShredSaverError,
    UnsealError,
)
from shredsaver.items import Owner, open_item
from shredsaver.journal import Journal
from shredsaver.keytree import KeyTree
from shredsaver.kms.passphrase import Parameters
from shredsaver.kms.roots import Anchor
from shredsaver.kms.rootsfile import BLOCK, Root, RootsFile
from shredsaver.manifest import Entry, unpack_manifest
from shredsaver.parts import join, needed
from shredsaver.receipts import public_key, sign, verify, verify_chain
from shredsaver.reconcile import Dead
from shredsaver.records import CheckpointRecord, pack_checkpoint, pack_write, unpack_checkpoint, unpack_write
from shredsaver.sealing import PART, associated_data, seal, unseal
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SECONDS, MEGABYTES, KIBIBYTES = 10.0, 64, 1024 if sys.platform != "darwin" else 2**20
KEY, SEED = bytes(range(32)), bytes(32)
PUBLIC = public_key(SEED)
NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, 1, 15, 16, 2**31, 2**32 - 1, 2**32, 2**63]))
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.binary(max_size=40) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=25,
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


@contextmanager
def bounded() -> Iterator[None]:
    """Neither much work nor much memory: what a few bytes ask for stays under what the machine has."""
    began, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.thread_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * KIBIBYTES


def tried(function: Callable[[], Any], *errors: type[ShredSaverError]) -> Any:
    """What it gives; None where it raises one of the documented errors."""
    with bounded():
        try:
            return function()
        except errors:
            return None


@st.composite
def mutated(draw: st.DrawFn, *originals: bytes) -> bytes:
    """One of the originals with bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0 if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 40))]
            case 2:
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case _:
                data[at:at] = draw(st.binary(max_size=9))
    return bytes(data)


# -- records ---------------------------------------------------------------------------------------------------------

PLACE = associated_data(PART, b"d" * 16, b"c" * 16, 1, 17, 16, b"t" * 16)
SEALED = seal(KEY, b"payload " * 30, PLACE)
ENTRY = Entry(("msgpack", b"\x93", 4_000, (16, 3, 40, 2), (50, 1)))
RECORD = pack_checkpoint(
    CheckpointRecord(("msgpack", b"\x80"), ("msgpack", b"\x80"), {"x": ENTRY, "y": Entry(("null", b""))})
)


@FUZZ
@given(st.binary(max_size=300) | mutated(SEALED))
@example(b"")
@example(b"\x01")
def test_a_sealed_record(data: bytes) -> None:
    opened = tried(lambda: unseal(KEY, data, PLACE, ("parts", b"t")), FormatError, UnsealError)
    assert opened is None or data == SEALED


@FUZZ
@given(st.binary(max_size=300) | mutated(RECORD, pack_write(ENTRY)) | PLAIN.map(msgpack.packb))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x91" * 5_000)
def test_what_a_record_opens_to(data: bytes) -> None:
    for read in (unpack_checkpoint, unpack_write):
        found = tried(lambda read=read: read(data), FormatError)
        if isinstance(found, Entry):
            used(found)
        elif found is not None:
            for entry in found.manifest.values():
                used(entry)


def used(entry: Entry) -> None:
    """What is done with an entry that was read: numbers it names are never walked one by one."""
    with bounded():
        try:
            for _ in range(10):
                if not needed(entry, {}):
                    break
            join(entry, {})
        except (LookupError, ValueError):
            pass  # `Opener` makes an UnsealError of both


RANGES = st.lists(NUMBERS, max_size=6)
ENTRIES = st.one_of(
    st.tuples(st.text(max_size=5), st.binary(max_size=300)),
    st.builds(
        lambda tag, head, length, levels: (tag, head, length, *levels),
        st.text(max_size=5),
        st.binary(max_size=20),
        NUMBERS,
        st.lists(RANGES, max_size=9),
    ),
    PLAIN,
)


@FUZZ
@given(st.dictionaries(st.text(max_size=5), ENTRIES, max_size=4) | PLAIN)
@example({"x": ("msgpack", b"\x90", 2**31 - 1, (16, 2**31 - 2))})
@example({"x": ("msgpack", b"\x90", 2**31 - 1, (16, 1), (17, 2**31 - 2))})
def test_a_manifest(obj: Any) -> None:
    for entry in (tried(lambda: unpack_manifest(obj), FormatError) or {}).values():
        used(entry)


@FUZZ
@given(st.dictionaries(st.integers(16, 20), st.binary(max_size=60) | PLAIN.map(lambda o: b"\xc1" + msgpack.packb(o))))
def test_parts_that_are_no_index(parts: dict[int, bytes]) -> None:
    entry = Entry(("msgpack", b"\x90", 5_000, (16, 1), (17, 2), (18, 1)))
    with bounded():
        for step in (lambda: needed(entry, parts), lambda: join(entry, parts)):
            try:
                step()
            except (LookupError, ValueError):
                continue


# -- keys ------------------------------------------------------------------------------------------------------------

TREE = KeyTree.generate().puncture(16, 16).puncture_range(17, 20, 40)


@FUZZ
@given(st.binary(max_size=400) | mutated(TREE.to_bytes(), KeyTree.generate().to_bytes()))
@example(b"\x00" * 2**16)
def test_a_key_tree(data: bytes) -> None:
    tree = tried(lambda: KeyTree.from_bytes(data), FormatError)
    if tree is not None:
        assert tree.to_bytes() == data
        tried(lambda: tree.next_alive(0, 0))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("roots") / "roots"
    RootsFile.create(path, 2, b"d" * 16, Parameters())
    file = RootsFile(path)
    file.write([Root(0, 1, Anchor(0, bytes(32)), KEY), Root(1, 4, Anchor(3, KEY), KEY)])
    file.close()
    return path.read_bytes()


def resealed(data: bytes) -> bytes:
    """With every block's checksum made right again, as someone would who knows the format."""
    blocks = [data[at : at + BLOCK - 32].ljust(BLOCK - 32, b"\x00") for at in range(0, len(data), BLOCK)]
    return b"".join(block + hashlib.sha256(block).digest() for block in blocks)


@FUZZ
@given(data=st.data(), again=st.booleans())
def test_a_file_of_roots(
    roots: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, again: bool
) -> None:
    content = data.draw(st.binary(max_size=200) | mutated(roots, roots[:BLOCK], roots[BLOCK:]))
    read_roots(tmp_path_factory.getbasetemp() / "fuzzed", resealed(content) if again else content)


def test_a_file_of_roots_that_claims_four_billion_slots(roots: bytes, tmp_path: Path) -> None:
    read_roots(tmp_path / "roots", resealed(roots[:18] + struct.pack(">I", 2**32 - 1) + roots[22:]))


def read_roots(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    from shredsaver.errors import ConfigurationError

    errors = (FormatError, KeyServiceError, ConfigurationError)
    file = tried(lambda: RootsFile(path), *errors)
    if file is None:
        return
    try:
        for read in (lambda: list(file.scan()), lambda: file.read(1, 4), lambda: file.newest(0)):
            tried(read, *errors)
    finally:
        file.close()


# -- receipts and journal --------------------------------------------------------------------------------------------

PAYLOAD = {"format": "shredsaver-erasure/1", "number": 1, "previous": None, "erasure": "e", "who": {}, "pending": []}
RECEIPT = sign(PAYLOAD, SEED)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


HEADERS = st.fixed_dictionaries({}, optional={"alg": JSON | st.just("Ed25519"), "kid": JSON, "typ": JSON, "crit": JSON})
RECEIPTS = st.one_of(
    st.text(max_size=100),
    mutated(RECEIPT.encode()).map(lambda data: data.decode("latin-1")),
    st.builds(lambda h, p, s: f"{encoded(h)}.{encoded(p)}.{s}", HEADERS | JSON, JSON, st.text("AZaz09-_", max_size=90)),
)


@FUZZ
@given(RECEIPTS, st.sampled_from(["", " ", "\n", "\u2003", "\ud800"]))
@example(f"{encoded({'kid': []})}.{encoded({})}.AAAA", "")
@example(RECEIPT, "\u2003")
@example(encoded("[") + "." + base64.urlsafe_b64encode(b"[" * 9000).decode() + ".AAAA", "")
def test_a_receipt(receipt: str, end: str) -> None:
    found = tried(lambda: verify(receipt + end, PUBLIC), ReceiptError)
    assert found is None or found.payload == PAYLOAD
    chained = tried(lambda: verify_chain([receipt + end], [PUBLIC]), ReceiptError)
    assert (chained is None) == (found is None)


@FUZZ
@given(st.dictionaries(st.sampled_from(["number", "previous", "new_key", "new_key_proof"]), JSON))
def test_a_chain_whose_signer_says_odd_things(said: dict[str, Any]) -> None:
    tried(lambda: verify_chain([sign({**PAYLOAD, **said}, SEED)] * 2, [PUBLIC]), ReceiptError)


@FUZZ
@given(st.binary(max_size=100) | st.text(max_size=60))
def test_a_public_key(data: bytes | str) -> None:
    tried(lambda: verify(RECEIPT, data), ReceiptError)


def test_a_receipt_read_from_a_file_with_a_line_end_is_the_same_receipt() -> None:
    second = sign({**PAYLOAD, "number": 2, "previous": verify(RECEIPT, PUBLIC).digest}, SEED)
    assert verify(RECEIPT + "\n", PUBLIC) == verify(RECEIPT, PUBLIC)
    assert len(verify_chain([RECEIPT + "\n", second + "\n"], [PUBLIC])) == 2


LINE = {"customer": "ab" * 16, "generation": 1, "at": "2026", "mac": "00"}


@FUZZ
@given(
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode() + b"\n")
    | st.fixed_dictionaries(dict.fromkeys(LINE, JSON)).map(lambda line: json.dumps(line).encode() + b"\n")
)
@example(json.dumps({**LINE, "generation": float("inf")}).encode() + b"\n")
@example(json.dumps({**LINE, "mac": "é"}).encode() + b"\n")
@example(b"[" * 100_000 + b"\n")
@example(b'{"customer":"' + b"9" * 5000 + b'","generation":' + b"9" * 5000 + b"}\n")
def test_a_journal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "journal"
    path.write_bytes(content)
    found = tried(lambda: Journal(path, KEY).read(), RevocationLogDamagedError)
    assert not found
    tried(lambda: Journal(path, KEY).append(Dead(b"c" * 16, 1, "2026")), RevocationLogDamagedError)


# -- exports ---------------------------------------------------------------------------------------------------------

HEADER = json.dumps({"type": "export", "format": "shredsaver-export/1", "customer_id": "c-2"})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shredder, list[str]]]:
    """A deployment, and an export of a customer of it."""
    home = tmp_path_factory.mktemp("exports")
    with Shredder.open(str(home / "atlas.sqlite"), keys=f"file:{home / 'keys'}") as shredder:
        call = Caller("sync")
        (*_, last) = chain(call, shredder.saver, config(), [{"x": ["one " * 40]}, {"x": ["one " * 40, "two"], "y": 1}])
        shredder.saver.put_writes(last, [("x", "pending")], "task")
        shredder.store.put(("users", "c-1"), "key", {"said": "something"})
        yield shredder, list(shredder.export("c-1"))


@settings(FUZZ, max_examples=30)
@given(st.data())
def test_an_export(deployment: tuple[Shredder, list[str]], data: st.DataObject) -> None:
    shredder, lines = deployment
    line = data.draw(
        st.one_of(
            st.text(max_size=60),
            JSON.map(json.dumps),
            mutated(*(line.encode() for line in lines)).map(lambda line: line.decode("utf-8", "replace")),
            replaced(lines),
        )
    )
    start = data.draw(st.sampled_from([[HEADER], []]))
    tried(lambda: shredder.import_([*start, line]), ShredSaverError)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"type":' * 10_000, '{"type":"item","namespace":[[]],"key":1,"value":[]}']
)
def test_an_export_that_is_made_to_hurt(deployment: tuple[Shredder, list[str]], line: str) -> None:
    with pytest.raises(ShredSaverError):
        deployment[0].import_([HEADER, line])


def replaced(lines: list[str]) -> st.SearchStrategy[str]:
    """A line with one of its values, at whatever depth, replaced."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, found in inner:
            yield (*path, key)
            yield from places(found, (*path, key))

    found = [(line, path) for line in lines for path in places(json.loads(line)) if "shown" not in path]

    def replace(choice: tuple[str, tuple[Any, ...]], value: Any) -> str:
        whole = json.loads(choice[0])
        inner = whole
        for key in choice[1][:-1]:
            inner = inner[key]
        inner[choice[1][-1]] = value
        return json.dumps(whole)

    return st.builds(replace, st.sampled_from(found), JSON)


# -- rows ------------------------------------------------------------------------------------------------------------


@FUZZ
@given(PLAIN.map(msgpack.packb) | st.binary(max_size=60))
def test_what_an_item_opens_to(deployment: tuple[Shredder, list[str]], data: bytes) -> None:
    shredder, _ = deployment
    from shredsaver.items import ItemRow
    from shredsaver.sealing import ITEM

    core = shredder._start().core
    customer = core.token("customer", "c-1")
    core.keyring.load(customer, 1)
    tree = core.keyring.cached(customer, 1, 1)
    assert tree is not None
    where = ("t", b"l", b"k")
    fields = dict.fromkeys(ItemRow._fields, None) | {
        "customer": customer, "template": where[0], "labels": where[1], "key": where[2], "generation": 1,
        "scope": 1, "number": 99, "created_at": 1, "updated_at": 1, "sealed": b"",
    }  # fmt: skip
    row = ItemRow(**fields)
    row = row._replace(sealed=core.seal(tree, ITEM, (customer, 1), 1, 99, data, *row.columns))
    tried(lambda: open_item(core, Owner(customer, 1, tree), row), FormatError, UnsealError)
