"""What may be said of an error, and what a URL may say."""

from __future__ import annotations

from typing import Any

import pytest

from shredsaver.db.base import Sql, Statement, sql
from shredsaver.db.postgres import PostgresDatabase
from shredsaver.errors import ConfigurationError, DatabaseUnavailableError
from tests.fakes.proxy import PostgresProxy
from tests.support.backends import PostgresBackend
from tests.support.things import INSERT, Runner, read, write


def test_errors_quote_no_row(opened: Any, runner: Runner) -> None:
    database = opened()
    canary = "canary-0451"
    with pytest.raises(DatabaseUnavailableError, match=r"23505.*") as caught:
        runner(database, lambda: write(Statement(sql("CREATE UNIQUE INDEX notes ON things (note)")), *twice(canary)))
    failures = [caught.value]
    for statement in (Sql("", f"SELECT '{canary}'::bigint"), Sql("", f"SELECT '\"{canary}'::jsonb")):
        with pytest.raises(DatabaseUnavailableError) as caught:
            runner(database, lambda statement=statement: write(Statement(statement)))
        failures.append(caught.value)
    import traceback

    for failure in failures:
        assert not failure.retryable
        assert canary not in str(failure)
        assert canary not in "".join(traceback.format_exception(failure))


def twice(note: str) -> list[Statement]:
    return [Statement(INSERT, (number, b"", note)) for number in (1, 2)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr@et@host/db",
        "postgresql://u:s3cret%zz@host/db",
        "postgresql://u:s3cret@host:port/db",
        "postgresql://u:s3cret@host/db?nosuchoption=1",
        "postgresql://u:s3cret@host/db?schema=",
        "postgresql://u:s3cret@host/db?schema=pg_things",
        "postgresql://u:s3cret@host/db?pool_size=none",
        "postgresql://u:s3cret@host/db?pool_size=0",
        "postgresql://u:s3cret@host/db?prepare=perhaps",
        "postgresql://u:s3cret@host/db?timeout=-1",
        "host=db password=s3cret nosuch=1",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_quoted(url: str) -> None:
    import traceback

    with pytest.raises(ConfigurationError) as caught:
        PostgresDatabase(url)
    shown = str(caught.value) + "".join(traceback.format_exception(caught.value)[-1:])
    assert "s3cr" not in shown


def test_no_message_and_no_log_shows_the_password(
    server: PostgresBackend, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    url = proxy.url.replace("postgres@", "postgres:s3cret-password@")
    with PostgresProxy(server.url) as refusing:
        refusing.refuse()
        with pytest.raises(DatabaseUnavailableError) as caught:
            PostgresDatabase(refusing.url.replace("postgres@", "postgres:s3cret-password@"))
    database = PostgresDatabase(url, timeout=1.0)
    try:
        database.run(lambda: read(Statement(Sql("", "SELECT 1"))))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(DatabaseUnavailableError):
            database.run(lambda: read(Statement(Sql("", "SELECT 1"))))
        shown = [str(caught.value), database.location, repr(database), repr(database._target), caplog.text]
    finally:
        database.close()
    assert "s3cret" not in " ".join(shown)
    assert database.location.startswith("postgresql://postgres@127.0.0.1:")
    assert server.database in database.location


def test_options_of_libpq_and_of_ours_count_in_the_url(server: PostgresBackend) -> None:
    mark = "&" if "?" in server.url else "?"
    url = (
        f"{server.url}{mark}schema=Odd%20%22name%22&application_name=atlas&options=-c%20work_mem%3D7MB&pool_size=3"
        "&prepare=off"
    )
    database = PostgresDatabase(url, schema="ignored")
    try:
        settings = Sql("", "SELECT current_setting('application_name'), current_setting('work_mem')")
        assert database.run(lambda: read(Statement(settings)))[0].rows == [("atlas", "7MB")]
        assert database.schema == 'Odd "name"'
        assert database._target.pool_size == 3
    finally:
        database.close()


def test_a_server_that_refuses_is_named_at_once(server: PostgresBackend, proxy: PostgresProxy) -> None:
    with pytest.raises(DatabaseUnavailableError, match="no-such-database"):
        PostgresDatabase(proxy.url.replace(server.database, "no-such-database"))
    assert proxy.connections == 1
