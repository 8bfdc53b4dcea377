"""A channel whose versions are cut into parts and read back, without a database."""

from __future__ import annotations

import msgpack

from shredsaver.parts import PART_START, Entry, Value, join, needed, pack_manifest, split, unpack_manifest

INDEX_MARK = b"\xc1"


class Channel:
    """One channel's versions, and its parts as a database keeps them."""

    def __init__(self, gap: int = 0) -> None:
        self.parts: dict[int, bytes] = {}
        self.known: dict[bytes, int] = {}
        self.value: Value | None = None
        self.next = PART_START
        self.gap = gap

    def put(self, data: bytes, tag: str = "msgpack") -> list[bytes]:
        """Stores the next version; checks that a process that read the one before would have done the same."""
        value, new = split(tag, data, self.value, self.known, self.next)
        if self.value is not None:
            other, other_new = split(tag, data, self.read(self.value.entry), self.known, self.next)
            assert (other.entry, other_new) == (value.entry, new)
        self.parts.update(enumerate(new, self.next))
        self.next += len(new) + self.gap
        self.value = value
        self.check(value, tag, data)
        return new

    def check(self, value: Value, tag: str, data: bytes) -> None:
        packed = msgpack.packb(pack_manifest({"channel": value.entry}))
        (entry,) = unpack_manifest(msgpack.unpackb(packed)).values()
        assert entry == value.entry
        read = self.read(entry)
        assert (read.tag, read.data) == (value.tag, value.data) == (tag, data)
        assert (read.bounds, read.numbers, read.indexed) == (value.bounds, value.numbers, value.indexed)
        assert dict(read.indexes) == dict(value.indexes)

    def read(self, entry: Entry) -> Value:
        have: dict[int, bytes] = {}
        rounds = 0
        while ranges := needed(entry, have):
            fetched = {number: self.parts[number] for run in ranges for number in run}
            assert not fetched.keys() & have.keys()
            have |= fetched
            rounds += 1
            assert rounds <= len(entry.levels)
        return join(entry, have)


def contents(new: list[bytes]) -> list[bytes]:
    """New parts but for index parts."""
    return [part for part in new if not part.startswith(INDEX_MARK)]
