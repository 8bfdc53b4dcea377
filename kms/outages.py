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
_ADVICE: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "this process must be able to write to it and beside it"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some room and call again"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files, or close some, and call again"),
    errno.ENOENT: "put it back, or check the path",
}


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Around what uses a file or directory of keys.

    Raises:
        KeyServiceUnavailableError: The operating system refused: full disk, no descriptors left, read-only, gone.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        raise KeyServiceUnavailableError(
            f"{path} cannot be used: {error.strerror or type(error).__name__}; nothing was lost"
            f"{f', {advice}' if advice else ''}",
            retryable=error.errno in _PASSING,
        ) from error
