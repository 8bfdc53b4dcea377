"""The fence at its edges: rows that vanish or change between two steps of a call, or are edited under a warm writer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from shredsaver import (
    CustomerRestrictedError,
    CustomerShreddedError,
    DatabaseUnavailableError,
    FormatError,
    KeyNotFoundError,
    RevocationLogDamagedError,
    ThreadOwnershipError,
    UnsealError,
    erasure,
)
from shredsaver.core import Customer
from shredsaver.db.base import Begin, Plan, Statement, run
from shredsaver.keytree import KeyTree
from shredsaver.sealing import NAMESPACE, PART, THREAD_NAME
from shredsaver.threads import FULL, SET_CUSTOMER, Ref, introduce
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.steps import hooked

CALL = Caller("sync")


def values(shredder: Any, *here: Any) -> Any:
    found = shredder.saver.get_tuple(config(*here))
    return found and found.checkpoint["channel_values"]


class At:
    """Calls a function once, at the n-th step that has this name; steps of the function itself are not counted."""

    def __init__(self, name: str, number: int, function: Callable[[], Any]) -> None:
        self.left = number
        self.name = name
        self.function = function
        self.done = False

    def __call__(self, step: str) -> None:
        if self.done or step != self.name:
            return
        self.left -= 1
        if not self.left:
            self.done = True
            self.function()


def store_row(shredder: Any, customer: Customer) -> None:
    """Stores a customer's row as the library itself would, with a right MAC."""
    core = shredder._start().core

    def plan() -> Plan[None]:
        yield Begin("write")
        yield from run(Statement(SET_CUSTOMER, core.customer_row(customer, None)), commit=True)

    core.database.run(plan)


def token(shredder: Any, name: str = "c-1") -> bytes:
    return bytes(shredder._start().core.token("customer", name))


# -- rows edited under a writer that remembers them -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        ("customer = (SELECT customer FROM customers WHERE customer <> threads.customer)", ThreadOwnershipError),
        ("generation = generation + 1", UnsealError),
        ("generation = generation - 1", None),
        ("scope = scope + 2", UnsealError),
        ("scope = scope - 2", UnsealError),
    ],
)
def test_a_warm_writer_does_not_write_to_a_row_that_is_not_the_one_it_knows(
    edit: str, error: type[Exception] | None, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """Each element of a thread's place is compared by the statement that takes numbers, not only looked up before."""
    shredder = make_shredder()
    put(CALL, shredder.saver, config("other", "c-2"), {"x": 1})
    put(CALL, shredder.saver, config(), {"x": 1})
    thread = shredder._start().core.token("thread", "t-1")
    before = {row["scope"] for row in backend.rows("checkpoints")}
    backend.execute(f"UPDATE threads SET {edit} WHERE thread = ?", (thread,))
    if error is not None:
        with pytest.raises(error):
            put(CALL, shredder.saver, config(), {"x": 2})
        assert backend.count("checkpoints") == 2
    else:  # as a thread from before its customer came back, it starts anew, under keys of its own
        put(CALL, shredder.saver, config(), {"x": 2})
        (row,) = (row for row in backend.rows("threads") if row["thread"] == thread)
        assert row["scope"] not in before
        assert values(shredder) == {"x": 2}


def test_numbers_that_others_took_are_taken_by_nobody_else(make_shredder: Callable[..., Any], backend: Backend) -> None:
    """Whatever moved on in a thread's row since a writer looked, records or parts, it looks again."""
    shredder = make_shredder()
    for column in ("next_record", "next_part", "epoch"):
        put(CALL, shredder.saver, config(), {"x": ["text " * 100]})
        backend.execute(f"UPDATE threads SET {column} = {column} + 5")
        put(CALL, shredder.saver, config(), {"x": [f"{column} " * 100]})
        assert values(shredder) == {"x": [f"{column} " * 100]}
    numbers = [row["number"] for row in backend.rows("checkpoints")]
    assert max(numbers) - min(numbers) + 1 == len(numbers) + 5, "the numbers in between are left out"
    parts = sorted(row["number"] for row in backend.rows("parts"))
    assert parts[-1] - parts[0] + 1 == len(parts) + 5


def test_a_warm_writer_notices_that_its_customers_row_is_gone(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    at = put(CALL, shredder.saver, config(), {"x": 1})
    backend.execute("DELETE FROM customers")
    before = backend.contents()
    for act in (
        partial(put, CALL, shredder.saver, config(), {"x": 2}),
        partial(shredder.saver.put_writes, at, [("x", 1)], "task"),
        partial(values, shredder),
    ):
        with pytest.raises(UnsealError, match=r"the row of its customer .* is missing"):
            act()
    assert backend.contents() == before


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("customer", b"another", UnsealError),
        ("generation", 2, RevocationLogDamagedError),
        ("state", erasure.RESTRICTED, RevocationLogDamagedError),
        ("key_version", 2, RevocationLogDamagedError),
        ("held_until", "2100-01-01T00:00:00.000+00:00", RevocationLogDamagedError),
        ("mac", b"x" * 32, RevocationLogDamagedError),
    ],
)
def test_a_warm_writer_is_let_through_by_no_row_but_the_one_it_was_admitted_with(
    column: str, value: Any, error: type[Exception], make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """Each column is compared by the statement that takes numbers, whether the MAC was left as it was or not."""
    shredder = make_shredder()
    at = put(CALL, shredder.saver, config(), {"x": 1})
    backend.execute(f"UPDATE customers SET {column} = ?", (value,))
    for act in (
        partial(put, CALL, shredder.saver, config(), {"x": 2}),
        partial(shredder.saver.put_writes, at, [("x", 1)], "task"),
    ):
        with pytest.raises(error):
            act()
    assert (backend.count("checkpoints"), backend.count("writes")) == (1, 0)


def test_a_thread_is_written_to_and_read_under_its_own_name_only(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    core = shredder._start().core
    (row,) = backend.rows("threads")
    tree = core.keyring.cached(token(shredder), 1, 0)
    thread = core.token("thread", "t-1")
    forged = core.seal(tree, THREAD_NAME, (token(shredder), 1), row["scope"], 0, b"t-2", thread)
    for name, says in ((forged, "carries another thread's name"), (None, "the thread's name is missing")):
        backend.execute("UPDATE threads SET name = ?", (name,))
        for act in (values, lambda shredder: put(CALL, shredder.saver, config(), {"x": 2})):
            with pytest.raises(UnsealError, match=says):
                act(make_shredder())
    assert backend.count("checkpoints") == 1


# -- between two steps of one call ------------------------------------------------------------------------------------


def test_a_new_thread_of_a_customer_whose_row_vanishes_is_not_made(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    vanish = At("after Commit", 1, lambda: backend.execute("DELETE FROM customers"))
    with hooked(vanish), pytest.raises(UnsealError, match="the row is missing"):
        put(CALL, shredder.saver, config("t-2"), {"x": 1})
    assert vanish.done
    assert backend.count("threads") == 1


def test_a_first_write_lands_in_the_generation_that_lives_when_it_is_made(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """Between the look and the write the customer is shredded and comes back."""
    shredder, other = make_shredder(), make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})

    def come_back() -> None:
        other.shred("c-1")
        other.enrol("c-1")

    back = At("after Commit", 1, come_back)
    with hooked(back):
        put(CALL, shredder.saver, config("t-2"), {"x": "new"})
    assert back.done
    (made,) = (row for row in backend.rows("threads") if row["thread"] == other._start().core.token("thread", "t-2"))
    assert made["generation"] == 2
    assert values(other, "t-2") == {"x": "new"}
    assert values(other) is None


@pytest.mark.parametrize(("what", "step", "number"), [("customer", "after Call", 2), ("thread", "after Commit", 1)])
def test_a_first_write_that_another_is_faster_with_goes_on_from_there(
    what: str, step: str, number: int, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """Between the look and the write another process makes the customer's row, or the thread's."""
    shredder, other = make_shredder(), make_shredder()
    if what == "thread":
        put(CALL, shredder.saver, config("t-0"), {"x": 0})
    faster = At(step, number, partial(put, CALL, other.saver, config(), {"x": "faster"}))
    with hooked(faster):
        put(CALL, shredder.saver, config(), {"x": "slower"})
    assert faster.done
    found = [one.checkpoint["channel_values"]["x"] for one in make_shredder().saver.list(config())]
    assert sorted(found) == ["faster", "slower"]
    assert backend.count("customers") == 1
    threads = backend.rows("threads")
    assert sorted(row["scope"] for row in threads) == [16, 18][: len(threads)]
    assert len(threads) == (2 if what == "thread" else 1)


def test_a_key_that_is_dropped_at_once_after_it_was_made_is_loaded_again(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder = make_shredder()
    core = shredder._start().core
    cached, asked = core.keyring.cached, []

    def dropped(*key: Any) -> Any:
        asked.append(key)
        return cached(*key) if len(asked) > 2 else None

    monkeypatch.setattr(core.keyring, "cached", dropped)
    put(CALL, shredder.saver, config(), {"x": 1})
    assert values(shredder) == {"x": 1}


def test_a_customer_is_introduced_by_its_id(make_shredder: Callable[..., Any]) -> None:
    core = make_shredder()._start().core
    for ref in (Ref("t", b"t", None, b"c"), Ref("t", b"t", "c", None)):
        with pytest.raises(ValueError, match="by its id"):
            next(introduce(core, ref))


@pytest.mark.parametrize("number", [-2, 0, 14, 15, 2**32 - 1, 2**32])
def test_a_counter_of_scopes_that_was_edited_gives_no_reserved_scope(
    number: int, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    backend.execute("UPDATE counters SET next = ? WHERE generation = 1 AND scope = 0", (number,))
    with pytest.raises(UnsealError, match="the next scope is out of range"):
        put(CALL, shredder.saver, config("t-2"), {"x": 1})
    assert backend.count("threads") == 1


@pytest.mark.parametrize("number", [16, 2**32 - 2])
def test_the_first_and_the_last_pair_of_scopes_are_usable(
    number: int, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    backend.execute("UPDATE counters SET next = ? WHERE generation = 1 AND scope = 0", (number,))
    put(CALL, shredder.saver, config("t-2"), {"x": ["text " * 100]})
    assert values(make_shredder(), "t-2") == {"x": ["text " * 100]}
    assert {row["scope"] for row in backend.rows("threads")} == {16, number}


@pytest.mark.parametrize("column", ["next_record", "next_part"])
def test_a_thread_whose_numbers_run_out_moves_to_fresh_scopes(
    column: str, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": "old"})
    backend.execute(f"UPDATE threads SET {column} = ?", (FULL + 1,))
    put(CALL, shredder.saver, config(), {"x": "new"})
    (row,) = backend.rows("threads")
    assert (row["scope"], row["next_record"], row["next_part"]) == (18, 17, 16)
    assert [one.checkpoint["channel_values"]["x"] for one in shredder.saver.list(config())] == ["new", "old"]


@pytest.mark.parametrize("what", ["put", "put_writes"])
def test_a_writer_that_is_always_outrun_gives_up(
    what: str, make_shredder: Callable[..., Any], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shredsaver.writing.ATTEMPTS", 3)
    shredder = make_shredder()
    at = put(CALL, shredder.saver, config(), {"x": 1})

    def outrun(step: str) -> None:
        if step == "after Call":
            backend.execute("UPDATE threads SET next_record = next_record + 1")

    acts = {
        "put": partial(put, CALL, shredder.saver, config(), {"x": 2}),
        "put_writes": partial(shredder.saver.put_writes, at, [("x", 2)], "task"),
    }
    with hooked(outrun), pytest.raises(DatabaseUnavailableError, match="3 attempts failed") as caught:
        acts[what]()
    assert caught.value.retryable
    assert values(shredder) == {"x": 1}
    assert backend.count("writes") == 0


@pytest.mark.parametrize("what", ["put", "put_writes"])
def test_a_write_for_an_earlier_generation_is_refused_though_the_customer_is_back(
    what: str, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """A warm process took the conversation for what it was; it begins anew only when it asks again."""
    warm, other = make_shredder(), make_shredder()
    at = put(CALL, warm.saver, config(), {"x": "old"})
    erased = other.shred("c-1")
    other.enrol("c-1")
    acts = {
        "put": partial(put, CALL, warm.saver, config(), {"x": "late"}),
        "put_writes": partial(warm.saver.put_writes, at, [("x", "late")], "task"),
    }
    with pytest.raises(CustomerShreddedError) as caught:
        acts[what]()
    assert caught.value.erasure_id == erased.erasure_id
    assert (backend.count("checkpoints"), backend.count("writes")) == (0, 0)
    put(CALL, warm.saver, config(), {"x": "new"})
    assert values(other) == {"x": "new"}


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_process_that_is_refused_drops_the_key(what: str, make_shredder: Callable[..., Any]) -> None:
    warm, other = make_shredder(), make_shredder()
    put(CALL, warm.saver, config(), {"x": 1})
    ring = warm._start().core.keyring
    assert ring.cached(token(warm), 1, 0) is not None
    other.shred("c-1")
    with pytest.raises(CustomerShreddedError):
        values(warm) if what == "read" else put(CALL, warm.saver, config(), {"x": 2})
    assert ring.cached(token(warm), 1, 0) is None


def test_a_refusal_tells_of_the_erasure_that_it_comes_from(make_shredder: Callable[..., Any]) -> None:
    """One was cancelled, one came before the customer came back, one after; use is restricted in between."""
    shredder = make_shredder()
    shredder.shred("another", purge=False)
    old = put(CALL, shredder.saver, config(), {"x": 1})["configurable"]["checkpoint_id"]
    shredder.shred("c-1", grace=timedelta(hours=1))
    shredder.reinstate("c-1")
    first = shredder.shred("c-1", purge=False)
    shredder.enrol("c-1")
    put(CALL, shredder.saver, config(), {"x": 2})
    with pytest.raises(CustomerShreddedError) as caught:
        shredder.saver.get_tuple(config(checkpoint_id=old))
    assert caught.value.erasure_id == first.erasure_id
    shredder.restrict("c-1")
    for more in ({}, {"checkpoint_id": old}):
        with pytest.raises(CustomerRestrictedError):
            shredder.saver.get_tuple(config(**more))
    shredder.reinstate("c-1")
    late = shredder.saver.get_tuple(config()).checkpoint["id"]
    second = shredder.shred("c-1", purge=False)
    with pytest.raises(CustomerShreddedError) as caught:
        values(shredder)
    assert caught.value.erasure_id == second.erasure_id
    shredder.enrol("c-1")
    for key, one in ((old, first), (late, second)):
        with pytest.raises(CustomerShreddedError) as caught:
            shredder.saver.get_tuple(config(checkpoint_id=key))
        assert caught.value.erasure_id == one.erasure_id


# -- rows of customers ------------------------------------------------------------------------------------------------


def test_a_customer_who_is_dead_by_its_row_alone_is_refused(make_shredder: Callable[..., Any]) -> None:
    """The entry of the erasure may be lost: nothing is known of it then, and nothing is served."""
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    shredder.shred("c-1", grace=timedelta(hours=1))  # an entry that was never carried out does not count
    for state in sorted(erasure.DEAD):
        store_row(shredder, Customer(token(shredder), 1, state, 1, ""))
        for act in (partial(values, shredder), partial(shredder.shred, "c-1")):
            with pytest.raises(CustomerShreddedError) as caught:
                act()
            assert (caught.value.erasure_id, caught.value.shredded_at) == (None, None)
            assert token(shredder).hex() in str(caught.value)


def test_keys_older_than_the_row_are_not_used(make_shredder: Callable[..., Any]) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    store_row(shredder, Customer(token(shredder), 1, erasure.LIVE, 2, ""))
    for one in (shredder, make_shredder()):
        for act in (partial(values, one), partial(put, CALL, one.saver, config(), {"x": 2})):
            with pytest.raises(KeyNotFoundError, match=r"has version 1 .* needs 2"):
                act()


def test_rows_that_were_checked_are_remembered_within_a_bound(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    monkeypatch.setattr("shredsaver.core.VERIFIED_ROWS", 3)
    shredder = make_shredder()
    for number in range(8):
        put(CALL, shredder.saver, config(f"t-{number}", f"c-{number}"), {"x": number})
    for number in range(8):
        assert values(shredder, f"t-{number}", f"c-{number}") == {"x": number}
    assert 0 < len(shredder._start().core._verified) <= 4
    backend.execute("UPDATE customers SET key_version = 0")
    for number in (0, 7):
        with pytest.raises(RevocationLogDamagedError):
            values(shredder, f"t-{number}", f"c-{number}")


# -- keys that were given up, or dropped in between --------------------------------------------------------------------


def replaced(shredder: Any, change: Callable[[KeyTree], KeyTree]) -> None:
    """Replaces a customer's tree in the key service, and lets the database know."""
    core = shredder._start().core
    record = core.keys.load(token(shredder), 1)
    secret = change(KeyTree.from_bytes(record.secret)).to_bytes()
    version = core.keys.replace(token(shredder), 1, secret, record.key_version).key_version
    store_row(shredder, Customer(token(shredder), 1, erasure.LIVE, version, ""))


@pytest.mark.parametrize(
    ("scope", "dead"),
    [(16, [(18, 18)]), (17, [(16, 40)]), (17, [(20, 20)]), (16, [(17, 17), (19, 30)]), (16, [(17, 2**32 - 2)])],
)
def test_a_writer_jumps_over_numbers_whose_keys_were_given_up(
    scope: int, dead: list[tuple[int, int]], make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": "short"})

    def puncture(tree: KeyTree) -> KeyTree:
        for first, last in dead:
            tree = tree.puncture_range(scope, first, last)
        return tree

    replaced(shredder, puncture)
    long = {"x": [f"text {number} " * 60 for number in range(12)]}
    for one in (shredder, make_shredder()):
        if dead[0][1] == 2**32 - 2:  # one number is left, and then none
            at = put(CALL, shredder.saver, config(), long)
            assert one.saver.get_tuple(at).checkpoint["channel_values"] == long
            break
        at = put(CALL, one.saver, config(), long)
        one.saver.put_writes(at, [("x", 1), ("y", 2), ("z", long)], "task")
        found = make_shredder().saver.get_tuple(at)
        assert found.checkpoint["channel_values"] == long
        assert [write[2] for write in found.pending_writes] == [1, 2, long]
    table = "parts" if scope == 17 else "checkpoints"
    numbers = {row["number"] for row in backend.rows(table)}
    assert not any(first <= number <= last for number in numbers for first, last in dead)


def test_a_process_that_begins_goes_on_from_what_its_parent_holds(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    """A channel that did not change is not written again, though the process has never seen its value."""
    state = {"x": ["text " * 100], "y": "short", "z": 1}
    at = put(CALL, make_shredder().saver, config(), state)
    parts = backend.count("parts")
    for version in (2, 3, 4, 5):
        cold = make_shredder()
        # From the second time on the key is dropped behind one look or another: the last is that at the parent.
        forget = partial(cold._start().core.keyring.forget, token(cold), 1)
        dropped = At("after Commit", max(version - 2, 1), forget if version > 2 else lambda: None)
        with hooked(dropped):
            at = put(CALL, cold.saver, at, {**state, "z": version}, version=1, new_versions={"z": version})
        assert dropped.done
        assert backend.count("parts") == parts
        assert make_shredder().saver.get_tuple(at).checkpoint["channel_values"] == {**state, "z": version}


def test_a_key_that_is_dropped_between_a_read_and_its_refresh_is_loaded_again(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    shredder.store.put(("users", "c-1"), "key", {"said": 1}, ttl=60)
    ring = shredder._start().core.keyring
    core = shredder._start().core
    later = core.clock() + 30
    core.clock = lambda: later
    (before,) = (row["expires_at"] for row in backend.rows("items"))
    drop = At("after Commit", 1, lambda: ring.forget(token(shredder), 1))
    with hooked(drop):
        assert shredder.store.get(("users", "c-1"), "key").value == {"said": 1}
    assert drop.done
    (after,) = (row["expires_at"] for row in backend.rows("items"))
    assert after == int(later * 1000) + 60 * 60_000 > before


def test_parts_that_do_not_make_up_their_value_are_refused(make_shredder: Callable[..., Any], backend: Backend) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": [f"text {number} " * 60 for number in range(12)]})
    core = shredder._start().core
    tree = core.keyring.cached(token(shredder), 1, 0)
    row = backend.rows("parts")[3]
    thread = core.token("thread", "t-1")
    sealed = core.seal(tree, PART, (token(shredder), 1), row["scope"], row["number"], b"too short", thread)
    backend.execute("UPDATE parts SET sealed = ? WHERE number = ?", (sealed, row["number"]))
    with pytest.raises(UnsealError, match="do not make up their value"):
        values(make_shredder())


# -- records under keys that are gone, or that hold something else ----------------------------------------------------


@pytest.fixture
def opened(make_shredder: Callable[..., Any]) -> tuple[Any, Any]:
    """A core with a customer's tree."""
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    core = shredder._start().core
    return core, core.keyring.cached(token(shredder), 1, 0)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("numbers", [[3, 4, 5], [3, 5], [5]])
def test_a_punctured_key_opens_no_record_of_a_range(numbers: list[int], opened: tuple[Any, Any]) -> None:
    core, tree = opened
    owner, where = (b"c" * 16, 1), ("parts", b"c", b"t")
    rows = [(number, core.seal(tree, PART, owner, 17, number, b"text", b"t")) for number in numbers]
    assert core.unseal_rows(tree, PART, owner, 17, rows, where, b"t") == dict.fromkeys(numbers, b"text")
    assert core.unseal_rows(tree, PART, owner, 17, [], where, b"t") == {}
    punctured = tree.puncture(17, 5)
    with pytest.raises(UnsealError, match=r"^parts: a key of scope 17 is no more$"):
        core.unseal_rows(punctured, PART, owner, 17, rows, where, b"t")
    with pytest.raises(UnsealError, match=r"^parts: the key of record 17/5 is no more$"):
        core.unseal(punctured, PART, owner, 17, 5, rows[-1][1], where, b"t")


def test_a_namespace_that_opens_to_something_else_is_not_listed(
    make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = make_shredder()
    shredder.store.put(("users", "c-1"), "key", {"said": 1})
    core = shredder._start().core
    tree = core.keyring.cached(token(shredder), 1, 0)
    (row,) = backend.rows("namespaces")
    sealed = core.seal(
        tree, NAMESPACE, (token(shredder), 1), row["scope"], row["number"], b"\x01", row["template"], row["labels"]
    )
    backend.execute("UPDATE namespaces SET sealed = ?", (sealed,))
    with pytest.raises(FormatError, match="no namespace"):
        shredder.store.list_namespaces(prefix=("users", "c-1"))
