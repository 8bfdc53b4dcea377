"""Many processes of many threads while customers are shredded at random, on a calm network and on a bad one."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from shredsaver import CustomerShreddedError, Shredder
from tests.fakes.proxy import PostgresProxy
from tests.support import stress
from tests.support.backends import Backend, PostgresBackend
from tests.support.checkpoints import config

SECONDS = pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)], ids=["short", "long"])


def plans(database: str, keys: str, seconds: float) -> list[stress.Plan]:
    # A short run shreds as many as a long one, or it would show little.
    return [stress.Plan(database, keys, number, seconds, shred_every=round(20 * seconds)) for number in range(4)]


def check(record: stress.Record, backend: Backend, keys: str, *, calm: bool) -> None:
    """Compares what the processes were answered with what is there."""
    assert record.failures == []
    shreds, begun, done = {}, {}, defaultdict(dict)
    for event in record.events:
        if event.deed == "shred":
            begun[event.customer] = min(begun.get(event.customer, event.began), event.began)
            if event.outcome == "done":
                shreds[event.customer] = min(shreds.get(event.customer, event.ended), event.ended)
        elif event.deed == "write" and event.outcome == "done":
            done[event.customer].setdefault(event.thread, {})[event.checkpoint] = event
    assert len(begun) > 3, "too few customers were shredded to show anything"
    assert sum(len(keys_) for threads in done.values() for keys_ in threads.values()) > 100
    for event in record.events:
        if event.deed in ("write", "read") and event.customer in shreds:
            late = event.began > shreds[event.customer]
            assert not (late and event.outcome == "done" and event.deed == "write"), event
            assert not (late and event.deed == "read" and event.outcome == "done"), event
        if event.outcome == "shredded":
            assert event.customer in begun, event
            assert event.ended > begun[event.customer], event
        if calm:
            assert not event.outcome.startswith("unknown"), event
    with Shredder.open(backend.url, keys=keys) as shredder:
        shredder.resume()
        everyone = {event.customer for event in record.events}
        for customer in everyone - begun.keys():
            check_living(shredder, customer, done[customer], calm=calm)
        for customer in begun:
            check_begun(shredder, customer, done[customer], returned=customer in shreds)
        check_rows(shredder, backend, everyone)


def check_living(shredder: Shredder, customer: str, threads: dict[str, Any], *, calm: bool) -> None:
    for thread, written in threads.items():
        stored = {
            found.config["configurable"]["checkpoint_id"]: found.checkpoint["channel_values"]["x"]
            for found in shredder.saver.list(config(thread, customer))
        }
        missing = written.keys() - stored.keys()
        assert missing == set(), (customer, thread, missing)
        if calm:
            assert stored.keys() == written.keys()
        for key, event in written.items():
            assert stored[key] == event.value
    audit = shredder.audit(customer)
    assert audit.damaged == ()
    checkpoints = audit.routes["checkpoints"]
    assert checkpoints.opens == checkpoints.rows >= sum(map(len, threads.values()))
    assert audit.routes["parts"].opens == audit.routes["parts"].rows


def check_begun(shredder: Shredder, customer: str, threads: dict[str, Any], *, returned: bool) -> None:
    status = shredder.status(customer).state
    if not returned and status == "live":
        return  # every attempt failed before it was recorded
    assert status in ("destroyed", "purged"), (customer, status)
    for thread in threads:
        with pytest.raises(CustomerShreddedError):
            shredder.saver.get_tuple(config(thread, customer))
    audit = shredder.audit(customer)
    assert audit.opens == 0
    if status == "purged":  # then a row can only have come from a writer that the shred did not wait for
        assert [audit.routes[table].rows for table in ("checkpoints", "writes", "parts")] == [0, 0, 0], customer


def check_rows(shredder: Shredder, backend: Backend, everyone: set[str]) -> None:
    """No row is there that the audits do not know: nothing landed behind a purge."""
    audits = [shredder.audit(customer) for customer in everyone]
    for table in ("checkpoints", "writes", "parts"):
        assert backend.count(table) == sum(audit.routes[table].rows for audit in audits), table


@SECONDS
def test_writers_and_shreds_in_four_processes(seconds: float, backend: Backend, keys: str) -> None:
    # On a calm network nothing fails, however long a crowded machine takes for it.
    patient = "&timeout=300&answer_timeout=300" if backend.kind == "postgres" else ""
    check(stress.run(plans(backend.url + patient, keys, seconds)), backend, keys, calm=True)


def cutting(proxy: PostgresProxy) -> Callable[[float], None]:
    def act(until: float) -> None:
        chance = random.Random(7)
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.1, 0.6))
            if chance.random() < 0.3:
                proxy.stall()
                time.sleep(chance.uniform(0.1, 1.0))
                proxy.resume()
            else:
                proxy.cut(some=0.3)

    return act


def terminating(backend: PostgresBackend) -> Callable[[float], None]:
    def act(until: float) -> None:
        chance = random.Random(7)
        with psycopg.connect(backend.url, autocommit=True) as connection:
            while time.monotonic() < until:
                time.sleep(chance.uniform(0.05, 0.3))
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shredsaver'"
                    " AND datname = current_database() AND random() < 0.2"
                )

    return act


@SECONDS
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_the_same_while_connections_are_cut_and_stalled(seconds: float, backend: PostgresBackend, keys: str) -> None:
    with PostgresProxy(backend.url) as proxy:
        record = stress.run(plans(proxy.url + "&answer_timeout=5", keys, seconds), cutting(proxy))
        assert proxy.connections > 4  # more than each process opens at first
    check(record, backend, keys, calm=False)


@SECONDS
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_the_same_while_backends_are_terminated(seconds: float, backend: PostgresBackend, keys: str) -> None:
    check(stress.run(plans(backend.url, keys, seconds), terminating(backend)), backend, keys, calm=False)
