"""The journal of revocations: what an append looks at, what a crash leaves, what an altered line does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shredsaver import RevocationLogDamagedError
from shredsaver.journal import LINE, TAIL, Journal
from shredsaver.reconcile import Dead

KEY = bytes(range(32))
MANY = TAIL // 100  # more than an append looks at


def dead(number: int) -> Dead:
    return Dead(hashlib.sha256(number.to_bytes(4, "big")).digest()[:16], 1, "2026-01-01T00:00:00.000+00:00")


@pytest.fixture
def path(home: Path) -> Path:
    return home / "journal"


@pytest.fixture(params=[1, 2, 3, MANY])
def kept(request: pytest.FixtureRequest, path: Path) -> list[Dead]:
    """A journal with some entries."""
    entries = [dead(number) for number in range(request.param)]
    Journal(path, KEY).append(*entries)
    return entries


def test_an_append_looks_at_the_end_only_and_a_reading_at_everything(path: Path) -> None:
    kept = [dead(number) for number in range(MANY)]
    journal = Journal(path, KEY)
    journal.append(*kept)
    before = path.read_bytes()
    assert len(before) > TAIL + 2 * LINE
    path.write_bytes(before.replace(b"2026", b"2025", 1))
    journal.append(dead(-1 % 2**32))
    with pytest.raises(RevocationLogDamagedError, match="line 1 of"):
        journal.read()
    with pytest.raises(RevocationLogDamagedError):
        journal.read_after(0, "")
    path.write_bytes(before + path.read_bytes()[len(before) :])
    assert journal.read() == [*kept, dead(-1 % 2**32)]


def test_what_was_added_lately_is_not_added_again(path: Path) -> None:
    """Also a batch that is much longer than the end which a single entry is compared with."""
    journal = Journal(path, KEY)
    batch = [dead(number) for number in range(5 * MANY)]
    journal.append(*batch)
    journal.append(*batch)
    journal.append(batch[-1], batch[-2])
    journal.append(*batch[MANY:], dead(10_000))
    assert journal.read() == [*batch, dead(10_000)]
    # An older one that is added again does no harm.
    journal.append(batch[0])
    assert journal.read() == [*batch, dead(10_000), batch[0]]


def test_a_last_line_cut_off_anywhere_is_written_anew(path: Path, kept: list[Dead]) -> None:
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1 if len(kept) > 1 else 0
    for end in range(last, len(whole), 1 if len(kept) == 2 else 31):
        path.write_bytes(whole[:end])
        Journal(path, KEY).append(kept[-1])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("length", [1, TAIL - 1, TAIL + LINE, 5 * TAIL])
def test_a_last_line_of_any_length_is_passed_over(length: int, path: Path, kept: list[Dead]) -> None:
    """A file system may leave zeros where a write was cut off."""
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(length))
    assert Journal(path, KEY).read() == kept
    path.write_bytes(whole + bytes(length))
    Journal(path, KEY).append(dead(10_000))
    assert Journal(path, KEY).read() == [*kept, dead(10_000)]


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b"2026", b"2025"),
        lambda line: line.replace(b'"generation": 1', b'"generation": 2'),
        lambda line: line[:-5] + b'000"}',
        lambda line: b"{}",
        lambda line: b"\xff" * len(line),
        lambda line: b"",
    ],
    ids=["time", "generation", "mac", "empty object", "not ascii", "gone"],
)
def test_nothing_follows_an_entry_at_the_end_that_was_altered(
    back: int, change: object, path: Path, kept: list[Dead]
) -> None:
    assert callable(change)
    lines = path.read_bytes().split(b"\n")[:-1]
    if back > len(lines):
        return
    lines[-back] = change(lines[-back])
    altered = b"\n".join(lines) + b"\n"
    path.write_bytes(altered)
    with pytest.raises(RevocationLogDamagedError):
        Journal(path, KEY).append(dead(10_000))
    assert path.read_bytes() == altered


@pytest.mark.parametrize("length", range(TAIL, TAIL + LINE, 60))
def test_an_altered_last_entry_shows_however_long_a_line_was_cut_off_behind_it(length: int, path: Path) -> None:
    Journal(path, KEY).append(*(dead(number) for number in range(MANY)))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1)
    path.write_bytes(whole[:last] + whole[last:].replace(b"2026", b"2025") + bytes(length))
    with pytest.raises(RevocationLogDamagedError):
        Journal(path, KEY).append(dead(10_000))


def test_a_line_taken_out_near_the_end_shows(path: Path) -> None:
    Journal(path, KEY).append(*(dead(number) for number in range(MANY)))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:-3], *lines[-2:]]))
    with pytest.raises(RevocationLogDamagedError):
        Journal(path, KEY).append(dead(10_000))


def test_another_key_can_add_nothing(path: Path, kept: list[Dead]) -> None:
    with pytest.raises(RevocationLogDamagedError):
        Journal(path, bytes(32)).append(dead(10_000))
