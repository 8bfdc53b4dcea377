"""Filters of a store search, as LangGraph means them: pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from shredsaver.errors import ConfigurationError

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether an item's value passes a filter; a missing key counts as None.

    Raises:
        ConfigurationError: There is no such operator.
    """
    return all(_compare(value.get(key), filter_) for key, filter_ in (wanted or {}).items())


def check(wanted: Mapping[str, Any] | None) -> None:
    """Refuses a filter with an operator that does not exist, before anything is read."""
    for filter_ in (wanted or {}).values():
        _compare(None, filter_)


def _compare(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            results = [_apply(value, name, operand) for name, operand in wanted.items()]  # each is checked
            return all(results)
        if not isinstance(value, Mapping):
            return False
        return all(_compare(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(wanted)
            and all(_compare(one, other) for one, other in zip(value, wanted, strict=True))
        )
    return bool(value == wanted)


def _apply(value: Any, name: str, operand: Any) -> bool:
    if name == "$eq":
        return bool(value == operand)
    if name == "$ne":
        return bool(value != operand)
    if name in _ORDERS:
        one, other = _number(value), _number(operand)
        return one is not None and other is not None and _ORDERS[name](one, other)
    raise ConfigurationError(f"a filter has the operator {name!r}; known are $eq, $ne, {', '.join(_ORDERS)}")


def _number(value: Any) -> float | None:
    """A number, or text that reads as one; anything else orders with nothing."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
