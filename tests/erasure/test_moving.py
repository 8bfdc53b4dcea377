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


def test_pending_writes_keep_their_tasks_and_their_order(
    call: Caller, make_shredder: Callable[..., Any], home: Any
) -> None:
    """Writes are given by task path, task and index: with the checkpoint there, and with it still to come."""
    shredder = make_shredder()
    (here,) = chain(CALL, shredder.saver, config("t", "c-1"), [{"x": 1}])
    coming = config("t", "c-1", checkpoint_id="1f000000-0000-6000-8000-000000000000")
    tasks = [("a", "~__pregel_pull, second"), ("b", "~__pregel_pull, first"), ("c", "")]
    for at in (here, coming):
        for task_id, path in tasks:
            shredder.saver.put_writes(at, [("x", f"{task_id} one"), ("x", f"{task_id} two")], task_id, path)
    lines = list(call(shredder, "export", "c-1"))
    told = [json.loads(line) for line in lines]
    for kind in ("checkpoint", "writes"):
        (found,) = [line for line in told if line["type"] == kind]
        assert {(write["task_id"], write["task_path"]) for write in found["writes"]} == set(tasks)
    other = make_shredder(str(home / "other.sqlite"), keys=f"file:{home / 'other-keys'}")
    call(other, "import_", lines)
    assert [json.loads(line) for line in call(other, "export", "c-1")][1:] == told[1:]
    (read,) = other.saver.list(config("t", "c-1"))
    expected = [(task_id, "x", f"{task_id} {n}") for task_id in ("c", "b", "a") for n in ("one", "two")]
    assert read.pending_writes == expected
    # An export from before it told of paths is taken as it is.
    for line in told:
        for write in line.get("writes", ()):
            del write["task_path"]
    older = make_shredder(str(home / "older.sqlite"), keys=f"file:{home / 'older-keys'}")
    call(older, "import_", map(json.dumps, told))
    (read,) = older.saver.list(config("t", "c-1"))
    assert sorted(read.pending_writes) == sorted(expected)


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
        [b"\xff\xfe\n"],
        [b'{"type": "\xff"}'],
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
        shredder.import_(line if isinstance(line, str | bytes) else json.dumps(line) for line in lines)
    assert backend.count("items") == backend.count("checkpoints") == 0
