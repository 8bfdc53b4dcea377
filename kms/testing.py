"""The tests every key service must pass.

They need nothing but Python, and run under pytest as they stand:

    from shredsaver.kms.testing import KeyServiceConformance

    class TestMyKeyService(KeyServiceConformance):
        def make(self):
            return MyKeyService(new_empty_place())

        def reopen(self, service):
            place = service.place
            service.close()
            return MyKeyService(place)

Without pytest, `run_conformance(TestMyKeyService)` runs them and gives the names of those that failed.

Faults: `interrupted` ends an operation at one of its durable steps, as a crash would. It reaches the steps of any
service built on `StoredKeyService`; a service of another make overrides `interrupted` with a way to fail its own.
`FakeRoots` stands in for a remote provider of roots that several hosts share, with delays, failures and lost answers.
"""

from __future__ import annotations

import traceback

from shredsaver.kms._fakes import FakeRemote, FakeRoots
from shredsaver.kms._suite import Crash
from shredsaver.kms._suite_endings import Endings
from shredsaver.kms._suite_faults import Concurrency, Faults
from shredsaver.kms._suite_secrets import Secrets, WholeStore

__all__ = ["Crash", "FakeRemote", "FakeRoots", "KeyServiceConformance", "run_conformance"]


class KeyServiceConformance(Secrets, Endings, WholeStore, Concurrency, Faults):
    """The tests. A subclass says how its key service is made (`make`) and opened again (`reopen`)."""


def run_conformance(suite: type[KeyServiceConformance]) -> list[str]:
    """Runs every test of a suite without pytest.

    Returns:
        The tests that failed, each with its traceback; empty if the key service conforms.
    """
    failed = []
    for name in sorted(dir(suite)):
        if not name.startswith("test_"):
            continue
        try:
            getattr(suite(), name)()
        except Exception:  # noqa: BLE001 - whatever it is, it is the finding
            failed.append(f"{name}\n{traceback.format_exc()}")
    return failed
