"""The figures that the design sets out to reach: upper bounds of a ratio, or of ours where there is no baseline."""

from __future__ import annotations

from typing import Final

WRITE: Final = "superstep write"
FIRST_READ: Final = "resume read, first in a process"
NEXT_READ: Final = "resume read, again"
SIZE: Final = "bytes on disk"
GROWTH: Final = "bytes on disk, 200 turns against 100"
CONVERSATION: Final = "whole conversation"
SHRED_RECORDS: Final = "shred up to destroyed, by the customer's records"
SHRED_CUSTOMERS: Final = "shred up to destroyed, by other customers"
SHRED_TIME: Final = "shred up to destroyed"
KEY_CALLS: Final = "key-service calls"

STATE_GRAPH: Final = "StateGraph"
CREATE_AGENT: Final = "create_agent"

_PLAIN: Final = "SqliteSaver"
_ENCRYPTED: Final = "SqliteSaver with EncryptedSerializer"

Key = tuple[str, str, str, str | None]

TARGETS: Final[dict[Key, float]] = {
    # (figure, case, backend, baseline): at most
    (WRITE, "1 message", "sqlite", _PLAIN): 1.10,
    (WRITE, "10 messages", "sqlite", _PLAIN): 1.05,
    (WRITE, "100 messages", "sqlite", _PLAIN): 0.80,
    (WRITE, "1,000 messages", "sqlite", _PLAIN): 0.35,
    (WRITE, "1 message", "sqlite", _ENCRYPTED): 0.60,
    (WRITE, "10 messages", "sqlite", _ENCRYPTED): 0.60,
    (WRITE, "100 messages", "sqlite", _ENCRYPTED): 0.50,
    (WRITE, "1,000 messages", "sqlite", _ENCRYPTED): 0.25,
    (FIRST_READ, "100 messages", "sqlite", _PLAIN): 1.7,
    (FIRST_READ, "1,000 messages", "sqlite", _PLAIN): 1.5,
    (NEXT_READ, "100 messages", "sqlite", _PLAIN): 1.0,
    (NEXT_READ, "1,000 messages", "sqlite", _PLAIN): 1.0,
    (SIZE, f"{STATE_GRAPH}, 100 turns", "sqlite", _PLAIN): 0.04,
    (SIZE, f"{CREATE_AGENT}, 100 turns", "sqlite", _PLAIN): 0.04,
    (GROWTH, STATE_GRAPH, "sqlite", "shredsaver, 100 turns"): 2.1,
    (GROWTH, CREATE_AGENT, "sqlite", "shredsaver, 100 turns"): 2.1,
    (CONVERSATION, f"{CREATE_AGENT}, 100 turns", "sqlite", _PLAIN): 0.80,
    (WRITE, "100 messages", "postgres", "PostgresSaver"): 1.0,
    (WRITE, "100 messages, 16 threads", "postgres", "PostgresSaver"): 1.0,
    (SHRED_RECORDS, "100,000 records", "sqlite", "shredsaver, 10 records"): 1.3,
    (SHRED_TIME, "100,000 records", "sqlite", None): 10.0,
    (SHRED_CUSTOMERS, "100,000 others", "sqlite", "shredsaver, 100 others"): 2.0,
    (KEY_CALLS, "1,000 supersteps of one customer", "sqlite", None): 1.0,
}


def messages(count: int) -> str:
    """How a case of that many messages is called."""
    return "1 message" if count == 1 else f"{count:,} messages"
