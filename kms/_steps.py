"""Named points between durable steps, so that a test can end the process at each. Outside tests they do nothing."""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def step(name: str) -> None:
    """Passes a point. What the hook raises goes to the caller, as an error of the step before would."""
    if hook is not None:
        hook(name)
