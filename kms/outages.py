"""What the operating system refuses, told as an outage of the key service."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shredsaver.errors import KeyServiceUnavailableError

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EINTR})
"""What goes away when somebody frees room or descriptors."""


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Around what uses a file or directory of keys.

    Raises:
        KeyServiceUnavailableError: The operating system refused: full disk, no descriptors left, read-only, gone.
    """
    try:
        yield
    except OSError as error:
        raise KeyServiceUnavailableError(
            f"{path} cannot be used: {error.strerror or type(error).__name__}; nothing was lost",
            retryable=error.errno in _PASSING,
        ) from error
