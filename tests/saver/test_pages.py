"""How little is asked: pages that grow under a filter, and opening what is current without a lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from shredsaver import Shredder
from shredsaver.db.migrations import LOCK_SCHEMA
from shredsaver.listing import Lister
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config

CALL = Caller("sync")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_rare_match_costs_few_pages(shredder: Shredder, monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    saver = shredder.saver
    chain(CALL, saver, config("t-1"), [{"x": number} for number in range(150)])
    pages: list[int] = []
    page = Lister.page

    def counted(self: Lister, query: Any, serde: Any, size: int, after: Any) -> Any:
        pages.append(size)
        return (yield from page(self, query, serde, size, after))

    monkeypatch.setattr(Lister, "page", counted)
    (oldest,) = saver.list(config("t-1"), filter={"step": 0}, limit=limit)
    assert oldest.metadata["step"] == 0
    assert len(pages) <= 8
    pages.clear()
    assert len(list(saver.list(config("t-1"), limit=limit))) == (limit or 150)
    assert pages[0] == (limit or 8)  # without a filter nothing is looked at in vain
    assert limit is None or pages == [limit]


@contextmanager
def locked(backend: Backend) -> Iterator[None]:
    """Somebody is writing (SQLite), or bringing the schema up to date (PostgreSQL)."""
    if backend.kind == "sqlite":
        with closing(sqlite3.connect(backend.url, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(backend.url) as writer:
            writer.execute(LOCK_SCHEMA.postgres.encode())
            yield


def test_opening_what_is_current_waits_for_no_writer(backend: Backend, make_shredder: Callable[..., Shredder]) -> None:
    chain(CALL, make_shredder().saver, config("t-1"), [{"x": 1}])
    with locked(backend), make_shredder() as other:
        assert CALL(other.saver, "get_tuple", config("t-1")).checkpoint["channel_values"] == {"x": 1}
