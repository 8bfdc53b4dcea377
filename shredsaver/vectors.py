"""Vectors of store items: sealed with their item, compared in memory, cached with a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgpack

from shredsaver.core import Core
from shredsaver.errors import FormatError, MissingDependencyError, PayloadError
from shredsaver.items import ItemRow, Owner
from shredsaver.records import unpack
from shredsaver.sealing import ITEM

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]

MAX_BYTES: Final = 64 * 1024 * 1024


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
    """Opens an item's vectors: a matrix of one row a vector. They have the number behind the item's."""
    packed = core.unseal(owner.tree, ITEM, owner.pair, row.scope, row.number + 1, sealed, row.where, *row.columns)
    match unpack(packed):
        case [int() as count, int() as dims, bytes() as data] if count > 0 and len(data) == 4 * count * dims:
            matrix: Matrix = numpy().frombuffer(data, dtype="<f4").reshape(count, dims)
            return matrix
    raise FormatError("an item's vectors open to something else")


class VectorCache:
    """Opened vectors by customer, generation and number; dropped with the customer.

    Args:
        max_bytes: The most bytes kept. They are plaintext in this process's memory.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._vectors: OrderedDict[tuple[bytes, int, int], Matrix] = OrderedDict()
        self._bytes = 0

    def get(self, owner: Owner, numbers: Sequence[int]) -> dict[int, Matrix]:
        """Those that are here, by number."""
        with self._lock:
            keys = ((owner.customer, owner.generation, number) for number in numbers)
            return {key[2]: self._vectors[key] for key in keys if key in self._vectors}

    def add(self, owner: Owner, found: Mapping[int, Matrix]) -> None:
        """Keeps some; the oldest go."""
        with self._lock:
            for number, matrix in found.items():
                key = (owner.customer, owner.generation, number)
                if key not in self._vectors:
                    self._vectors[key] = matrix
                    self._bytes += matrix.nbytes
            while self._bytes > self._max_bytes:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes

    def forget_customer(self, customer: bytes) -> None:
        """Drops all of a customer's."""
        with self._lock:
            for key in [key for key in self._vectors if key[0] == customer]:
                self._bytes -= self._vectors.pop(key).nbytes


def best_scores(query: Sequence[float], matrices: Sequence[Matrix]) -> list[float]:
    """The cosine similarity of each matrix's best row with a query; 0 for a vector without length."""
    if not matrices:
        return []
    np = numpy()
    rows = np.concatenate(matrices).astype(np.float64)
    target = np.asarray(query, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(target)
    similarities = np.divide(rows @ target, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    starts = np.cumsum([0, *(len(matrix) for matrix in matrices[:-1])])
    best: list[float] = np.maximum.reduceat(similarities, starts).tolist()
    return best
