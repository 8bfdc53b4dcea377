"""Nothing that a user controls can be read at rest.

Canaries go into every field a user controls, through real graphs and straight calls; then every byte that is stored is
searched for every form a canary could have been written in. The same canaries are looked for, and found, in what the
stock saver writes: so the search can find them.
"""

from __future__ import annotations

import logging
import operator
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from shredsaver import ShredSaverError
from tests.support.backends import Backend, read_files
from tests.support.calls import Caller
from tests.support.canaries import labels, search, values_of_every_type, word
from tests.support.checkpoints import checkpoint, metadata
from tests.support.types import Address, Point

CUSTOMER, THREAD, RUN = word("customer id"), word("thread id"), word("run id")
SAID = {
    name: word(name)
    for name in (
        "said", "message id", "message name", "tool argument", "tool result", "artifact", "response metadata",
        "interrupt", "resumed", "updated", "sent", "error", "dict key", "nested", "model field", "dataclass field",
        "configurable", "configurable name", "config metadata", "config metadata name", "primitive", "forked",
        "write", "special write", "special error", "special resume", "metadata", "metadata key", "tag",
    )
}  # fmt: skip
TYPED = values_of_every_type("state") | values_of_every_type("pending") | values_of_every_type("meta")
del TYPED["meta: bytes"]  # the stock saver keeps metadata as JSON, so it could not show that they would be found
SCALARS = {"configurable int": 2**62 + 123_456_789_012_345, "configurable float": 3.1415926535897e201}
CANARIES: dict[str, Any] = {"customer": CUSTOMER, "thread": THREAD, "run": RUN, **SAID, **TYPED, **SCALARS}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    items: Annotated[list[Any], operator.add]
    typed: dict[str, Any]
    text: str
    number: int
    amount: float
    raw: bytes
    address: Address
    point: Point


def build(saver: Any) -> Any:
    def ask(state: State) -> dict[str, Any]:
        return {"items": [interrupt({SAID["interrupt"]: SAID["interrupt"]})]}

    def fail(state: State) -> dict[str, Any]:
        raise ValueError(SAID["error"])

    def spread(state: State) -> dict[str, Any]:
        call = {"name": "look_up", "args": {"q": SAID["tool argument"]}, "id": "call-1"}
        return {
            "messages": [
                AIMessage("", tool_calls=[call], response_metadata={"k": SAID["response metadata"]}, id="a"),
                ToolMessage(SAID["tool result"], tool_call_id="call-1", artifact=SAID["artifact"], id="t"),
            ],
            "typed": {k: v for k, v in TYPED.items() if k.startswith("state")},
            "text": SAID["primitive"],
            "number": TYPED["state: int"],
            "amount": TYPED["state: float"],
            "raw": TYPED["state: bytes"],
            "address": Address(street=SAID["model field"]),
            "point": Point(1, 2.0, SAID["dataclass field"]),
            "items": [{SAID["dict key"]: {"deep": [SAID["nested"]]}}],
        }

    builder = StateGraph(State)
    builder.add_node("spread", spread)
    builder.add_node("ask", ask)
    builder.add_node("sent", lambda s: {"items": [s["payload"]]})
    builder.add_node("fail", fail)
    builder.add_edge(START, "spread")
    builder.add_edge("spread", "ask")
    builder.add_conditional_edges("ask", lambda s: [Send("sent", {"payload": SAID["sent"]})], ["sent"])
    builder.add_edge("sent", "fail")
    return builder.compile(checkpointer=saver)


def converse(call: Caller, saver: Any) -> dict[str, Any]:
    """Puts every canary somewhere; returns a config of the thread."""
    here = {
        "configurable": {
            "thread_id": THREAD, "customer_id": CUSTOMER, "run_id": RUN,
            SAID["configurable name"]: SAID["configurable"],
            "an int": SCALARS["configurable int"], "a float": SCALARS["configurable float"],
        },
        "metadata": {SAID["config metadata name"]: SAID["config metadata"]},
        "tags": [SAID["tag"]],
    }  # fmt: skip
    graph = build(saver)
    said = HumanMessage(SAID["said"], id=SAID["message id"], name=SAID["message name"])
    call(graph, "invoke", {"messages": [said]}, here)
    call(graph, "update_state", here, {"items": [SAID["updated"]]}, as_node="spread")
    with pytest.raises(ValueError, match=SAID["error"]):
        call(graph, "invoke", Command(resume=SAID["resumed"]), here)
    oldest = call(graph, "get_state_history", here)[-2].config
    call(graph, "update_state", {**here, **oldest}, {"items": [SAID["forked"]]}, as_node="spread")

    pending = {k: v for k, v in TYPED.items() if k.startswith("pending")}
    known = {k: getattr(v, "isoformat", v.__str__)() for k, v in TYPED.items() if k.startswith("meta")}
    made = checkpoint({"x": 1, "y": SAID["primitive"]})
    straight = {"configurable": {"checkpoint_ns": "", **here["configurable"]}}
    stored = call(
        saver, "put", straight, made, metadata(**{SAID["metadata key"]: [SAID["metadata"]]}, **known),
        made["channel_versions"],
    )  # fmt: skip
    writes = [
        ("x", SAID["write"]),
        *(("y", v) for v in pending.values()),
        *(("z", [v, "x" * 200]) for v in pending.values()),
    ]
    call(saver, "put_writes", stored, writes, "task")
    specials = [(INTERRUPT, SAID["special write"]), (ERROR, SAID["special error"]), (RESUME, [SAID["special resume"]])]
    call(saver, "put_writes", stored, specials, "task")
    return here


@pytest.fixture
def everything(backend: Backend, keys: str) -> Callable[[], dict[str, bytes]]:
    """All that is stored, keys included, by place."""

    def read() -> dict[str, bytes]:
        directory = Path(keys.removeprefix("file:"))
        stored = read_files(file for file in directory.rglob("*") if file.is_file())
        assert stored
        return {**backend.dump(), **stored}

    return read


def hidden(where: dict[str, bytes]) -> None:
    assert sum(map(len, where.values())) > 10_000
    assert search(where, CANARIES) == set()


def test_nothing_is_readable_at_rest(
    call: Caller, make_shredder: Callable[..., Any], everything: Callable[[], dict[str, bytes]]
) -> None:
    shredder = make_shredder()
    here = converse(call, shredder.saver)
    found = call(build(shredder.saver), "get_state", here)
    assert found.metadata
    hidden(everything())
    call(shredder, "close")
    hidden(everything())

    again = make_shredder()
    assert call(build(again.saver), "get_state_history", here)
    call(again, "shred", CUSTOMER, reason="art-17/2026-118")
    hidden(everything())
    call(again, "close")
    hidden(everything())


def test_nothing_is_readable_after_a_deletion(
    call: Caller, make_shredder: Callable[..., Any], everything: Callable[[], dict[str, bytes]]
) -> None:
    shredder = make_shredder()
    converse(call, shredder.saver)
    call(shredder.saver, "delete_thread", THREAD)
    hidden(everything())
    call(shredder, "close")
    hidden(everything())


def test_the_values_are_there_for_who_has_the_keys(call: Caller, make_shredder: Callable[..., Any]) -> None:
    saver = make_shredder().saver
    here = converse(call, saver)
    tuples = call(saver, "list", {"configurable": {"thread_id": THREAD}})
    text = repr(tuples) + repr(call(build(saver), "get_state", here))
    for name, value in (SAID | SCALARS).items():
        if name != "tag":
            assert repr(value).strip("'") in text, name
    for name, value in TYPED.items():
        assert any(form in text for form in (repr(value), str(value), str(value).replace(" ", "T"))), name


def test_the_search_finds_each_canary_where_the_stock_saver_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "stock.sqlite"
    connection = sqlite3.connect(file, check_same_thread=False)
    try:
        converse(Caller("sync"), SqliteSaver(connection))
        found = search({f.name: f.read_bytes() for f in tmp_path.iterdir()}, CANARIES)
    finally:
        connection.close()
    # Tags of a run are not stored by anyone.
    assert labels(found) == set(CANARIES) - {"tag"}


def test_errors_and_logs_name_nobody(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shredder = make_shredder()
    here = converse(call, shredder.saver)
    graph = build(shredder.saver)
    told: list[str] = [repr(shredder), repr(shredder.saver), str(vars(shredder.saver))]

    def tell(operation: Callable[[], Any]) -> None:
        with pytest.raises(ShredSaverError) as caught:
            operation()
        told.append("".join(traceback.format_exception(caught.value)))
        told.append(repr(caught.value) + str(caught.value.__dict__))

    other = {"configurable": {**here["configurable"], "customer_id": word("other customer"), "checkpoint_ns": ""}}
    tell(lambda: call(graph, "get_state", other))
    tell(lambda: call(shredder.saver, "put", other, checkpoint({"x": 1}), metadata(), {"x": 1}))
    unwritable = {"configurable": {**here["configurable"], "checkpoint_ns": ""}}
    tell(lambda: call(shredder.saver, "put", unwritable, checkpoint({"x": Unwritable()}), metadata(), {"x": 1}))
    backend.execute("UPDATE checkpoints SET step = '99'")
    tell(lambda: call(graph, "get_state", here))
    result = call(shredder, "shred", CUSTOMER, reason="art-17/2026-118")
    told += [repr(result), str(result)]
    tell(lambda: call(graph, "get_state", here))
    # LangGraph logs what its nodes raise and what it revives; this is about us.
    told += [r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("shredsaver")]
    everything = CANARIES | {"other": word("other customer"), "unwritable": word("unwritable")}
    assert search({str(n): text.encode() for n, text in enumerate(told)}, everything) == set()


class Unwritable:
    """Nothing serialises it, and it tells what it holds."""

    def __reduce__(self) -> Any:
        raise TypeError(word("unwritable"))

    def __repr__(self) -> str:
        return word("unwritable")
