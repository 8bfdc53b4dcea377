"""Items and threads some of whose keys were given up, numbers that run out, and records that hold something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shredsaver import DatabaseUnavailableError, FormatError, UnsealError
from shredsaver.core import FIRST_NUMBER
from shredsaver.sealing import ITEM
from tests.faults.test_fence import At, replaced, token, values
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config, put
from tests.support.steps import hooked

CALL = Caller("sync")
LAST = 2**32 - 1
HERE = ("users", "c-1")


@pytest.fixture
def shelf(make_shredder: Callable[..., Any]) -> Any:
    """A deployment with three items of one customer."""
    shredder = make_shredder()
    for name in "abc":
        shredder.store.put(HERE, name, {"said": name})
    return shredder


def found(shredder: Any, wanted: dict[str, Any] | None = None) -> list[str]:
    return sorted(item.value["said"] for item in shredder.store.search(HERE, filter=wanted))


@pytest.mark.parametrize("wanted", [None, {"said": {"$ne": "z"}}])
def test_a_key_between_those_of_a_search_may_be_gone(
    wanted: dict[str, Any] | None, shelf: Any, backend: Backend
) -> None:
    numbers = [row["number"] for row in backend.rows("items")]
    replaced(shelf, lambda tree: tree.puncture(1, sorted(numbers)[1] + 1))  # that of vectors it does not have
    assert found(shelf, wanted) == ["a", "b", "c"]
    replaced(shelf, lambda tree: tree.puncture(1, sorted(numbers)[1]))
    with pytest.raises(UnsealError, match=rf"^items: the key of record 1/{sorted(numbers)[1]} is no more$"):
        found(shelf, wanted)
    assert shelf.store.get(HERE, "a").value == {"said": "a"}
    assert shelf.store.get(HERE, "c").value == {"said": "c"}


@pytest.mark.parametrize("gone", [(0, 0), (1, 20), (2, 2), (3, 3)])
def test_an_item_is_stored_behind_numbers_whose_keys_were_given_up(
    gone: tuple[int, int], shelf: Any, backend: Backend
) -> None:
    after = max(row["number"] for row in backend.rows("items")) + 3
    replaced(shelf, lambda tree: tree.puncture_range(1, after + gone[0], after + gone[1]))
    shelf.store.put(HERE, "d", {"said": "d"})
    assert found(shelf) == ["a", "b", "c", "d"]
    assert not any(after + gone[0] <= row["number"] <= after + gone[1] for row in backend.rows("items"))


def test_the_last_numbers_are_used_and_then_there_are_none(shelf: Any, backend: Backend) -> None:
    backend.execute("UPDATE counters SET next = ? WHERE scope = 1", (LAST - 2,))
    shelf.store.put(HERE, "d", {"said": "d"})
    assert max(row["number"] for row in backend.rows("items")) == LAST - 2
    refused(shelf, backend)
    assert found(shelf) == ["a", "b", "c", "d"]


def test_no_item_is_stored_where_no_key_is_left(shelf: Any, backend: Backend) -> None:
    replaced(shelf, lambda tree: tree.puncture_range(1, FIRST_NUMBER + 9, LAST))
    refused(shelf, backend)
    assert found(shelf) == ["a", "b", "c"]


def refused(shelf: Any, backend: Backend) -> None:
    before = backend.contents()
    with pytest.raises(DatabaseUnavailableError, match="used up the numbers of its items: rotate its keys"):
        shelf.store.put(HERE, "more", {"said": "e"})
    assert backend.contents() == before


def test_an_item_that_opens_to_something_else_is_refused(shelf: Any, backend: Backend) -> None:
    core = shelf._start().core
    (row, *_) = backend.rows("items")
    columns = (row["template"], row["labels"], row["key"], str(row["created_at"]), str(row["updated_at"]))
    tree = core.keyring.cached(token(shelf), 1, 0)
    sealed = core.seal(tree, ITEM, (token(shelf), 1), row["scope"], row["number"], b"\x01", *columns)
    backend.execute("UPDATE items SET sealed = ? WHERE number = ?", (sealed, row["number"]))
    with pytest.raises(FormatError, match="no item"):
        found(shelf)


def test_a_thread_that_has_used_up_its_numbers_goes_on_under_fresh_keys(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    at = put(CALL, shredder.saver, config(), {"x": 1})
    replaced(shredder, lambda tree: tree.puncture_range(16, FIRST_NUMBER + 1, LAST))
    before = backend.contents()
    for act in (
        partial(put, CALL, shredder.saver, config(), {"x": 2}),
        partial(shredder.saver.put_writes, at, [("x", 3)], "task"),
    ):
        with pytest.raises(DatabaseUnavailableError, match="used up its numbers: rotate"):
            act()
    assert backend.contents() == before
    shredder.rotate("c-1")
    put(CALL, shredder.saver, config(), {"x": 2})
    assert values(shredder) == {"x": 2}
    assert shredder.saver.get_tuple(at).checkpoint["channel_values"] == {"x": 1}


def test_what_did_not_change_is_stored_again_where_the_parent_is_under_older_keys(
    make_shredder: Callable[..., Any],
) -> None:
    state = {"x": ["text " * 100], "y": 1}
    at = put(CALL, make_shredder().saver, config(), state)
    shredder = make_shredder()
    shredder.rotate("c-1")
    put(CALL, shredder.saver, config(), {"x": ["other"]})  # the thread moves to a scope of its own
    cold = make_shredder()
    next_one = put(CALL, cold.saver, at, {**state, "y": 2}, version=1, new_versions={"y": 2})
    for one in (cold, make_shredder()):
        assert one.saver.get_tuple(next_one).checkpoint["channel_values"] == {**state, "y": 2}


def test_the_index_of_a_long_value_is_kept_where_others_are_pruned(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    log = [f"{turn:03d} " * 50 for turn in range(70)]
    states = [{"log": log[: turn + 1], "last": "other " * 30 + str(turn)} for turn in range(70)]
    chain(CALL, make_shredder().saver, config(), states)
    before = backend.count("parts")
    make_shredder().saver.prune(["t-1"], strategy="keep_latest")
    assert 70 < backend.count("parts") < before
    assert values(make_shredder()) == states[-1]


def test_a_batch_for_somebody_whose_keys_changed_since_it_was_prepared_is_prepared_again(
    shelf: Any, make_shredder: Callable[..., Any]
) -> None:
    other = make_shredder()
    put(CALL, other.saver, config(), {"x": 1})

    def change() -> None:
        other.rotate("c-1")
        assert values(shelf) == {"x": 1}  # this process has the new keys from here on

    for read in (True, False):
        changed = At("begun", 1, change)
        with hooked(changed):
            if read:
                assert found(shelf) == ["a", "b", "c"]
            else:
                shelf.store.put(HERE, "d", {"said": "d"})
        assert changed.done
    assert found(make_shredder()) == ["a", "b", "c", "d"]
