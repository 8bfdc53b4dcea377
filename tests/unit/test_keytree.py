"""The key tree against a model that knows nothing of trees: intervals of punctured indexes, and leaves hashed alone."""

from __future__ import annotations

import hashlib
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shredsaver.errors import FormatError
from shredsaver.keytree import _PATHS, LAST, KeyPuncturedError, KeyTree

ROOT = bytes(range(32))
WHOLE = b"SSKT\x01" + struct.pack(">IBQ", 1, 0, 0) + ROOT + b"\x80" + b"\x00" * 13

SCOPES = (0, 1, 2, 16, 17, 23, 2**31, LAST)
NUMBERS = (0, 1, 2, 3, 15, 16, 17, 1023, 2**31 - 1, 2**31, LAST - 1, LAST)

scopes = st.sampled_from(SCOPES) | st.integers(0, LAST)
numbers = st.sampled_from(NUMBERS) | st.integers(0, 40)
pairs = st.tuples(numbers, numbers).map(sorted)
scope_pairs = st.tuples(scopes, scopes).map(sorted)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("puncture"), scopes, numbers.map(lambda number: (number, number))),
        st.tuples(st.just("range"), scopes, pairs.map(tuple)),
        st.tuples(st.just("scopes"), st.just(0), scope_pairs.map(tuple)),
    ),
    max_size=8,
)


def leaf(scope: int, number: int) -> bytes:
    """The key of a record, by the definition alone."""
    node = ROOT
    for bit in f"{scope:032b}{number:032b}":
        digest = hashlib.sha512(b"\x00\x00\x00\x01" + node + b"shredsaver/v1/tree").digest()
        node = digest[32:] if bit == "1" else digest[:32]
    return node


def nodes_in(data: bytes) -> list[tuple[int, int]]:
    """The index intervals of a serialised tree's nodes, read apart from the code under test."""
    (count,) = struct.unpack_from(">I", data, 5)
    nodes = []
    for i in range(count):
        depth, start = struct.unpack_from(">BQ", data, 9 + 41 * i)
        nodes.append((start, start + 2 ** (64 - depth) - 1))
    return nodes


def union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def apply(tree: KeyTree, operation: tuple[str, int, tuple[int, int]]) -> tuple[KeyTree, tuple[int, int]]:
    """Punctures the tree; gives the interval of indexes that this must have cost."""
    kind, scope, (first, last) = operation
    if kind == "puncture":
        return tree.puncture(scope, first), (scope << 32 | first, scope << 32 | first)
    if kind == "range":
        return tree.puncture_range(scope, first, last), (scope << 32 | first, scope << 32 | last)
    return tree.puncture_scope(first, last), (first << 32, last << 32 | LAST)


@given(operations, st.booleans())
@settings(max_examples=150, deadline=None)
def test_punctured_keys_are_gone_and_all_others_stay(steps: list[tuple[str, int, tuple[int, int]]], warm: bool) -> None:
    tree = KeyTree.from_bytes(WHOLE)
    gone: list[tuple[int, int]] = []
    for step in steps:
        if warm:  # a path that is still remembered must not outlive the puncture
            for scope in SCOPES:
                if tree.alive(scope, 16):
                    tree.derive(scope, 16)
        before = tree.to_bytes()
        punctured, interval = apply(tree, step)
        assert tree.to_bytes() == before
        gone.append(interval)
        tree = KeyTree.from_bytes(punctured.to_bytes())
        assert tree.to_bytes() == punctured.to_bytes()
    gone = union(gone)

    # What is left and what is gone are disjoint and together everything: no node is above or at a punctured leaf.
    left = nodes_in(tree.to_bytes())
    assert union(left + gone) == [(0, 2**64 - 1)]
    assert sum(last - first + 1 for first, last in left + gone) == 2**64

    for scope in SCOPES:
        for number in NUMBERS:
            index = scope << 32 | number
            dead = any(first <= index <= last for first, last in gone)
            assert tree.alive(scope, number) is not dead
            if dead:
                with pytest.raises(KeyPuncturedError):
                    tree.derive(scope, number)
            else:
                assert tree.derive(scope, number) == leaf(scope, number)
            following = index
            for first, last in gone:
                if first <= following <= last:
                    following = last + 1
            assert tree.next_alive(scope, number) == (following & LAST if following >> 32 == scope else None)


@given(st.lists(st.tuples(scopes, numbers | st.integers(0, LAST)), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_every_order_of_derivation_gives_the_same_keys(places: list[tuple[int, int]]) -> None:
    tree = KeyTree.from_bytes(WHOLE)
    for scope, number in [*places, *places[::-1], *((scope, number ^ 1) for scope, number in places)]:
        assert tree.derive(scope, number) == leaf(scope, number)


def test_neighbours_across_every_carry() -> None:
    tree = KeyTree.from_bytes(WHOLE)
    for bit in range(32):
        for number in (2**bit - 1, 2**bit):
            assert tree.derive(17, number) == leaf(17, number)


def test_a_neighbour_costs_about_one_hash_and_any_key_at_most_64(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = hashlib.sha512

    def counted(data: bytes) -> object:
        nonlocal calls
        calls += 1
        return original(data)

    monkeypatch.setattr(hashlib, "sha512", counted)
    tree = KeyTree.from_bytes(WHOLE)
    tree.derive(16, 0)
    tree.derive(17, 0)
    assert calls == 64 + 32  # the two scopes have half of the way in common
    for number in range(1, 1001):  # a thread's two scopes in turn, as a superstep uses them
        tree.derive(16, number)
        tree.derive(17, number)
    assert calls <= 96 + 2 * 1000


def test_a_punctured_leaf_costs_64_nodes_and_64_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = hashlib.sha512

    def counted(data: bytes) -> object:
        nonlocal calls
        calls += 1
        return original(data)

    tree = KeyTree.from_bytes(WHOLE)
    monkeypatch.setattr(hashlib, "sha512", counted)
    punctured = tree.puncture(16, 16)
    assert (repr(punctured), calls) == ("<KeyTree of 64 nodes>", 64)
    # Within one scope, oldest first: the state stays small however many are gone.
    for number in range(200):
        punctured = punctured.puncture(16, number)
    assert len(nodes_in(punctured.to_bytes())) <= 64


def test_many_punctures_stay_exact() -> None:
    tree = KeyTree.from_bytes(WHOLE)
    for number in range(0, 2000, 2):
        tree = tree.puncture(17, number)
    assert len(nodes_in(tree.to_bytes())) > 1000
    assert [number for number in range(2000) if tree.alive(17, number)] == list(range(1, 2000, 2))
    assert tree.derive(17, 1001) == leaf(17, 1001)
    assert tree.derive(18, 0) == leaf(18, 0)
    with pytest.raises(KeyPuncturedError):
        tree.derive(17, 1000)


@given(scopes, operations)
@settings(max_examples=60, deadline=None)
def test_refresh_replaces_the_scopes_from_there_on_only(
    first: int, steps: list[tuple[str, int, tuple[int, int]]]
) -> None:
    tree = KeyTree.from_bytes(WHOLE)
    for step in steps:
        tree, _ = apply(tree, step)
    fresh = KeyTree.from_bytes(tree.refresh(first).to_bytes())
    for scope in SCOPES:
        for number in NUMBERS:
            if scope >= first:
                assert fresh.derive(scope, number) != leaf(scope, number)
            elif tree.alive(scope, number):
                assert fresh.derive(scope, number) == leaf(scope, number)
            else:
                assert not fresh.alive(scope, number)


def test_refresh_never_repeats_a_key() -> None:
    tree = KeyTree.from_bytes(WHOLE)
    assert tree.refresh(16).derive(16, 0) != tree.refresh(16).derive(16, 0)
    fresh = tree.refresh(1)
    assert len({fresh.derive(2**bit, 0) for bit in range(32)}) == 32


forms = st.integers(0, 2**20).map(lambda number: 4 * number + 2)
"""Scopes that a refresh begins at, so that it can be told later."""


@given(st.lists(forms, max_size=6), st.lists(st.tuples(st.integers(0, 2**22), st.sampled_from(NUMBERS)), max_size=3))
@settings(max_examples=200, deadline=None)
def test_a_tree_tells_where_it_was_refreshed_last(firsts: list[int], holes: list[tuple[int, int]]) -> None:
    tree, latest = KeyTree.generate(), 0
    assert tree.refreshed_from() == 0
    for first in firsts:
        tree, latest = tree.refresh(first), first
        assert KeyTree.from_bytes(tree.to_bytes()).refreshed_from() == latest
    for scope, number in holes:
        tree = tree.puncture(scope, number)
    behind = [scope for scope, _ in holes if scope >= latest]
    assert max(latest - 2, 0) <= tree.refreshed_from() <= max([latest, *(scope + 1 for scope in behind)])


def test_keys_punctured_just_before_it_hide_a_refresh_by_two_scopes_at_most() -> None:
    tree = KeyTree.generate().refresh(6)
    assert tree.puncture_scope(4, 4).refreshed_from() == 5
    assert tree.puncture(4, 0).refreshed_from() == 4
    assert tree.puncture(3, 0).refreshed_from() == 6
    assert tree.puncture_scope(5, 5).refreshed_from() == 6, "a gap is no part of a row of blocks"
    # One that begins at another form of scope may not be told from the one before: [2, 4), [4, 8) and so on.
    assert KeyTree.generate().refresh(2).refresh(8).refreshed_from() == 2


def test_generated_trees_differ_and_survive_their_bytes() -> None:
    one, two = KeyTree.generate(), KeyTree.generate()
    assert one.derive(0, 0) != two.derive(0, 0)
    assert nodes_in(one.to_bytes()) == [(0, 2**64 - 1)]
    assert KeyTree.from_bytes(one.to_bytes()).derive(16, 16) == one.derive(16, 16)


def test_a_tree_with_nothing_left() -> None:
    empty = KeyTree.from_bytes(KeyTree.generate().puncture_scope(0, LAST).to_bytes())
    assert not empty.alive(0, 0)
    assert empty.next_alive(0, 0) is None
    with pytest.raises(KeyPuncturedError):
        empty.derive(LAST, LAST)
    assert len(empty.to_bytes()) == 64


@pytest.mark.parametrize(("scope", "number"), [(-1, 0), (0, -1), (LAST + 1, 0), (0, LAST + 1), (-1, -1)])
def test_a_place_outside_the_tree_has_no_key(scope: int, number: int) -> None:
    tree = KeyTree.from_bytes(WHOLE)
    with pytest.raises(KeyPuncturedError, match="outside"):
        tree.derive(scope, number)
    assert not tree.alive(scope, number)
    assert tree.next_alive(scope, number) is None
    with pytest.raises(ValueError, match="no range"):
        tree.puncture(scope, number)


@pytest.mark.parametrize(("first", "last"), [(1, 0), (-1, 0), (0, LAST + 1)])
def test_a_range_that_is_none_is_refused(first: int, last: int) -> None:
    tree = KeyTree.from_bytes(WHOLE)
    with pytest.raises(ValueError, match="no range"):
        tree.puncture_range(0, first, last)
    with pytest.raises(ValueError, match="no range"):
        tree.puncture_scope(first, last)


@pytest.mark.parametrize("scope", [-1, LAST + 1])
def test_refresh_outside_the_tree_is_refused(scope: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        KeyTree.from_bytes(WHOLE).refresh(scope)


def test_nothing_shown_holds_a_secret() -> None:
    tree = KeyTree.from_bytes(WHOLE)
    key = tree.derive(16, 16)
    punctured = tree.puncture(16, 16)
    with pytest.raises(KeyPuncturedError, match="scope 16, number 16 was punctured") as caught:
        punctured.derive(16, 16)
    for text in (repr(tree), str(tree), repr(caught.value)):
        for secret in (ROOT, key):
            assert secret.hex() not in text
            assert repr(secret) not in text


def packed(*nodes: tuple[int, int], length: int | None = None, padding: bytes = b"\x80") -> bytes:
    data = b"SSKT\x01" + struct.pack(">I", len(nodes))
    data += b"".join(struct.pack(">BQ", depth, start) + ROOT for depth, start in nodes) + padding
    return data.ljust(length or max(64, 1 << (len(data) - 1).bit_length()), b"\x00")


def test_the_reader_accepts_what_the_failing_cases_are_made_from() -> None:
    assert packed((0, 0)) == WHOLE
    assert KeyTree.from_bytes(packed((2, 0), (1, 2**63))).to_bytes() == packed((2, 0), (1, 2**63))


@pytest.mark.parametrize(("nodes", "length"), [(6, 256), (799, 65_536)])
def test_lengths_at_a_power_of_two(nodes: int, length: int) -> None:
    """Six nodes leave just the one byte of padding; 799 fill 32 KiB to the last byte, so the padding doubles it."""
    data = packed(*((64, 2 * i) for i in range(nodes)))
    assert len(data) == length
    assert KeyTree.from_bytes(data).to_bytes() == data
    assert KeyTree.from_bytes(data).derive(0, 2) == ROOT


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few"),
        (WHOLE[:63], "too few"),
        (b"SSKX" + WHOLE[4:], "mark"),
        (WHOLE[:4] + b"\x02" + WHOLE[5:], "version 2"),
        (WHOLE[:4] + b"\x00" + WHOLE[5:], "version 0"),
        (WHOLE + b"\x00", "do not fit"),
        (WHOLE + b"\x00" * 64, "do not fit"),
        (packed((0, 0), length=128), "do not fit"),
        (WHOLE[:5] + struct.pack(">I", 2) + WHOLE[9:], "do not fit"),
        (WHOLE[:5] + struct.pack(">I", 2**32 - 1) + WHOLE[9:], "do not fit"),
        (WHOLE[:5] + struct.pack(">I", 0) + WHOLE[9:], "padding"),
        (packed((0, 0), padding=b"\x00"), "padding"),
        (packed((0, 0), padding=b"\x81"), "padding"),
        (packed((0, 0), padding=b"\x80\x00\x01"), "padding"),
        (WHOLE[:-1] + b"\x01", "padding"),
        (packed((65, 0)), "prefix"),
        (packed((255, 0)), "prefix"),
        (packed((0, 1)), "prefix"),
        (packed((1, 2**62)), "prefix"),
        (packed((63, 1)), "prefix"),
        (packed((1, 2**63), (1, 0)), "out of order"),
        (packed((1, 0), (1, 0)), "overlaps"),
        (packed((1, 0), (2, 0)), "overlaps"),
        (packed((0, 0), (64, 5)), "overlaps"),
        (packed((64, 5), (64, 5)), "overlaps"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        KeyTree.from_bytes(data)


@given(st.binary(max_size=200) | st.binary(max_size=120).map(lambda tail: WHOLE[:9] + tail))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_one_tree_or_a_format_error(data: bytes) -> None:
    try:
        tree = KeyTree.from_bytes(data)
    except FormatError:
        return
    assert tree.to_bytes() == data


def test_threads_share_a_tree() -> None:
    tree = KeyTree.from_bytes(WHOLE).puncture(17, 50)
    wanted = {(scope, number): leaf(scope, number) for scope in (16, 17, 23, 24) for number in range(100)}
    wrong: list[tuple[int, int]] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        places = list(wanted)
        start.wait()
        for i in range(len(places) * 3):
            place = places[(i * (2 * seed + 1) + seed) % len(places)]
            try:
                if tree.derive(*place) != wanted[place] or place == (17, 50):
                    wrong.append(place)
            except KeyPuncturedError:
                if place != (17, 50):
                    wrong.append(place)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@settings(max_examples=40, deadline=None)
@given(operations, scopes, numbers, st.integers(0, 200))
def test_a_range_of_keys_is_the_keys_one_by_one(
    done: list[tuple[str, int, tuple[int, int]]], scope: int, first: int, count: int
) -> None:
    last = min(first + count, LAST)
    tree = KeyTree.from_bytes(WHOLE)
    for kind, at, (begin, end) in done:
        tree = tree.puncture_scope(begin, end) if kind == "scopes" else tree.puncture_range(at, begin, end)
    if all(tree.alive(scope, number) for number in range(first, last + 1)):
        expected = [tree.derive(scope, number) for number in range(first, last + 1)]
        assert tree.derive_range(scope, first, last) == expected
        assert KeyTree.from_bytes(tree.to_bytes()).derive_range(scope, first, last) == expected
        for other in filter(lambda other: tree.alive(other, first), (scope ^ 1, scope ^ 1 << 31, scope + _PATHS)):
            tree.derive(other, first)
            assert tree.derive_range(scope, first, last) == expected
    else:
        with pytest.raises(KeyPuncturedError):
            tree.derive_range(scope, first, last)


@pytest.mark.parametrize(("scope", "first", "last"), [(16, 16, 15 + 64), (16, 16, 16 + 64), (17, 1000, 3000)])
def test_a_range_of_keys_is_what_the_definition_says(scope: int, first: int, last: int) -> None:
    keys = KeyTree.from_bytes(WHOLE).derive_range(scope, first, last)
    assert len(keys) == last - first + 1
    assert [keys[0], keys[len(keys) // 2], keys[-1]] == [
        leaf(scope, number) for number in (first, first + len(keys) // 2, last)
    ]


def test_a_pair_of_keys_under_a_node_of_its_own() -> None:
    """The shortest path there is, walked before the range is asked for."""
    whole = KeyTree.from_bytes(WHOLE)
    tree = whole.puncture_range(16, 2, 3)
    assert tree.derive(16, 0) == whole.derive(16, 0)
    assert tree.derive_range(16, 0, 1) == [whole.derive(16, 0), whole.derive(16, 1)]


@pytest.mark.parametrize(
    ("scope", "first", "last"), [(2**32, 0, 100), (-1, 0, 100), (0, LAST - 100, LAST + 1), (5, -1, 100)]
)
def test_a_range_outside_the_tree(scope: int, first: int, last: int) -> None:
    with pytest.raises(KeyPuncturedError, match="outside"):
        KeyTree.from_bytes(WHOLE).derive_range(scope, first, last)
