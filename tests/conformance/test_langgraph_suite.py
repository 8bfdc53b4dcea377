"""LangGraph's published conformance suite, whole, through the async methods and through the blocking ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.report import CapabilityReport

from tests.support.calls import SyncThroughAsync

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


def one_customer(config: Any) -> str:
    """The suite knows no customers: everything belongs to one."""
    return "suite"


def report(saver: Callable[[], BaseCheckpointSaver[Any]], capability: str) -> CapabilityReport:
    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield saver()

    return asyncio.run(validate(checkpointer_test(name="ShredSaver")(factory), capabilities={capability}))


def test_the_suite_has_eight_capabilities_and_81_tests() -> None:
    assert {c.value for c in Capability} == set(TESTS)
    assert sum(TESTS.values()) == 81


@pytest.mark.parametrize("capability", TESTS)
@pytest.mark.parametrize("through", ["async", "sync"])
def test_capability(capability: str, through: str, make_shredder: Callable[..., Any]) -> None:
    saver = make_shredder(customer=one_customer).saver
    result = report((lambda: saver) if through == "async" else (lambda: SyncThroughAsync(saver)), capability)
    outcome = result.results[capability]
    assert outcome.detected
    assert outcome.failures == []
    assert outcome.tests_passed == TESTS[capability]
