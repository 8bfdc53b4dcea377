"""What an opening compares, and what it leaves alone: the whole once, then what is new, and nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shredsaver import open_key_service
from shredsaver.db.base import Begin
from shredsaver.journal import Journal
from shredsaver.reconcile import Reconciliation
from tests.erasure.test_obstacles import filled
from tests.saver.test_key_calls import Observed
from tests.support.backends import Backend


class Asked(Observed):
    """A key service that notes from where on its log is asked for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.failing = frozenset()
        self.after: list[int] = []

    def tombstones(self, after: int = 0) -> Any:
        self.after.append(after)
        return self._inner.tombstones(after)


@pytest.fixture
def service(keys: str) -> Iterator[Asked]:
    with Asked(open_key_service(keys)) as asked:
        yield asked


def test_an_opening_reads_what_is_new_and_writes_nothing(
    make_shredder: Callable[..., Any],
    service: Asked,
    backend: Backend,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"keys": service, "journal": home / "journal"}
    shredder = filled(make_shredder, "c-1", "c-2", "c-3", **options)
    shredder.shred_many(["c-1", "c-2"])
    began: list[str] = []
    read: list[tuple[int, int]] = []

    def begin(mode: Any) -> Begin:
        began.append(mode)
        return Begin(mode)

    real = Journal.read_after

    def read_after(self: Journal, count: int, mac: str) -> Any:
        found = real(self, count, mac)
        read.append((count, len(found[0])))
        return found

    for module in ("restoring", "heads", "applying"):
        monkeypatch.setattr(f"shredsaver.{module}.Begin", begin)
    monkeypatch.setattr(Journal, "read_after", read_after)

    def opened() -> tuple[list[int], list[tuple[int, int]], Counter[str]]:
        service.after, read[:], began[:] = [], [], []
        assert not make_shredder(**options).reconciliation.changed
        return service.after, list(read), Counter(began)

    assert opened()[:2] == ([0], [(0, 2)])  # what was compared before is the empty log of the first opening
    before = backend.contents()
    for _ in range(2):
        after, journal, transactions = opened()
        assert (after, journal) == ([1], [(2, 0)])
        assert set(transactions) == {"read"}
        assert backend.contents() == before
    shredder.shred("c-3")
    after, journal, transactions = opened()
    assert (after, journal, transactions["write"]) == ([1], [(2, 1)], 1)  # to note how far it came
    assert opened()[:2] == ([2], [(3, 0)])
    assert backend.contents() != before


def test_an_explicit_comparison_looks_at_everything(
    make_shredder: Callable[..., Any], service: Asked, home: Path
) -> None:
    shredder = filled(make_shredder, "c-1", "c-2", keys=service, journal=home / "journal")
    shredder.shred_many(["c-1", "c-2"])
    make_shredder(keys=service, journal=home / "journal")
    service.after = []
    found = shredder.reconcile()
    assert (found.changed, found.unconfirmed, found.holds) == (False, 0, 0)
    assert service.after == [0]


def test_what_is_new_and_damaged_leads_to_a_look_at_everything(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = filled(make_shredder, "c-1", "c-2", "c-3", "c-4")
    shredder.shred_many(["c-1", "c-2"])
    make_shredder()
    backend.execute("UPDATE erasures SET mac = ? WHERE seq = 1", (b"x" * 32,))
    assert not make_shredder().reconciliation.changed  # an entry that was compared is not opened again
    shredder.shred_many(["c-3", "c-4"])
    backend.execute("UPDATE erasures SET chain = ? WHERE seq = 4", (b"x" * 32,))
    assert make_shredder().reconciliation == Reconciliation(recorded=1, repaired=2)
    assert shredder.check_log() == 4
    assert not make_shredder().reconciliation.changed
