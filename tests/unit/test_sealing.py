"""Sealed records: what goes in comes out in its own place only, and nothing else ever does."""

from __future__ import annotations

import enum
import os
import traceback
from typing import Any, Self

import msgpack
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from shredsaver import sealing
from shredsaver.errors import FormatError, PayloadError, UnsealError
from shredsaver.sealing import (
    COLUMNS,
    OVERHEAD,
    PART,
    WRITE,
    Range,
    associated_data,
    associated_range,
    seal,
    unseal,
    unseal_range,
)

KEY = bytes(range(32))
PLACE = associated_data(PART, b"d" * 16, b"c" * 16, 1, 17, 16, b"t" * 16)
WHERE = ("parts", b"\xab\xcd", 17, 16)

columns = st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers(0, 2**64 - 1))


@given(st.binary(max_size=300), st.binary(max_size=40), st.integers(1, 64))
@settings(deadline=None)
def test_what_was_sealed_opens(plaintext: bytes, associated: bytes, pad_to: int) -> None:
    record = seal(KEY, plaintext, associated, pad_to=pad_to)
    assert unseal(KEY, record, associated, WHERE) == plaintext
    assert (len(record) - (OVERHEAD - 1)) % pad_to == 0
    assert 0 <= len(record) - len(plaintext) - OVERHEAD < pad_to


def test_a_record_is_what_the_format_says() -> None:
    record = seal(KEY, b"text", PLACE)
    assert record[0] == 1
    assert AESGCM(KEY).decrypt(record[1:13], record[13:], PLACE) == b"text\x80"
    assert len(record) == 4 + OVERHEAD == 34


def test_padding_hides_lengths() -> None:
    assert len({len(seal(KEY, b"x" * length, PLACE, pad_to=256)) for length in range(256)}) == 1
    assert len(seal(KEY, b"x" * 256, PLACE, pad_to=256)) == 512 + OVERHEAD - 1


@pytest.mark.parametrize("plaintext", [b"", b"\x80", b"\x00", b"\x80\x00", b"\x00\x80\x00\x00", b"\x80" * 5])
@pytest.mark.parametrize("pad_to", [1, 2, 16])
def test_plaintexts_that_look_like_padding(plaintext: bytes, pad_to: int) -> None:
    assert unseal(KEY, seal(KEY, plaintext, PLACE, pad_to=pad_to), PLACE, WHERE) == plaintext


def test_the_same_value_never_seals_the_same() -> None:
    assert len({seal(KEY, b"text", PLACE) for _ in range(100)}) == 100


@pytest.mark.parametrize("plaintext", [b"", b"text", b"x" * 100])
def test_every_flipped_bit_is_seen(plaintext: bytes) -> None:
    record = seal(KEY, plaintext, PLACE)
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        # A changed version byte is no sealed record of a version we know; anything else is an altered one.
        with pytest.raises(FormatError if bit < 8 else UnsealError):
            unseal(KEY, bytes(changed), PLACE, WHERE)


def test_every_truncation_and_extension_is_seen() -> None:
    record = seal(KEY, b"text", PLACE)
    for length in range(1, len(record)):
        with pytest.raises(UnsealError):
            unseal(KEY, record[:length], PLACE, WHERE)
    with pytest.raises(UnsealError):
        unseal(KEY, record + b"\x00", PLACE, WHERE)
    with pytest.raises(FormatError, match="empty"):
        unseal(KEY, b"", PLACE, WHERE)


@pytest.mark.parametrize("padded", [b"", b"text", b"text\x00", b"\x00\x00", b"text\x81", b"text\x80\x01"])
def test_bad_padding_below_a_good_tag_is_refused(padded: bytes) -> None:
    nonce = b"n" * 12
    record = b"\x01" + nonce + AESGCM(KEY).encrypt(nonce, padded, PLACE)
    with pytest.raises(UnsealError):
        unseal(KEY, record, PLACE, WHERE)


def test_only_zeros_may_follow_the_mark_of_the_padding() -> None:
    for byte in set(range(256)) - {0, 0x80}:
        record = b"\x01" + bytes(12) + AESGCM(KEY).encrypt(bytes(12), b"text\x80" + bytes([byte]), PLACE)
        with pytest.raises(UnsealError):
            unseal(KEY, record, PLACE, WHERE)


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_nothing_unsealed_is_ever_read(data: bytes) -> None:
    with pytest.raises(UnsealError if data[:1] == b"\x01" else FormatError):
        unseal(KEY, data, PLACE, WHERE)


@pytest.mark.parametrize("value", [{"messages": []}, "text", 1, None, b"\x01"])
def test_plain_msgpack_is_never_read(value: object) -> None:
    data: bytes = msgpack.packb(value)
    with pytest.raises((FormatError, UnsealError)):
        unseal(KEY, data, PLACE, WHERE)


def test_another_key_opens_nothing() -> None:
    with pytest.raises(UnsealError):
        unseal(bytes(32), seal(KEY, b"text", PLACE), PLACE, WHERE)


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(24), bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    record = seal(KEY, b"text", PLACE)
    with pytest.raises(ValueError, match="32 bytes"):
        seal(key, b"text", PLACE)
    with pytest.raises(ValueError, match="32 bytes"):
        unseal(key, record, PLACE, WHERE)


@pytest.mark.parametrize("pad_to", [0, -1])
def test_padding_to_nothing_is_refused(pad_to: int) -> None:
    with pytest.raises(ValueError, match="pad_to"):
        seal(KEY, b"text", PLACE, pad_to=pad_to)


class Huge(bytes):
    """Bytes that say they are longer than they are, so that the limit is tested without two gigabytes."""

    size: int

    def __new__(cls, size: int) -> Self:
        new = super().__new__(cls)
        new.size = size
        return new

    def __len__(self) -> int:
        return self.size


def test_a_payload_above_the_limit_is_refused() -> None:
    with pytest.raises(PayloadError, match="limit"):
        seal(KEY, Huge(sealing.MAX_PLAINTEXT + 1), PLACE)
    with pytest.raises(PayloadError, match="limit"):
        seal(KEY, Huge(sealing.MAX_PLAINTEXT), PLACE, pad_to=2**20)
    assert seal(KEY, Huge(sealing.MAX_PLAINTEXT), PLACE)
    # The whole record stays below what the AEAD, and a signed 32-bit length, can take.
    assert sealing.MAX_PLAINTEXT + OVERHEAD <= 2**31 - 1


def test_messages_name_the_row_and_hold_nothing_else() -> None:
    record = bytearray(seal(KEY, b"a canary in the plaintext", PLACE))
    record[20] ^= 1
    with pytest.raises(UnsealError) as caught:
        unseal(KEY, bytes(record), PLACE, WHERE)
    assert str(caught.value) == "parts/abcd/17/16 does not open: altered, moved, or sealed under another key"
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "canary" not in shown
    assert KEY.hex() not in shown
    assert repr(KEY) not in shown
    with pytest.raises(FormatError, match=r"^parts/abcd/17/16 starts with 0x02: not a sealed record of version 1"):
        unseal(KEY, b"\x02" + bytes(record[1:]), PLACE, WHERE)
    with pytest.raises(FormatError, match=r"^parts/abcd/17/16 is empty"):
        unseal(KEY, b"", PLACE, WHERE)


def test_the_row_is_only_named_when_it_fails() -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError("formatted without need")

    assert unseal(KEY, seal(KEY, b"text", PLACE), PLACE, (Loud(),)) == b"text"


def elements(table: int) -> list[Any]:
    """One value of each kind behind the fixed elements."""
    kinds: list[Any] = [b"bytes", "text", 7]
    return [table, b"d" * 16, b"c" * 16, 1, 16, 17, *(kinds[i % 3] for i in range(len(COLUMNS[table])))]


@pytest.mark.parametrize("table", COLUMNS)
def test_associated_data_is_msgpack_of_a_fixed_array(table: int) -> None:
    given_, *rest = elements(table)
    data = associated_data(given_, *rest)
    assert msgpack.unpackb(data) == [1, *rest[:5], table, *rest[5:]]


@pytest.mark.parametrize("table", COLUMNS)
def test_each_element_binds(table: int) -> None:
    base = elements(table)
    record = seal(KEY, b"text", associated_data(*base))
    assert unseal(KEY, record, associated_data(*base), WHERE) == b"text"
    for position in range(1, len(base)):
        changed = list(base)
        changed[position] = {bytes: b"other", str: "other", int: 99}[type(base[position])]
        with pytest.raises(UnsealError):
            unseal(KEY, record, associated_data(*changed), WHERE)


def test_codes_and_limits_are_part_of_the_format() -> None:
    assert (sealing.CUSTOMER_NAME, sealing.THREAD_NAME, sealing.CHECKPOINT, sealing.PART, sealing.WRITE) == (
        1,
        2,
        3,
        4,
        5,
    )
    assert (sealing.ITEM, sealing.NAMESPACE, sealing.REASON) == (6, 7, 8)
    assert (sealing.WRAPPED_KEY, sealing.SEALED_TREE) == (9, 10)
    assert sealing.MAX_PLAINTEXT == 2_147_483_615
    assert OVERHEAD == 30


def test_tables_never_share_associated_data() -> None:
    seen = [associated_data(*elements(table)) for table in COLUMNS]
    # Two tables with as many columns of the same kinds differ by their code.
    assert len(set(seen)) == len(COLUMNS) == 11


@given(st.tuples(*[columns] * 7), st.integers(0, 6), columns)
@settings(deadline=None, max_examples=60)
def test_different_columns_never_encode_alike(row: tuple[Any, ...], position: int, value: Any) -> None:
    other = (*row[:position], value, *row[position + 1 :])
    one, two = (associated_data(WRITE, b"", b"", 0, 0, 0, *columns) for columns in (row, other))
    assert (one == two) is (type(row[position]) is type(value) and row[position] == value)
    assert msgpack.unpackb(one)[7:] == list(row)


def test_neighbouring_columns_do_not_run_together() -> None:
    def encode(*texts: str | bytes | int) -> bytes:
        return associated_data(sealing.NAMESPACE, b"", b"", 0, 0, 0, *texts)

    rows: list[tuple[str | bytes | int, ...]] = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc", ""),
        (b"ab", "c"),
        ("1", ""),
        (1, ""),
    ]
    assert len({encode(*row) for row in rows}) == len(rows)


@pytest.mark.parametrize("table", [0, -1, 12, 99])
def test_an_unknown_table_is_refused(table: int) -> None:
    with pytest.raises(ValueError, match="table"):
        associated_data(table, b"", b"", 0, 0, 0)


@pytest.mark.parametrize("table", COLUMNS)
@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_columns_is_refused(table: int, change: int) -> None:
    wanted = max(0, len(COLUMNS[table]) + change)
    if wanted == len(COLUMNS[table]):
        wanted += 2
    with pytest.raises(ValueError, match=f"table {table} does not bind {wanted} columns"):
        associated_data(table, b"", b"", 0, 0, 0, *[b""] * wanted)


@pytest.mark.parametrize(
    "value", [None, True, False, -1, 2**64, 1.0, bytearray(b"x"), memoryview(b"x"), ("a",), ["a"], {}, "\ud800"]
)
@pytest.mark.parametrize("position", [1, 2, 3, 4, 5, 6, 8])
def test_an_element_of_another_kind_is_refused(value: Any, position: int) -> None:
    row = elements(sealing.ITEM)
    row[position] = value
    with pytest.raises(FormatError) as caught:
        associated_data(*row)
    assert "table 6" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("positions", "values"),
    [
        ((1, 2), [None, True, -1, 2**64, 1.0, bytearray(b"x"), ("a",)]),
        ((3, 4, 5), [None, True, False, -1, 2**64, 1.0, bytearray(b"x"), ("a",)]),
        ((6,), [None, True, -1, 2**64, 1.0, bytearray(b"x"), ("a",)]),
    ],
)
def test_an_element_of_another_kind_among_usual_ones_is_refused(positions: tuple[int, ...], values: list[Any]) -> None:
    """Where every other element is what it nearly always is, and nothing would be looked at one by one."""
    for position in positions:
        for value in values:
            row: list[Any] = [PART, b"d" * 16, b"c" * 16, 1, 16, 17, b"t" * 16]
            associated_data(*row)
            row[position] = value
            with pytest.raises(FormatError, match=f"table 4: element {position + (position == 6)} is not"):
                associated_data(*row)


@pytest.mark.parametrize("position", [3, 4, 5])
def test_the_first_number_that_is_too_large_is_refused(position: int) -> None:
    row: list[Any] = [PART, b"", b"", 0, 0, 0, b""]
    row[position] = 2**64
    with pytest.raises(FormatError, match=f"element {position} is not"):
        associated_data(*row)


@pytest.mark.parametrize("value", [0, 2**32, 2**64 - 1])
def test_the_ends_of_numbers_are_accepted(value: int) -> None:
    assert msgpack.unpackb(associated_data(PART, b"", b"", value, value, value, b""))[3:6] == [value] * 3


def test_text_of_an_enum_binds_as_its_text() -> None:
    class Channel(enum.StrEnum):
        MESSAGES = "messages"

    row = elements(WRITE)
    assert associated_data(*row[:-1], Channel.MESSAGES) == associated_data(*row[:-1], "messages")


def test_a_large_value() -> None:
    value = os.urandom(3_000_000)
    assert unseal(KEY, seal(KEY, value, PLACE), PLACE, WHERE) == value


@given(
    st.sampled_from(sorted(COLUMNS)),
    st.binary(max_size=20),
    st.binary(max_size=300),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.data(),
)
@settings(deadline=None)
def test_a_range_binds_the_same_bytes(
    table: int, deployment: bytes, customer: bytes, generation: int, scope: int, number: int, data: st.DataObject
) -> None:
    given_columns = [data.draw(columns) for _ in COLUMNS[table]]
    found = associated_range(table, deployment, customer, generation, scope, *given_columns)
    assert found.at(number) == associated_data(table, deployment, customer, generation, scope, number, *given_columns)


def records_in(count: int) -> tuple[Range, list[tuple[int, bytes, bytes]]]:
    """Some records of one scope, each under a key of its own."""
    place = (PART, b"d" * 16, b"c" * 16, 1, 17)
    records = []
    for number in range(16, 16 + count):
        key = bytes([number]) * 32
        sealed = seal(key, b"text" * number, associated_data(*place, number, b"t" * 16), pad_to=1 + number % 3 * 7)
        records.append((number, sealed, key))
    return associated_range(*place, b"t" * 16), records


def test_a_range_opens_to_its_plaintexts() -> None:
    associated, records = records_in(9)
    assert unseal_range(records, associated, WHERE) == {number: b"text" * number for number, _, _ in records}


@pytest.mark.parametrize("bit", [0, 7, 8, 100, 8 * 40, -1])
@pytest.mark.parametrize("position", [2, 3])  # with and without zeros behind the text
def test_one_altered_record_shuts_its_range(bit: int, position: int) -> None:
    associated, records = records_in(5)
    number, sealed, key = records[position]
    altered = bytearray(sealed)
    altered[bit // 8 if bit >= 0 else -1] ^= 1 << (bit % 8)
    records[position] = (number, bytes(altered), key)
    with pytest.raises((UnsealError, FormatError), match=f"/{number} "):
        unseal_range(records, associated, ("parts", 17))


def test_records_that_changed_places_do_not_open() -> None:
    associated, records = records_in(3)
    (first, one, key), (second, two, other) = records[:2]
    for moved in ([(first, two, key), (second, one, other)], [(second, one, key)], [(first, one[:29], key)]):
        with pytest.raises(UnsealError):
            unseal_range(moved, associated, WHERE)
    with pytest.raises(FormatError):
        unseal_range([(first, b"", key)], associated, WHERE)
    with pytest.raises(ValueError, match="32 bytes"):
        unseal_range([(first, one, key[:16])], associated, WHERE)
