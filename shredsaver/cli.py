"""The ``shredsaver`` command: starts a command, turns errors into one line and an exit status.

Exit status: 0, done and as it should be; 1, done, and the answer is bad (a check failed); 2, called or set up wrongly;
3, any other error of this library.
"""

from __future__ import annotations

import sys
from typing import Final

from shredsaver.errors import ConfigurationError, MissingDependencyError, ShredSaverError

USAGE: Final = 2
FAILED: Final = 3


def main() -> None:
    """Runs the command line. Never returns: leaves with one of the exit statuses above."""
    try:
        try:
            from shredsaver.commands import app
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            if missing not in {"typer", "rich"}:
                raise
            raise MissingDependencyError(
                f"the shredsaver command needs {missing}, which is not installed: pip install 'shredsaver[cli]'"
            ) from None
        app()
    except ShredSaverError as error:
        sys.stderr.write(f"shredsaver: {error}\n")
        sys.exit(USAGE if isinstance(error, ConfigurationError) else FAILED)
