"""A key service that says how often it was called and when it had destroyed, and customers made in bulk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shredsaver.db.base import Begin, Plan, Statement, run
from shredsaver.keytree import KeyTree
from shredsaver.kms import open_key_service, schema
from shredsaver.kms.wrapping import Wrapped, new_key, seal_secret, wrap

from .contenders import KEYS, Place


class ObservedKeys:
    """Passes every call on to a local key service.

    Attributes:
        calls: How often each method was called since `forget`.
        destroyed: `time.perf_counter` when the last `destroy` returned.
    """

    def __init__(self, place: Place) -> None:
        self.service: Any = open_key_service(f"file:{place.directory / KEYS}")
        self.calls: Counter[str] = Counter()
        self.destroyed = 0.0

    def forget(self) -> None:
        """Starts counting anew."""
        self.calls.clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.service, name)
        if name.startswith("_") or not callable(found):
            return found
        return partial(self._call, name, found)

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.calls[name] += 1
        answer = method(*arguments, **options)
        if name == "destroy":
            self.destroyed = time.perf_counter()
        return answer


def create_in_bulk(service: Any, customers: Sequence[bytes]) -> None:
    """Makes keys as `create` does, row for row, but roots and rows many at once: it would take minutes otherwise."""
    secret = KeyTree.generate().to_bytes()
    by_slot: dict[int, list[bytes]] = {}
    for customer in customers:
        by_slot.setdefault(service._slot(customer), []).append(customer)
    wraps: list[tuple[Any, ...]] = []
    trees: list[tuple[Any, ...]] = []
    service._database.run(partial(_add_slots, list(by_slot)))
    service._rotation.run(by_slot)
    for slot, tokens in by_slot.items():
        epoch = service._look(tokens[0]).root
        root = service._roots.open(epoch)
        for customer in tokens:
            key, row = new_key(), Wrapped(slot, customer, 1, epoch.epoch, 1, b"")
            trees.append((customer, 1, seal_secret(service._store, key, row, secret)))
            done = wrap(service._store, root, key, row)
            wraps.append((slot, customer, 1, epoch.epoch, epoch.epoch, done.wrapped))
    service._database.run(partial(_insert, wraps, trees))


def _add_slots(slots: list[int]) -> Plan[None]:
    yield Begin("write")
    yield from run(
        Statement(schema.SLOT_ADD, [(slot, b"") for slot in slots], many=True),
        Statement(schema.SLOT_BEGIN, [(slot,) for slot in slots], many=True),
        commit=True,
    )


def _insert(wraps: list[tuple[Any, ...]], trees: list[tuple[Any, ...]]) -> Plan[None]:
    yield Begin("write")
    added = schema.WRAP_ADD._replace(sqlite=schema.WRAP_ADD.sqlite.partition(" RETURNING")[0])
    yield from run(Statement(added, wraps, many=True), Statement(schema.TREE_PUT, trees, many=True), commit=True)
