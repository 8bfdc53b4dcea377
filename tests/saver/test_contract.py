"""What LangGraph's documentation and sources ask of a saver, beyond its published suite.

Tests that take ``subject`` run on LangGraph's InMemorySaver too: that shows that they ask for what LangGraph asks for.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from shredsaver import CustomerUnresolvedError, ThreadOwnershipError
from tests.conftest import BACKENDS
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, checkpoint, checkpoint_id, config, metadata, put

METHODS = [
    "get_tuple",
    "list",
    "put",
    "put_writes",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
    "get_delta_channel_history",
]


ON_BOTH = pytest.mark.parametrize(
    ("backend", "subject"),
    [*((backend, "ours") for backend in BACKENDS), (BACKENDS[0], "stock")],  # the stock saver has no backend of ours
    indirect=True,
)


@pytest.fixture
def subject(request: pytest.FixtureRequest, make_shredder: Callable[..., Any]) -> BaseCheckpointSaver[Any]:
    """Our saver, then the one that defines what is right."""
    if request.param == "stock":
        return InMemorySaver()
    saver: BaseCheckpointSaver[Any] = make_shredder().saver
    return saver


@pytest.fixture
def saver(make_shredder: Callable[..., Any]) -> Any:
    return make_shredder().saver


def writes_of(call: Caller, saver: Any, where: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [tuple(write) for write in call(saver, "get_tuple", where).pending_writes]


class TestReading:
    def test_an_unknown_thread_gives_none_and_leaves_no_trace(self, call: Caller, saver: Any, backend: Backend) -> None:
        before = backend.counts()
        assert call(saver, "get_tuple", config("nobody", "never-seen")) is None
        assert call(saver, "get_tuple", config("nobody", None)) is None
        assert call(saver, "list", config("nobody", "never-seen")) == []
        assert backend.counts() == before

    def test_a_run_without_a_customer_is_refused_before_it_starts(self, call: Caller, saver: Any) -> None:
        running = config("t-1", None, __pregel_runtime=SimpleNamespace(context=None))
        with pytest.raises(CustomerUnresolvedError):
            call(saver, "get_tuple", running)

    def test_a_thread_alone_is_enough_once_it_is_owned(self, call: Caller, saver: Any) -> None:
        put(call, saver, config("t-1", "c-1"), {"x": 1})
        running = config("t-1", None, __pregel_runtime=SimpleNamespace(context=None))
        assert call(saver, "get_tuple", running).checkpoint["channel_values"] == {"x": 1}

    @pytest.mark.parametrize("context", [{"customer_id": "c-1"}, SimpleNamespace(customer_id="c-1")])
    def test_the_customer_is_found_in_the_runtime_context(self, call: Caller, saver: Any, context: Any) -> None:
        running = config("t-1", None, __pregel_runtime=SimpleNamespace(context=context))
        put(call, saver, running, {"x": 1})
        assert call(saver, "get_tuple", config("t-1", "c-1")).checkpoint["channel_values"] == {"x": 1}
        with pytest.raises(ThreadOwnershipError):
            call(saver, "get_tuple", config("t-1", "c-2"))

    def test_configurable_and_context_must_agree(self, call: Caller, saver: Any) -> None:
        running = config("t-1", "c-1", __pregel_runtime=SimpleNamespace(context={"customer_id": "c-2"}))
        with pytest.raises(ThreadOwnershipError):
            put(call, saver, running, {"x": 1})

    @ON_BOTH
    def test_a_falsy_checkpoint_id_means_the_latest(self, call: Caller, subject: Any) -> None:
        stored = chain(call, subject, config(), [{"x": 1}, {"x": 2}])
        for nothing in (None, ""):
            found = call(subject, "get_tuple", config(checkpoint_id=nothing))
            assert found.checkpoint["id"] == checkpoint_id(stored[-1])

    def test_configs_that_come_back_hold_exactly_three_keys(self, call: Caller, saver: Any) -> None:
        stored = chain(call, saver, config(), [{"x": 1}, {"x": 2}])
        found = call(saver, "get_tuple", config(checkpoint_id=checkpoint_id(stored[-1]), other="scalar"))
        listed = call(saver, "list", config())
        for one in (stored[0], stored[1], found.config, found.parent_config, *(t.config for t in listed)):
            assert set(one) == {"configurable"}
            assert set(one["configurable"]) == {"thread_id", "checkpoint_ns", "checkpoint_id"}
        assert found.parent_config == stored[0]
        assert call(saver, "get_tuple", stored[0]).parent_config is None

    def test_the_namespace_defaults_to_the_root(self, call: Caller, saver: Any) -> None:
        where = {"configurable": {"thread_id": "t-1", "customer_id": "c-1"}}
        stored = put(call, saver, where, {"x": 1})
        assert stored["configurable"]["checkpoint_ns"] == ""
        del stored["configurable"]["checkpoint_ns"]
        call(saver, "put_writes", stored, [("x", 2)], "task")
        assert [w[2] for w in writes_of(call, saver, where)] == [2]

    def test_a_thread_id_is_a_string_whatever_is_given(self, call: Caller, saver: Any) -> None:
        one = uuid.uuid4()
        put(call, saver, config(7), {"x": "seven"})
        put(call, saver, config(one), {"x": "uuid"})
        found = call(saver, "get_tuple", config("7"))
        assert found.checkpoint["channel_values"] == {"x": "seven"}
        assert found.config["configurable"]["thread_id"] == "7"
        assert call(saver, "get_tuple", config(str(one))).checkpoint["channel_values"] == {"x": "uuid"}

    @pytest.mark.parametrize(
        "name", ["a/b", "ünïcødé", "with space", "x" * 500, "'; DROP TABLE threads; --", "%", "a\x00b"]
    )
    def test_thread_ids_and_customers_are_exact(self, call: Caller, saver: Any, name: str) -> None:
        put(call, saver, config(name, name), {"x": name})
        found = call(saver, "get_tuple", config(name, None))
        assert found.config["configurable"]["thread_id"] == name
        assert found.checkpoint["channel_values"] == {"x": name}
        assert call(saver, "get_tuple", config(name + " ", None)) is None

    def test_names_that_only_look_alike_are_other_customers(self, call: Caller, saver: Any) -> None:
        put(call, saver, config("t-1", "caf\u00e9"), {"x": 1})
        for other in ("cafe\u0301", "Caf\u00e9", " caf\u00e9", "caf\u00e9\n"):
            with pytest.raises(ThreadOwnershipError):
                call(saver, "get_tuple", config("t-1", other))

    def test_a_uuid_names_the_same_customer_as_its_text(self, call: Caller, saver: Any) -> None:
        one = uuid.uuid4()
        put(call, saver, config("t-1", one), {"x": 1})
        assert call(saver, "get_tuple", config("t-1", str(one))) is not None

    @ON_BOTH
    def test_what_is_read_is_never_shared(self, call: Caller, subject: Any) -> None:
        shared = {"inner": [1]}
        put(call, subject, config(), {"one": [shared, shared], "two": shared})
        first = call(subject, "get_tuple", config())
        first.checkpoint["channel_values"]["one"][0]["inner"].append(2)
        values = call(subject, "get_tuple", config()).checkpoint["channel_values"]
        assert values == {"one": [{"inner": [1]}, {"inner": [1]}], "two": {"inner": [1]}}

    @ON_BOTH
    def test_what_is_changed_after_a_put_is_not_saved(self, call: Caller, subject: Any) -> None:
        value = ["before"]
        put(call, subject, config(), {"x": value})
        value.append("after")
        assert call(subject, "get_tuple", config()).checkpoint["channel_values"] == {"x": ["before"]}

    @ON_BOTH
    def test_blocking_calls_work_inside_a_running_loop(self, call: Caller, subject: Any) -> None:
        def body() -> Any:
            where = config()
            made = checkpoint({"x": 1})
            stored = subject.put(where, made, metadata(), made["channel_versions"])
            subject.put_writes(stored, [("x", 2)], "task")
            return subject.get_tuple(where), list(subject.list(where))

        found, listed = call.run(body)
        assert found.checkpoint["channel_values"] == {"x": 1}
        assert len(listed) == 1


class TestWriting:
    @ON_BOTH
    def test_writes_may_come_before_their_checkpoint(self, call: Caller, subject: Any) -> None:
        made = checkpoint({"x": 1})
        call(subject, "put_writes", config(checkpoint_id=made["id"]), [("x", 2)], "task")
        call(subject, "put", config(), made, metadata(), made["channel_versions"])
        assert writes_of(call, subject, config()) == [("task", "x", 2)]

    def test_a_first_put_writes_claims_the_thread(self, call: Caller, saver: Any) -> None:
        made = checkpoint({"x": 1})
        call(saver, "put_writes", config("t-1", "c-1", checkpoint_id=made["id"]), [("x", 2)], "task")
        with pytest.raises(ThreadOwnershipError):
            call(saver, "put", config("t-1", "c-2"), made, metadata(), made["channel_versions"])
        call(saver, "put", config("t-1", None), made, metadata(), made["channel_versions"])

    @ON_BOTH
    def test_a_subgraph_may_be_saved_before_its_parent(self, call: Caller, subject: Any) -> None:
        inner = {"configurable": {**config()["configurable"], "checkpoint_ns": "child:1"}}
        put(call, subject, inner, {"x": "inner"})
        put(call, subject, config(), {"x": "outer"})
        assert call(subject, "get_tuple", inner).checkpoint["channel_values"] == {"x": "inner"}
        assert call(subject, "get_tuple", config()).checkpoint["channel_values"] == {"x": "outer"}

    def test_a_first_write_without_customer_is_refused_and_writes_nothing(
        self, call: Caller, saver: Any, backend: Backend
    ) -> None:
        before = backend.contents()
        made = checkpoint({"x": 1})
        with pytest.raises(CustomerUnresolvedError):
            call(saver, "put", config("t-1", None), made, metadata(), made["channel_versions"])
        with pytest.raises(CustomerUnresolvedError):
            call(saver, "put_writes", config("t-1", None, checkpoint_id=made["id"]), [("x", 2)], "task")
        assert backend.contents() == before

    @ON_BOTH
    def test_regular_writes_keep_the_first_and_special_ones_the_last(self, call: Caller, subject: Any) -> None:
        stored = put(call, subject, config(), {"x": 0})
        call(subject, "put_writes", stored, [("x", "first"), (ERROR, "first error")], "task")
        call(subject, "put_writes", stored, [("x", "second"), (ERROR, "second error")], "task")
        assert sorted(writes_of(call, subject, config())) == sorted(
            [("task", ERROR, "second error"), ("task", "x", "first")]
        )

    @ON_BOTH
    def test_duplicates_within_a_batch_collapse(self, call: Caller, subject: Any) -> None:
        stored = put(call, subject, config(), {"x": 0})
        call(subject, "put_writes", stored, [(INTERRUPT, "a"), (INTERRUPT, "b"), (INTERRUPT, "c")], "task")
        assert writes_of(call, subject, config()) == [("task", INTERRUPT, "c")]

    @ON_BOTH
    def test_an_interrupt_write_and_a_regular_write_do_not_collide(self, call: Caller, subject: Any) -> None:
        stored = put(call, subject, config(), {"x": 0})
        call(subject, "put_writes", stored, [("x", 1), ("y", 2)], "task")
        call(subject, "put_writes", stored, [(INTERRUPT, "ask")], "task")
        call(subject, "put_writes", stored, [(RESUME, ["answer"])], "task")
        assert {(channel, repr(value)) for _, channel, value in writes_of(call, subject, config())} == {
            ("x", "1"),
            ("y", "2"),
            (INTERRUPT, "'ask'"),
            (RESUME, "['answer']"),
        }

    @ON_BOTH
    def test_writes_come_back_in_the_order_live_execution_applies_them(self, call: Caller, subject: Any) -> None:
        stored = put(call, subject, config(), {"x": 0})
        for task_id, path in [("b", "~pull, two"), ("a", "~pull, two"), ("c", "~pull, one"), ("z", "")]:
            call(subject, "put_writes", stored, [("x", f"{task_id}0"), ("x", f"{task_id}1")], task_id, path)
        order = [value for _, _, value in writes_of(call, subject, config())]
        assert order == ["z0", "z1", "c0", "c1", "a0", "a1", "b0", "b1"]

    @ON_BOTH
    def test_no_writes_is_no_error(self, call: Caller, subject: Any) -> None:
        stored = put(call, subject, config(), {"x": 0})
        call(subject, "put_writes", stored, [], "task")
        assert writes_of(call, subject, config()) == []

    @ON_BOTH
    def test_putting_an_id_again_replaces_it(self, call: Caller, subject: Any) -> None:
        first = put(call, subject, config(), {"x": 0})
        again = str(uuid6(clock_seq=-1))
        put(call, subject, config(), {"x": "old", "gone": 1}, id=again, step=1, note="old")
        child_of_first = config(checkpoint_id=checkpoint_id(first))
        put(call, subject, child_of_first, {"x": "new"}, id=again, version=2, step=2)
        found = call(subject, "get_tuple", config())
        assert found.checkpoint["channel_values"] == {"x": "new"}
        assert (found.metadata["step"], "note" in found.metadata) == (2, False)
        assert checkpoint_id(found.parent_config) == checkpoint_id(first)
        assert len(call(subject, "list", config())) == 2

    def test_calling_twice_changes_nothing(self, call: Caller, saver: Any, backend: Backend) -> None:
        made = checkpoint({"x": ["a", "b" * 300], "y": 2})
        for _ in range(2):
            stored = call(saver, "put", config(), made, metadata(), made["channel_versions"])
            call(saver, "put_writes", stored, [("x", 1), (INTERRUPT, "ask")], "task")
        assert (backend.count("checkpoints"), backend.count("writes")) == (1, 2)
        found = call(saver, "get_tuple", config())
        assert found.checkpoint == made
        assert sorted(map(tuple, found.pending_writes)) == [("task", INTERRUPT, "ask"), ("task", "x", 1)]


class TestVersions:
    @ON_BOTH
    def test_unchanged_channels_are_carried_over(self, call: Caller, subject: Any) -> None:
        first = put(call, subject, config(), {"x": ["a"], "y": 1})
        made = checkpoint({"x": ["a"], "y": 1})
        call(subject, "put", config(checkpoint_id=checkpoint_id(first)), made, metadata(), {})
        assert call(subject, "get_tuple", config()).checkpoint["channel_values"] == {"x": ["a"], "y": 1}

    def test_values_without_parent_and_without_new_versions_are_stored(self, call: Caller, saver: Any) -> None:
        put(call, saver, config(), {"x": ["a"], "y": 1}, new_versions={})
        assert call(saver, "get_tuple", config()).checkpoint["channel_values"] == {"x": ["a"], "y": 1}

    @ON_BOTH
    def test_a_value_changed_in_place_without_a_version_is_not_saved(self, call: Caller, subject: Any) -> None:
        first = put(call, subject, config(), {"x": ["a"]})
        call(subject, "put", config(checkpoint_id=checkpoint_id(first)), checkpoint({"x": ["a", "b"]}), metadata(), {})
        assert call(subject, "get_tuple", config()).checkpoint["channel_values"] == {"x": ["a"]}

    @ON_BOTH
    def test_a_channel_with_a_version_and_no_value_is_empty(self, call: Caller, subject: Any) -> None:
        first = put(call, subject, config(), {"x": ["a"], "y": 1})
        made = checkpoint({"y": 1})
        made["channel_versions"] = {"x": 2, "y": 1}
        call(subject, "put", config(checkpoint_id=checkpoint_id(first)), made, metadata(), {"x": 2})
        found = call(subject, "get_tuple", config()).checkpoint
        assert found["channel_values"] == {"y": 1}
        assert found["channel_versions"] == {"x": 2, "y": 1}

    @ON_BOTH
    def test_a_fork_sees_what_its_parent_saw(self, call: Caller, subject: Any) -> None:
        stored = chain(call, subject, config(), [{"x": ["a"]}, {"x": ["a", "b"]}])
        back = config(checkpoint_id=checkpoint_id(stored[0]))
        call(subject, "put", back, checkpoint({"x": ["a"]}), metadata(source="fork"), {})
        found = call(subject, "get_tuple", config())
        assert found.checkpoint["channel_values"] == {"x": ["a"]}
        assert checkpoint_id(found.parent_config) == checkpoint_id(stored[0])

    def test_branches_that_use_one_version_for_two_values_keep_both(self, call: Caller, saver: Any) -> None:
        first = put(call, saver, config(), {"x": ["a" * 200]})
        here = config(checkpoint_id=checkpoint_id(first))
        left = put(call, saver, here, {"x": ["a" * 200, "left"]}, version=2)
        right = put(call, saver, here, {"x": ["a" * 200, "right"]}, version=2)
        for stored, last in ((left, "left"), (right, "right")):
            found = call(saver, "get_tuple", stored)
            assert found.checkpoint["channel_values"] == {"x": ["a" * 200, last]}

    @ON_BOTH
    @pytest.mark.parametrize("version", [3, 2.5, "00000000000000000000000000000003.0.123"])
    def test_versions_are_opaque(self, call: Caller, subject: Any, version: Any) -> None:
        put(call, subject, config(), {"x": 1}, version=version)
        found = call(subject, "get_tuple", config()).checkpoint
        assert found["channel_versions"] == {"x": version}
        assert type(found["channel_versions"]["x"]) is type(version)

    def test_next_versions_increase(self, saver: Any) -> None:
        version, seen = None, []
        for _ in range(20):
            version = saver.get_next_version(version, None)
            seen.append(version)
        assert seen == sorted(seen)
        assert len(set(seen)) == 20


class TestListing:
    def test_order_is_by_id_descending_over_all_threads(self, call: Caller, saver: Any) -> None:
        expected = []
        for number in range(6):
            stored = put(call, saver, config(f"t-{number % 3}", f"c-{number % 3 % 2}"), {"x": number})
            expected.append(checkpoint_id(stored))
        assert [checkpoint_id(t.config) for t in call(saver, "list", None)] == expected[::-1]

    @ON_BOTH
    def test_limit(self, call: Caller, subject: Any) -> None:
        chain(call, subject, config(), [{"x": n} for n in range(5)])
        for limit, expected in ((None, 5), (2, 2), (99, 5), (0, 0), (-1, 0)):
            assert len(call(subject, "list", config(), limit=limit)) == expected, limit

    @ON_BOTH
    def test_before(self, call: Caller, subject: Any) -> None:
        stored = chain(call, subject, config(), [{"x": n} for n in range(4)])
        found = call(subject, "list", config(), before=stored[2])
        assert [t.config for t in found] == [stored[1], stored[0]]
        assert len(call(subject, "list", config(), before={"configurable": {"thread_id": "t-1"}})) == 4

    @ON_BOTH
    def test_a_config_with_an_id_gives_that_one(self, call: Caller, subject: Any) -> None:
        stored = chain(call, subject, config(), [{"x": n} for n in range(3)])
        assert [t.config for t in call(subject, "list", stored[1])] == [stored[1]]

    @ON_BOTH
    def test_no_namespace_means_every_namespace(self, call: Caller, subject: Any) -> None:
        for ns in ("", "child:1", "child:1|grand:2"):
            put(call, subject, {"configurable": {**config()["configurable"], "checkpoint_ns": ns}}, {"x": ns})
        everywhere = {"configurable": {"thread_id": "t-1"}}
        found = {t.config["configurable"]["checkpoint_ns"] for t in call(subject, "list", everywhere)}
        assert found == {"", "child:1", "child:1|grand:2"}
        assert len(call(subject, "list", config())) == 1

    @ON_BOTH
    @pytest.mark.parametrize(
        ("wanted", "steps"),
        [
            ({"source": "loop"}, [0, 2]),
            ({"source": "loop", "step": 2}, [2]),
            ({"step": 1}, [1]),
            ({"step": True}, [1]),  # Python's == says so
            ({"step": 1.0}, [1]),
            ({"tags": ["a", {"b": 1}]}, [1]),
            ({"tags": ["a"]}, []),
            ({"deep": {"er": {"est": None}}}, [2]),
            ({"deep": {}}, []),
            ({"absent": None}, [0, 1, 2]),
            ({"tags": None}, [0, 2]),
            ({"odd key '\" %": "x"}, [0]),
            ({"when": datetime(2026, 1, 2, tzinfo=UTC)}, [2]),
            ({"amount": Decimal("1.50")}, [0]),
            ({}, [0, 1, 2]),
        ],
    )
    def test_filters_compare_as_python_does(
        self, call: Caller, subject: Any, wanted: dict[str, Any], steps: list[int]
    ) -> None:
        put(call, subject, config(), {"x": 0}, step=0, **{"odd key '\" %": "x", "amount": Decimal("1.50")})
        put(call, subject, config(), {"x": 1}, step=1, source="input", tags=["a", {"b": 1}])
        put(
            call, subject, config(), {"x": 2}, step=2, deep={"er": {"est": None}}, when=datetime(2026, 1, 2, tzinfo=UTC)
        )
        found = call(subject, "list", config(), filter=wanted)
        assert sorted(t.metadata["step"] for t in found) == steps

    @ON_BOTH
    def test_the_limit_counts_what_the_filter_left(self, call: Caller, subject: Any) -> None:
        for step in range(10):
            put(call, subject, config(), {"x": step}, step=step, even=step % 2 == 0)
        found = call(subject, "list", config(), filter={"even": True}, limit=3)
        assert [t.metadata["step"] for t in found] == [8, 6, 4]

    def test_an_abandoned_iterator_holds_nothing(self, saver: Any, make_shredder: Callable[..., Any]) -> None:
        call = Caller("sync")
        chain(call, saver, config(), [{"x": n} for n in range(300)])
        iterator = saver.list(config())
        assert next(iterator).checkpoint["channel_values"] == {"x": 299}
        put(call, saver, config(), {"x": "while it is open"})
        put(call, make_shredder().saver, config(), {"x": "from elsewhere"})
        saver.delete_thread("t-1")
        iterator.close()

    def test_more_than_any_page(self, call: Caller, saver: Any) -> None:
        for number in range(700):
            put(call, saver, config(f"t-{number % 7}"), {"x": number}, step=number)
        assert [t.metadata["step"] for t in call(saver, "list", None)] == list(range(699, -1, -1))


class TestMetadata:
    @ON_BOTH
    def test_values_of_any_type_come_back(self, call: Caller, subject: Any) -> None:
        given = {
            "uuid": uuid.uuid4(),
            "when": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
            "nested": {"list": [1, 2.5, None, True, {"x": "y"}], "zero\x00inside": "x\x00y"},
            "number": 2**60,
            "text": "ünï\u2028",
        }
        put(call, subject, config(scalar="s", number=7, flag=True, nothing=None), {"x": 1}, **given)
        found = call(subject, "get_tuple", config()).metadata
        expected = {"source": "loop", "step": 0, "parents": {}, "customer_id": "c-1", "scalar": "s", **given}
        assert found == {**expected, "flag": True}

    @ON_BOTH
    def test_nul_in_state_and_metadata(self, call: Caller, subject: Any) -> None:
        put(call, subject, config(), {"x": "x\x00y", "list": ["\x00"]}, deep={"k": "x\x00y"})
        found = call(subject, "get_tuple", config())
        assert found.checkpoint["channel_values"] == {"x": "x\x00y", "list": ["\x00"]}
        assert found.metadata["deep"] == {"k": "x\x00y"}
        assert call(subject, "list", config(), filter={"deep": {"k": "x\x00y"}}) != []


class TestClass:
    def test_methods_stand_on_the_class(self, saver: Any) -> None:
        for name in [n for m in METHODS for n in (m, "a" + m)]:
            assert getattr(type(saver), name) is not getattr(BaseCheckpointSaver, name), name

    def test_put_writes_shows_its_task_path(self, saver: Any) -> None:
        for name in ("put_writes", "aput_writes"):
            assert "task_path" in inspect.signature(getattr(saver, name)).parameters

    def test_with_allowlist_gives_a_clone_that_shares_all_but_the_serializer(self, call: Caller, saver: Any) -> None:
        saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
        clone = saver.with_allowlist([("tests.support.types", "Address")])
        assert clone is not saver
        assert type(clone) is type(saver)
        put(call, clone, config(), {"x": 1})
        assert call(saver, "get_tuple", config()).checkpoint["channel_values"] == {"x": 1}
        del clone
        put(call, saver, config(), {"x": 2})
        assert len(call(saver, "list", config())) == 2

    def test_the_saver_knows_its_shredder(self, make_shredder: Callable[..., Any]) -> None:
        shredder = make_shredder()
        assert shredder.saver.shredder is shredder
        assert shredder.saver is shredder.saver
