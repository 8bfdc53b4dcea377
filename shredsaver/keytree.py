"""The puncturable key tree: 2**64 record keys from a few nodes, any of which can be given up one by one.

A GGM tree (Goldreich, Goldwasser, Micali 1986) used as a puncturable pseudorandom function. A node is 32 bytes; its two
children are the halves of ``SHA-512(0x00000001 || node || "shredsaver/v1/tree")``, the one-step key derivation of
NIST SP 800-56C rev. 2, section 4. A leaf is a record key. Its index has 64 bits, most significant first: the scope
(32), then the number (32).

A tree is the set of nodes that are still held. Puncturing replaces the node above a leaf by the siblings along the path
to it, so that this key is gone and every other one stays derivable. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from shredsaver.errors import FormatError

KEY_BYTES: Final = 32
LAST: Final = 2**32 - 1
"""The highest scope, and the highest number in a scope."""

_DEPTH: Final = 64
_COUNTER: Final = b"\x00\x00\x00\x01"
_LABEL: Final = b"shredsaver/v1/tree"

_MAGIC: Final = b"SSKT"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBI")
_NODE: Final = struct.Struct(">BQ32s")
_PADDING: Final = b"\x80"
_MIN_BYTES: Final = 64

# A prime, so that the scopes used together (0, 1 and a thread's pair, 16 and 17 the first) do not share a place.
_PATHS: Final = 7
# Any index differs from -1 in more bits than an empty path has.
_NO_PATH: Final[tuple[int, tuple[bytes, ...]]] = (-1, ())


class KeyPuncturedError(LookupError):
    """No key can be derived there: it was punctured, or the place lies outside the tree. It never comes back."""


class _Node(NamedTuple):
    start: int  # the lowest index it covers
    depth: int  # the length of its prefix in bits
    secret: bytes

    @property
    def end(self) -> int:
        return self.start | ((1 << (_DEPTH - self.depth)) - 1)


class KeyTree:
    """The record keys of one customer, without those that were punctured.

    Immutable: puncturing gives another tree, which shares no derivation path with this one. Safe to use from many
    threads. What a derivation computed on its way down is kept for the last number used in each of a few scopes, so
    that a neighbour costs about one hash, and the first key of a scope at most 64.
    """

    __slots__ = ("_nodes", "_paths", "_starts")

    def __init__(self, nodes: tuple[_Node, ...], starts: tuple[int, ...] | None = None) -> None:
        """Use `generate` or `from_bytes`: here the nodes must be in order and without overlap."""
        self._nodes = nodes
        self._starts = tuple(node.start for node in nodes) if starts is None else starts
        self._paths = [_NO_PATH] * _PATHS

    def __repr__(self) -> str:
        return f"<KeyTree of {len(self._nodes)} nodes>"

    @classmethod
    def generate(cls) -> KeyTree:
        """Makes a whole tree from 32 random bytes."""
        return cls((_Node(0, 0, os.urandom(KEY_BYTES)),))

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyTree:
        """Reads what `to_bytes` wrote; there is one encoding of each tree, and nothing else is accepted.

        Raises:
            FormatError: Not a key tree, a version from the future, nodes out of order or overlapping, or bad padding.
        """
        if len(data) < _MIN_BYTES:
            raise FormatError(f"key tree: {len(data)} bytes are too few; it is truncated or not a key tree")
        magic, version, count = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise FormatError("key tree: it does not start with the mark of a key tree")
        if version != _VERSION:
            raise FormatError(f"key tree: version {version} is not {_VERSION}; a newer release may read it")
        end = _HEADER.size + count * _NODE.size
        if len(data) != _padded(end + 1):
            raise FormatError(f"key tree: {len(data)} bytes do not fit {count} nodes; it is truncated or extended")
        if data[end] != _PADDING[0] or data.count(0, end + 1) != len(data) - end - 1:
            raise FormatError("key tree: bad padding after the last node")
        nodes: list[_Node] = []
        lowest = 0
        for depth, start, secret in _NODE.iter_unpack(data[_HEADER.size : end]):
            if depth > _DEPTH or start & ((1 << (_DEPTH - depth)) - 1):
                raise FormatError(f"key tree: node {len(nodes)} has no valid prefix")
            if start < lowest:
                raise FormatError(f"key tree: node {len(nodes)} is out of order or overlaps the one before")
            node = _Node(start, depth, secret)
            lowest = node.end + 1
            nodes.append(node)
        return cls(tuple(nodes))

    def to_bytes(self) -> bytes:
        """Writes the tree; its secrets are in the clear there, so the result is for sealing only.

        Returns:
            Header, nodes and padding (0x80, then zeros); the length is a power of two and at least 64.
        """
        nodes = [_NODE.pack(depth, start, secret) for start, depth, secret in self._nodes]
        data = b"".join((_HEADER.pack(_MAGIC, _VERSION, len(nodes)), *nodes, _PADDING))
        return data.ljust(_padded(len(data)), b"\x00")

    def derive(self, scope: int, number: int) -> bytes:
        """Gives the 32-byte key of a record.

        Args:
            scope: 0 to 2**32 - 1.
            number: 0 to 2**32 - 1.

        Raises:
            KeyPuncturedError: The key was punctured, or scope or number is outside its range.
        """
        if (scope | number) >> 32:
            raise KeyPuncturedError(f"scope {scope}, number {number} is outside the key tree")
        index = scope << 32 | number
        last, digests = self._paths[scope % _PATHS]
        changed = (last ^ index).bit_length()
        if changed > 1 or not digests:
            digests = self._path(index)
            if not digests:
                return self._nodes[bisect_right(self._starts, index) - 1].secret
        # The same leaf as last time, its sibling or another: both leaves of a pair are halves of the last digest.
        return digests[-1][KEY_BYTES:] if index & 1 else digests[-1][:KEY_BYTES]

    def derive_range(self, scope: int, first: int, last: int) -> list[bytes]:
        """Gives the keys of ``first`` to ``last``, both included, of one scope: what `derive` gives for each.

        Raises:
            KeyPuncturedError: As `derive`, for any of them.
        """
        start, stop = scope << 32 | first, scope << 32 | last
        common = (start ^ stop).bit_length()
        path = () if (scope | first | last) >> 32 or first >= last else self._path(start)
        if not path or common > len(path):
            return [self.derive(scope, number) for number in range(first, last + 1)]
        # From the lowest node above all of them, level by level.
        digest = path[-common]
        secrets = [digest[:KEY_BYTES], digest[KEY_BYTES:]]
        lowest = start >> (common - 1)
        for bit in range(common - 2, -1, -1):
            halves: list[bytes] = []
            for secret in secrets:
                digest = _children(secret)
                halves += (digest[:KEY_BYTES], digest[KEY_BYTES:])
            begin = (start >> bit) - 2 * lowest
            lowest = start >> bit
            secrets = halves[begin : begin + (stop >> bit) - lowest + 1]
        return secrets

    def alive(self, scope: int, number: int) -> bool:
        """Tells whether `derive` would give a key."""
        return not (scope | number) >> 32 and self._covering(scope << 32 | number) is not None

    def next_alive(self, scope: int, number: int) -> int | None:
        """Gives the lowest number >= ``number`` in the scope whose key is derivable, None when there is none."""
        if (scope | number) >> 32:
            return None
        index = scope << 32 | number
        if self._covering(index) is not None:
            return number
        following = bisect_right(self._starts, index)
        if following == len(self._starts) or self._starts[following] >> 32 != scope:
            return None
        return self._starts[following] & LAST

    def puncture(self, scope: int, number: int) -> KeyTree:
        """Gives a tree without the key of one record. Puncturing twice changes nothing.

        Raises:
            ValueError: Scope or number is outside 0 to 2**32 - 1.
        """
        return self.puncture_range(scope, number, number)

    def puncture_range(self, scope: int, first: int, last: int) -> KeyTree:
        """Gives a tree without the keys of ``first`` to ``last``, both included, of one scope.

        Raises:
            ValueError: Scope or number is outside 0 to 2**32 - 1, or ``last`` is below ``first``.
        """
        _check(scope, scope)
        _check(first, last)
        return self._without(scope << 32 | first, scope << 32 | last)

    def puncture_scope(self, first_scope: int, last_scope: int) -> KeyTree:
        """Gives a tree without any key of the scopes ``first_scope`` to ``last_scope``, both included.

        Raises:
            ValueError: A scope is outside 0 to 2**32 - 1, or ``last_scope`` is below ``first_scope``.
        """
        _check(first_scope, last_scope)
        return self._without(first_scope << 32, last_scope << 32 | LAST)

    def refresh(self, first_scope: int) -> KeyTree:
        """Gives a tree whose scopes from ``first_scope`` on have fresh random keys; those below keep theirs.

        For key rotation: no scope from ``first_scope`` on may be in use, as its records would not open any more.

        Raises:
            ValueError: The scope is outside 0 to 2**32 - 1.
        """
        _check(first_scope, LAST)
        nodes = list(self._without(first_scope << 32, LAST << 32 | LAST)._nodes)
        start = first_scope << 32
        while start < 1 << _DEPTH:
            # Aligned blocks up to the very end: each is as large as its start allows.
            size = start & -start or 1 << _DEPTH
            nodes.append(_Node(start, _DEPTH + 1 - size.bit_length(), os.urandom(KEY_BYTES)))
            start += size
        return KeyTree(tuple(nodes))

    def refreshed_from(self) -> int:
        """Gives the scope from which the latest `refresh` gave fresh keys, 0 where there was none.

        It is read off the nodes: a refresh leaves aligned blocks, each larger than the one before, up to the end. Where
        a key was punctured behind that scope since, a higher one is given, up to the one after the punctured key's. A
        lower one, by 2 at most, is given only where keys were punctured just before it; that holds for a scope of the
        form 4n + 2, whose own block spans 2 and cannot continue a row of smaller ones.
        """
        found, size = 1 << _DEPTH, 1 << (_DEPTH + 1)
        for node in reversed(self._nodes):
            length = 1 << (_DEPTH - node.depth)
            if length >= size or node.start + length != found:
                break
            found, size = node.start, length
        return found >> (_DEPTH // 2)

    def _path(self, index: int) -> tuple[bytes, ...]:
        """The digests from a node of the tree down to a leaf, the last one being the leaf's and its sibling's.

        It is empty where the node is the leaf. What a path walked before has in common with it is not walked again.

        Raises:
            KeyPuncturedError: There is no such node.
        """
        last, digests = self._paths[(index >> 32) % _PATHS]
        if (last ^ index).bit_length() > len(digests):
            last, digests = max(self._paths, key=lambda path: len(path[1]) - (path[0] ^ index).bit_length())
        changed = (last ^ index).bit_length()
        if changed <= len(digests):
            path = list(digests[: len(digests) - max(changed, 1) + 1])
            height = len(digests)
        else:
            node = self._covering(index)
            if node is None:
                raise KeyPuncturedError(f"the key of scope {index >> 32}, number {index & LAST} was punctured")
            height = _DEPTH - node.depth
            if not height:
                return ()
            path = [_children(node.secret)]
        digest = path[-1]
        for bit in range(height - len(path), 0, -1):
            digest = _children(digest[KEY_BYTES:] if index >> bit & 1 else digest[:KEY_BYTES])
            path.append(digest)
        # One store of an immutable value: another thread sees the old path or the new one, never a mixture.
        found = tuple(path)
        self._paths[(index >> 32) % _PATHS] = (index, found)
        return found

    def _covering(self, index: int) -> _Node | None:
        position = bisect_right(self._starts, index) - 1
        if position < 0:
            return None
        node = self._nodes[position]
        return None if (node.start ^ index) >> (_DEPTH - node.depth) else node

    def _without(self, first: int, last: int) -> KeyTree:
        """Drops the indexes first to last. Between the two ends whole nodes go; at each end one node is opened."""
        begin = bisect_right(self._starts, first) - 1
        if begin < 0 or self._nodes[begin].end < first:
            begin += 1
        end = bisect_left(self._starts, last + 1)
        survivors = [node for touched in self._nodes[begin:end] for node in _survivors(touched, first, last)]
        return KeyTree(
            (*self._nodes[:begin], *survivors, *self._nodes[end:]),
            (*self._starts[:begin], *(node.start for node in survivors), *self._starts[end:]),
        )


def _children(secret: bytes) -> bytes:
    return hashlib.sha512(_COUNTER + secret + _LABEL).digest()


def _survivors(node: _Node, first: int, last: int) -> Iterable[_Node]:
    """The nodes below ``node`` that cover all its indexes but first to last, in order."""
    stack = [node]
    while stack:
        node = stack.pop()
        if last < node.start or node.end < first:
            yield node
        elif node.start < first or last < node.end:
            digest = _children(node.secret)
            depth = node.depth + 1
            stack.append(_Node(node.start | 1 << (_DEPTH - depth), depth, digest[KEY_BYTES:]))
            stack.append(_Node(node.start, depth, digest[:KEY_BYTES]))


def _padded(length: int) -> int:
    return max(_MIN_BYTES, 1 << (length - 1).bit_length())


def _check(first: int, last: int) -> None:
    if not 0 <= first <= last <= LAST:
        raise ValueError(f"{first} to {last} is no range within 0 to {LAST}")
