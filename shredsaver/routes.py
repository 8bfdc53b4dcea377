"""Where a customer's data can be, who holds it, what deletes it, and how finely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Route(NamedTuple):
    """One place where data of a customer can be."""

    name: str
    holder: str
    deleted_by: str
    granularity: str


_OURS: Final = (
    Route("live state", "shredsaver", "shred, delete_thread; RemoveMessage clears only this", "customer, thread"),
    Route("earlier checkpoints", "shredsaver", "shred, delete_thread, prune, delete_for_runs", "customer, thread, run"),
    Route("pending writes", "shredsaver", "shred, delete_thread, prune, delete_for_runs", "customer, thread, run"),
    Route("store items", "shredsaver", "shred, store.delete, time to live", "customer, item"),
    Route("store vectors", "shredsaver", "shred, store.delete, time to live", "customer, item"),
    Route("replicas and backups of the database", "the operator", "shred: they cannot be opened any more", "customer"),
    Route("earlier copies of the key store", "the operator", "shred: their roots are destroyed", "customer"),
    Route("opened keys and values in memory", "each process", "shred: the next read or write drops them", "customer"),
    Route("names in messages and logs of shredsaver", "nobody", "there are none: tokens only", "-"),
)
_OTHERS: Final = (
    Route("model and embedding providers", "the provider", "the provider's own deletion", "as it offers"),
    Route("traces, logs, analytics", "the operator", "their own retention", "as they offer"),
    Route("an agent server's own tables, node caches", "the agent server", "its own deletion", "thread, run"),
    Route(
        "copies of plaintext made by the application", "the application", "an erasure target, if it registers one", "-"
    ),
)


def routes(targets: Sequence[str]) -> list[Route]:
    """All routes, with the erasure targets that are registered."""
    registered = [
        Route(f"target {name}", "outside", "shred, through the erasure target", "customer") for name in targets
    ]
    return [*_OURS, *registered, *_OTHERS]
