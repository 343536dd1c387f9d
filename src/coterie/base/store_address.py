"""Where a store is, as operators write it, taken apart. Pure, but for reading files of passwords.

    sqlite:///path/to/file                                        (or nothing: a file below `root`)
    postgresql://user:password@host:5432,other:5432/database?sslmode=verify-full&sslrootcert=/ca.pem
    etcd://host:2379,other:2379/prefix?ca=/ca.pem&cert=/cert.pem&key=/key.pem
    mysql://user:password@tcp(host:3306)/database?tls=true&ca=/ca.pem     (as Kuscia's datastoreEndpoint has it)

`passwordFile=/path` takes the password from a file; what is read or written here never shows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from coterie.base.secret import SecretValue

POSTGRESQL = ("postgresql", "postgres")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_-]{0,40}")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]{0,200}")
_TLS_KEYS = ("ca", "cert", "key")
_MYSQL_TLS = ("", "true", "false", "skip-verify")
_GO_OPTIONS = frozenset(
    [
        "allowAllFiles",
        "allowCleartextPasswords",
        "allowFallbackToPlaintext",
        "allowNativePasswords",
        "allowOldPasswords",
        "charset",
        "checkConnLiveness",
        "clientFoundRows",
        "collation",
        "columnsWithAlias",
        "compress",
        "connectionAttributes",
        "interpolateParams",
        "loc",
        "maxAllowedPacket",
        "multiStatements",
        "parseTime",
        "readTimeout",
        "rejectReadOnly",
        "timeTruncate",
        "timeout",
        "writeTimeout",
    ]
)
"""Of Go's driver, about how *it* speaks with the server; addresses of Kuscia may have them."""


class StoreAddressError(ValueError):
    """The address cannot be used; the message says why and shows no password."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    kind: str
    """sqlite, postgresql, etcd or mysql"""
    label: str
    """For logs and messages: no user, no password."""
    path: str = ""
    dsn: SecretValue = field(default_factory=lambda: SecretValue(""))
    """PostgreSQL: the address without what is ours alone."""
    user: str = ""
    password: SecretValue = field(default_factory=lambda: SecretValue(""))
    schema: str = "coterie"
    hosts: tuple[tuple[str, int], ...] = ()
    prefix: str = ""
    database: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def shared(self) -> bool:
        """Several control planes may write there."""
        return self.kind != "sqlite"

    def revealed(self) -> dict[str, Any]:
        """With its passwords: for the standard input of a child, and nothing else."""
        return {
            name: value.reveal() if isinstance(value := getattr(self, name), SecretValue) else value
            for name in self.__dataclass_fields__
        }


def address_of_revealed(document: Mapping[str, Any]) -> StoreAddress:
    """What `revealed` gave, after it went through JSON."""
    pairs = {name: tuple(map(tuple, document[name])) for name in ("hosts", "options")}
    secrets = {name: SecretValue(document[name]) for name in ("dsn", "password")}
    return StoreAddress(**{**document, **pairs, **secrets})


def parse_store_address(text: str) -> StoreAddress:
    """Raises StoreAddressError."""
    scheme, found, rest = text.strip().partition("://")
    if not found:
        raise StoreAddressError("an address of a store starts with sqlite://, postgresql://, etcd:// or mysql://")
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise StoreAddressError("sqlite:// needs an absolute path: sqlite:///path/to/file")
        return StoreAddress("sqlite", f"sqlite://{rest}", path=rest)
    if scheme in POSTGRESQL:
        return _postgresql(rest)
    if scheme in ("etcd", "etcds"):
        return _etcd(scheme, rest)
    if scheme == "mysql":
        return _mysql(rest)
    raise StoreAddressError(f"{scheme}:// is no kind of store; there are sqlite, postgresql, etcd and mysql")


def _password(options: dict[str, str]) -> SecretValue | None:
    path = options.pop("passwordFile", "")
    if not path:
        return None
    try:
        return SecretValue(Path(path).read_text().strip())
    except (OSError, UnicodeDecodeError) as problem:
        raise StoreAddressError(f"passwordFile: {path} cannot be read ({type(problem).__name__})") from problem


def _options(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


def _postgresql(rest: str) -> StoreAddress:
    parts = urlsplit("postgresql://" + rest)
    options = _options(parts.query)
    credentials, _, place = parts.netloc.rpartition("@")
    user, _, written = credentials.partition(":")
    password = _password(options) or SecretValue(unquote(written))
    schema = options.pop("schema", "coterie")
    if not _SCHEMA.fullmatch(schema):
        raise StoreAddressError("schema: lower-case letters, digits, - and _ only, 40 at most")
    database = unquote(parts.path.removeprefix("/"))
    if not database:
        raise StoreAddressError("the address names no database: postgresql://user@host/DATABASE")
    if "target_session_attrs" not in options and "," in place:
        options["target_session_attrs"] = "read-write"
    netloc = f"{user}@{place}" if user else place
    dsn = urlunsplit(("postgresql", netloc, parts.path, urlencode(options), ""))
    label = f"postgresql://{place}/{database}"
    return StoreAddress(
        "postgresql",
        label,
        dsn=SecretValue(dsn),
        user=unquote(user),
        password=password,
        schema=schema,
        database=database,
    )


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for each in text.split(","):
        name, _, number = each.rpartition(":") if re.search(r":\d+$", each) else (each, "", "")
        name = name.removeprefix("[").removesuffix("]")
        if not name:
            raise StoreAddressError("the address names no host")
        if number and not 0 < int(number) < 65536:
            raise StoreAddressError(f"{number} is no port")
        found.append((name, int(number) if number else port))
    return tuple(found)


def _etcd(scheme: str, rest: str) -> StoreAddress:
    parts = urlsplit("etcd://" + rest)
    options = _options(parts.query)
    credentials, _, place = parts.netloc.rpartition("@")
    user, _, written = credentials.partition(":")
    password = _password(options) or SecretValue(unquote(written))
    files = {name: options.pop(name, "") for name in _TLS_KEYS}
    if bool(files["cert"]) != bool(files["key"]):
        raise StoreAddressError("cert and key belong together")
    if options:
        raise StoreAddressError(f"unknown options: {', '.join(sorted(options))}; there are ca, cert, key, passwordFile")
    prefix = "/" + (parts.path.strip("/") or "coterie")
    if not _PREFIX.fullmatch(prefix):
        raise StoreAddressError("the prefix of keys has letters, digits, . _ - and / only")
    tls = scheme == "etcds" or any(files.values())
    return StoreAddress(
        "etcd",
        f"{scheme}://{place}{prefix}",
        user=unquote(user),
        password=password,
        hosts=_hosts(place, 2379),
        prefix=prefix,
        tls=tls,
        ca=files["ca"],
        cert=files["cert"],
        key=files["key"],
    )


def _mysql(rest: str) -> StoreAddress:
    """Also as Kuscia has it, which is how Go's driver writes it: `user:password@tcp(host:port)/database?options`. The
    password is not escaped there, so the last @ ends it."""
    credentials, found, place = rest.rpartition("@")
    if not found:
        place = rest
    user, _, written = credentials.partition(":")
    go = re.fullmatch(r"(?:tcp)?\(([^()]+)\)/([^?]*)(?:\?(.*))?", place)
    plain = re.fullmatch(r"([^/()]+)/([^?]*)(?:\?(.*))?", place)
    match = go or plain
    if match is None:
        raise StoreAddressError("an address of MySQL is mysql://user:password@tcp(host:3306)/database")
    if plain is not None and go is None:
        user, written = unquote(user), unquote(written)
    options = {name: value for name, value in _options(match[3] or "").items() if name not in _GO_OPTIONS}
    password = _password(options) or SecretValue(written)
    hosts = _hosts(match[1], 3306)
    database = unquote(match[2])
    if not database:
        raise StoreAddressError("the address names no database: mysql://user@tcp(host:3306)/DATABASE")
    tls, ca = options.pop("tls", ""), options.pop("ca", "")
    if tls not in _MYSQL_TLS:
        raise StoreAddressError("tls: true, skip-verify or false")
    if ca and tls in ("", "false"):
        raise StoreAddressError("ca: needs tls=true")
    table = options.pop("table", "")
    if table not in ("", "kine"):
        raise StoreAddressError("table: only `kine` can be named, to migrate from it")
    if options:
        raise StoreAddressError(
            f"unknown options: {', '.join(sorted(options))}; there are tls, ca, passwordFile, table and those of Go's driver"
        )
    return StoreAddress(
        "mysql",
        f"mysql://{match[1]}/{database}" + (f"?table={table}" if table else ""),
        user=user,
        password=password,
        hosts=hosts,
        database=database,
        tls=tls not in ("", "false"),
        ca=ca,
        options=tuple((name, value) for name, value in (("table", table), ("tls", tls)) if value),
    )
