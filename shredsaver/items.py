"""Store items: their rows, what is inside their records, and the tokens that stand for labels and keys."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgpack
from langgraph.store.base import Item

from shredsaver.core import Core
from shredsaver.customers import TOKEN_BYTES
from shredsaver.errors import FormatError, PayloadError, UnsealError
from shredsaver.keytree import KeyPuncturedError, KeyTree
from shredsaver.namespaces import Namespace
from shredsaver.records import unpack
from shredsaver.sealing import ITEM, NAMESPACE, associated_data, unseal

SCOPE: Final = 1
"""The scope of a customer's items."""

_LABELS: Final = 1
_KEYS: Final = 2
_SPARSE: Final = 6  # numbers apart, on average, from which deriving all in between is no gain
ITEM_COLUMNS: Final = (
    "i.customer, i.template, i.labels, i.key, i.generation, i.scope, i.number, i.sealed, i.vectors, i.created_at, "
    "i.updated_at, i.ttl, i.expires_at"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ItemRow(NamedTuple):
    """A row of ``items``. Times are microseconds since the epoch, ``ttl`` and ``expires_at`` milliseconds."""

    customer: bytes
    template: str
    labels: bytes
    key: bytes
    generation: int
    scope: int
    number: int
    sealed: bytes
    vectors: bytes | int | None
    """The sealed vectors; where only it matters whether there are any, their length."""
    created_at: int
    updated_at: int
    ttl: int | None
    expires_at: int | None

    @property
    def columns(self) -> tuple[Any, ...]:
        """What the associated data binds."""
        return (self.template, self.labels, self.key, str(self.created_at), str(self.updated_at))

    @property
    def where(self) -> tuple[object, ...]:
        """The row's name for errors."""
        return ("items", self.customer, self.template, self.labels, self.key)


class Content(NamedTuple):
    """An item's record, opened."""

    customer_label: str | None
    labels: Namespace
    key: str
    value: str
    """The value as JSON."""
    vectors: int
    """How many vectors belong to the item."""


class Owner(NamedTuple):
    """A customer whose tree is open: what everything here is done for."""

    customer: bytes
    generation: int
    tree: KeyTree

    @property
    def pair(self) -> tuple[bytes, int]:
        """Customer and generation."""
        return self.customer, self.generation


def label_tokens(tree: KeyTree, template: str, labels: Sequence[str]) -> bytes:
    """One token of 16 bytes a label, each bound to those before it, so that a prefix is a prefix and nothing is equal.

    Each is HMAC-SHA-256 (RFC 2104) under the key of scope 0, number 1, over template, tokens so far and label, cut.
    """
    key = tree.derive(0, _LABELS)
    tokens = b""
    for label in labels:
        tokens += hmac.digest(
            key, msgpack.packb([template, tokens, label], unicode_errors="surrogatepass"), hashlib.sha256
        )[:TOKEN_BYTES]
    return tokens


def key_token(tree: KeyTree, template: str, labels: bytes, key: str) -> bytes:
    """The token of an item's key within its namespace, under the key of scope 0, number 2."""
    message = msgpack.packb([template, labels, key], unicode_errors="surrogatepass")
    return hmac.digest(tree.derive(0, _KEYS), message, hashlib.sha256)[:TOKEN_BYTES]


def pack_value(value: Mapping[str, Any]) -> str:
    """A value as JSON (RFC 8259, with Python's NaN and infinities).

    Raises:
        PayloadError: It is no JSON: something but dicts with text keys, lists, text, numbers, booleans and None.
    """
    try:
        plain = dict(value)
        _check(plain)
        return json.dumps(plain, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"an item's value must be a mapping of JSON values ({type(error).__name__}): dicts with text keys, lists, "
            "text, numbers, booleans and None"
        ) from None


def _check(value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError
            _check(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner)


def pack_content(content: Content) -> bytes:
    """Encodes ``[customer label, labels, key, value, vectors]``; text may hold lone surrogates."""
    packed: bytes = msgpack.packb(list(content), unicode_errors="surrogatepass")
    return packed


def open_item(core: Core, owner: Owner, row: ItemRow) -> Content:
    """Opens an item's record.

    Raises:
        UnsealError: It is not this row's, or its vectors were taken away.
    """
    sealed = core.unseal(owner.tree, ITEM, owner.pair, row.scope, row.number, row.sealed, row.where, *row.columns)
    return _content(row, sealed)


def open_items(core: Core, owner: Owner, rows: Sequence[ItemRow]) -> list[Content]:
    """As `open_item` for each of some rows, whose keys are derived at once where their numbers are close together."""
    keys = _keys(owner.tree, rows)
    if keys is None:
        return [open_item(core, owner, row) for row in rows]
    return [
        _content(
            row,
            unseal(
                key,
                row.sealed,
                associated_data(ITEM, core.deployment, *owner.pair, row.scope, row.number, *row.columns),
                row.where,
            ),
        )
        for row, key in zip(rows, keys, strict=True)
    ]


def _keys(tree: KeyTree, rows: Sequence[ItemRow]) -> list[bytes] | None:
    numbers = [row.number for row in rows]
    if not numbers or any(row.scope != SCOPE for row in rows):
        return None
    first, last = min(numbers), max(numbers)
    if last - first > _SPARSE * len(numbers):
        return None
    try:
        keys = tree.derive_range(SCOPE, first, last)
    except KeyPuncturedError:  # one in between, perhaps of none of these
        return None
    return [keys[number - first] for number in numbers]


def _content(row: ItemRow, opened: bytes) -> Content:
    match unpack(opened):
        case [str() | None as label, [*labels], str() as key, str() as value, int() as vectors]:
            if (vectors > 0) != (row.vectors is not None):
                raise UnsealError(
                    f"items/{row.customer.hex()}/{row.labels.hex()}/{row.key.hex()}: its vectors are missing"
                )
            return Content(label, tuple(labels), key, value, vectors)
    raise FormatError("an item's record opens to something that is no item")


def open_namespace(core: Core, owner: Owner, row: Sequence[Any]) -> tuple[str | None, Namespace]:
    """Opens a row of ``namespaces`` (template, labels, scope, number, sealed): the customer's label and the others."""
    template, labels, scope, number, sealed = row
    where = ("namespaces", owner.customer, template, labels)
    opened = core.unseal(owner.tree, NAMESPACE, owner.pair, scope, number, sealed, where, template, labels)
    match unpack(opened):
        case [str() | None as label, [*names]]:
            return label, tuple(names)
    raise FormatError("a namespace's record opens to something that is no namespace")


def item_of(namespace: Namespace, content: Content, row: ItemRow, value: dict[str, Any] | None = None) -> Item:
    """What a caller gets. ``value`` is that of the content, where it was parsed before."""
    return Item(
        value=json.loads(content.value) if value is None else value,
        key=content.key,
        namespace=namespace,
        created_at=when(row.created_at),
        updated_at=when(row.updated_at),
    )


def when(microseconds: int) -> datetime:
    """A time of a row."""
    return _EPOCH + timedelta(microseconds=microseconds)
