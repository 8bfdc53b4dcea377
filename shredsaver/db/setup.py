"""Opening a database of ours: the schema, and the deployment that its records belong to."""

from __future__ import annotations

from typing import Final, NamedTuple

from shredsaver.db.base import Begin, Commit, Plan, Rollback, Statement, run, sql
from shredsaver.db.migrations import GET_META, migrate
from shredsaver.errors import ConfigurationError

ADD_META: Final = sql("INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING")


class Binding(NamedTuple):
    """What a database says of the deployment it belongs to: its id, or None before its first use."""

    location: str
    deployment: bytes | None

    @property
    def in_use(self) -> bool:
        """Whether the database already depends on a key store."""
        return self.deployment is not None

    def check(self, deployment: bytes) -> Plan[None]:
        """Binds a new database to the deployment of the keys, or makes sure that it is bound to that one.

        Raises:
            ConfigurationError: The keys are another deployment's.
        """
        if self.deployment is None:
            yield Begin("write")
            yield from run(Statement(ADD_META, ("deployment", deployment)))
            (found,) = yield from run(Statement(GET_META, ("deployment",)))
            bound = bytes(found.rows[0][0])
            yield Commit()
        else:
            bound = self.deployment
        if bound != deployment:
            raise ConfigurationError(
                f"{self.location} belongs to deployment {bound.hex()}, the given keys to {deployment.hex()}: "
                "open it with the keys it was made with"
            )


def set_up(location: str, *, auto_setup: bool) -> Plan[Binding]:
    """Brings the schema up to date and reads which deployment the database belongs to. Errors as `migrate`."""
    yield from migrate(location, auto_setup=auto_setup)
    yield Begin("read")
    (found,) = yield from run(Statement(GET_META, ("deployment",)))
    yield Rollback()
    return Binding(location, bytes(found.rows[0][0]) if found.rows else None)
