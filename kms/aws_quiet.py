"""Keeps boto3's debug log silent about requests that carry a root: at DEBUG it writes bodies out as they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TALKERS: Final = ("boto3", "botocore", "urllib3")
_state: Final = threading.local()


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - whatever it says, it may quote a body
        return not getattr(_state, "quiet", False)


_SILENCE: Final = _Silence()


def install() -> None:
    """Puts the filter on every logger of boto3 that there is: one on a parent would not see its children."""
    for name in list(logging.Logger.manager.loggerDict):
        if name.split(".", 1)[0] in _TALKERS:
            logging.getLogger(name).addFilter(_SILENCE)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences boto3 on this thread."""
    before = getattr(_state, "quiet", False)
    _state.quiet = True
    try:
        yield
    finally:
        _state.quiet = before
