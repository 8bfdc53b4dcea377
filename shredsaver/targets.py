"""Erasure targets: what of a customer lives elsewhere, and how it joins an erasure.

A target is asked to erase after the customer is out of use (``after="revoked"``), or after the threads were counted as
gone (``after="verified"``). It must be idempotent: it is asked again until nothing remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from shredsaver.errors import ConfigurationError

REVOKED: Final = "revoked"
VERIFIED: Final = "verified"


@dataclass(frozen=True)
class ErasureContext:
    """What a target is told. Neither id nor threads are in the repr.

    Attributes:
        erasure_id: The erasure's id: the same in every retry.
        customer_id: The customer's id, as the application knows it.
        thread_ids: The customer's threads; for ``after="verified"`` only those that were verified as gone.
    """

    erasure_id: str
    customer_id: str = field(repr=False)
    thread_ids: Sequence[str] = field(repr=False)


@runtime_checkable
class ErasureTarget(Protocol):
    """Something outside the database that holds a customer's data or authority."""

    @property
    def name(self) -> str:
        """A constant name for receipts, without anybody's data in it."""
        ...

    @property
    def after(self) -> Literal["revoked", "verified"]:
        """When it may erase. Authority records (consumed grants) use ``"verified"``: cleared earlier they re-arm."""
        ...

    def erase(self, context: ErasureContext) -> None:
        """Erases what belongs to the customer. Called again after any error, so it must be idempotent."""
        ...

    def remaining(self, context: ErasureContext) -> int:
        """Counts what is still there."""
        ...


def checked(targets: Sequence[ErasureTarget]) -> tuple[ErasureTarget, ...]:
    """The targets, if they can be told apart and each says when it erases.

    Raises:
        ConfigurationError: They cannot.
    """
    names = [target.name for target in targets]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"two erasure targets have the same name: {', '.join(sorted(names))}")
    for target in targets:
        if target.after not in (REVOKED, VERIFIED):
            raise ConfigurationError(f"the erasure target {target.name} must erase after revoked or verified")
    return tuple(targets)


class VectorStoreTarget:
    """Documents of a LangChain vector store that name the customer in their metadata.

    Args:
        name: The target's name in receipts.
        find: Gives the ids of a customer's documents, such as by a metadata filter of the store in use.
        store: The vector store; its ``delete(ids)`` is called.
    """

    after: Literal["revoked", "verified"] = "revoked"

    def __init__(self, name: str, store: Any, find: Callable[[Any, str], Sequence[str]]) -> None:
        self.name = name
        self._store = store
        self._find = find

    def erase(self, context: ErasureContext) -> None:
        """Deletes the customer's documents."""
        ids = list(self._find(self._store, context.customer_id))
        if ids:
            self._store.delete(ids)

    def remaining(self, context: ErasureContext) -> int:
        """Counts the customer's documents."""
        return len(self._find(self._store, context.customer_id))


class SqlLedgerTarget:
    """A ledger of consumed grants in an SQL database, one row a thread: cleared only for threads that are gone.

    Args:
        name: The target's name in receipts.
        connect: Opens a DB-API 2.0 connection (PEP 249); it is closed after each use.
        table: The ledger's table.
        column: Its column that holds the thread's id.
        placeholder: The driver's parameter mark: ``"?"`` or ``"%s"``.

    Raises:
        ConfigurationError: Table or column is no plain SQL identifier, or the mark is another.
    """

    after: Literal["revoked", "verified"] = "verified"

    def __init__(
        self, name: str, connect: Callable[[], Any], table: str, *, column: str = "thread_id", placeholder: str = "?"
    ) -> None:
        if not all(part.isidentifier() for part in (*table.split("."), column)):
            raise ConfigurationError("the ledger's table and column must be plain SQL identifiers")
        if placeholder not in ("?", "%s"):
            raise ConfigurationError("the placeholder is ? or %s, as the driver's paramstyle says")
        self.name = name
        self._connect = connect
        self._delete = f"DELETE FROM {table} WHERE {column} = {placeholder}"
        self._count = f"SELECT count(*) FROM {table} WHERE {column} = {placeholder}"

    def erase(self, context: ErasureContext) -> None:
        """Clears the grants of the threads that are gone."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            for thread_id in context.thread_ids:
                cursor.execute(self._delete, (thread_id,))
            connection.commit()
        finally:
            connection.close()

    def remaining(self, context: ErasureContext) -> int:
        """Counts the grants of the threads that are gone."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            total = 0
            for thread_id in context.thread_ids:
                cursor.execute(self._count, (thread_id,))
                total += int(cursor.fetchone()[0])
            return total
        finally:
            connection.close()
