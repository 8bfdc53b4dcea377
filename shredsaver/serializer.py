"""`ShredSerializer`: sealing as a serializer, for another saver's ``serde=``."""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shredsaver.core import FIRST_NUMBER, GET_CUSTOMER, Core
from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run
from shredsaver.errors import FormatError, UnsealError
from shredsaver.keytree import KeyTree
from shredsaver.records import Typed, unpack
from shredsaver.sealing import SERIALIZED
from shredsaver.serialising import serialise
from shredsaver.threads import LAST_NUMBER, Ref, introduce

SCOPE: Final = 4
"""The scope of what a serializer seals. Numbers are drawn at random, since no table counts them."""

TAG: Final = "shredsaver"


class ShredSerializer:
    """Serialises with `JsonPlusSerializer` and seals under one customer's keys. Get one from `Shredder.serializer_for`.

    For the ``serde=`` of a saver other than ours. Such a saver still stores in the clear whatever it does not give to
    its serializer: thread ids, checkpoint ids, namespaces and channel names; the whole metadata of a checkpoint
    (PostgresSaver: with every scalar of ``configurable``, the customer's id included); and, in PostgresSaver, every
    channel value that is text, a number, a boolean or None. Its rows can be moved within the customer: a payload is
    bound to the customer, not to its place. `ShredSaver` has none of these limits.

    Each call asks the fence in the database, and blocks while it does.

    Args:
        core: The deployment.
        customer_id: Whose data it seals.
        serde: What serialises before sealing.
    """

    def __init__(self, core: Core, customer_id: str, serde: SerializerProtocol | None = None) -> None:
        self._core = core
        self._serde = serde or JsonPlusSerializer()
        self._ref = Ref("", b"", customer_id, core.token("customer", customer_id))

    def dumps_typed(self, obj: Any) -> Typed:
        """Serialises and seals.

        Raises:
            PayloadError: The value cannot be serialised or is too large.
            CustomerShreddedError, CustomerRestrictedError, KeyServiceError: The customer's keys are not to be had.
        """
        typed = serialise(self._serde, obj, "the value")
        generation, tree = self._core.database.run(self._tree)
        number = FIRST_NUMBER + secrets.randbelow(LAST_NUMBER - FIRST_NUMBER)
        owner = (self._token, generation)
        sealed = self._core.seal(tree, SERIALIZED, owner, SCOPE, number, msgpack.packb(typed))
        return TAG, msgpack.packb([self._token, generation, number, sealed])

    def loads_typed(self, data: Typed) -> Any:
        """Opens and deserialises what `dumps_typed` gave. Nothing unsealed is ever read.

        Raises:
            FormatError: It is no sealed payload.
            UnsealError: It was altered, or is another customer's.
            CustomerShreddedError, CustomerRestrictedError, KeyServiceError: The customer's keys are not to be had.
        """
        tag, packed = data
        match unpack(packed) if tag == TAG else None:
            case [bytes() as token, int() as generation, int() as number, bytes() as sealed]:
                pass
            case _:
                raise FormatError("a payload is not one that ShredSerializer sealed, so it is not read")
        current, tree = self._core.database.run(self._tree)
        if token != self._token or generation != current:
            raise UnsealError("a payload was sealed for another customer, or before the customer was shredded")
        where = ("serialized", token, number)
        opened = self._core.unseal(tree, SERIALIZED, (token, generation), SCOPE, number, sealed, where)
        match unpack(opened):
            case [str() as inner, bytes() as payload]:
                return self._serde.loads_typed((inner, payload))
        raise FormatError("a sealed payload opens to something else")

    @property
    def _token(self) -> bytes:
        return self._ref.customer or b""

    def _tree(self) -> Plan[tuple[int, KeyTree]]:
        """The customer's generation and tree, behind the fence; a customer that is new is introduced."""
        while True:
            yield Begin("read")
            (row,) = yield from run(Statement(GET_CUSTOMER, (self._token,)))
            if not row.rows:
                yield Rollback()
                yield from introduce(self._core, self._ref)
                continue
            customer = yield from self._core.admit(row.rows[0])
            yield Commit()
            tree = self._core.tree(customer)
            if tree is not None:
                return customer.generation, tree
            yield from self._core.load_tree(customer)
