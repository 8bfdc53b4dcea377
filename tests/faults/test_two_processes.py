"""Several processes on one database: the fence holds whatever a process has cached, and races end well."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from shredsaver import CustomerShreddedError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config, put
from tests.support.graphs import Items
from tests.support.processes import (
    CONTEXT,
    Pause,
    RemoteError,
    Worker,
    get,
    invoke,
    resume,
    shred,
    worker,
    write,
    write_pending,
)
from tests.support.steps import hooked
from tests.support.types import Point
from tests.support.waiting import SECONDS, join, wait_until

CALL = Caller("sync")


@pytest.fixture
def other(backend: Backend, keys: str) -> Iterator[Worker]:
    """Another process on the same database and keys."""
    with worker(backend.url, keys=keys) as one:
        yield one


def asking(saver: Any) -> Any:
    def ask(state: Items) -> dict[str, Any]:
        return {"items": [interrupt("sure?")]}

    builder = StateGraph(Items)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def start_asking(shredder: Any, here: dict[str, Any]) -> Any:
    return asking(shredder.saver).invoke({"items": ["hello"]}, here)


def refused(one: Worker, function: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        one(function, *args)
    assert caught.value.name == "CustomerShreddedError"


@pytest.mark.parametrize("purge", [True, False], ids=["purged", "not purged"])
def test_a_warm_process_is_refused_at_once(
    purge: bool, backend: Backend, make_shredder: Callable[..., Any], other: Worker
) -> None:
    """Each call is the first that the other process makes after the shred: no refusal has emptied its caches."""
    shredder = make_shredder()
    other(write, config("t-2", "c-2"), {"x": 2})
    calls: list[Callable[[dict[str, Any], Any], tuple[Any, ...]]] = [
        lambda here, at: (get, here),
        lambda here, at: (get, config(here["configurable"]["thread_id"], None)),
        lambda here, at: (get, at),
        lambda here, at: (write, here, {"x": ["warm " * 60, "more"]}),
        lambda here, at: (write, at, {"x": ["warm " * 60]}),
        lambda here, at: (write_pending, at, "task"),
        lambda here, at: (invoke, here, {"items": ["again"]}),
        lambda here, at: (write, config("a new thread", here["configurable"]["customer_id"]), {"x": 1}),
    ]
    for number, call in enumerate(calls):
        here = config(f"t {number}", f"c {number}")
        other(invoke, here, {"items": ["hello"]})
        at = other(write, here, {"x": ["warm " * 60]})
        assert other(get, here) == {"x": ["warm " * 60]}
        shredder.shred(f"c {number}", purge=purge)
        before = backend.contents()
        refused(other, *call(here, at))
        assert backend.contents() == before, number
    assert other(get, config("t-2", "c-2")) == {"x": 2}
    other(write, config("t-2", "c-2"), {"x": 3})


def test_an_interrupted_conversation_is_not_resumed(make_shredder: Callable[..., Any], other: Worker) -> None:
    shredder, here = make_shredder(), config()
    other(start_asking, here)
    shredder.shred("c-1")
    refused(other, resume, asking, here, "yes")


def test_an_interrupt_is_answered_in_another_process(make_shredder: Callable[..., Any], other: Worker) -> None:
    shredder, here = make_shredder(), config()
    start_asking(shredder, here)
    assert other(resume, asking, here, {"yes": (1, 2)})["items"] == ["hello", {"yes": (1, 2)}]
    found = asking(shredder.saver).get_state(here)
    assert (found.next, found.values) == ((), {"items": ["hello", {"yes": [1, 2]}]})  # as any serialised tuple


def fanning_out(saver: Any) -> Any:
    """Asks once for each of three sends, with values of several types on their way."""

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        answer = interrupt({"n": state["n"], "point": state["point"]})
        return {"items": [(state["n"], state["point"], state["key"], answer)]}

    def spread(state: Items) -> list[Send]:
        return [Send("ask", {"n": n, "point": Point(n, 0.5), "key": uuid.UUID(int=n)}) for n in range(3)]

    builder = StateGraph(Items)
    builder.add_node("ask", ask)
    builder.add_node("count", lambda state: {"items": [len(state["items"])]})
    builder.add_conditional_edges(START, spread, ["ask"])
    builder.add_edge("ask", "count")
    return builder.compile(checkpointer=saver)


def answer_all(shredder: Any, here: dict[str, Any]) -> Any:
    graph = fanning_out(shredder.saver)
    waiting = graph.get_state(here).interrupts
    assert all(type(one.value["point"]) is Point for one in waiting)
    return graph.invoke(Command(resume={one.id: f"answer {one.value['n']}" for one in waiting}), here)["items"]


def test_interrupts_of_a_fan_out_are_answered_once_in_another_process(
    make_shredder: Callable[..., Any], other: Worker
) -> None:
    shredder, here = make_shredder(), config()
    graph = fanning_out(shredder.saver)
    assert len(graph.invoke({"items": []}, here)["__interrupt__"]) == 3
    expected = [(n, Point(n, 0.5), uuid.UUID(int=n), f"answer {n}") for n in range(3)]
    assert other(answer_all, here) == [*expected, 3]
    state = graph.get_state(here)
    assert state.next == ()
    assert state.values["items"] == [*map(list, expected), 3]  # as any serialised tuple


def test_a_process_that_shreds_is_refused_by_its_own_caches(make_shredder: Callable[..., Any], other: Worker) -> None:
    shredder, here = make_shredder(), config()
    put(CALL, shredder.saver, here, {"x": 1})
    other(shred, "c-1")
    with pytest.raises(CustomerShreddedError):
        shredder.saver.get_tuple(here)
    with pytest.raises(CustomerShreddedError):
        put(CALL, shredder.saver, here, {"x": 2})


@pytest.mark.parametrize("purge", [True, False], ids=["purged", "not purged"])
@pytest.mark.parametrize("deed", ["put", "put_writes", "first write of a thread", "first write of a customer"])
def test_a_writer_paused_at_any_step_lands_before_the_shred_or_is_refused(
    deed: str, purge: bool, backend: Backend, make_shredder: Callable[..., Any]
) -> None:
    """Each step in turn: the writer stops there, the customer is shredded, the writer goes on."""
    writer, eraser = make_shredder(), make_shredder()
    waited, went_through = set(), set()
    for step in range(1, 200):
        customer, pause = f"c-{step}", Pause(step)
        here = config(f"t-{step}", customer)
        at = here
        if deed in ("put", "put_writes"):
            at = put(CALL, writer.saver, here, {"x": ["before " * 60]})
        elif deed == "first write of a thread":
            put(CALL, writer.saver, config(f"other {step}", customer), {"x": 1})
        outcome: list[Any] = []
        table = "writes" if deed == "put_writes" else "checkpoints"
        before = backend.count(table)

        def act(at: Any = at, outcome: list[Any] = outcome, pause: Pause = pause, step: int = step) -> None:
            pause.only(threading.get_ident())
            try:
                if deed == "put_writes":
                    writer.saver.put_writes(at, [("x", "late " * 60)], "task")
                else:
                    put(CALL, writer.saver, at, {"x": ["late " * 60, step]}, version=2)
            except CustomerShreddedError as error:
                outcome.append(error)
            else:
                outcome.append("written")

        with hooked(pause):
            acting = threading.Thread(target=act)
            acting.start()
            assert wait_until(lambda pause=pause, acting=acting: pause.reached.is_set() or not acting.is_alive())  # type: ignore[misc]
            if not pause.reached.is_set():
                join([acting])
                assert outcome == ["written"]
                assert waited
                break
            committed = backend.count(table) > before
            erasing = threading.Thread(target=eraser.shred, args=(customer,), kwargs={"purge": purge})
            erasing.start()
            erasing.join(0.08 if pause.inside else SECONDS)
            shredded_first = not erasing.is_alive()
            kept = backend.count(table)
            assert shredded_first or pause.inside, "the shred waits for a writer that is in no transaction"
            pause.go_on.set()
            join([acting, erasing])
        waited.add(shredded_first)
        went_through.add(outcome[0] == "written")
        if committed or shredded_first:
            assert (outcome[0] == "written") is committed
            assert backend.count(table) <= kept
        for shredder in (writer, eraser):
            with pytest.raises(CustomerShreddedError):
                shredder.saver.get_tuple(here)
        for left in ("checkpoints", "parts", "writes", "runs") if purge else ():
            assert backend.count(left) == 0, (step, left)
    else:
        raise AssertionError("it does not end")
    assert went_through == {True, False}


def race(database: str, options: dict[str, Any], barrier: Any, results: Any, number: int, rounds: int) -> None:
    """Eight threads that write a customer's first checkpoints, all at the same moment, in one of several processes."""
    import shredsaver

    with shredsaver.Shredder.open(database, **options) as shredder:
        for round_ in range(rounds):

            def first_write(thread: int, round_: int = round_) -> None:
                barrier.wait(SECONDS)
                customer = f"c-{round_}"
                try:
                    name = f"shared {round_}" if thread % 2 else f"{round_} of {number} {thread}"
                    put(CALL, shredder.saver, config(name, customer), {"x": [name, "text " * 60]})
                except Exception as error:  # noqa: BLE001 - told to the test
                    results.put(repr(error))
                else:
                    results.put((customer, name))

            threads = [threading.Thread(target=first_write, args=(t,)) for t in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def test_a_race_on_a_customers_first_write_ends_with_one_key(
    backend: Backend, keys: str, make_shredder: Callable[..., Any]
) -> None:
    rounds, shredder = 5, make_shredder()
    barrier, results = CONTEXT.Barrier(16), CONTEXT.Queue()
    racers = [
        CONTEXT.Process(target=race, args=(backend.url, {"keys": keys}, barrier, results, n, rounds), daemon=True)
        for n in range(2)
    ]
    for racer in racers:
        racer.start()
    written = [results.get(timeout=SECONDS) for _ in range(16 * rounds)]
    for racer in racers:
        racer.join(SECONDS)
        assert racer.exitcode == 0
    failures = [one for one in written if isinstance(one, str)]
    assert failures == []
    for customer, name in written:
        for found in shredder.saver.list(config(name, customer)):
            assert found.checkpoint["channel_values"] == {"x": [name, "text " * 60]}
        expected = 8 if name.startswith("shared") else 1
        assert len(list(shredder.saver.list(config(name, customer)))) == expected
    assert backend.count("customers") == rounds
    assert len(list(shredder.saver.list(None))) == 16 * rounds


def first_writes(shredder: Any, numbers: list[int]) -> int:
    for number in numbers:
        put(CALL, shredder.saver, config(f"t-{number}", f"racer {number}"), {"x": ["text " * 60, number]})
    return len(numbers)


def rotate(shredder: Any, times: int) -> None:
    for _ in range(times):
        shredder.rotate()


def shred_all(shredder: Any, customers: list[str]) -> None:
    for customer in customers:
        shredder.shred(customer)


@pytest.mark.parametrize("disturbance", ["rotation of every slot", "shreds of others"])
def test_first_writes_race_a_rotation_of_their_slot(
    disturbance: str, backend: Backend, keys: str, make_shredder: Callable[..., Any], other: Worker
) -> None:
    shredder = make_shredder()
    victims = [f"victim {n}" for n in range(40)]
    if disturbance == "rotation of every slot":
        other.ask(rotate, 2)
    else:
        first = [put(CALL, shredder.saver, config(f"t of {v}", v), {"x": 1}) for v in victims]
        assert len(first) == len(victims)
        other.ask(shred_all, victims)
    with worker(backend.url, keys=keys) as third:
        third.ask(first_writes, list(range(0, 120, 2)))
        first_writes(shredder, list(range(1, 120, 2)))
        assert third.answer() == 60
    other.answer()
    fresh = make_shredder()
    for number in range(120):
        found = fresh.saver.get_tuple(config(f"t-{number}", f"racer {number}"))
        assert found.checkpoint["channel_values"] == {"x": ["text " * 60, number]}
    if disturbance == "shreds of others":
        for victim in victims:
            with pytest.raises(CustomerShreddedError):
                fresh.saver.get_tuple(config(f"t of {victim}", victim))


def test_writers_in_two_processes_share_a_thread(make_shredder: Callable[..., Any], other: Worker) -> None:
    shredder, here = make_shredder(), config()
    for number in range(20):
        put(CALL, shredder.saver, here, {"x": ["ours " * 60] * number, "n": number})
        assert other(get, here) == {"x": ["ours " * 60] * number, "n": number}
        other(write, here, {"x": ["theirs " * 60] * number, "n": -number})
        assert shredder.saver.get_tuple(here).checkpoint["channel_values"]["n"] == -number
    assert len(list(shredder.saver.list(here))) == 40


def test_what_another_process_deleted_or_pruned_is_not_built_upon(
    make_shredder: Callable[..., Any], other: Worker
) -> None:
    shredder, here = make_shredder(), config()
    long = ["element " * 40 + str(n) for n in range(10)]
    chain(CALL, shredder.saver, here, [{"x": long[:n]} for n in range(1, 10)])
    for name, argument in (("prune", ["t-1"]), ("delete_thread", "t-1"), ("copy_thread", None)):
        other(upkeep, name, argument)
        put(CALL, shredder.saver, here, {"x": long})
        for found in (shredder.saver.get_tuple(here).checkpoint["channel_values"], other(get, here)):
            assert found == {"x": long}


def upkeep(shredder: Any, name: str, argument: Any) -> None:
    if name == "copy_thread":
        put(CALL, shredder.saver, config("source"), {"x": ["copied " * 40]})
        shredder.saver.copy_thread("source", "t-1")
    else:
        getattr(shredder.saver, name)(argument)
