"""Exports and imports: everything of one customer, of nobody else, and never past an erasure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from shredsaver import ConfigurationError, CustomerShreddedError, FormatError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config

CALL = Caller("sync")


def filled(shredder: Any) -> None:
    for customer in ("c-1", "c-2"):
        states = [{"messages": [HumanMessage(f"hello {n} from {customer}"), AIMessage("hi")]} for n in range(3)]
        stored = chain(CALL, shredder.saver, config(f"t-{customer}", customer), states)
        shredder.saver.put_writes(stored[-1], [("messages", f"pending of {customer}")], "task")
        for number in range(70):
            shredder.store.put(("users", customer), f"k-{number}", {"v": f"{number} of {customer}"})


def contents(shredder: Any, customer: str) -> Any:
    here = config(f"t-{customer}", customer)
    tuples = [(t.checkpoint, t.metadata, t.pending_writes) for t in shredder.saver.list(here)]
    items = shredder.store.search(("users", customer), limit=100)
    return tuples, sorted((item.key, item.value["v"]) for item in items)


def test_an_export_is_everything_of_one_customer(call: Caller, make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    filled(shredder)
    lines = call(shredder, "export", "c-1")
    text = "".join(lines)
    found = [json.loads(line) for line in lines]
    assert [found[0]["type"], found[0]["customer_id"]] == ["export", "c-1"]
    assert "from c-2" not in text  # ids of checkpoints are hexadecimal, with hyphens
    assert "of c-2" not in text
    for number in range(3):
        assert f"hello {number} from c-1" in text
    assert "pending of c-1" in text
    audit = shredder.audit("c-1")
    kinds = [line["type"] for line in found]
    assert kinds.count("checkpoint") == audit.routes["checkpoints"].rows
    assert kinds.count("item") == audit.routes["items"].rows == 70


def test_an_import_gives_it_all_back_elsewhere(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend, home: Any
) -> None:
    shredder = make_shredder()
    filled(shredder)
    lines = call(shredder, "export", "c-1")
    other = make_shredder(str(home / "other.sqlite"), keys=f"file:{home / 'other-keys'}")
    for _ in range(2):  # the second time everything is there already
        assert call(other, "import_", lines) == len(lines)
    assert contents(other, "c-1") == contents(shredder, "c-1")


def test_an_old_export_brings_nobody_back(call: Caller, make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    filled(shredder)
    before = contents(shredder, "c-1")
    lines = call(shredder, "export", "c-1")
    call(shredder, "shred", "c-1")
    kept = backend.contents()
    with pytest.raises(CustomerShreddedError):
        call(shredder, "import_", lines)
    with pytest.raises(CustomerShreddedError):
        call(shredder, "export", "c-1")
    assert backend.contents() == kept
    call(shredder, "enrol", "c-1")
    call(shredder, "import_", lines)
    assert contents(shredder, "c-1") == before
    assert shredder.shred("c-1").generation == 2


def test_an_export_of_nobody(call: Caller, make_shredder: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError):
        call(make_shredder(), "export", "nobody")


def test_a_shred_under_an_open_export(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    filled(shredder)
    lines = shredder.export("c-1")
    next(lines)
    shredder.shred("c-1")
    with pytest.raises(CustomerShreddedError):
        list(lines)


HEADER = {"type": "export", "format": "shredsaver-export/1", "customer_id": "c-1", "generation": 1}


@pytest.mark.parametrize(
    "lines",
    [
        ["no json"],
        [{"type": "item"}],
        [{**HEADER, "format": "shredsaver-export/9"}],
        [HEADER, HEADER],
        [HEADER, {"type": "checkpoint"}],
        [HEADER, {"type": "item", "namespace": ["users", "c-2"], "key": "k", "value": {"v": 1}}],
        [HEADER, {"type": "something"}],
        [HEADER, []],
    ],
)
def test_what_is_no_export_of_this_customer(
    make_shredder: Callable[..., Any], backend: Backend, lines: list[Any]
) -> None:
    shredder = make_shredder()
    with pytest.raises(FormatError):
        shredder.import_(line if isinstance(line, str) else json.dumps(line) for line in lines)
    assert backend.count("items") == backend.count("checkpoints") == 0
