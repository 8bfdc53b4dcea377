"""Values of every type mean what they mean with the plain serializer; what cannot be rebuilt is never made up."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from tests.support import types
from tests.support.calls import Caller
from tests.support.checkpoints import checkpoint_id, config, put
from tests.support.types import CORPUS, Address, Ghost, Level, Opaque, Person, Point, Runs


@pytest.fixture
def saver(make_shredder: Callable[..., Any]) -> Any:
    return make_shredder().saver


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool(np.array_equal(left, right))
    if isinstance(left, dict):
        return [(type(k), k) for k in left] == [(type(k), k) for k in right] and all(
            same(left[k], right[k]) for k in left
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def through(serde: Any, value: Any) -> Any:
    return serde.loads_typed(serde.dumps_typed(value))


def test_a_value_is_what_the_plain_serializer_makes_of_it(call: Caller, saver: Any) -> None:
    for number, (name, value) in enumerate(CORPUS.items()):
        here = config(f"t-{number}")
        expected, listed = (through(JsonPlusSerializer(), one) for one in (value, [value]))
        stored = put(call, saver, here, {"x": value, "neighbour": [value]}, extra=[value])
        call(saver, "put_writes", stored, [("x", value)], "task")
        found = call(saver, "get_tuple", here)
        assert same(found.checkpoint["channel_values"], {"x": expected, "neighbour": listed}), name
        assert same(found.metadata["extra"], listed), name
        assert same(found.pending_writes[0][2], expected), name


def test_a_growing_value_is_right_at_every_step(call: Caller, saver: Any) -> None:
    values, stock = list(CORPUS.values()), InMemorySaver()
    for one in (saver, stock):
        where = config()
        for step in range(len(values)):
            where = put(call, one, where, {"x": values[: step + 1], "y": {str(n): values[n] for n in range(step)}},
                        version=step + 1, step=step)  # fmt: skip
    pairs = zip(call(saver, "list", config()), call(stock, "list", config()), strict=True)
    for ours, theirs in pairs:
        assert same(ours.checkpoint["channel_values"], theirs.checkpoint["channel_values"]), ours.metadata["step"]


def test_a_value_that_changes_in_the_middle_shrinks_or_turns_into_another_type(call: Caller, saver: Any) -> None:
    long = ["element " * 30 + str(n) for n in range(40)]
    states: list[Any] = [
        long,
        [*long[:20], "changed " * 40, *long[21:]],
        long[:5],
        [],
        long[::-1],
        tuple(long),
        dict(enumerate(long)),
        {k: v for k, v in enumerate(long) if k != 3},
        "text now",
        long,
    ]
    where = config()
    for step, state in enumerate(states):
        where = put(call, saver, where, {"x": state}, version=step + 1, step=step)
    found = [t.checkpoint["channel_values"]["x"] for t in call(saver, "list", config())]
    assert same(found, [through(JsonPlusSerializer(), state) for state in states[::-1]])


def test_primitives_are_returned_exactly(call: Caller, saver: Any) -> None:
    values = {"text": "canary", "int": 123456789, "float": 2.5, "true": True, "none": None}
    put(call, saver, config(scalar="canary", number=77), values, note="canary")
    found = call(saver, "get_tuple", config())
    assert same(found.checkpoint["channel_values"], values)
    assert (found.metadata["note"], found.metadata["scalar"], found.metadata["number"]) == ("canary", "canary", 77)


class TestAllowlist:
    LISTED = (("tests.support.types", "Address"), ("tests.support.types", "Level"))
    VALUE: dict[str, Any] = {  # noqa: RUF012
        "listed": Address(street="Main"),
        "unlisted": Person(name="Ada", home=Address(street="Side")),
        "enum": Level.HIGH,
        "point": Point(1, 2.5),
        "inside": [Address(street="in a list" * 30), Point(3, 4)],
    }

    def test_listed_models_come_back_and_others_exactly_as_with_the_plain_saver(self, call: Caller, saver: Any) -> None:
        strict = JsonPlusSerializer(allowed_msgpack_modules=None).with_msgpack_allowlist(self.LISTED)
        stock = InMemorySaver(serde=strict)
        saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
        ours = saver.with_allowlist(self.LISTED)
        found = []
        for one in (ours, stock):
            put(call, one, config(), self.VALUE)
            found.append(call(one, "get_tuple", config()).checkpoint["channel_values"])
        assert same(*found)
        assert isinstance(found[0]["listed"], Address)
        assert not isinstance(found[0]["unlisted"], Person)

    def test_the_list_is_the_readers_not_the_writers(self, call: Caller, saver: Any) -> None:
        saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
        put(call, saver.with_allowlist(self.LISTED), config(), {"x": [Address(street="Main" * 50)]})
        assert not isinstance(call(saver, "get_tuple", config()).checkpoint["channel_values"]["x"][0], Address)
        again = call(saver.with_allowlist(self.LISTED), "get_tuple", config())
        assert isinstance(again.checkpoint["channel_values"]["x"][0], Address)


class TestWhatCannotBeRebuilt:
    def test_a_class_that_is_gone_gives_what_the_plain_serializer_gives(
        self, call: Caller, saver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = JsonPlusSerializer().dumps_typed(Ghost(secret="kept"))
        put(call, saver, config(), {"x": Ghost(secret="kept"), "in": [Ghost(secret="kept")]})
        monkeypatch.delattr(types, "Ghost")
        expected = JsonPlusSerializer().loads_typed(data)
        assert expected is not None
        found = call(saver, "get_tuple", config()).checkpoint["channel_values"]
        assert same(found, {"x": expected, "in": [expected]})

    def test_a_type_the_reader_does_not_take_raises(self, call: Caller, saver: Any) -> None:
        saver.serde = JsonPlusSerializer(pickle_fallback=True)
        stored = put(call, saver, config(), {"x": Opaque()})
        saver.serde = JsonPlusSerializer()
        with pytest.raises(NotImplementedError):
            call(saver, "get_tuple", stored)
        with pytest.raises(NotImplementedError):
            call(saver, "list", config())

    def test_pickles_come_back_where_they_are_allowed(self, call: Caller, saver: Any, tmp_path: Any) -> None:
        saver.serde = JsonPlusSerializer(pickle_fallback=True)
        put(call, saver, config(), {"x": Runs(tmp_path / "ran")})
        call(saver, "get_tuple", config())
        assert (tmp_path / "ran").exists()


def test_large_values(call: Caller, saver: Any) -> None:
    values = {
        "bytes": b"\xab" * 5_000_000,
        "text": "x" * 3_000_000,
        "list": ["y" * 1_000_000] * 3,
        "floats": [0.5] * 200_000,
    }
    stored = put(call, saver, config(), values)
    assert call(saver, "get_tuple", config(checkpoint_id=checkpoint_id(stored))).checkpoint["channel_values"] == values


@pytest.mark.parametrize("count", [15, 16, 17, 65_535, 65_536, 65_537])
def test_lists_whose_header_changes_size(call: Caller, saver: Any, count: int) -> None:
    where = put(call, saver, config(), {"x": list(range(count - 1))})
    put(call, saver, where, {"x": list(range(count))}, version=2)
    found = [t.checkpoint["channel_values"]["x"] for t in call(saver, "list", config())]
    assert found == [list(range(count)), list(range(count - 1))]


def test_no_warning_is_raised_by_plain_values(call: Caller, saver: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put(call, saver, config(), {"x": [1, "two"]})
        call(saver, "get_tuple", config())


def test_what_two_channels_have_in_common_is_stored_once(make_shredder: Callable[..., Any], backend: Any) -> None:
    call, shared, own = Caller("sync"), [f"{number} of a list " * 20 for number in range(5)], ["of its own " * 20]
    saver = make_shredder().saver
    where = put(call, saver, config(), {"a": shared, "b": shared + own, "c": own})
    assert backend.execute("SELECT count(*) FROM parts") == [(6,)]
    saver.put_writes(where, [("a", ["new " * 40]), ("b", ["new " * 40, *shared])], "task")
    assert backend.execute("SELECT count(*) FROM parts") == [(7,)]
    found = make_shredder().saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"a": shared, "b": shared + own, "c": own}
    assert [(channel, value) for _, channel, value in found.pending_writes] == [
        ("a", ["new " * 40]),
        ("b", ["new " * 40, *shared]),
    ]
