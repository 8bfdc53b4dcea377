"""Writes the test vectors of format 1: `python -m tests.vectors.generate` from the top of the repository.

Every file is one case: an operation, its input, and either what it gives or the error that it must raise. A failing
case is wrong in one way only. Bytes are in hex. Nothing is random here: nonces and nodes come from SHA-256 of a label.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgpack
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shredsaver import sealing
from shredsaver.customers import token
from shredsaver.keytree import LAST, KeyTree

HERE = Path(__file__).parent
Case = dict[str, Any]


def fixed(label: str, length: int) -> bytes:
    """Bytes that stand for random ones."""
    return hashlib.sha256(label.encode()).digest()[:length]


ROOT = fixed("root", 32)
LOOKUP_KEY = fixed("lookup key", 32)


def tree_bytes(*nodes: tuple[int, int], tail: bytes = b"\x80", count: int | None = None, version: int = 1) -> bytes:
    """A serialised tree of (depth, start) nodes, written out by hand so that it can be wrong."""
    data = b"SSKT" + struct.pack(">BI", version, len(nodes) if count is None else count)
    for depth, start in nodes:
        data += struct.pack(">BQ", depth, start) + (fixed(f"node {depth} {start}", 32) if depth else ROOT)
    data += tail
    return data.ljust(max(64, 1 << (len(data) - 1).bit_length()), b"\x00")


WHOLE = tree_bytes((0, 0))
KEY = KeyTree.from_bytes(WHOLE).derive(17, 16)  # the place that every sealed vector is at
PLACES = [(0, 0), (0, 1), (1, 16), (16, 15), (16, 16), (16, 17), (17, 16), (17, 0xFFFF), (2**31, 2**31), (LAST, LAST)]


def derivations() -> Iterator[tuple[str, Case]]:
    """Keys of a whole tree, one place a file."""
    tree = KeyTree.from_bytes(WHOLE)
    for scope, number in PLACES:
        yield (
            f"derive-{scope}-{number}",
            {"operation": "derive", "tree": WHOLE, "scope": scope, "number": number, "key": tree.derive(scope, number)},
        )


def punctures() -> Iterator[tuple[str, Case]]:
    """A leaf, a range and scopes given up: what is left, byte by byte, and what derives afterwards."""
    cases = {
        "leaf": ("puncture", [16, 16]),
        "leaf-first": ("puncture", [0, 0]),
        "leaf-last": ("puncture", [LAST, LAST]),
        "range": ("puncture_range", [17, 20, 75]),
        "range-aligned": ("puncture_range", [17, 64, 127]),
        "range-whole-scope": ("puncture_range", [16, 0, LAST]),
        "scope": ("puncture_scope", [16, 16]),
        "scopes": ("puncture_scope", [16, 17]),
        "everything": ("puncture_scope", [0, LAST]),
    }
    tree = KeyTree.from_bytes(WHOLE)
    for name, (operation, arguments) in cases.items():
        punctured = getattr(tree, operation)(*arguments)
        result = punctured.to_bytes()
        case: Case = {"operation": operation, "tree": WHOLE, "arguments": arguments, "result": result}
        case["nodes"] = struct.unpack_from(">I", result, 5)[0]
        edges = [(scope, number) for scope in (16, 17) for number in (19, 20, 63, 64, 75, 76, 127, 128)]
        case["keys"] = [
            {"scope": s, "number": n, "key": tree.derive(s, n) if punctured.alive(s, n) else None}
            for s, n in sorted({*PLACES, *edges})
        ]
        yield f"puncture-{name}", case
    gone = {"operation": "derive", "tree": tree.puncture(16, 16).to_bytes(), "scope": 16, "number": 16}
    yield "bad-derive-punctured", {**gone, "error": "KeyPuncturedError"}
    yield "bad-derive-outside", {**gone, "scope": 2**32, "error": "KeyPuncturedError"}


def trees() -> Iterator[tuple[str, Case]]:
    """Serialised trees: three that are read, and one for each way to be none."""
    good = {
        "whole": WHOLE,
        "two-nodes": tree_bytes((2, 0), (1, 2**63)),
        "leaf-only": tree_bytes((64, 16 << 32 | 16)),
        "empty": tree_bytes(),
    }
    bad = {
        "empty-file": b"",
        "truncated": WHOLE[:-1],
        "truncated-to-half": tree_bytes((1, 0), (1, 2**63))[:64],
        "extended": WHOLE + b"\x00",
        "padded-too-far": WHOLE.ljust(128, b"\x00"),
        "wrong-mark": b"SSKU" + WHOLE[4:],
        "future-version": tree_bytes((0, 0), version=2),
        "count-too-high": tree_bytes((0, 0), count=2),
        "count-too-low": tree_bytes((0, 0), count=0),
        "padding-missing": tree_bytes((0, 0), tail=b"\x00"),
        "padding-wrong-mark": tree_bytes((0, 0), tail=b"\x81"),
        "padding-not-zero": tree_bytes((0, 0), tail=b"\x80\x00\x01"),
        "prefix-too-long": tree_bytes((65, 0)),
        "prefix-bits-beyond-length": tree_bytes((1, 2**62)),
        "out-of-order": tree_bytes((1, 2**63), (1, 0)),
        "duplicate": tree_bytes((1, 0), (1, 0)),
        "overlap-child": tree_bytes((1, 0), (2, 2**62)),
        "overlap-leaf": tree_bytes((0, 0), (64, 5)),
    }
    for name, data in good.items():
        yield f"tree-{name}", {"operation": "read_tree", "tree": data, "nodes": struct.unpack_from(">I", data, 5)[0]}
    for name, data in bad.items():
        yield f"tree-bad-{name}", {"operation": "read_tree", "tree": data, "error": "FormatError"}


KINDS = {bytes: "bytes", str: "text", int: "number"}
FIXED = ("format", "deployment", "customer", "generation", "scope", "number", "table")
COLUMN_VALUES: dict[str, bytes | str | int] = {
    "thread": token(LOOKUP_KEY, "thread", "t-1"),
    "ns": "",
    "checkpoint_id": "1f0c8a52-5f0e-6d3a-8001-3a1d6cf3b2aa",
    "parent_id": "1f0c8a52-4e11-6b6c-8000-9be40d57c1de",
    "run": token(LOOKUP_KEY, "run", "r-1"),
    "source": "loop",
    "step": "-1",
    "task_id": "6d1b3b0e-2c57-5d0e-9f2c-0f6a3c1c7b1d",
    "idx": "0",
    "task_path": "~__pregel_pull, model",
    "channel": "messages",
    "template": "users",
    "labels": fixed("labels", 16),
    "key": fixed("store key", 16),
    "created_at": "1783945200000000",
    "updated_at": "1783945260000000",
    "erasure": fixed("erasure", 16),
    "store": fixed("store", 16),
    "slot": 7,
    "epoch": 3,
    "key_version": "2",
}
NAMES = {
    sealing.CUSTOMER_NAME: "customer-name",
    sealing.THREAD_NAME: "thread-name",
    sealing.CHECKPOINT: "checkpoint",
    sealing.PART: "part",
    sealing.WRITE: "write",
    sealing.ITEM: "item",
    sealing.NAMESPACE: "namespace",
    sealing.REASON: "reason",
    sealing.WRAPPED_KEY: "wrapped-key",
    sealing.SEALED_TREE: "sealed-tree",
    sealing.SERIALIZED: "serialized",
}


def elements(table: int) -> list[bytes | str | int]:
    """The associated data of a table before it is encoded."""
    columns = [COLUMN_VALUES[name] for name in sealing.COLUMNS[table]]
    return [1, fixed("deployment", 16), token(LOOKUP_KEY, "customer", "c-42"), 1, 17, 16, table, *columns]


def encoded(values: list[bytes | str | int]) -> bytes:
    data: bytes = msgpack.packb(values)
    return data


def other(value: bytes | str | int) -> bytes | str | int:
    """A value of the same kind, as near as can be."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("2" if value[-1:] != "2" else "3")
    return value[:-1] + bytes([value[-1] ^ 1])


def opening(name: str, table: int, record: bytes, *, values: list[bytes | str | int] | None = None) -> Case:
    """What every case of opening a record holds."""
    values = elements(table) if values is None else values
    names = (*FIXED, *sealing.COLUMNS[table])
    return {
        "operation": "unseal",
        "table": name,
        "elements": [[n, KINDS[type(value)], value] for n, value in zip(names, values, strict=True)],
        "associated": encoded(values),
        "key": KEY,
        "record": record,
    }


def sealed(label: str, plaintext: bytes, table: int, pad_to: int = 1) -> bytes:
    """A record as the library seals it, with a nonce that depends on the label only."""
    with mock.patch("os.urandom", lambda length: fixed(f"nonce {label}", length)):
        return sealing.seal(KEY, plaintext, encoded(elements(table)), pad_to=pad_to)


def records() -> Iterator[tuple[str, Case]]:
    """Records that open, one for each table and each shape of plaintext."""
    for table, name in NAMES.items():
        plaintext = f"what a {name} holds".encode()
        case = opening(name, table, sealed(name, plaintext, table))
        yield f"seal-{name}", {**case, "plaintext": plaintext}
    for name, plaintext, pad_to in (
        ("empty-plaintext", b"", 1),
        ("plaintext-like-padding", b"\x80\x00\x00", 1),
        ("padded-to-256", b"hidden length", 256),
    ):
        case = opening("part", sealing.PART, sealed(name, plaintext, sealing.PART, pad_to))
        yield f"seal-{name}", {**case, "pad_to": pad_to, "plaintext": plaintext}


def damaged() -> Iterator[tuple[str, Case]]:
    """A record that is wrong in one way."""
    table, plaintext = sealing.PART, b"what a part holds"
    record = sealed("part", plaintext, table)

    def flipped(position: int) -> bytes:
        return record[:position] + bytes([record[position] ^ 1]) + record[position + 1 :]

    def padded(data: bytes) -> bytes:
        nonce = fixed("nonce bad padding", 12)
        return b"\x01" + nonce + AESGCM(KEY).encrypt(nonce, data, encoded(elements(table)))

    cases = {
        "version-flipped": (flipped(0), "FormatError"),
        "nonce-flipped": (flipped(1), "UnsealError"),
        "ciphertext-flipped": (flipped(13), "UnsealError"),
        "tag-flipped": (flipped(len(record) - 1), "UnsealError"),
        "truncated-by-one": (record[:-1], "UnsealError"),
        "truncated-to-version": (record[:1], "UnsealError"),
        "truncated-to-nonce": (record[:13], "UnsealError"),
        "extended": (record + b"\x00", "UnsealError"),
        "empty": (b"", "FormatError"),
        "unsealed-plaintext": (plaintext, "FormatError"),
        "unsealed-msgpack": (msgpack.packb({"messages": ["hello"]}), "FormatError"),
        "unsealed-json": (b'{"messages": ["hello"]}', "FormatError"),
        "future-version": (b"\x02" + record[1:], "FormatError"),
        "padding-missing": (padded(plaintext), "UnsealError"),
        "padding-wrong-mark": (padded(plaintext + b"\x81"), "UnsealError"),
        "padding-zeros-only": (padded(bytes(32)), "UnsealError"),
        "padding-empty": (padded(b""), "UnsealError"),
    }
    for name, (data, error) in cases.items():
        yield f"bad-{name}", {**opening("part", table, data), "error": error}
    yield "bad-key", {**opening("part", table, record), "key": fixed("another key", 32), "error": "UnsealError"}


def moved() -> Iterator[tuple[str, Case]]:
    """A good record of each table, opened where one element of the associated data is another."""
    for table, name in NAMES.items():
        record = sealed(name, f"what a {name} holds".encode(), table)
        fixed_too = FIXED if table == sealing.CHECKPOINT else ()
        for element in (*fixed_too, *sealing.COLUMNS[table]):
            position = (*FIXED, *sealing.COLUMNS[table]).index(element)
            values = elements(table)
            values[position] = other(values[position])
            case = {**opening(name, table, record, values=values), "changed": element, "error": "UnsealError"}
            yield f"moved-{name}-{element}", case


def tokens() -> Iterator[tuple[str, Case]]:
    """Tokens of ids, one of them outside ASCII; the kind keeps equal ids of different kinds apart."""
    for name, kind, identifier in (
        ("customer", "customer", "c-42"),
        ("thread", "thread", "t-1"),
        ("run", "run", "r-1"),
        ("same-id-other-kind", "thread", "c-42"),
        ("not-ascii", "customer", "Zoë 名"),
    ):
        case = {"operation": "token", "lookup_key": LOOKUP_KEY, "kind": kind, "id": identifier}
        yield f"token-{name}", {**case, "token": token(LOOKUP_KEY, kind, identifier)}


def vectors() -> dict[str, str]:
    """Every vector: file name to text."""
    files: dict[str, str] = {}
    for source in (derivations, punctures, trees, records, damaged, moved, tokens):
        for name, case in source():
            assert f"{name}.json" not in files, name
            files[f"{name}.json"] = json.dumps(case, indent=1, default=bytes.hex, sort_keys=True) + "\n"
    return files


def main() -> None:
    """Writes the vectors, and removes what is no vector any more."""
    files = vectors()
    for path in HERE.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (HERE / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
