"""Restore drills: an older database, an older key store, both; altered records; copies that try to change keys.

On both databases with keys in local files and in AWS KMS; where a key store is taken back, on PostgreSQL too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver import (
    CustomerRestrictedError,
    CustomerShreddedError,
    DatabaseForkedError,
    KeyStoreStaleError,
    ReceiptError,
    RevocationLogDamagedError,
    Shredder,
    ShredIncompleteError,
    open_key_service,
)
from shredsaver.core import FIRST_NUMBER
from shredsaver.db.base import Begin
from shredsaver.journal import Journal
from shredsaver.keytree import KeyTree
from shredsaver.reconcile import Dead, Reconciliation
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.keyplaces import AWS, LOCAL, SHARED, KeyPlace, places

CALL = Caller("sync")


on_local, on_kms = places(LOCAL), places(SHARED)
on_both, on_all = places([*LOCAL, *AWS]), places([*LOCAL, *SHARED])


@pytest.fixture
def keys(place: KeyPlace) -> str:
    return place.uri


class Drill:
    """A deployment with somebody shredded and somebody alive, and copies of everything from before."""

    def __init__(self, make: Callable[..., Any], backend: Backend, place: KeyPlace, home: Path, **options: Any) -> None:
        self.make, self.backend, self.place = make, backend, place
        self.journal = home / "journal" if options.get("journal") else None
        self.shredder = make(journal=self.journal)
        for customer in ("dead", "alive"):
            put(CALL, self.shredder.saver, config(f"t-{customer}", customer), {"x": customer})
        self.old = backend.copy()
        self.rows = backend.rows("customers")
        self.old_keys = place.copy()
        self.old_store = place.save()
        self.result = self.shredder.shred("dead")
        self.receipts = list(self.shredder.receipts())
        self.shredder.close()

    def check(self, shredder: Any) -> None:
        """The dead are refused, everyone else is served."""
        for here in (config("t-dead", "dead"), config("t-dead", None), config("new", "dead")):
            with pytest.raises(CustomerShreddedError):
                shredder.saver.get_tuple(here)
        with pytest.raises(CustomerShreddedError):
            put(CALL, shredder.saver, config("new", "dead"), {"x": 1})
        put(CALL, shredder.saver, config("t-alive", "alive"), {"x": "again"})
        assert shredder.saver.get_tuple(config("t-alive", "alive")).checkpoint["channel_values"] == {"x": "again"}


def puncture(shredder: Any, customer: str) -> None:
    """Replaces a customer's key tree by one that lacks a key, which is how less than a customer is erased."""
    core = shredder._start().core
    token = core.token("customer", customer)
    record = core.keys.load(token, 1)
    tree = KeyTree.from_bytes(record.secret).puncture(FIRST_NUMBER, FIRST_NUMBER)
    core.keys.replace(token, 1, tree.to_bytes(), record.key_version)


@pytest.fixture
def drill(make_shredder: Callable[..., Any], backend: Backend, place: KeyPlace, home: Path) -> Drill:
    return Drill(make_shredder, backend, place, home)


@pytest.fixture
def journaled(make_shredder: Callable[..., Any], backend: Backend, place: KeyPlace, home: Path) -> Drill:
    """A drill whose deployment keeps a journal."""
    return Drill(make_shredder, backend, place, home, journal=True)


@on_all
def test_an_older_database(drill: Drill) -> None:
    restored = drill.make(drill.old.url)
    found = restored.reconciliation
    assert found == Reconciliation(revoked=1, forked=True)
    drill.check(restored)
    assert restored.audit("dead").opens == 0
    with pytest.raises(DatabaseForkedError):
        restored.shred("alive")
    restored.reconcile(adopt="restore")
    assert not restored.reconciliation.forked
    again = restored.shred("dead")  # what adopting the database has finished
    assert again.state == "purged"
    assert again.destruction["state"] == "destroyed"
    drill.check(restored)
    assert drill.old.count("checkpoints") > 0
    token = bytes.fromhex(again.customer)
    owned = "SELECT count(*) FROM checkpoints k JOIN threads t ON t.thread = k.thread WHERE t.customer = ?"
    assert drill.old.execute(owned, (token,))[0][0] == 0
    assert restored.shred("alive").pending == ()


@on_all
def test_a_key_store_older_than_its_roots_is_not_used(drill: Drill) -> None:
    drill.place.load(drill.old_store)
    with pytest.raises(KeyStoreStaleError, match="keys adopt"):
        drill.make()


@on_all
def test_a_tombstone_that_no_root_has_seen_is_told_by_the_database(drill: Drill) -> None:
    with drill.make() as shredder:
        older, before = drill.place.save(), drill.place.counts()
        assert shredder.shred("ghost").known is False  # a customer without keys: nothing is rotated for it
    drill.place.load(older)
    assert drill.place.counts() == before
    shredder = drill.make()
    assert shredder.reconciliation == Reconciliation(destroyed=1)
    assert drill.place.counts()["key_tombstones"] == before["key_tombstones"] + 1
    drill.check(shredder)
    with pytest.raises(CustomerShreddedError):
        put(CALL, shredder.saver, config("new", "ghost"), {"x": 1})


@on_local
def test_an_older_key_store_with_its_roots(drill: Drill) -> None:
    shredder = drill.make(keys=drill.old_keys)
    assert shredder.reconciliation == Reconciliation(destroyed=1)
    drill.check(shredder)
    token = bytes.fromhex(drill.result.customer)
    with pytest.raises(CustomerShreddedError):
        shredder._start().core.keys.load(token, 1)
    assert drill.make(keys=drill.old_keys).reconciliation.destroyed == 0


@on_local
@pytest.mark.parametrize("other", [False, True])
def test_an_older_key_store_behind_what_was_compared(drill: Drill, other: bool) -> None:
    drill.make().close()
    if other:  # somebody else died in its stead: the log is as long as the one that was compared
        with open_key_service(drill.old_keys) as service:
            service.destroy([b"g" * 16])
    shredder = drill.make(keys=drill.old_keys)
    assert shredder.reconciliation == Reconciliation(revoked=int(other), destroyed=1)
    drill.check(shredder)


@on_kms
def test_an_older_key_store_beside_roots_that_cannot_be_taken_back(drill: Drill) -> None:
    for database in (drill.backend.url, drill.old.url):  # KMS is the anchor that survives, whatever else is old
        with pytest.raises(KeyStoreStaleError):
            drill.make(database, keys=drill.old_keys)
    drill.check(drill.make())


@on_local
def test_both_older_with_the_journal(journaled: Drill) -> None:
    drill = journaled
    shredder = drill.make(drill.old.url, keys=drill.old_keys, journal=drill.journal)
    assert shredder.reconciliation == Reconciliation(revoked=1, unconfirmed=1, forked=True)
    drill.check(shredder)
    assert shredder.reconcile(adopt="restore") == Reconciliation(destroyed=1)
    with pytest.raises(CustomerShreddedError):
        shredder._start().core.keys.load(bytes.fromhex(drill.result.customer), 1)
    drill.check(shredder)


@on_local
def test_both_older_without_a_journal_know_nothing_until_receipts_tell(drill: Drill) -> None:
    shredder = drill.make(drill.old.url, keys=drill.old_keys)
    # No anchor survives: nobody can know. The copy is quarantined, which is all that can be said.
    assert shredder.reconciliation.forked
    assert shredder.saver.get_tuple(config("t-dead", "dead")) is not None
    with pytest.raises(ReceiptError):
        shredder.reconcile(chain=[drill.receipts[0][:-4] + "AAAA"])
    found = shredder.reconcile(adopt="restore", chain=drill.receipts)
    assert found == Reconciliation(revoked=1, destroyed=1)
    drill.check(shredder)
    with pytest.raises(CustomerShreddedError):
        shredder._start().core.keys.load(bytes.fromhex(drill.result.customer), 1)


@on_both
def test_a_deleted_entry_of_the_log_is_entered_again(drill: Drill) -> None:
    drill.backend.execute("DELETE FROM erasures")
    shredder = drill.make()
    assert shredder.reconciliation == Reconciliation(recorded=1, repaired=1)
    drill.check(shredder)
    assert shredder.check_log() >= 1
    assert shredder.shred("dead").pending == ()
    assert not drill.make().reconciliation.changed


@on_both
@pytest.mark.parametrize("column", ["state", "record", "chain"])
def test_an_altered_log(drill: Drill, column: str) -> None:
    drill.backend.execute(f"UPDATE erasures SET {column} = ?", ("cancelled" if column == "state" else b"x" * 32,))
    shredder = drill.make()
    # With a chain that is wrong the entry is still to be believed: its row has a MAC of its own.
    assert shredder.reconciliation == Reconciliation(recorded=0 if column == "chain" else 1, repaired=1)
    drill.check(shredder)
    shredder.check_log()
    assert not drill.make().reconciliation.changed


@on_both
def test_a_forged_entry_of_the_log_kills_nobody(drill: Drill) -> None:
    (row,) = drill.backend.rows("erasures")
    alive = drill.make()
    token = bytes.fromhex(alive.status("alive").customer)
    alive.close()
    forged = {**row, "seq": 2, "erasure_id": "forged", "customer": token}
    names = ", ".join(forged)
    drill.backend.execute(
        f"INSERT INTO erasures ({names}) VALUES ({', '.join('?' * len(forged))})", list(forged.values())
    )
    shredder = drill.make()
    assert shredder.reconciliation.repaired >= 1
    assert shredder.reconciliation.destroyed == 0
    drill.check(shredder)


@on_both
def test_a_forged_row_of_a_customer(drill: Drill) -> None:
    token = bytes.fromhex(drill.result.customer)
    drill.backend.execute("UPDATE customers SET state = 'live' WHERE customer = ?", (token,))
    shredder = drill.make()
    assert shredder.reconciliation == Reconciliation(revoked=1)
    drill.check(shredder)
    drill.backend.execute("UPDATE customers SET state = 'revoked' WHERE state = 'live'")
    with pytest.raises(RevocationLogDamagedError):  # neither alive nor dead: shut
        shredder.saver.get_tuple(config("t-alive", "alive"))
    assert drill.make().reconciliation.destroyed == 0


FORGED = (
    "INSERT INTO key_tombstones SELECT ?, customer, 1, '2026-01-01T00:00:00.000Z', 1, slot, 1, 1, zeroblob(32) "
    "FROM key_wraps WHERE customer <> x''"
)


@on_both
@pytest.mark.parametrize("what", ["altered", "deleted", "forged", "forged ahead"])
def test_a_damaged_log_of_the_key_store_shuts_everybody_out(drill: Drill, what: str) -> None:
    if what == "altered":
        drill.place.execute("UPDATE key_tombstones SET at = 'never'")
    elif what == "deleted":
        drill.place.execute("DELETE FROM key_tombstones")
    else:
        drill.place.execute(FORGED, (2 if what == "forged" else 7,))
    before = drill.place.counts()
    try:
        shredder = drill.make()
    except RevocationLogDamagedError:
        shredder = None
    if shredder is not None:
        assert shredder.reconciliation.shut
        for customer in ("dead", "alive"):
            with pytest.raises(RevocationLogDamagedError):
                shredder.saver.get_tuple(config(f"t-{customer}", customer))
    assert drill.place.counts() == before  # whoever forges a tombstone destroys nobody's keys


@on_both
def test_a_damaged_journal_shuts_everybody_out(journaled: Drill) -> None:
    drill = journaled
    assert drill.journal is not None
    text = drill.journal.read_text(encoding="ascii")
    drill.journal.write_text(text.replace('"generation": 1', '"generation": 7'), encoding="ascii")
    shredder = drill.make(journal=drill.journal)
    assert shredder.reconciliation.shut
    with pytest.raises(RevocationLogDamagedError):
        shredder.saver.get_tuple(config("t-alive", "alive"))
    drill.journal.write_text(text, encoding="ascii")
    assert not shredder.reconcile().shut
    drill.check(shredder)


@on_all
def test_a_staging_copy_changes_nothing_of_production(journaled: Drill) -> None:
    drill = journaled
    production = drill.make(journal=drill.journal)
    put(CALL, production.saver, config("t-alive", "alive"), {"x": "production"})
    assert drill.journal is not None
    said = drill.journal.read_bytes()
    before = (production.check_keys(), drill.place.counts())
    staging = drill.make(drill.old.url, journal=drill.journal)
    assert staging.reconciliation.forked
    staging.reconcile(adopt="fork")
    for attempt in (
        lambda: staging.shred("alive"),
        lambda: staging.shred_many(["alive", "never seen"]),
        lambda: put(CALL, staging.saver, config("t-new", "new"), {"x": 1}),
        staging.rotate,
        lambda: staging.rotate("alive"),
        lambda: staging.hold("alive", "case"),
        lambda: staging.enrol("dead"),
        lambda: puncture(staging, "alive"),
        staging.resume,
    ):
        with pytest.raises((DatabaseForkedError, ShredIncompleteError)):
            attempt()
    # A copy reads and writes what it has, with the keys that are there.
    put(CALL, staging.saver, config("t-alive", "alive"), {"x": "staging"})
    assert drill.journal.read_bytes() == said
    assert (production.check_keys(), drill.place.counts()) == before
    assert production.saver.get_tuple(config("t-alive", "alive")).checkpoint["channel_values"] == {"x": "production"}
    fresh = drill.make(journal=drill.journal)
    assert not fresh.reconciliation.changed
    put(CALL, fresh.saver, config("t-new", "new"), {"x": 1})
    assert fresh.shred("alive").state == "purged"


@on_both
def test_many_destructions_on_anothers_word_wait_for_a_confirmation(
    make_shredder: Callable[..., Any], backend: Backend, home: Path
) -> None:
    journal = home / "journal"
    shredder = make_shredder(journal=journal)
    names = [f"c-{number}" for number in range(12)]
    for name in names:
        put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
    core = shredder._start().core
    told = Journal(journal, core.secrets.log_key)
    told.append(*(Dead(core.token("customer", name), 1, "2026-01-01T00:00:00.000+00:00") for name in names))
    careful = make_shredder(journal=journal)
    assert careful.reconciliation == Reconciliation(unconfirmed=12)
    for name in names:
        with pytest.raises(CustomerRestrictedError):
            careful.saver.get_tuple(config(f"t-{name}", name))
    assert careful.resume() == []
    # The record was wrong about one: it can be taken back, as long as nothing was confirmed.
    told_again = home / "journal-2"
    Journal(told_again, core.secrets.log_key).append(
        *(Dead(core.token("customer", name), 1, "2026-01-01T00:00:00.000+00:00") for name in names[1:])
    )
    careful.reinstate(names[0])
    sure = make_shredder(journal=told_again)
    assert sure.reconciliation == Reconciliation(unconfirmed=11)
    assert sure.reconcile(confirm=True) == Reconciliation(revoked=11, destroyed=11)
    for name in names[1:]:
        with pytest.raises(CustomerShreddedError):
            sure.saver.get_tuple(config(f"t-{name}", name))
        assert sure.status(name).state == "purged"
    assert sure.saver.get_tuple(config("t-c-0", names[0])) is not None


@on_local
def test_a_restore_that_lost_many_erasures_takes_a_page_of_them_at_a_time(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    with drill.make() as production:
        core = production._start().core
        core.keys.destroy([core.token("customer", f"c-{number}") for number in range(450)])
    began: list[str] = []

    def begin(mode: Any) -> Begin:
        began.append(mode)
        return Begin(mode)

    monkeypatch.setattr("shredsaver.applying.Begin", begin)
    restored = drill.make(drill.old.url)
    assert restored.reconciliation.revoked == 451
    assert began == ["write"] * 3
    assert restored.check_log() == 451
    drill.check(restored)
    for number in (0, 199, 200, 449):
        with pytest.raises(CustomerShreddedError):
            put(CALL, restored.saver, config("new", f"c-{number}"), {"x": 1})


@on_local
def test_a_hold_that_only_the_older_key_store_knows_stops_no_opening(drill: Drill) -> None:
    with open_key_service(drill.old_keys) as service:
        service.hold(bytes.fromhex(drill.result.customer), None, b"x" * 16)
    shredder = drill.make(keys=drill.old_keys)
    assert shredder.reconciliation == Reconciliation(unconfirmed=1)
    drill.check(shredder)


@on_local
def test_a_failure_to_open_leaves_nothing_open(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    import shredsaver.restoring

    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(shredsaver.restoring, "compare", broken)
    with pytest.raises(MemoryError):
        Shredder.open(drill.backend.url, keys=drill.place.uri)
    monkeypatch.undo()
    drill.check(drill.make())


@on_both
def test_what_was_compared_is_not_compared_again_and_still_stands_guard(drill: Drill) -> None:
    def quiet() -> Any:
        shredder = drill.make()
        assert not shredder.reconciliation.changed
        shredder.close()
        return drill.backend.execute("SELECT value FROM meta WHERE key = 'compared'")

    assert quiet() == quiet() != []
    # The customer's row from before the erasure, put back whole: its MAC is right.
    (before,) = [row for row in drill.rows if bytes(row["customer"]).hex() == drill.result.customer]
    names = [name for name in before if name != "customer"]
    sets = ", ".join(f"{name} = ?" for name in names)
    values = [*(before[name] for name in names), bytes.fromhex(drill.result.customer)]
    drill.backend.execute(f"UPDATE customers SET {sets} WHERE customer = ?", values)
    shredder = drill.make()
    assert shredder.reconciliation.revoked == 1
    drill.check(shredder)
    shredder.close()
    quiet()
    drill.backend.execute("DELETE FROM customers WHERE state <> 'live'")
    shredder = drill.make()
    assert shredder.reconciliation.revoked == 1
    drill.check(shredder)
    shredder.close()
    quiet()
    drill.backend.execute("DELETE FROM erasures WHERE seq = 1")
    shredder = drill.make()
    assert shredder.reconciliation.changed
    drill.check(shredder)
    shredder.close()
    quiet()
    # An old entry that was altered: whoever asks is refused, and looking at everything puts it right.
    drill.backend.execute("UPDATE erasures SET mac = ?", (b"x" * 32,))
    shredder = drill.make()
    with pytest.raises((RevocationLogDamagedError, CustomerShreddedError)):
        shredder.saver.get_tuple(config("t-dead", "dead"))
    assert shredder.reconcile().changed
    drill.check(shredder)
