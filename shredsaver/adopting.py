"""Taking an older key store into use, where the current one is lost for good.

It is the last resort, behind mirrors and replicas. What the older key store lacks is told by the database's record of
erasures and by the journal, each verified; if these do not tell of as many erasures as the roots have seen, nothing is
done. Nobody is revived: a slot whose root is still there has had no destruction since, and the others do not open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from shredsaver.core import CUSTOMER_COLUMNS, Core
from shredsaver.db.base import Begin, Commit, Database, Plan, Statement, run, sql
from shredsaver.db.opening import open_database
from shredsaver.db.setup import set_up
from shredsaver.errors import (
    ConfigurationError,
    DatabaseForkedError,
    KeyServiceError,
    RevocationLogDamagedError,
    UnsealError,
)
from shredsaver.guarding import GuardedKeys
from shredsaver.heads import START
from shredsaver.journal import Journal
from shredsaver.kms.base import open_key_service
from shredsaver.kms.keystore import StoredKeyService
from shredsaver.reconcile import Dead, latest
from shredsaver.restoring import log_of_dead

SERVED_PAGE: Final = sql(
    f"SELECT {CUSTOMER_COLUMNS} FROM customers WHERE customer > ? AND state IN ('live', 'restricted') "
    "ORDER BY customer LIMIT 200"
)


@dataclass(frozen=True)
class KeyAdoption:
    """What an older key store is good for, or was when it was taken into use.

    Attributes:
        adopted: Whether it was taken into use; otherwise nothing was changed.
        readable: Slots whose keys open.
        lost: Slots whose root has gone on: no key of theirs opens any more.
        customers: How many of the database's customers keep their keys.
        lost_customers: Tokens of the database's customers whose keys are lost. They are not shredded: reading them is
            `KeyNotFoundError` from now on.
        erasures: Erasures that the older key store did not know, and that the other records told.
    """

    adopted: bool
    readable: int
    lost: int
    customers: int
    lost_customers: tuple[str, ...]
    erasures: int


def adopt_keys(
    database: str | Database,
    keys: str,
    *,
    journal: str | os.PathLike[str] | None = None,
    restored: bool = False,
    confirm: bool = False,
) -> KeyAdoption:
    """Takes an older key store into use beside its current roots.

    Args:
        database: The database that the keys belong to.
        keys: The key URI, ``file:…`` or ``awskms:…``; the older key store stands in the place of the lost one.
        journal: The journal, if there is one.
        restored: This database is another one than the key store knows, and is the one now.
        confirm: Do it. Without, nothing is changed, and the answer says what would be.

    Raises:
        ConfigurationError: The key store is not older than its roots, or other keys are meant.
        DatabaseForkedError: The database is another one than the key store knows, and ``restored`` was not given.
        KeyStoreStaleError: The deployment's own slot is lost: nothing of the key store can be used.
        RevocationLogDamagedError: The records do not verify, or do not tell of all erasures that the roots have seen.
    """
    _refuse_current(keys)
    opened = open_database(database)
    try:
        with closing(_older(keys)) as service:
            bound = opened.run(partial(set_up, opened.location, auto_setup=False))
            core = Core(opened, service)
            opened.run(partial(bound.check, core.deployment))
            if GuardedKeys(service, opened).forked and not restored:
                raise DatabaseForkedError(
                    f"{opened.location} is another database than the key store knows, so it may be a copy: adopting "
                    "replaces the roots of the one the keys belong to. If this is that database, say restored"
                )
            dead = _dead(core, journal)
            return _adopt(core, service, dead, confirm=confirm)
    finally:
        opened.close()


def _adopt(core: Core, service: StoredKeyService, dead: Sequence[Dead], *, confirm: bool) -> KeyAdoption:
    survey = service.survey()
    known = {(stone.customer, stone.generation) for stone in service.tombstones()}
    told = {(one.customer, one.generation) for one in dead} - known
    if len(known) + len(told) < survey.seen:
        raise RevocationLogDamagedError(
            f"the roots have seen {survey.seen} erasures, the key store, the database and the journal tell of "
            f"{len(known) + len(told)}: nobody can say whose are missing. Give a current database or the journal"
        )
    if confirm:
        service.adopt(told)
        service.bind(core.database.fingerprint())
    ended = latest(dead)
    kept, lost = core.database.run(partial(_standing, core, service, frozenset(survey.lost), ended))
    return KeyAdoption(confirm, len(survey.readable), len(survey.lost), kept, tuple(lost), len(told))


def _older(keys: str) -> StoredKeyService:
    scheme = keys.partition(":")[0].lower()
    if scheme == "file":
        from shredsaver.kms.local import LocalKeyService

        return LocalKeyService.from_uri(keys, create=False, older=True)
    if scheme == "awskms":
        from shredsaver.kms.aws import AwsKeyService

        return AwsKeyService.from_uri(keys, create=False, older=True)
    raise ConfigurationError("an older key store is taken into use for file: and awskms: keys; see to others yourself")


def _refuse_current(keys: str) -> None:
    try:
        open_key_service(keys, create=False).close()
    except (KeyServiceError, RevocationLogDamagedError, UnsealError):
        return
    raise ConfigurationError("the key store is as current as its roots: there is nothing to adopt, open it as it is")


def _dead(core: Core, journal: str | os.PathLike[str] | None) -> list[Dead]:
    """Who is dead by the database's record and by the journal."""
    dead, damaged, _ = core.database.run(partial(log_of_dead, core, START))
    if damaged:
        raise RevocationLogDamagedError(
            f"entry {damaged[0]} of the database's record of erasures does not verify, so it cannot tell what the key "
            "store lacks: restore a database whose record does"
        )
    return [*dead, *(Journal(journal, core.secrets.log_key).read() if journal is not None else ())]


def _standing(
    core: Core, service: StoredKeyService, lost: frozenset[int], dead: Mapping[bytes, Dead]
) -> Plan[tuple[int, list[str]]]:
    """How many of the database's customers keep their keys, and the tokens of the others."""
    kept, after = 0, b""
    gone: list[str] = []
    while True:
        yield Begin("read")
        (page,) = yield from run(Statement(SERVED_PAGE, (after,)))
        yield Commit()
        if not page.rows:
            return kept, gone
        for row in page.rows:
            customer = core.customer(row)
            after = customer.customer
            if after in dead and customer.generation <= dead[after].generation:
                continue  # the next opening revokes it
            if service.keeps(after, customer.generation, lost):
                kept += 1
            else:
                gone.append(after.hex())
