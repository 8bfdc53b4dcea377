"""Keys that die at a date: the erasure says so until they are gone, and whatever has to wait for that waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shredsaver import CustomerShreddedError, ShredIncompleteError
from shredsaver.kms.aws import AwsKeyService
from shredsaver.kms.aws_calls import KmsCalls
from shredsaver.receipts import verify
from tests.fakes.kms_server import KmsServer
from tests.support.aws import FAST
from tests.support.calls import Caller
from tests.support.checkpoints import config, put
from tests.support.targets import Clock, Notes

DAY = 86_400
CALL = Caller("sync")


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[KmsServer]:
    with KmsServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_an_erasure_while_keys_wait_for_their_date(
    make_shredder: Callable[..., Any], kms: KmsServer, home: Path
) -> None:
    clock = Clock()
    service = AwsKeyService(
        str(home / "keys.db"),
        **FAST,
        calls=KmsCalls(),
        erasure="scheduled",
        clock=lambda: datetime.fromtimestamp(clock(), UTC),
    )
    early, ledger = Notes("early"), Notes("ledger", after="verified")
    shredder = make_shredder(keys=service, targets=[early, ledger])
    put(CALL, shredder.saver, config(), {"x": 1})
    ledger.kept["c-1"] = 1
    result = shredder.shred("c-1")
    assert (result.state, result.destroyed_at) == ("revoked", None)
    assert result.pending == ("destroyed", "target:ledger")
    assert result.purged_at is not None
    said = verify(result.receipt, shredder.public_key()).payload
    assert said["state"] == "pending"
    assert said["pending"] == ["destroyed", "target:ledger"]
    assert said["how"]["state"] == "pending"
    assert said["how"]["pending_until"] is not None
    assert said["when"]["destroyed"] is None
    assert early.told
    assert not ledger.told, "a ledger of grants waits for the keys"
    assert shredder.status("c-1").pending == ("destroyed", "target:ledger")
    with pytest.raises(CustomerShreddedError):
        shredder.saver.get_tuple(config())
    with pytest.raises(ShredIncompleteError):
        shredder.enrol("c-1")
    (waiting,) = shredder.resume()
    assert waiting.state == "revoked"

    kms.clock.advance(9 * DAY)
    clock.on(timedelta(days=9))
    (done,) = shredder.resume()
    assert (done.state, done.pending) == ("purged", ())
    assert ledger.kept == {}
    assert shredder.status("c-1").state == "purged"
    last = verify(done.receipt, shredder.public_key()).payload
    assert last["state"] == "complete"
    assert last["when"]["destroyed"] is not None
