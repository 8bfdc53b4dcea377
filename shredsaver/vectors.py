"""Vectors of store items: sealed with their item, compared in memory, cached with a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from shredsaver.core import Core
from shredsaver.errors import ConfigurationError, FormatError, MissingDependencyError, PayloadError
from shredsaver.items import ItemRow, Owner
from shredsaver.records import unpack
from shredsaver.sealing import ITEM

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
    Scores = np.ndarray[tuple[int], np.dtype[np.float64]]

MAX_BYTES: Final = 64 * 1024 * 1024

Place = tuple[bytes, int, str, bytes]
"""Customer, generation, template, and the tokens of a prefix."""


def numpy() -> Any:
    """The module ``numpy``.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import numpy as np
    except ModuleNotFoundError:
        raise MissingDependencyError("semantic search needs numpy: run pip install 'shredsaver[search]'") from None
    return np


def pack_vectors(vectors: Sequence[Sequence[float]], dims: int) -> bytes:
    """Encodes vectors as ``[count, dimensions, 32-bit floats, little-endian]``.

    Raises:
        PayloadError: A vector has another number of dimensions than the index.
    """
    matrix = numpy().asarray(vectors, dtype="<f4")
    if matrix.shape != (len(vectors), dims):
        raise PayloadError(f"the embedding function gave vectors that do not have the index's {dims} dimensions")
    packed: bytes = msgpack.packb([len(vectors), dims, matrix.tobytes()])
    return packed


def open_vectors(core: Core, owner: Owner, row: ItemRow, sealed: bytes) -> Matrix:
    """Opens an item's vectors: a matrix of one row a vector.

    They have the number behind the item's and are bound to all that the item is bound to, so those of another item, or
    of an earlier version of this one, do not open here.
    """
    packed = core.unseal(owner.tree, ITEM, owner.pair, row.scope, row.number + 1, sealed, row.where, *row.columns)
    match unpack(packed):
        case [int() as count, int() as dims, bytes() as data] if count > 0 and len(data) == 4 * count * dims:
            matrix: Matrix = numpy().frombuffer(data, dtype="<f4").reshape(count, dims)
            return matrix
    raise FormatError("an item's vectors open to something else")


class Shelf(NamedTuple):
    """The opened vectors of some items, stacked. Nothing in it is ever changed, so threads may share it."""

    numbers: Numbers
    """The items, by number, ascending."""
    counts: Numbers
    """How many vectors each has: 0 where an item has none."""
    units: Matrix
    """All vectors, in the order of the items, each brought to the length 1."""

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.numbers.nbytes + self.counts.nbytes + self.units.nbytes

    def missing(self, wanted: Sequence[int]) -> list[int]:
        """Those items that are not on it, ascending."""
        asked = numpy().asarray(wanted, dtype="i8")
        found: list[int] = numpy().sort(asked[~self._find(asked)[1]]).tolist()
        return found

    def having(self, wanted: Sequence[int]) -> Shelf:
        """A shelf of those items only."""
        np = numpy()
        kept = np.isin(self.numbers, np.asarray(wanted, dtype="i8"))
        return Shelf(self.numbers[kept], self.counts[kept], self.units[np.repeat(kept, self.counts)])

    def ranking(self, query: Sequence[float], wanted: Sequence[int]) -> tuple[list[int], list[float], list[int]]:
        """Items by their likeness to a query.

        Returns:
            The items with vectors, best first and in the order given where they are alike; the cosine similarity of
            the best vector of each; the other items, in the order given.
        """
        np = numpy()
        asked = np.asarray(wanted, dtype="i8")
        best = np.append(self._scores(query), -np.inf)
        at, here = self._find(asked)
        scores = np.where(here, best[at], -np.inf)  # one that is not here went away between two statements
        order = np.argsort(-scores, kind="stable")
        ranked, rest = np.split(order, [np.count_nonzero(scores != -np.inf)])
        return asked[ranked].tolist(), scores[ranked].tolist(), asked[rest].tolist()

    def _find(self, asked: Numbers) -> tuple[Any, Any]:
        """Where each item is, and whether it is there at all."""
        at = numpy().searchsorted(self.numbers, asked)
        return at, numpy().append(self.numbers, -1)[at] == asked

    def _scores(self, query: Sequence[float]) -> Scores:
        np = numpy()
        best: Scores = np.full(len(self.numbers), -np.inf)
        filled = self.counts > 0
        if filled.any():
            starts = (np.cumsum(self.counts) - self.counts)[filled]
            # Not `@`: a BLAS may give rows that are alike scores that are not, by where they stand.
            likeness = np.einsum("ij,j->i", self.units, _units(np.asarray([query]))[0])
            best[filled] = np.maximum.reduceat(likeness, starts)
        return best


def empty_shelf(dims: int) -> Shelf:
    """A shelf of vectors of so many dimensions, with nothing on it."""
    np = numpy()
    return Shelf(np.zeros(0, "i8"), np.zeros(0, "i8"), np.zeros((0, dims), np.float32))


def stacked(shelves: Iterable[Shelf]) -> Shelf:
    """One shelf of several that have no item in common, each above the one before or not."""
    np = numpy()
    parts = list(shelves)
    numbers, counts = (np.concatenate([shelf[field] for shelf in parts]) for field in (0, 1))
    units = np.concatenate([shelf.units for shelf in parts])
    if (numbers[1:] > numbers[:-1]).all():
        return Shelf(numbers, counts, units)
    order = np.argsort(numbers)
    starts = (np.cumsum(counts) - counts)[order]
    moved = counts[order]
    rows = np.repeat(starts - (np.cumsum(moved) - moved), moved) + np.arange(len(units))
    return Shelf(numbers[order], moved, units[rows])


def shelved(dims: int, items: Sequence[tuple[int, Matrix | None]]) -> Shelf:
    """A shelf of items, given by ascending number.

    Raises:
        ConfigurationError: They were stored under an index with another number of dimensions.
    """
    np = numpy()
    matrices = [matrix for _, matrix in items if matrix is not None]
    if any(matrix.shape[1] != dims for matrix in matrices):
        raise ConfigurationError(
            f"some items were stored under an index of other dimensions than the {dims} of now: open with the index "
            "they were stored under, or put them again"
        )
    units = _units(np.concatenate([np.zeros((0, dims), "<f4"), *matrices]))
    counts = [0 if matrix is None else len(matrix) for _, matrix in items]
    return Shelf(np.asarray([number for number, _ in items], "i8"), np.asarray(counts, "i8"), units)


def _units(vectors: Matrix) -> Matrix:
    """Vectors brought to the length 1; those that have none, or no finite one, are like nothing."""
    np = numpy()
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    usable = (lengths > 0) & np.isfinite(lengths)
    units: Matrix = np.divide(exact, lengths, out=np.zeros_like(exact), where=usable).astype(np.float32)
    return units


class VectorCache:
    """Shelves by what was searched; dropped with the customer, and the least recently used when they are too many.

    Args:
        max_bytes: The most bytes kept. They are plaintext in this process's memory.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._shelves: OrderedDict[Place, Shelf] = OrderedDict()
        self._bytes = 0
        self._forgotten = 0

    def get(self, place: Place) -> tuple[Shelf | None, int]:
        """What is kept for a place, and a ticket for `keep`."""
        with self._lock:
            shelf = self._shelves.get(place)
            if shelf is not None:
                self._shelves.move_to_end(place)
            return shelf, self._forgotten

    def keep(self, place: Place, shelf: Shelf, ticket: int) -> None:
        """Keeps a shelf, unless a customer was forgotten since the ticket: it may be that customer's."""
        with self._lock:
            if ticket != self._forgotten:
                return
            self._drop(place)
            self._shelves[place] = shelf
            self._bytes += shelf.nbytes
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._shelves)))

    def forget_customer(self, customer: bytes) -> None:
        """Drops all of a customer's."""
        with self._lock:
            self._forgotten += 1
            for place in [place for place in self._shelves if place[0] == customer]:
                self._drop(place)

    def _drop(self, place: Place) -> None:
        shelf = self._shelves.pop(place, None)
        self._bytes -= 0 if shelf is None else shelf.nbytes
