"""The states of a customer's generation and the order of a shred: pure, no I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Final

LIVE: Final = "live"
RESTRICTED: Final = "restricted"
REVOKED: Final = "revoked"
DESTROYED: Final = "destroyed"
PURGED: Final = "purged"

STEPS: Final = (REVOKED, DESTROYED, PURGED)
"""The steps of a shred in order; each is durable before the next begins."""

DEAD: Final = frozenset(STEPS)
"""States from which nothing comes back but a new generation."""

SERVED: Final = frozenset({LIVE})
"""States in which data is read and written."""

SHOWN: Final = frozenset({LIVE, RESTRICTED})
"""States in which a person can be told what is held: the right of access (GDPR, Art. 15) outlasts a restriction."""

_AFTER: Final = {
    LIVE: (RESTRICTED, REVOKED),
    RESTRICTED: (LIVE, REVOKED),
    REVOKED: (DESTROYED,),
    DESTROYED: (PURGED,),
    PURGED: (),
}


def advance(state: str, to: str) -> str:
    """The state after a step.

    Raises:
        ValueError: The step does not follow from the state; a state is never skipped and never taken back.
    """
    if to not in _AFTER.get(state, ()):
        raise ValueError(f"no generation goes from {state} to {to}")
    return to


def remaining(state: str, *, purge: bool) -> tuple[str, ...]:
    """The steps of a shred that are still to be done for a generation in this state, first one first."""
    if state not in _AFTER:
        raise ValueError(f"no such state: {state}")
    steps = STEPS if purge else STEPS[:-1]
    return steps[STEPS.index(state) + 1 :] if state in DEAD else steps


def held(held_until: str, now: float) -> bool:
    """Whether a hold is in force at ``now``, in seconds since the epoch; ``""`` is none, otherwise an ISO 8601 time."""
    return bool(held_until) and datetime.fromisoformat(held_until).timestamp() > now
