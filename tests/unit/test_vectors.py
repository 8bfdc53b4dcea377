"""The committed test vectors: the library gives what they say, and the generator gives the very same files."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shredsaver.customers import token
from shredsaver.errors import FormatError, UnsealError
from shredsaver.keytree import KeyPuncturedError, KeyTree
from shredsaver.sealing import COLUMNS, associated_data, unseal
from tests.vectors import generate

HERE = Path(generate.__file__).parent
FILES = sorted(path.name for path in HERE.glob("*.json"))
ERRORS = {error.__name__: error for error in (FormatError, UnsealError, KeyPuncturedError)}

Case = dict[str, Any]


def read(name: str) -> Case:
    case: Case = json.loads((HERE / name).read_text(encoding="utf-8"))
    return case


def hexed(case: Case, key: str) -> bytes:
    return bytes.fromhex(case[key])


def elements(case: Case) -> list[Any]:
    return [bytes.fromhex(value) if kind == "bytes" else value for _, kind, value in case["elements"]]


def derive(case: Case) -> None:
    assert KeyTree.from_bytes(hexed(case, "tree")).derive(case["scope"], case["number"]) == hexed(case, "key")


def puncture(case: Case) -> None:
    tree = KeyTree.from_bytes(hexed(case, "tree"))
    punctured = getattr(tree, case["operation"])(*case["arguments"])
    assert punctured.to_bytes() == hexed(case, "result")
    assert repr(punctured) == f"<KeyTree of {case['nodes']} nodes>"
    for place in case["keys"]:
        scope, number = place["scope"], place["number"]
        assert punctured.alive(scope, number) is (place["key"] is not None)
        if place["key"] is not None:
            assert punctured.derive(scope, number) == tree.derive(scope, number) == hexed(place, "key")


def read_tree(case: Case) -> None:
    tree = KeyTree.from_bytes(hexed(case, "tree"))
    assert tree.to_bytes() == hexed(case, "tree")
    assert repr(tree) == f"<KeyTree of {case['nodes']} nodes>"


def open_record(case: Case) -> None:
    assert unseal(hexed(case, "key"), hexed(case, "record"), hexed(case, "associated"), ()) == hexed(case, "plaintext")


def make_token(case: Case) -> None:
    assert token(hexed(case, "lookup_key"), case["kind"], case["id"]) == hexed(case, "token")


OPERATIONS: dict[str, Callable[[Case], None]] = {
    "derive": derive,
    "puncture": puncture,
    "puncture_range": puncture,
    "puncture_scope": puncture,
    "read_tree": read_tree,
    "unseal": open_record,
    "token": make_token,
}


@pytest.mark.parametrize("name", FILES)
def test_the_library_gives_what_the_vector_says(name: str) -> None:
    case = read(name)
    operation = OPERATIONS[case["operation"]]
    if "error" not in case:
        operation(case)
        return
    # Only the right error counts: a missing field of the case, say, is another one.
    with pytest.raises(ERRORS[case["error"]]):
        operation({"key": "", "plaintext": "", **case})


@pytest.mark.parametrize(
    "name",
    [name for name in FILES if name.startswith(("seal-", "moved-", "bad-")) and not name.startswith("bad-derive")],
)
def test_associated_data_of_the_vectors(name: str) -> None:
    case = read(name)
    values = elements(case)
    assert msgpack.packb(values) == hexed(case, "associated")
    table = {known: code for code, known in generate.NAMES.items()}[case["table"]]
    assert [element for element, _, _ in case["elements"]] == [*generate.FIXED, *COLUMNS[table]]
    # The format and the table cannot be given wrongly to the library, so those two are encoded by hand only.
    if case.get("changed") not in ("format", "table"):
        assert associated_data(table, *values[1:6], *values[7:]) == hexed(case, "associated")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("moved-")])
def test_a_moved_record_differs_in_one_element_from_one_that_opens(name: str) -> None:
    case = read(name)
    good = read(f"seal-{case['table']}.json")
    assert (case["record"], case["key"]) == (good["record"], good["key"])
    changed = [one[0] for one, two in zip(case["elements"], good["elements"], strict=True) if one != two]
    assert changed == [case["changed"]]
    assert unseal(hexed(case, "key"), hexed(case, "record"), hexed(good, "associated"), ()) == hexed(good, "plaintext")


def test_there_is_a_vector_for_each_element_of_each_table() -> None:
    for table, name in generate.NAMES.items():
        for column in COLUMNS[table]:
            assert f"moved-{name}-{column}.json" in FILES
    for element in generate.FIXED:
        assert f"moved-checkpoint-{element}.json" in FILES
    assert set(generate.NAMES) == set(COLUMNS)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("derive-")])
def test_keys_by_the_definition_alone(name: str) -> None:
    case = read(name)
    node = hexed(case, "tree")[18:50]
    for bit in f"{case['scope']:032b}{case['number']:032b}":
        digest = hashlib.sha512(b"\x00\x00\x00\x01" + node + b"shredsaver/v1/tree").digest()
        node = digest[32:] if bit == "1" else digest[:32]
    assert node == hexed(case, "key")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("seal-")])
def test_records_by_the_definition_alone(name: str) -> None:
    case = read(name)
    record = hexed(case, "record")
    padded = AESGCM(hexed(case, "key")).decrypt(record[1:13], record[13:], hexed(case, "associated"))
    zeros = -(len(hexed(case, "plaintext")) + 1) % case.get("pad_to", 1)
    assert (record[0], padded) == (1, hexed(case, "plaintext") + b"\x80" + bytes(zeros))


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("token-")])
def test_tokens_by_the_definition_alone(name: str) -> None:
    case = read(name)
    message = case["kind"].encode() + b"\x00" + case["id"].encode()
    assert hmac.new(hexed(case, "lookup_key"), message, hashlib.sha256).digest()[:16] == hexed(case, "token")


def test_the_worked_example_of_the_specification_is_a_vector() -> None:
    """The hex in the document, read without its line breaks, is what the vectors of that chain hold."""
    text = (HERE.parents[1] / "docs" / "format-v1.md").read_text(encoding="utf-8")
    example = text.split("## Worked example")[1].split("\n## ")[0]
    shown = {"".join(block.split()) for block in re.findall(r"`((?:[0-9a-f]{2}\s*)+)`", example)}
    shown |= {"".join(block.split()) for block in re.findall(r"```\n((?:[0-9a-f]{2}\s*)+)```", example)}
    record = read("seal-part.json")
    expected = {
        read("token-customer.json")["token"],
        read("token-thread.json")["token"],
        read("derive-17-16.json")["tree"][36:100],
        *(read("derive-17-16.json")[name] for name in ("tree", "key")),
        *(record[name] for name in ("associated", "record", "plaintext", "key")),
        record["record"][2:26],
        record["record"][26:-32],
        record["record"][-32:],
        {name: value for name, _, value in record["elements"]}["deployment"],
        read("token-customer.json")["lookup_key"],
    }
    assert expected <= shown


def test_the_specification_names_every_table_and_column() -> None:
    text = (HERE.parents[1] / "docs" / "format-v1.md").read_text(encoding="utf-8")
    section = text.split("| code | sealed |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    listed = {int(code): () if columns == "none" else tuple(columns.split(", ")) for code, columns in rows}
    assert listed == COLUMNS


def test_the_rules_of_the_specification_are_numbered_without_gaps() -> None:
    text = (HERE.parents[1] / "docs" / "format-v1.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 30


def test_the_generator_gives_the_committed_files() -> None:
    committed = {name: (HERE / name).read_bytes() for name in FILES}
    assert {name: text.encode() for name, text in generate.vectors().items()} == committed
