"""Opened vectors, stacked: what is ranked, what is kept, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shredsaver.errors import ConfigurationError
from shredsaver.vectors import Shelf, VectorCache, empty_shelf, shelved, stacked

vectors = st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=3)
items = st.dictionaries(st.integers(1, 60), vectors, max_size=20)


def matrix(rows: Sequence[Sequence[float]]) -> Any:
    return np.asarray(rows, dtype="<f4").reshape(-1, 3) if rows else None


def shelf_of(found: dict[int, Any]) -> Shelf:
    return shelved(3, [(number, matrix(found[number])) for number in sorted(found)])


def best(rows: Sequence[Sequence[float]], query: Sequence[float]) -> float:
    def cosine(row: Sequence[float]) -> float:
        length = float(np.linalg.norm(row) * np.linalg.norm(query))
        return float(np.dot(row, query)) / length if length else 0.0

    return max(map(cosine, rows))


@settings(max_examples=200, deadline=None)
@given(found=items, cut=st.integers(0, 60), query=st.tuples(*[st.integers(-3, 3)] * 3), data=st.data())
def test_ranking_is_by_each_items_best_vector(
    found: dict[int, Any], cut: int, query: tuple[int, ...], data: st.DataObject
) -> None:
    odd = {number: rows for number, rows in found.items() if number % 2}
    even = {number: rows for number, rows in found.items() if not number % 2}
    low, high = ({n: rows for n, rows in odd.items() if (n < cut) is side} for side in (True, False))
    shelf = stacked([empty_shelf(3), shelf_of(low), shelf_of(high), shelf_of(even)])
    assert shelf.numbers.tolist() == sorted(found)
    wanted = data.draw(st.permutations(sorted(found)))
    wanted = wanted[: data.draw(st.integers(0, len(wanted)))]
    ranked, scores, rest = shelf.having(wanted).ranking(query, [*wanted, 99])
    assert (ranked, scores, rest) == shelf.ranking(query, [*wanted, 99])
    assert rest == [number for number in wanted if not found[number]] + [99]
    assert sorted(ranked) == sorted(number for number in wanted if found[number])
    assert scores == pytest.approx([best(found[number], query) for number in ranked], abs=1e-6)
    assert scores == sorted(scores, reverse=True)
    assert shelf.missing([*wanted, 99]) == [99]


def test_what_is_alike_stays_in_the_order_given() -> None:
    shelf = shelf_of({number: [(1, 2, 3)] for number in range(1, 40)})
    given = [*range(20, 40), *range(1, 20)]
    assert shelf.ranking((1, 1, 1), given)[0] == given


def test_vectors_without_a_length_are_like_nothing() -> None:
    shelf = shelf_of({1: [(0, 0, 0)], 2: [(float("nan"), 1, 1)], 3: [(float("inf"), 1, 1)], 4: [(1, 0, 0)]})
    assert shelf.ranking((1, 0, 0), [1, 2, 3, 4])[:2] == ([4, 1, 2, 3], [1.0, 0.0, 0.0, 0.0])
    assert shelf.ranking((0, 0, 0), [1, 4])[1] == [0.0, 0.0]


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="dimensions"):
        shelved(4, [(1, matrix([(1, 2, 3)]))])


class TestCache:
    PLACE = (b"c", 1, "users/CUSTOMER", b"")

    @pytest.fixture
    def shelf(self) -> Callable[[int], Shelf]:
        return lambda count: shelf_of({number: [(1, 2, 3)] for number in range(count)})

    def test_it_has_a_bound_and_the_least_recently_used_goes(self, shelf: Callable[[int], Shelf]) -> None:
        cache = VectorCache(max_bytes=3 * shelf(10).nbytes)
        places = [(b"c", 1, "users/CUSTOMER", bytes([n])) for n in range(4)]
        for place in places[:3]:
            cache.keep(place, shelf(10), 0)
        assert cache.get(places[0])[0] is not None
        cache.keep(places[3], shelf(10), 0)
        assert [cache.get(place)[0] is not None for place in places] == [True, False, True, True]
        cache.keep(places[0], shelf(29), 0)  # nearly all
        assert [cache.get(place)[0] is not None for place in places] == [True, False, False, False]
        cache.keep(places[1], shelf(31), 0)  # more than all
        assert [cache.get(place)[0] for place in places] == [None] * 4
        assert cache._bytes == 0

    def test_a_search_under_way_does_not_bring_back_what_was_dropped(self, shelf: Callable[[int], Shelf]) -> None:
        cache = VectorCache()
        _, ticket = cache.get(self.PLACE)
        cache.keep(self.PLACE, shelf(3), ticket)
        cache.keep((b"d", *self.PLACE[1:]), shelf(3), ticket)
        cache.forget_customer(b"c")
        assert cache.get(self.PLACE)[0] is None
        assert cache.get((b"d", *self.PLACE[1:]))[0] is not None
        cache.keep(self.PLACE, shelf(3), ticket)
        assert cache.get(self.PLACE)[0] is None
        cache.keep(self.PLACE, shelf(3), cache.get(self.PLACE)[1])
        assert cache.get(self.PLACE)[0] is not None
