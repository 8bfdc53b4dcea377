"""After the keys are destroyed a sample of what is left is tried: nothing opens it, or the erasure is not complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shredsaver import ShredIncompleteError
from shredsaver.certificate import page
from shredsaver.keyring import Keyring
from shredsaver.receipts import verify
from shredsaver.sampling import ROUTES
from shredsaver.sealing import CHECKPOINT, associated_data, seal
from tests.erasure.test_access import filled
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import config, put

CALL = Caller("sync")
MOST = {"threads": 4, "checkpoints": 8, "writes": 8, "parts": 8, "items": 8, "vectors": 8, "namespaces": 8, "events": 8}


class Embedded:
    """Two numbers for a text."""

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]


def lived(make_shredder: Callable[..., Any], **options: Any) -> Any:
    """A deployment with a customer of whom every table holds something."""
    shredder = make_shredder(index={"dims": 2, "embed": Embedded()}, **options)
    filled(shredder)
    put(CALL, shredder.saver, config("c-1-a"), {"long": [f"{n} " * 200 for n in range(20)]})
    shredder.restrict("c-1", reason="she objects")
    shredder.reinstate("c-1")
    return shredder


def test_of_each_table_a_few_are_tried_and_the_receipt_says_so(
    call: Caller, make_shredder: Callable[..., Any], backend: Backend
) -> None:
    shredder = lived(make_shredder)
    result = call(shredder, "shred", "c-1", purge=False)
    sampled = result.verification["sampled"]
    assert set(sampled) == set(MOST) == set(ROUTES)
    for route, most in MOST.items():
        assert 0 < sampled[route] <= most, route
    assert result.verification["keys_tried"] == 4
    verified = verify(result.receipt, shredder.public_key())
    assert verified.payload["verification"] == result.verification
    assert f"trying to open {sum(sampled.values())} of the records" in page(verified, result.receipt)
    assert backend.count("checkpoints") == 11


def test_after_a_purge_only_the_log_of_events_is_left(make_shredder: Callable[..., Any]) -> None:
    shredder = lived(make_shredder)
    result = shredder.shred("c-1")
    assert result.verification["sampled"] == {**dict.fromkeys(MOST, 0), "events": 2}
    nobody = shredder.shred("nobody")
    assert sum(nobody.verification["sampled"].values()) == 0
    assert "no sealed record was left to try" in page(verify(nobody.receipt, shredder.public_key()), nobody.receipt)


def incomplete(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ShredIncompleteError, match=says) as caught:
        call()
    assert caught.value.pending[0] == "destroyed"
    assert "c-1" not in str(caught.value)


@pytest.mark.parametrize("purge", [True, False])
def test_a_tree_that_survived_in_memory_is_found(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    shredder = lived(make_shredder)
    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "revoke", lambda *_: None)
        incomplete(lambda: shredder.shred("c-1", purge=purge), "some still open.*2 events")
    assert list(shredder.receipts()) == []
    assert shredder.status("c-1").state != "live"
    assert shredder.unfinished() == 1
    (done,) = shredder.resume()
    assert done.pending == ()
    assert done.verification["keys_tried"] == 4


def test_a_key_of_an_earlier_generation_that_is_given_out_is_found(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder = lived(make_shredder)
    keys, token = shredder._start().core.keys, shredder._start().core.token("customer", "c-1")
    early = keys.load(token, 1)
    shredder.shred("c-1", purge=False)
    shredder.enrol("c-1")
    real = keys.load

    def load(customer: bytes, generation: int) -> Any:
        return early if generation == 1 else real(customer, generation)

    with monkeypatch.context() as patch:
        patch.setattr(keys, "load", load)
        incomplete(lambda: shredder.shred("c-1", purge=False), "gives out the keys of generation 1")
        patch.setattr(keys, "load", lambda customer, generation: early)
        incomplete(shredder.resume, "gives out the keys of generation")
    (done,) = shredder.resume()
    assert done.pending == ()
    assert done.verification["sampled"]["checkpoints"] > 0, "what generation 1 left is tried again"


@pytest.mark.parametrize("name", ["lookup_key", "log_key", "receipt_key", "signing_key"])
def test_a_record_that_a_key_of_the_deployment_opens_is_found(
    make_shredder: Callable[..., Any], backend: Backend, name: str
) -> None:
    shredder = make_shredder()
    put(CALL, shredder.saver, config(), {"x": 1})
    core = shredder._start().core
    (row,) = backend.rows("checkpoints")
    keys = ("thread", "ns", "checkpoint_id", "parent_id", "run", "source", "step")
    columns = [bytes(row[key]) if key in ("thread", "run") else row[key] for key in keys]
    owner = (core.token("customer", "c-1"), 1)
    bound = associated_data(CHECKPOINT, core.deployment, *owner, row["scope"], row["number"], *columns)
    backend.execute("UPDATE checkpoints SET sealed = ?", (seal(getattr(core.secrets, name), b"text", bound),))
    incomplete(lambda: shredder.shred("c-1", purge=False), "1 checkpoints")


def test_a_process_that_goes_on_with_anothers_erasure_drops_what_it_had_opened(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder, other = lived(make_shredder), make_shredder()
    assert other.saver.get_tuple(config("c-1-a")) is not None
    core = other._start().core
    assert core.keyring.trees_of(core.token("customer", "c-1"))
    with monkeypatch.context() as patch:
        patch.setattr(shredder._start().shredding, "verify", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shredder.shred("c-1", purge=False)
    (done,) = other.resume()
    assert (done.pending, done.verification["keys_tried"]) == ((), 4)


def test_the_sample_is_bounded_and_taken_from_any_thread(
    make_shredder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shredder = make_shredder()
    for number in range(12):
        put(CALL, shredder.saver, config(f"t-{number}"), {"x": number})
    threads = sorted(shredder._start().core.token("thread", f"t-{number}") for number in range(12))
    tried = []
    from shredsaver import sampling

    real = sampling._opens
    monkeypatch.setattr(sampling, "_opens", lambda *args: tried.append(args[2]) or real(*args))
    monkeypatch.setattr("secrets.token_bytes", lambda _: threads[10])  # two are behind it, the others come around
    assert shredder.shred("c-1", purge=False).pending == ()
    named = {sample.columns[0] for sample in tried if sample.route == "threads"}
    assert named == {threads[10], threads[11], threads[0], threads[1]}
    assert sum(sample.route == "checkpoints" for sample in tried) == 4
