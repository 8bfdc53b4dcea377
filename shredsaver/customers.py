"""Who owns what: customers named by a config, and the tokens that stand for ids in the database."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from shredsaver.errors import ConfigurationError, CustomerUnresolvedError, ThreadOwnershipError

TOKEN_BYTES: Final = 16
_RUNTIME: Final = "__pregel_runtime"

CustomerOption = str | Callable[[RunnableConfig], str | None]


def token(lookup_key: bytes, kind: str, identifier: str) -> bytes:
    """The 16 bytes that stand for an id in the database: HMAC-SHA-256 (RFC 2104) of kind and id, cut.

    Whoever has the lookup key can test a guessed id against a token, nobody else learns anything from it but equality.
    """
    message = kind.encode("ascii") + b"\x00" + identifier.encode("utf-8")
    return hmac.digest(lookup_key, message, hashlib.sha256)[:TOKEN_BYTES]


def exact_id(value: object, what: str) -> str:
    """An id as it is: a non-empty string, or a UUID in its canonical form.

    Raises:
        CustomerUnresolvedError: It is anything else.
    """
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise CustomerUnresolvedError(f"{what} must be a non-empty string or a UUID, not {type(value).__name__}")
    if not value:
        raise CustomerUnresolvedError(f"{what} is the empty string: give the id of the customer whose data this is")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise CustomerUnresolvedError(f"{what} holds a lone surrogate, which is no Unicode text") from None
    return str(value)


class CustomerResolver:
    """Finds the customer that a config names.

    Args:
        customer: The name of a ``configurable`` key, which is also looked up in the LangGraph runtime context
            (attribute or key of that name); or a callable that is given the config.

    Raises:
        ConfigurationError: ``customer`` is neither.
    """

    def __init__(self, customer: CustomerOption) -> None:
        if not customer or not (callable(customer) or isinstance(customer, str)):
            raise ConfigurationError(
                "customer= must be the name of a configurable key or a callable that takes the config"
            )
        self._customer = customer

    def __call__(self, config: RunnableConfig) -> str | None:
        """The customer's id, or None where the config names none.

        Raises:
            CustomerUnresolvedError: What it names is no id.
            ThreadOwnershipError: Configurable and context name different customers.
        """
        if not isinstance(self._customer, str):
            named = self._customer(config)
            return None if named is None else exact_id(named, "what customer= returned")
        name = self._customer
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        given = _present(configurable.get(name), f'configurable["{name}"]')
        context = getattr(configurable.get(_RUNTIME), "context", None)
        if context is None:
            return given
        found = context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)
        ambient = _present(found, f"the context's {name}")
        if given is not None and ambient is not None and given != ambient:
            raise ThreadOwnershipError(f'configurable["{name}"] and the runtime context name different customers')
        return ambient if given is None else given

    def missing(self) -> CustomerUnresolvedError:
        """The error for a first write that names nobody."""
        how = (
            f'give configurable["{self._customer}"], or a context with {self._customer}'
            if isinstance(self._customer, str)
            else "the customer= callable returned None for its config"
        )
        return CustomerUnresolvedError(f"a first write must say whose data it is: {how}. There is no default customer")


def _present(value: object, what: str) -> str | None:
    return None if value is None else exact_id(value, what)


def in_runtime(config: RunnableConfig) -> bool:
    """Whether the config comes from a running graph and not from a caller outside."""
    return _RUNTIME in (config.get("configurable") or {})
