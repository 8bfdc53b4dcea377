"""Where a PostgreSQL database is and how it is used: what a URL says, beside what libpq makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shredsaver.errors import ConfigurationError

_SCHEMES: Final = ("postgresql://", "postgres://")
_MAX_IDENTIFIER: Final = 63  # bytes; PostgreSQL cuts longer names off without an error


@dataclass(frozen=True, slots=True)
class Target:
    """A database, and how this library uses it.

    Attributes:
        conninfo: What libpq connects with. It may hold a password: never show it.
        location: The same for messages, without any password.
        schema: The schema that holds the tables.
        pool_size: Most connections of one pool.
        timeout: Seconds to wait for a connection, and for a lock.
        answer_timeout: Seconds that one round trip may take before the connection counts as dead.
        prepare: Whether statements are prepared on the server.
    """

    conninfo: str = field(repr=False)
    location: str
    schema: str
    pool_size: int
    timeout: float
    answer_timeout: float
    prepare: bool

    @property
    def search_path(self) -> str:
        """The value of ``search_path``: a temporary table never stands in for one of ours."""
        return '"' + self.schema.replace('"', '""') + '", pg_temp'


def parse(dsn: str, options: dict[str, Any]) -> Target:
    """Reads a URL or a libpq connection string.

    Args:
        dsn: ``postgresql://user@host/database?sslmode=verify-full&schema=agents``: options of libpq, and those of
            ``options``, which win over the arguments.
        options: Values for ``schema``, ``pool_size``, ``timeout``, ``answer_timeout`` and ``prepare``.

    Raises:
        ConfigurationError: It cannot be read, or a value is out of bounds. The message never quotes the string, which
            may hold a password.
    """
    found = dict(options)
    rest = dsn
    if dsn.startswith(_SCHEMES):
        address, mark, query = dsn.partition("?")
        if address.count("@") > 1:
            raise ConfigurationError(
                'the PostgreSQL URL has more than one "@": write one that is part of a password "%40"'
            )
        kept = []
        for item in query.split("&") if mark else ():
            name, _, value = item.partition("=")
            if name in _OWN:
                found[name] = _read(name, unquote(value))
            else:
                kept.append(item)
        rest = address + (mark + "&".join(kept) if kept else "")
    try:
        given = conninfo_to_dict(rest)
    except ProgrammingError:
        # libpq's message quotes what it could not read, and that can be a piece of the password.
        given = None
    if given is None or not all(port.isdecimal() for port in str(given.get("port") or 0).split(",") if port):
        raise ConfigurationError(
            "the PostgreSQL URL cannot be read: percent-encode special characters in user and password, and use "
            f"options of libpq or of this library ({', '.join(_OWN)})"
        )
    return Target(make_conninfo("", **_with_defaults(given, found["timeout"])), _location(given), **_checked(found))


def _boolean(text: str) -> bool:
    return {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}[
        text.lower()
    ]


_OWN: Final[dict[str, Callable[[str], Any]]] = {
    "schema": str,
    "pool_size": int,
    "timeout": float,
    "answer_timeout": float,
    "prepare": _boolean,
}


def _read(name: str, value: str) -> Any:
    try:
        return _OWN[name](value)
    except (KeyError, ValueError):
        raise ConfigurationError(f"the PostgreSQL URL has {name}={value}, which is no value for it") from None


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    schema = options["schema"]
    if not schema or "\0" in schema or len(schema.encode()) > _MAX_IDENTIFIER:
        raise ConfigurationError(f"schema must be a name of 1 to {_MAX_IDENTIFIER} bytes, not {schema!r}")
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigurationError(f"schema {schema!r} belongs to PostgreSQL itself: use another name")
    if options["pool_size"] < 1:
        raise ConfigurationError(f"pool_size must be at least 1, not {options['pool_size']}")
    for name in ("timeout", "answer_timeout"):
        if not 0 < options[name] <= 86_400:  # noqa: PLR2004 - a day, in seconds
            raise ConfigurationError(f"{name} must be above 0 and at most 86400 seconds, not {options[name]}")
    return options


def _with_defaults(given: dict[str, Any], timeout: float) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "fallback_application_name": "shredsaver",
        "connect_timeout": max(2, round(min(timeout, 10))),
        # A host that vanished is noticed by the kernel, not after the two hours that TCP takes by itself.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": max(1000, round(timeout * 1000)),
        # Of several hosts the primary is found; a lone standby is refused when connecting.
        "target_session_attrs": "primary",
    }
    return {**defaults, **given, "client_encoding": "UTF8"}


def _location(given: dict[str, Any]) -> str:
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or "").split(",")
    if len(ports) < len(hosts):
        ports = ports * len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    socket = places[0].startswith("/")
    user = f"{given['user']}@" if given.get("user") else ""
    database = given.get("dbname") or ""
    if socket:
        return f"postgresql://{user}/{database}?host={hosts[0]}"
    return f"postgresql://{user}{','.join(places)}/{database}"
