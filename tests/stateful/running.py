"""Running a state machine, each example in a directory of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.clock import BEGIN, CLOCK, stopped
from tests.stateful.databases import SqlitePlace
from tests.stateful.keyplaces import LocalKeys

PLAIN = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
    report_multiple_bugs=False,
)
QUICK = settings(PLAIN, max_examples=2, stateful_step_count=10, derandomize=True, database=None)
"""For every run of the suite: always the same."""

LONG = settings(PLAIN, max_examples=200, stateful_step_count=40, derandomize=False)
"""At random, by hand."""


def run(machine: Any, home: Path, database: Any, keys: Any, limits: settings) -> Any:
    """Runs it. Gives the class, which has counted its ``examples``."""

    class Here(machine):  # type: ignore[misc]
        examples = 0

        def __init__(self) -> None:
            CLOCK.now = BEGIN
            Here.examples += 1
            self.home = home / "run"
            self.home.mkdir()
            self.database, self.keys = database(self.home), keys(self.home)
            super().__init__()

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                shutil.rmtree(self.home)

    if limits.max_examples == LONG.max_examples and (database, keys) != (SqlitePlace, LocalKeys):
        limits = settings(limits, max_examples=limits.max_examples // 3)  # each takes several times as long
    with stopped():
        run_state_machine_as_test(Here, settings=limits)
    return Here
