"""A part that is gone is an error, wherever it stood: in a value, in a write, or in the index of a long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shredsaver.errors import UnsealError
from tests.support.backends import Backend
from tests.support.calls import Caller
from tests.support.checkpoints import chain, config


@pytest.fixture
def stored(make_shredder: Callable[..., Any], call: Caller) -> list[Any]:
    """A conversation whose parts are interleaved with another channel's, long enough to have an index part."""
    saver = make_shredder().saver
    log = [f"{turn:03d} " * 50 for turn in range(70)]
    states = [{"log": log[: turn + 1], "last": "other " * 30 + str(turn)} for turn in range(70)]
    chain(call, saver, config(), states)
    return log


def test_every_part_that_is_read_is_missed(
    stored: list[Any], make_shredder: Callable[..., Any], call: Caller, backend: Backend
) -> None:
    numbers = sorted(number for (number,) in backend.execute("SELECT number FROM parts"))
    assert len(numbers) > 2 * 70  # index parts too
    outcomes = []
    for number in [*numbers[:2], *numbers[60:100:7], *numbers[-6:]]:
        backend.execute(f"UPDATE parts SET number = number + 100000 WHERE number = {number}")
        try:
            found = call(make_shredder().saver, "get_tuple", config())
        except UnsealError as error:
            assert f"part {number} is missing" in str(error)  # noqa: PT017 - either outcome is right
            outcomes.append("missed")
        else:
            assert found.checkpoint["channel_values"]["log"] == stored
            outcomes.append("not read")
        backend.execute(f"UPDATE parts SET number = number - 100000 WHERE number = {number + 100000}")
    assert outcomes.count("missed") > len(outcomes) // 2 - 2
    assert call(make_shredder().saver, "get_tuple", config()).checkpoint["channel_values"]["log"] == stored
