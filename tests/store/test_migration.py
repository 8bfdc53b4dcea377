"""A database of the first schema is brought up to date when it is opened, and serves what it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shredsaver import SchemaVersionError, Shredder
from shredsaver.db import migrations
from tests.support.backends import Backend

NS = ("users", "c-1", "memories")


def test_the_first_schema_is_brought_up_to_date(
    backend: Backend, make_shredder: Callable[..., Shredder], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        old = make_shredder()
        old.store.put(NS, "k", {"n": 1})
    with pytest.raises(SchemaVersionError, match="shredsaver init"):
        make_shredder(auto_setup=False).status("c-1")
    new = make_shredder()
    assert new.store.search(NS)[0].value == {"n": 1}
    (version,) = backend.execute("SELECT value FROM meta WHERE key = 'schema_version'")[0]
    assert int(bytes(version)) == len(migrations.MIGRATIONS) == 3
    assert make_shredder(auto_setup=False).store.search(NS) != []
    old.store.put(NS, "k", {"n": 2})  # whoever had it open goes on
    assert new.store.get(NS, "k").value == {"n": 2}
