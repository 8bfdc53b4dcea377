"""Readers fuzzed by coverage, for as long as one likes: ``python tests/fuzz/by_coverage.py READER [libFuzzer flags]``.

By hand, in an environment of its own that has the library and ``atheris``; the readers are the keys of `READERS`. Where
an authentication is in front, bytes go both before it and behind it, as from somebody who has the key. An exception
that is not documented, a value that should not have been given, ten seconds or two gigabytes end it, and the input that
did it is left in the directory that it names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["shredsaver"]):
    from shredsaver.errors import (
        ConfigurationError,
        FormatError,
        KeyServiceError,
        ReceiptError,
        RevocationLogDamagedError,
        UnsealError,
    )
    from shredsaver.journal import Journal
    from shredsaver.keytree import KeyTree
    from shredsaver.kms.passphrase import Parameters
    from shredsaver.kms.roots import Anchor
    from shredsaver.kms.rootsfile import BLOCK, Root, RootsFile
    from shredsaver.manifest import Entry, needed, unpack_manifest
    from shredsaver.parts import join
    from shredsaver.receipts import public_key, sign, verify, verify_chain
    from shredsaver.reconcile import Dead
    from shredsaver.records import (
        CheckpointRecord,
        pack_checkpoint,
        pack_write,
        unpack,
        unpack_checkpoint,
        unpack_write,
    )
    from shredsaver.sealing import PART, associated_data, seal, unseal

KEY, SEED = bytes(range(32)), bytes(32)
PUBLIC = public_key(SEED)
PLACE = associated_data(PART, b"d" * 16, b"c" * 16, 1, 17, 16, b"t" * 16)
SEALED = seal(KEY, b"payload " * 30, PLACE)
ENTRY = Entry(("msgpack", b"\x93", 4_000, (16, 3, 40, 2), (50, 1)))
RECORD = CheckpointRecord(("msgpack", b"\x80"), ("msgpack", b"\x80"), {"x": ENTRY, "y": Entry(("null", b""))})
TREE = KeyTree.generate().puncture(16, 16).puncture_range(17, 20, 40)
PAYLOAD = {"format": "shredsaver-erasure/1", "number": 1, "previous": None, "erasure": "e", "who": {}, "pending": []}
RECEIPT = sign(PAYLOAD, SEED)
DEAD = [Dead(bytes([n]) * 16, n, "2026-01-01T00:00:00.000Z") for n in range(1, 4)]
HOME = Path(tempfile.mkdtemp(prefix="fuzz-"))


def used(entry: Entry, parts: dict[int, bytes]) -> None:
    """What is done with an entry that was read."""
    try:
        for _ in range(10):
            if not needed(entry, parts):
                break
        join(entry, parts)
    except (LookupError, ValueError):
        pass  # `Opener` makes an UnsealError of both


def record(data: bytes) -> None:
    try:
        assert unseal(KEY, data, PLACE, ("parts",)) == b"payload " * 30
        assert data == SEALED
    except (FormatError, UnsealError):
        pass
    opened = unseal(KEY, seal(KEY, data, PLACE), PLACE, ("parts",))
    assert opened == data
    for read in (unpack_checkpoint, unpack_write):
        try:
            found = read(opened)
        except FormatError:
            continue
        for entry in [found] if isinstance(found, Entry) else found.manifest.values():
            used(entry, {})


def manifest(data: bytes) -> None:
    """The manifest, and behind it the parts that its entries name."""
    cut = data[0] if data else 0
    try:
        entries = unpack_manifest(unpack(data[1 : cut + 1]))
    except FormatError:
        return
    rest = data[cut + 1 :]
    parts = {16 + at // 40: rest[at : at + 40] for at in range(0, len(rest), 40)}
    for entry in entries.values():
        used(entry, parts)


def tree(data: bytes) -> None:
    try:
        found = KeyTree.from_bytes(data)
    except FormatError:
        return
    assert found.to_bytes() == data
    number = found.next_alive(16, 0)
    if number is not None:
        assert len(found.derive(16, number)) == 32
        assert not found.puncture(16, number).alive(16, number)


def receipts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ReceiptError):
        assert verify(text, PUBLIC).payload == PAYLOAD
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return
    signed = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, dict)]
    try:
        chain = [sign({**PAYLOAD, **one}, SEED) for one in signed]
    except ValueError:
        return
    with contextlib.suppress(ReceiptError):
        verify_chain(chain, [PUBLIC])


def journal(data: bytes) -> None:
    path = HOME / "journal"
    for content in (data, authentic(data)):
        path.write_bytes(content)
        kept = Journal(path, KEY)
        try:
            found = kept.read()
            kept.append(*DEAD)
        except RevocationLogDamagedError:
            continue
        assert {one[:2] for one in kept.read()} == {one[:2] for one in (*found, *DEAD)}


def authentic(data: bytes) -> bytes:
    """The same lines with the codes that somebody with the log key would give them, where they have a content."""
    lines, previous = [], ""
    for line in data.split(b"\n"):
        try:
            said = json.loads(line)
            previous = Journal(HOME / "journal", KEY)._mac(previous, {k: v for k, v in said.items() if k != "mac"})
            lines.append(json.dumps({**said, "mac": previous}, sort_keys=True).encode())
        except (ValueError, TypeError, AttributeError, RecursionError):
            lines.append(line)
    return b"\n".join(lines)


def roots(data: bytes) -> None:
    path = HOME / "roots"
    blocks = [data[at : at + BLOCK - 32].ljust(BLOCK - 32, b"\x00") for at in range(0, len(data), BLOCK)]
    for content in (data, b"".join(block + hashlib.sha256(block).digest() for block in blocks)):
        path.write_bytes(content)
        try:
            file = RootsFile(path)
        except (FormatError, KeyServiceError, ConfigurationError):
            continue
        try:
            list(file.scan())
            file.read(1, 4)
            file.newest(0)
        except (FormatError, KeyServiceError, ConfigurationError):
            continue
        finally:
            file.close()


def file_of_roots() -> bytes:
    path = HOME / "genuine"
    RootsFile.create(path, 2, b"d" * 16, Parameters())
    file = RootsFile(path)
    file.write([Root(0, 1, Anchor(0, bytes(32)), KEY), Root(1, 4, Anchor(3, KEY), KEY)])
    file.close()
    return path.read_bytes()


def lines_of_journal() -> bytes:
    Journal(HOME / "lines", KEY).append(*DEAD)
    return (HOME / "lines").read_bytes()


def manifest_and_parts() -> bytes:
    import msgpack

    packed = msgpack.packb({"x": list(ENTRY)})
    return bytes([len(packed)]) + packed + bytes(200)


READERS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "record": (record, lambda: [SEALED, pack_checkpoint(RECORD), pack_write(ENTRY)]),
    "manifest": (manifest, lambda: [manifest_and_parts()]),
    "tree": (tree, lambda: [TREE.to_bytes(), KeyTree.generate().to_bytes()]),
    "receipts": (receipts, lambda: [RECEIPT.encode(), json.dumps(PAYLOAD).encode()]),
    "journal": (journal, lambda: [lines_of_journal()]),
    "roots": (roots, lambda: [file_of_roots()]),
}
"""By name: what is fuzzed, and genuine inputs to start from."""


def main(name: str, *flags: str) -> Any:
    reader, genuine = READERS[name]
    corpus = HOME / "corpus"
    corpus.mkdir()
    for number, data in enumerate(genuine()):
        (corpus / str(number)).write_bytes(data)
    os.chdir(HOME)  # an input that ends it is left here
    print(f"{name}: {HOME}", flush=True)
    atheris.Setup([name, "-timeout=10", "-rss_limit_mb=2048", *flags, str(corpus)], reader)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
