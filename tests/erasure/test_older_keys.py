"""An older key store taken into use beside current roots: what still opens is served, nobody comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shredsaver import (
    ConfigurationError,
    CustomerShreddedError,
    DatabaseForkedError,
    KeyNotFoundError,
    KeyServiceError,
    KeyStoreStaleError,
    LegalHoldError,
    RevocationLogDamagedError,
    ShredIncompleteError,
)
from shredsaver.adopting import KeyAdoption, adopt_keys
from shredsaver.kms import _steps
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.keyplaces import AWS, LOCAL, SHARED, KeyPlace, places

CALL = Caller("sync")
on_one = places([LOCAL[0], AWS[0]])
on_all = places([*LOCAL, *SHARED])
on_local = places(LOCAL[:1])


@pytest.fixture
def keys(place: KeyPlace) -> str:
    return place.uri


class CrashError(BaseException):
    """The end of the process, as far as the code that it goes through can tell."""


class Lost:
    """A deployment whose current key store is lost: an older one stands in its place, beside current roots."""

    def __init__(self, make: Callable[..., Any], backend: Backend, place: KeyPlace, journal: Path) -> None:
        self.make, self.backend, self.place, self.journal = make, backend, place, journal
        self.names: dict[int, list[str]] = {0: [], 1: []}
        self.shredder = make(journal=journal)
        number = 0
        while min(map(len, self.names.values())) < 2:
            name = f"c-{number}"
            put(CALL, self.shredder.saver, config(f"t-{name}", name), {"x": name})
            self.names[self.slot(name)].append(name)
            number += 1
        self.older, self.old_database = place.save(), backend.copy()

    def token(self, name: str) -> bytes:
        return bytes(self.shredder._start().core.token("customer", name))

    def slot(self, name: str) -> int:
        return int.from_bytes(self.token(name)[:2]) % 2

    def lose(self) -> None:
        """Ends the processes, and puts the older key store in the place of the current one."""
        self.shredder.close()
        self.current = self.place.save()
        self.place.load(self.older)

    def adopt(self, database: str | None = None, **options: Any) -> KeyAdoption:
        options = {"journal": self.journal, "confirm": True, **options}
        return adopt_keys(database or self.backend.url, self.place.uri, **options)

    def check(self, shredder: Any, *, dead: list[str], lost: list[str], kept: list[str]) -> None:
        for name in dead:
            with pytest.raises(CustomerShreddedError):
                shredder.saver.get_tuple(config(f"t-{name}", name))
            with pytest.raises(CustomerShreddedError):
                put(CALL, shredder.saver, config("new", name), {"x": 1})
        for name in lost:
            with pytest.raises(KeyNotFoundError):
                shredder.saver.get_tuple(config(f"t-{name}", name))
            with pytest.raises(KeyNotFoundError):
                put(CALL, shredder.saver, config(f"t-{name}", name), {"x": 1})
        for name in kept:
            assert shredder.saver.get_tuple(config(f"t-{name}", name)).checkpoint["channel_values"]["x"] == name
            put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
        assert shredder.check_keys().ok


@pytest.fixture
def lost(make_shredder: Callable[..., Any], backend: Backend, place: KeyPlace, home: Path) -> Lost:
    return Lost(make_shredder, backend, place, home / "journal")


@on_all
def test_what_still_opens_is_served_and_nobody_comes_back(lost: Lost) -> None:
    dead, *neighbours = lost.names[0]
    put(CALL, lost.shredder.saver, config("t-late", "late"), {"x": "late"})
    lost.shredder.shred(dead)
    lost.shredder.shred("ghost")  # never seen: a tombstone, and no rotation
    expected = {lost.token(name).hex() for name in (*neighbours, "late")}
    lost.lose()
    with pytest.raises(KeyStoreStaleError, match="keys adopt"):
        lost.make()
    before = lost.place.counts()
    plan = lost.adopt(confirm=False)
    assert (plan.adopted, plan.lost, plan.erasures) == (False, 1, 2)
    assert set(plan.lost_customers) == expected
    assert plan.customers == len(lost.names[1])
    assert lost.place.counts() == before
    with pytest.raises(KeyStoreStaleError):
        lost.make()

    done = lost.adopt()
    assert done == KeyAdoption(**{**vars(plan), "adopted": True})
    shredder = lost.make(journal=lost.journal)
    assert not shredder.reconciliation.changed
    lost.check(shredder, dead=[dead, "ghost"], lost=[*neighbours, "late"], kept=lost.names[1])
    for number in range(4):  # new customers of either slot
        put(CALL, shredder.saver, config(f"new-{number}", f"n-{number}"), {"x": 1})
        assert shredder.shred(f"n-{number}").destruction["state"] == "destroyed"
    for name in (lost.names[1][0], neighbours[0]):
        assert shredder.shred(name).state == "purged"
    shredder.close()
    lost.check(lost.make(), dead=[dead, lost.names[1][0], neighbours[0]], lost=[], kept=lost.names[1][1:])
    # The lost key store turns up after all.
    lost.place.load(lost.current)
    with pytest.raises(KeyServiceError):
        lost.make()


@on_one
def test_both_older_with_the_journal_and_without(lost: Lost) -> None:
    dead, *neighbours = lost.names[0]
    lost.shredder.shred(dead)
    lost.lose()
    before = lost.place.counts()
    old = lost.old_database.url
    with pytest.raises(RevocationLogDamagedError, match="1 erasures"):
        lost.adopt(old, restored=True, journal=None)
    assert lost.place.counts() == before
    with pytest.raises(DatabaseForkedError):  # a copy of the database must not replace production's roots
        lost.adopt(old)
    assert lost.place.counts() == before
    done = lost.adopt(old, restored=True)
    assert (done.erasures, len(done.lost_customers)) == (1, len(neighbours))
    shredder = lost.make(old, journal=lost.journal)
    assert (shredder.reconciliation.revoked, shredder.reconciliation.forked) == (1, False)
    lost.check(shredder, dead=[dead], lost=neighbours, kept=lost.names[1])


@on_one
def test_a_database_whose_record_does_not_verify_vouches_for_nothing(lost: Lost) -> None:
    lost.shredder.shred(lost.names[0][0])
    lost.lose()
    before = lost.place.counts()
    lost.backend.execute("UPDATE erasures SET mac = ?", (bytes(32),))
    with pytest.raises(RevocationLogDamagedError, match="entry 1"):
        lost.adopt()
    lost.backend.execute("DELETE FROM erasures")
    with pytest.raises(RevocationLogDamagedError):
        lost.adopt()
    assert lost.place.counts() == before


@on_one
def test_a_current_key_store_is_not_adopted(lost: Lost) -> None:
    lost.shredder.close()
    with pytest.raises(ConfigurationError, match="nothing to adopt"):
        lost.adopt()


@on_one
def test_where_every_root_went_on_nothing_is_left(lost: Lost) -> None:
    lost.shredder.rotate()
    lost.lose()
    before = lost.place.counts()
    with pytest.raises(KeyStoreStaleError):
        lost.adopt()
    assert lost.place.counts() == before


@on_one
@pytest.mark.parametrize("at", ["roots-made", "roots-published", "roots-destroyed"])
def test_the_lost_key_store_was_cut_off_in_a_shred(lost: Lost, at: str) -> None:
    dead, *neighbours = lost.names[0]

    def end(name: str) -> None:
        if name == at:
            raise CrashError

    _steps.hook = end
    try:
        with pytest.raises(CrashError):
            lost.shredder.shred(dead)
    finally:
        _steps.hook = None
    lost.lose()
    gone = at == "roots-destroyed"
    if not gone:  # the root of the slot is still there: its customers are not lost, and the dead one is not revived
        with pytest.raises((KeyServiceError, RevocationLogDamagedError)):
            lost.make()
    done = lost.adopt()
    assert done.lost == gone
    shredder = lost.make(journal=lost.journal)
    lost.check(
        shredder, dead=[dead], lost=neighbours if gone else [], kept=[*lost.names[1], *(() if gone else neighbours)]
    )
    assert shredder.resume()[0].state == "purged"
    shredder.close()
    lost.place.load(lost.current)
    with pytest.raises(KeyServiceError):
        lost.make()


@on_local
def test_an_adoption_that_is_cut_off_goes_on(lost: Lost) -> None:
    dead, *neighbours = lost.names[0]
    lost.shredder.shred(dead)
    lost.lose()
    cut = 0
    while True:
        passed: list[str] = []

        def end(name: str, passed: list[str] = passed, most: int = cut) -> None:
            passed.append(name)
            if len(passed) > most:
                raise CrashError

        saved = lost.place.save(), (lost.place.directory / "roots").read_bytes()
        _steps.hook = end
        try:
            lost.adopt()
        except CrashError:
            pass
        else:
            break
        finally:
            _steps.hook = None
        try:
            shredder = lost.make(journal=lost.journal)
        except (KeyStoreStaleError, RevocationLogDamagedError):
            lost.adopt()
            shredder = lost.make(journal=lost.journal)
        lost.check(shredder, dead=[dead], lost=neighbours, kept=lost.names[1])
        shredder.close()
        lost.place.load(saved[0])
        (lost.place.directory / "roots").write_bytes(saved[1])
        cut += 1
    assert cut > 10


@on_local
def test_a_hold_that_the_copy_still_has_ends_with_its_customer(lost: Lost) -> None:
    dead, other = lost.names[0][0], lost.names[1][0]
    for name in (dead, other):
        lost.shredder.hold(name, "case 7")
    lost.older = lost.place.save()
    lost.shredder.release(dead)
    lost.shredder.shred(dead)
    lost.lose()
    lost.adopt()
    assert lost.place.counts()["key_holds"] == 1
    shredder = lost.make(journal=lost.journal)
    with pytest.raises(LegalHoldError):
        shredder.shred(other)
    lost.check(shredder, dead=[dead], lost=lost.names[0][1:], kept=lost.names[1])


@places([AWS[0]])
@pytest.mark.parametrize("at", ["adopted", "roots-made", "roots-published", "roots-destroyed", "adoption-rotated"])
def test_an_adoption_in_kms_that_is_cut_off_goes_on(lost: Lost, at: str) -> None:
    dead, *neighbours = lost.names[0]
    lost.shredder.shred(dead)
    lost.lose()

    def end(name: str) -> None:
        if name == at:
            raise CrashError

    _steps.hook = end
    try:
        with pytest.raises(CrashError):
            lost.adopt()
    finally:
        _steps.hook = None
    shredder = lost.make(journal=lost.journal)
    lost.check(shredder, dead=[dead], lost=neighbours, kept=lost.names[1])
    assert lost.place.execute("SELECT count(*) FROM key_meta WHERE name = 'adopting'") == [(0,)]
    shredder.close()
    lost.place.load(lost.current)
    with pytest.raises(KeyServiceError):
        lost.make()


@on_one
def test_an_erasure_that_could_not_reach_the_keys_is_told_to_the_adopted_ones(lost: Lost) -> None:
    """Revoked in the database while the key service was away: the roots have not seen it, and it is not forgotten."""
    dead = lost.names[1][0]

    def away(name: str) -> None:
        if name == "revoke":
            raise KeyServiceError("away")

    _steps.hook = away
    try:
        with pytest.raises(ShredIncompleteError):
            lost.shredder.shred(dead)
    finally:
        _steps.hook = None
    lost.shredder.shred(lost.names[0][0])
    lost.lose()
    done = lost.adopt()
    assert done.erasures == 2
    shredder = lost.make()
    lost.check(shredder, dead=[dead, lost.names[0][0]], lost=lost.names[0][1:], kept=lost.names[1][1:])


def tried(shredder: Any, name: str) -> str:
    try:
        return str(shredder.saver.get_tuple(config(f"t-{name}", name)).checkpoint["channel_values"]["x"])
    except (CustomerShreddedError, KeyNotFoundError) as error:
        return type(error).__name__


@places([AWS[0]])
@pytest.mark.parametrize("options", ["slot=customer", "slots=2&erasure=scheduled"])
def test_other_ways_of_keeping_keys_in_kms(
    make_shredder: Callable[..., Any], backend: Backend, place: KeyPlace, options: str
) -> None:
    place.uri = place.uri.replace("slots=2", options)
    names = [f"c-{number}" for number in range(5)]
    with make_shredder(keys=place.uri) as shredder:
        for name in names:
            put(CALL, shredder.saver, config(f"t-{name}", name), {"x": name})
        older = place.save()
        tokens = {name: shredder.status(name).customer for name in names}
        shredder.shred("c-0")
        shredder.shred("c-1")
        put(CALL, shredder.saver, config("t-late", "late"), {"x": "late"})
        shredder.resume()
        if options == "slot=customer":
            shredder.enrol("c-1")  # a root that was put off is made after all
            put(CALL, shredder.saver, config("t-back", "c-1"), {"x": "back"})
        tokens["late"] = shredder.status("late").customer
    current = place.save()
    place.load(older)
    with pytest.raises(KeyStoreStaleError):
        make_shredder(keys=place.uri)
    done = adopt_keys(backend.url, place.uri, confirm=True)
    shredder = make_shredder(keys=place.uri)
    assert (tried(shredder, "c-0"), tried(shredder, "late")) == ("CustomerShreddedError", "KeyNotFoundError")
    assert tokens["late"] in done.lost_customers
    if options == "slot=customer":
        assert {*done.lost_customers} == {tokens["late"], tokens["c-1"]}
        with pytest.raises(KeyNotFoundError):
            shredder.saver.get_tuple(config("t-back", "c-1"))
    for name in names[2:]:
        expected = "KeyNotFoundError" if tokens[name] in done.lost_customers else name
        assert tried(shredder, name) == expected
    put(CALL, shredder.saver, config("t-new", "new"), {"x": "new"})
    assert tried(shredder, "new") == "new"
    shredder.shred("c-4")
    shredder.shred("new")
    assert {tried(shredder, name) for name in ("c-4", "new")} == {"CustomerShreddedError"}
    assert not [problem for problem in shredder.check_keys().problems if "does not open" in problem]
    shredder.close()
    place.load(current)
    with pytest.raises(KeyServiceError):
        make_shredder(keys=place.uri)


@on_local
def test_mirrors_are_adopted_together(make_shredder: Callable[..., Any], backend: Backend, home: Path) -> None:
    copies = [home / name for name in ("one", "two")]
    uri = f"file:{copies[0]}?slots=2&mirror={copies[1]}"
    with make_shredder(keys=uri) as shredder:
        for number in range(6):
            put(CALL, shredder.saver, config(f"t-c-{number}", f"c-{number}"), {"x": f"c-{number}"})
        older = [(copy / "keys.db").read_bytes() for copy in copies]
        shredder.shred("c-0")
        tokens = {f"c-{number}": shredder.status(f"c-{number}").customer for number in range(6)}
    for copy, content in zip(copies, older, strict=True):
        (copy / "keys.db").write_bytes(content)
    done = adopt_keys(backend.url, uri, confirm=True)
    shredder = make_shredder(keys=uri)
    for name, token in tokens.items():
        expected = "KeyNotFoundError" if token in done.lost_customers else name
        assert tried(shredder, name) == ("CustomerShreddedError" if name == "c-0" else expected)
    assert shredder.check_keys().ok
