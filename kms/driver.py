"""The key store's driver as the key service sees it: its outages are outages of the key service."""

from __future__ import annotations

from shredsaver.db.base import Database, PlanFactory, T
from shredsaver.errors import DatabaseUnavailableError, KeyServiceUnavailableError


class KeyDatabase:
    """A `Database` that says `KeyServiceUnavailableError` where its driver says `DatabaseUnavailableError`.

    Args:
        driver: The driver of the key store.
    """

    def __init__(self, driver: Database) -> None:
        self.driver = driver

    @property
    def location(self) -> str:
        """Where the key store is, without any password."""
        return self.driver.location

    def run(self, factory: PlanFactory[T]) -> T:
        """Runs a plan, blocking. See `Database.run`.

        Raises:
            KeyServiceUnavailableError: The key store cannot be used.
        """
        try:
            return self.driver.run(factory)
        except DatabaseUnavailableError as error:
            raise unavailable(error) from error

    async def arun(self, factory: PlanFactory[T]) -> T:
        """As `run`, without blocking the running event loop."""
        try:
            return await self.driver.arun(factory)
        except DatabaseUnavailableError as error:
            raise unavailable(error) from error

    def fingerprint(self) -> str:
        """What tells this very key store from a copy or restore of it."""
        return self.driver.fingerprint()

    def close(self) -> None:
        """Closes the driver."""
        self.driver.close()

    async def aclose(self) -> None:
        """Closes the driver, without blocking the running event loop."""
        await self.driver.aclose()


def unavailable(error: DatabaseUnavailableError) -> KeyServiceUnavailableError:
    """The same outage, as one of the key service."""
    return KeyServiceUnavailableError(f"the key store cannot be used: {error}", retryable=error.retryable)
