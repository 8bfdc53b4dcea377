"""A deployment under everything that can happen to it, compared with plain dicts after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shredsaver.keytree import KeyTree
from tests.stateful.checks import CANARY, Checks, deciphered
from tests.stateful.databases import records
from tests.stateful.living import Living
from tests.stateful.running import LONG, QUICK, run
from tests.stateful.writing import Writing
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.processes import PRELOAD

LIGHT = ("shredsaver.db.postgres", "tests.stateful.deeds", "tests.stateful.model", "tests.stateful.opening")


class Machine(Checks, Living, Writing):
    """All rules and invariants."""


def test_some_of_everything(home: Path, database_place: Any, key_place: Any) -> None:
    PRELOAD.extend(LIGHT)
    run(Machine, home, database_place, key_place, QUICK)


@pytest.mark.slow
def test_everything_for_long(home: Path, database_place: Any, key_place: Any) -> None:
    PRELOAD.extend((*LIGHT, "shredsaver.kms.aws", "tests.support.aws"))
    done = run(Machine, home, database_place, key_place, LONG)
    print(f"{done.examples} examples, {done.steps} deeds")


def test_the_attack_opens_what_lives(shredder: Any, backend: Backend) -> None:
    """Otherwise it would show nothing that it opens nothing of the dead."""
    put(Caller("sync"), shredder.saver, config("t", "c-1"), {"x": ["<c-1 1 1>" * 30]})
    core = shredder._start().core
    tree = KeyTree.from_bytes(core.keys.load(core.token("customer", "c-1"), 1).secret)
    opened = [deciphered(tree.derive(one.scope, one.number), one.sealed) for one in records(backend)]
    assert any(CANARY.search(one) for one in opened)
