"""Keys in AWS KMS: destruction and its proof, caches, old copies, keys of one's own; on the fake that keeps state."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from shredsaver import AwsKeyService
from shredsaver.db.base import Sql
from shredsaver.errors import (
    ConfigurationError,
    CustomerShreddedError,
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyServiceUnavailableError,
    KeyStoreStaleError,
)
from shredsaver.kms import open_key_service
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.kms.aws_registry import USED
from tests.fakes.kms_server import KmsServer
from tests.fakes.test_kms_server import client_for
from tests.support.aws import Time, World, secret, token
from tests.support.backends import PostgresServer
from tests.support.waiting import join, wait_until

DAY = 86_400.0


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[KmsServer]:
    with KmsServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def world(kms: KmsServer, tmp_path: Path) -> Iterator[World]:
    world = World(kms, tmp_path)
    yield world
    world.close()


@pytest.fixture
def service(world: World) -> AwsKeyService:
    """Customers 0 to 5, in two slots."""
    service = world.open()
    for number in range(6):
        service.create(token(number), secret(number))
    return service


def read(service: AwsKeyService, *numbers: int) -> None:
    for number in numbers:
        assert service.load(token(number), 1).secret == secret(number)


# Destruction.


def test_destroyed_with_proof(world: World, service: AwsKeyService) -> None:
    arn, _ = world.root_of(0)
    world.kms.calls.clear()
    (found,) = service.destroy([token(0)])
    assert (found.state, found.key_ids, found.old_epoch, found.new_epoch) == ("destroyed", (arn,), 1, 2)
    assert found.destroyed_at is not None
    assert found.cached_until is not None
    assert found.cached_until > found.destroyed_at
    assert found.details["kms_key_state"] == "PendingImport"
    assert found.details["import_token_until"] > found.destroyed_at
    key = world.kms.keys[arn.rsplit("/", 1)[1]]
    states = [version.state for _, version in key.versions]
    assert states[-2:] == ["PendingImport", "PendingDeletion"]
    assert key.latest.material is None
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    read(service, 1, 2, 3, 4, 5)
    # The proof came after the deletion, looked more than once, and the key went away only then.
    names = [name for name, key_id in world.kms.calls if key_id == arn]
    gone, cleared = names.index("DeleteImportedKeyMaterial"), names.index("ScheduleKeyDeletion")
    assert names[gone:cleared].count("Decrypt") >= 2  # how often depends on the machine
    assert service.destroy([token(0)]) == [found]
    world.assert_no_orphans()


def test_old_copy_opens_nothing(world: World, service: AwsKeyService) -> None:
    arn, wrapped = world.root_of(0)
    before = world.copy("backup.db")
    service.destroy([token(0)])
    with pytest.raises(KeyStoreStaleError):
        world.open(before)
    # With every right on KMS, and around this library as well.
    client = client_for(world.kms.url)
    deployment = world.query("SELECT value FROM key_meta WHERE name = 'deployment'")[0][0].hex()
    context = {"shredsaver:deployment": deployment, "shredsaver:slot": "0", "shredsaver:epoch": "1"}
    for undo in (lambda: client.cancel_key_deletion(KeyId=arn), lambda: None):
        with pytest.raises(ClientError) as caught:
            client.decrypt(KeyId=arn, CiphertextBlob=wrapped, EncryptionContext=context)
        assert caught.value.response["Error"]["Code"] == "KMSInvalidStateException"
        undo()
    # The same call opens a root that lives, so the attempt was a fair one.
    arn, wrapped = world.root_of(0)
    opened = client.decrypt(KeyId=arn, CiphertextBlob=wrapped, EncryptionContext={**context, "shredsaver:epoch": "2"})
    assert len(opened["Plaintext"]) == 32


def test_old_copy_after_the_key_is_gone(world: World, service: AwsKeyService) -> None:
    before = world.copy("backup.db")
    service.destroy([token(0)])
    world.kms.clock.advance(8 * DAY)
    with pytest.raises(KeyStoreStaleError):
        world.open(before)


def test_proof_waits_for_stragglers(world: World) -> None:
    service = world.open(settle=120.0)
    for number in range(3):
        service.create(token(number), secret(number))
    world.kms.operations.propagation, world.kms.operations.flapping = 0.6, True
    (found,) = service.destroy([token(0)])
    assert found.state == "destroyed"
    arn = found.key_ids[0]
    version = world.kms.keys[arn.rsplit("/", 1)[1]].versions
    seen_everywhere = next(since for since, one in version if one.state == "PendingImport" and since > version[1][0])
    assert found.destroyed_at is not None
    assert datetime.fromisoformat(found.destroyed_at).timestamp() >= seen_everywhere - 0.01
    read(service, 1, 2)


def test_a_denial_is_no_proof(world: World, service: AwsKeyService) -> None:
    arn, _ = world.root_of(0)
    world.kms.faults.deny("Decrypt", key=arn)
    for _ in range(2):
        with pytest.raises(KeyAccessDeniedError):
            service.destroy([token(0)])
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    assert world.query("SELECT state FROM key_epochs WHERE slot = 0 AND epoch = 1") == [(2,)]  # still to be seen off
    world.kms.faults.clear()
    assert service.destroy([token(0)])[0].state == "destroyed"
    read(service, 1, 2, 3)


def test_a_deletion_that_does_not_spread_is_no_proof(world: World) -> None:
    moved = Time()
    service = world.open(calls=KmsCalls(patience=0.3, clock=moved, sleep=moved.sleep))
    for number in range(3):
        service.create(token(number), secret(number))
    world.kms.faults.hook("DeleteImportedKeyMaterial", lambda: setattr(world.kms.operations, "propagation", 3600.0))
    for _ in range(2):
        with pytest.raises(KeyServiceUnavailableError) as caught:
            service.destroy([token(0)])
        assert caught.value.retryable
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    world.kms.clock.advance(3601)
    world.kms.operations.propagation = 0.0
    assert service.destroy([token(0)])[0].state == "destroyed"
    read(service, 1, 2)


def test_deleted_by_somebody_else_is_no_proof(world: World, service: AwsKeyService) -> None:
    arn, _ = world.root_of(0)
    world.kms.faults.deny("DeleteImportedKeyMaterial")
    with pytest.raises(KeyAccessDeniedError):
        service.destroy([token(0)])
    world.kms.faults.clear()
    client_for(world.kms.url).schedule_key_deletion(KeyId=arn, PendingWindowInDays=7)
    copy = world.copy("later.db")
    assert service.destroy([token(0)])[0].state == "destroyed"  # cancelled, looked at, scheduled again
    world.kms.clock.advance(8 * DAY)
    (found,) = world.open(copy).destroy([token(0)])
    assert (found.state, found.details["kms_key_state"]) == ("pending", "not found")


def test_replacing_a_secret_destroys_the_old_one(world: World, service: AwsKeyService) -> None:
    before = world.copy("backup.db")
    assert service.replace(token(0), 1, b"punctured", 1).key_version == 2
    assert service.load(token(0), 1).secret == b"punctured"
    with pytest.raises(KeyStoreStaleError):
        world.open(before)
    read(service, 1, 2)
    world.assert_no_orphans()


def test_rotation_while_others_create(world: World, service: AwsKeyService) -> None:
    other = world.open()
    read(other, 0, 1)  # its roots are cached now
    made: list[int] = []

    def create(start: int) -> None:
        for number in range(start, start + 12):
            (service if start % 2 else other).create(token(number), secret(number))
            made.append(number)

    threads = [threading.Thread(target=create, args=(start,)) for start in (100, 201, 300)]
    for thread in threads:
        thread.start()
    assert service.rotate() == 3
    join(threads)
    assert len(made) == 36
    other.rotate()
    for one in (service, other, world.open()):
        read(one, *made, 0, 1, 2, 3, 4, 5)
    assert service.verify().problems == ()
    world.assert_no_orphans()


def test_two_hosts_on_postgres(world: World, postgres: PostgresServer) -> None:
    database = postgres.database()
    options = {"slots": 3, "settle": 120.0, "lease": 120.0}
    hosts = [world.open(database.url, **options), world.open(database.url, calls=KmsCalls(), **options)]
    for number in range(12):
        hosts[number % 2].create(token(number), secret(number))
    for host in hosts:
        read(host, *range(12))  # every root is cached on both
    acts: list[Any] = [
        *(
            lambda start=start: [hosts[start % 2].create(token(n), secret(n)) for n in range(start, start + 8)]
            for start in (100, 201, 300)
        ),
        hosts[0].rotate,
        lambda: hosts[0].destroy([token(0), token(1)]),
        lambda: hosts[1].destroy([token(2)]),
    ]
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    join(threads)
    left = [*range(3, 12), *range(100, 108), *range(201, 209), *range(300, 308)]
    for host in (*hosts, world.open(database.url, **options)):
        read(host, *left)
        for number in (0, 1, 2):
            with pytest.raises(CustomerShreddedError):
                host.load(token(number), 1)
            assert host.destroy([token(number)])[0].state == "destroyed"
    report = hosts[1].verify()
    assert report.problems == ()
    assert (report.customers, report.slots, report.tombstones) == (len(left), 4, 3)
    used = {key.arn for key in hosts[0]._aws.registry.all() if key.state == USED}
    assert {key.arn for key in world.kms.live_keys().values()} == used
    assert len(used) == 4
    world.close()
    database.drop()


def test_a_role_that_may_make_no_tables(world: World, postgres: PostgresServer) -> None:
    database = postgres.database()
    world.open(database.url).create(token(0), secret(0))
    world.close()
    role = f"serving_{os.getpid()}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    database.execute(f"GRANT USAGE ON SCHEMA shredsaver_keys TO {role}")
    database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shredsaver_keys TO {role}")
    try:
        serving = world.open(database.url.replace("postgres@", f"{role}@"))
        read(serving, 0)
        serving.create(token(1), secret(1))
        assert serving.destroy([token(0)])[0].state == "destroyed"
        read(serving, 1)
    finally:
        world.close()
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")
        database.drop()


def test_two_hosts_see_the_same_root_off(world: World) -> None:
    """The first takes longer than its claim lasts, so a second one takes the work over and is done before it."""
    second = world.open(calls=KmsCalls(), lease=0.1, window=0.1)
    resumed = threading.Thread(target=second.resume)

    def sleep(seconds: float) -> None:
        if resumed.ident is None:
            time.sleep(seconds)
        else:
            join([resumed])

    first = world.open(calls=KmsCalls(sleep=sleep), lease=0.1, window=2.0)
    for number in range(4):
        first.create(token(number), secret(number))
    world.kms.faults.hook("DeleteImportedKeyMaterial", resumed.start, when="after")
    assert first.destroy([token(0)])[0].state == "destroyed"
    assert not resumed.is_alive()
    assert second.destroy([token(0)])[0].state == "destroyed"
    read(first, 1, 2, 3)
    first.resume()
    world.assert_no_orphans()


def test_standbys_that_may_be_behind(world: World, service: AwsKeyService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PostgreSQL answers is put in its mouth: the tests' server has no standby."""
    monkeypatch.setattr("shredsaver.kms.aws._STANDBYS", Sql("SELECT 2", "SELECT 2::bigint"))
    arn, _ = world.root_of(0)
    with pytest.raises(KeyServiceUnavailableError, match="2 asynchronous standbys") as caught:
        service.destroy([token(0)])
    assert not caught.value.retryable
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    assert world.kms.keys[arn.rsplit("/", 1)[1]].latest.state == "Enabled"  # the old root lives until copies agree
    assert world.open(single_copy=True).destroy([token(0)])[0].state == "destroyed"


def test_a_hundred_at_once_share_epochs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rotation waits for the last caller, however late that one starts."""

    def wait_for_all(step: str) -> None:
        if step == "roots-make":
            assert wait_until(lambda: world.query("SELECT count(*) FROM key_tombstones") == [(100,)])

    service = world.open(slots=4)
    for number in range(110):
        service.create(token(number), secret(number))
    epochs = world.kms.count("CreateKey")
    monkeypatch.setattr("shredsaver.kms._steps.hook", wait_for_all)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda number=number: found.extend(service.destroy([token(number)])))
        for number in range(100)
    ]
    for thread in threads:
        thread.start()
    join(threads)
    assert [one.state for one in found] == ["destroyed"] * 100
    assert world.kms.count("CreateKey") - epochs <= 8
    read(service, *range(100, 110))
    assert service.verify().problems == ()
    world.assert_no_orphans()


# Cached roots and outages.


def test_one_unwrap_for_a_thousand_loads(world: World) -> None:
    moved = Time()
    service = world.open(calls=KmsCalls(clock=moved, sleep=moved.sleep))
    service.create(token(0), secret(0))
    service.close()
    service = world.open(calls=KmsCalls(clock=moved, sleep=moved.sleep))
    service.deployment()
    world.kms.calls.clear()
    for _ in range(1000):
        read(service, 0)
        moved.now += 0.05
    assert Counter(name for name, _ in world.kms.calls) == {"Decrypt": 1}
    moved.now += 61
    read(service, 0)
    assert world.kms.count("Decrypt") == 2


def test_outage_is_survived_for_a_bounded_time(world: World) -> None:
    moved = Time()
    service = world.open(calls=KmsCalls(clock=moved, sleep=moved.sleep), outage=200.0)
    service.create(token(0), secret(0))
    world.kms.faults.expire_credentials()
    read(service, 0)
    moved.now += 100
    read(service, 0)
    moved.now += 150
    for _ in range(2):
        with pytest.raises(KeyServiceUnavailableError) as caught:
            read(service, 0)
        assert caught.value.retryable
        assert "expired" in str(caught.value)
    with pytest.raises(KeyServiceUnavailableError):
        service.destroy([token(0)])
    world.kms.faults.clear()
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    assert service.destroy([token(0)])[0].state == "destroyed"


def test_denial_ends_the_cache_at_once(world: World) -> None:
    moved = Time()
    service = world.open(calls=KmsCalls(clock=moved, sleep=moved.sleep))
    service.create(token(0), secret(0))
    moved.now += 61
    world.kms.faults.deny("Decrypt")
    for _ in range(2):
        with pytest.raises(KeyAccessDeniedError):
            read(service, 0)
    world.kms.faults.clear()
    read(service, 0)


def test_unused_roots_are_forgotten(world: World) -> None:
    moved = Time()
    service = world.open(calls=KmsCalls(clock=moved, sleep=moved.sleep), keep=0.1, outage=60.0)
    service.create(token(0), secret(0))
    cache = service._aws._cache
    assert cache._entries
    moved.now += 1
    assert wait_until(lambda: not cache._entries)


# Scheduled deletion.


def test_scheduled_deletion_is_pending_until_kms_says_so(world: World) -> None:
    offset = timedelta()

    def clock() -> datetime:
        return datetime.now(UTC) + offset

    service = world.open(erasure="scheduled", clock=clock)
    for number in range(4):
        service.create(token(number), secret(number))
    assert world.kms.count("ImportKeyMaterial") == 0
    (found,) = service.destroy([token(0)])
    arn = found.key_ids[0]
    assert (found.state, found.destroyed_at) == ("pending", None)
    assert found.pending_until is not None
    due = datetime.fromisoformat(found.pending_until)
    assert timedelta(days=6.9) < due - clock() <= timedelta(days=7)
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)
    read(service, 1, 2, 3)

    offset = timedelta(days=8)  # our clock alone decides nothing
    service.resume()
    assert service.destroy([token(0)])[0].state == "pending"
    offset = timedelta()

    client_for(world.kms.url).cancel_key_deletion(KeyId=arn)
    world.kms.clock.advance(DAY)
    offset = timedelta(days=1)
    service.resume()
    (again,) = service.destroy([token(0)])
    assert (again.state, again.details["cancelled_times"]) == ("pending", 1)
    assert again.pending_until is not None
    assert datetime.fromisoformat(again.pending_until) - due >= timedelta(days=0.9)

    world.kms.clock.advance(8 * DAY)
    service.resume()
    assert service.destroy([token(0)])[0].state == "pending"  # not yet the date that KMS gave
    offset = timedelta(days=9)
    world.kms.faults.deny("DescribeKey")
    with pytest.raises(KeyAccessDeniedError):
        service.resume()
    world.kms.faults.clear()
    service.resume()
    (final,) = service.destroy([token(0)])
    assert (final.state, final.details["kms_key_state"]) == ("destroyed", "deleted")


# A slot for each customer, and keys of their own.


def test_a_slot_for_each_customer(world: World) -> None:
    service = world.open(slot="customer")
    for number in range(3):
        service.create(token(number), secret(number))
    assert len(world.kms.live_keys()) == 4
    other, _ = [key for key in world.query("SELECT slot, epoch FROM key_slots ORDER BY slot") if key[0] != 0][:2]
    assert other[1] == 1
    assert service.destroy([token(0)])[0].state == "destroyed"
    epochs = sorted(row[0] for row in world.query("SELECT epoch FROM key_slots"))
    assert epochs == [1, 1, 1, 2]  # nobody else's root moved
    read(service, 1, 2)
    # A customer who is gone costs nothing, and one who comes back gets a key again.
    assert len(world.kms.live_keys()) == 3
    assert service.verify().problems == ()
    service.rotate()
    assert len(world.kms.live_keys()) == 3
    for one in (service, world.open(slot="customer")):
        generation = one.enrol(token(0), secret(0)).generation
        assert one.load(token(0), generation).secret == secret(0)
        assert len(world.kms.live_keys()) == 4
        assert one.verify().problems == ()
        (found,) = one.destroy([token(0)])
        assert (found.state, len(found.key_ids)) == ("destroyed", 1)
        assert len(world.kms.live_keys()) == 3
    read(service, 1, 2)


def test_racing_returns_make_one_key(world: World) -> None:
    service, other = (world.open(slot="customer", lease=120.0) for _ in range(2))
    service.create(token(0), secret(0))
    service.destroy([token(0)])
    found: list[Any] = []

    def enrol(one: AwsKeyService) -> None:
        try:
            found.append(one.enrol(token(0), secret(0)))
        except (ConfigurationError, KeyServiceUnavailableError) as error:
            found.append(error)

    threads = [threading.Thread(target=enrol, args=(one,)) for one in (service, other, service)]
    for thread in threads:
        thread.start()
    join(threads)
    assert len(found) == 3
    assert service.load(token(0), 2).secret == secret(0)
    service.resume()
    assert len(world.kms.live_keys()) == 2
    assert service.destroy([token(0)])[0].state == "destroyed"
    assert len(world.kms.live_keys()) == 1


def test_every_opening_looks_at_the_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many slots there are, the deployment's key says how long the log of the dead is."""
    service = world.open()
    for number in range(4):
        service.create(token(number), secret(number))
    before = world.copy("backup.db")
    service.destroy([token(0)])
    monkeypatch.setattr("shredsaver.kms.aws_roots._CHECKED", 1)
    with pytest.raises(KeyStoreStaleError):
        world.open(before)


def test_a_lost_answer_is_looked_into(world: World) -> None:
    service = world.open()
    service.deployment()
    world.kms.faults.lose("CreateKey")
    service.create(token(0), secret(0))
    assert world.kms.count("CreateKey") == len(world.kms.keys) == 2


def test_a_key_of_the_customers_own(world: World) -> None:
    service = world.open(slot="customer", keep=0.0, outage=0.0)
    arn = world.kms.foreign_key()
    service.create(token(0), secret(0))
    service.create(token(1), secret(1))
    service.bring_key(token(0), arn)
    read(service, 0, 1)
    world.kms.faults.deny(None, key=arn)
    for _ in range(2):
        with pytest.raises(KeyAccessDeniedError):
            service.load(token(0), 1)
    read(service, 1)
    world.kms.faults.clear()
    read(service, 0)
    service.rotate()
    read(service, 0, 1)
    world.kms.faults.deny(None, key=arn)
    assert any(name == "Encrypt" and key == arn for name, key in world.kms.calls)
    assert service.destroy([token(0)])[0].state == "destroyed"  # no permission on the customer's key is needed
    with pytest.raises(CustomerShreddedError):
        service.load(token(0), 1)


def test_a_key_of_ones_own_needs_a_slot_of_ones_own(world: World, service: AwsKeyService) -> None:
    with pytest.raises(ConfigurationError, match="slot=customer"):
        service.bring_key(token(0), world.kms.foreign_key())


# Keys made ahead, and those that got lost.


def test_spares(world: World) -> None:
    service = world.open(spares=1)
    for number in range(4):
        service.create(token(number), secret(number))

    def wait_for_spare() -> None:
        assert wait_until(lambda: bool(world.query("SELECT 1 FROM key_kms WHERE slot = -1 AND state = 2")))
        join([service._aws._maker._replenishing])  # or it makes another one as soon as that is taken

    wait_for_spare()
    made = world.kms.count("CreateKey")
    seen: list[int] = []
    world.kms.faults.hook("DeleteImportedKeyMaterial", lambda: seen.append(world.kms.count("CreateKey")))
    assert service.destroy([token(0)])[0].state == "destroyed"
    assert seen == [made]  # nothing had to be made or imported before the old root could die
    wait_for_spare()
    read(service, 1, 2, 3)
    service.close()
    assert len(world.kms.live_keys()) == len(world.live_roots()) + 1


def test_a_spare_begun_and_never_finished_is_cleared_away(world: World) -> None:
    world.open().deployment()
    service = world.open(spares=1)
    world.kms.faults.deny("GetParametersForImport")
    service._aws._maker.replenish()
    join([service._aws._maker._replenishing])
    world.kms.faults.clear()
    assert len(world.kms.live_keys()) == 2
    assert service.resume() == 0  # somebody may still be at it
    service._aws._maker._abandoned = -1.0
    assert service.verify().problems != ()
    assert service.resume() == 1
    world.assert_no_orphans()
    assert service.verify().problems == ()


def test_a_lost_key_that_turns_up_late_is_cleared_away(world: World) -> None:
    world.kms.operations.propagation = 3600.0
    world.kms.faults.lose("CreateKey")
    with pytest.raises(KeyServiceUnavailableError):
        world.open().create(token(0), secret(0))
    world.kms.operations.propagation = 0.0
    service = world.open()
    service.create(token(0), secret(0))
    assert len(world.kms.live_keys()) == len(world.live_roots()) + 1
    world.kms.clock.advance(3601)
    service.resume()
    world.assert_no_orphans()


# What others see.


def test_only_tokens_leave_the_house(world: World, service: AwsKeyService) -> None:
    service.destroy([token(0)])
    for key in world.kms.keys.values():
        assert set(key.latest.tags) <= {
            f"shredsaver:{name}" for name in ("deployment", "nonce", "slot", "epoch", "log", "successor")
        }
    arn, _ = world.root_of(0)
    tags = world.kms.keys[arn.rsplit("/", 1)[1]].latest.tags
    length, head = tags["shredsaver:log"].split("-")
    assert (int(length), len(head)) == (1, 64)
    tombstone = service.tombstones()[0]
    assert tombstone.chain.hex() == head


def test_debug_logs_hold_no_root(world: World, caplog: pytest.LogCaptureFixture) -> None:
    calls = KmsCalls()
    caplog.set_level(logging.DEBUG)
    service = world.open(calls=calls)
    service.create(token(0), secret(0))
    service.destroy([token(0)])
    assert "botocore" not in {record.name.split(".")[0] for record in caplog.records}
    client_for(world.kms.url).list_keys()
    assert "botocore" in {record.name.split(".")[0] for record in caplog.records}  # others still hear of theirs


def test_a_store_of_another_kind(world: World, service: AwsKeyService) -> None:
    with pytest.raises(KeyNotFoundError):
        AwsKeyService(str(world.store.with_name("other.db")), create=False)
    world.store.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod"):
        world.open()


def test_uri(world: World, tmp_path: Path) -> None:
    with open_key_service(f"awskms:?region=eu-central-1&store={tmp_path}/a.db&slots=3&window=0.1&spares=0") as service:
        service.create(token(0), secret(0))
        assert world.query("SELECT count(*) FROM key_slots", tmp_path / "a.db") == [(2,)]
        assert service.shared
    for bad, words in {
        "awskms:": "store",
        "awskms:region": "options only",
        "awskms:?store=x&endpoint=y": "AWS_ENDPOINT_URL_KMS",
        "awskms:?store=x&slots=many": "no number",
        "awskms:?store=x&single-copy=yes": "0 or 1",
        "awskms:?store=x&erasure=quick": "material",
        "awskms:?store=x&days=3": "7 to 30",
        "awskms:?store=x&slot=mine": "shared",
    }.items():
        with pytest.raises(ConfigurationError, match=words):
            open_key_service(bad.replace("store=x", f"store={tmp_path}/b.db"))


def test_boto3_is_needed_only_when_used() -> None:
    program = (
        "import sys\n"
        "sys.modules['boto3'] = None\n"
        "import shredsaver, shredsaver.kms\n"
        "from shredsaver import *\n"
        "for act in (lambda: shredsaver.AwsKeyService, lambda: open_key_service('awskms:?store=x')):\n"
        "    try:\n"
        "        act()\n"
        "    except MissingDependencyError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'shredsaver[aws]'") == 2


def test_slots_stay_what_they_are(world: World, service: AwsKeyService) -> None:
    for options in ({"slots": 3}, {"slot": "customer"}):
        with pytest.raises(ConfigurationError, match="slots=2"):
            world.open(**options)
    read(world.open(slots=None), 0, 1)


def test_the_kind_of_erasure_may_change(world: World) -> None:
    service = world.open(erasure="scheduled")
    for number in range(4):
        service.create(token(number), secret(number))
    service = world.open()
    assert service.destroy([token(0)])[0].state == "pending"  # its root was made by KMS
    assert service.destroy([token(2)])[0].state == "pending"  # it was under that root too
    service.create(token(4), secret(4))
    assert service.destroy([token(4)])[0].state == "destroyed"
    service = world.open(erasure="scheduled")
    service.create(token(6), secret(6))
    assert service.destroy([token(6)])[0].state == "pending"
    read(service, 1, 3)


def test_the_sealed_datas_own_database_is_refused(world: World, service: AwsKeyService) -> None:
    here = service._database.fingerprint()
    with pytest.raises(ConfigurationError, match="same-database"):
        service.bind(here)
    service.bind("sqlite:1:2")
    assert service.fingerprint() == "sqlite:1:2"
    world.open(same_database=True).bind(here)
