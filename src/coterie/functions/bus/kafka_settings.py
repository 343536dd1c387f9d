"""How to reach Kafka: `kafka://[user[:password]@]host:port,host:port[?option=value&...]`.

| Option | Meaning |
|---|---|
| `prefix` | in front of the names of all topics and groups; two domains on one cluster must differ. Default: the domain, or `coterie-` |
| `replication` | copies of each topic. Default: 3, or as many as there are brokers |
| `tls` | `true`: TLS, verified by the system's authorities |
| `ca` | a file with other authorities; implies `tls` |
| `cert`, `key` | files with a client certificate and its key; imply `tls` |
| `sasl` | `PLAIN` (default when there is a user), `SCRAM-SHA-256`, `SCRAM-SHA-512` |
| `password-file` | a file with the password, instead of one in the URL |
| `timeout` | seconds that a publish waits for the brokers. Default: 30 |
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from coterie.base.secret import SecretValue
from coterie.functions.bus.protocol import BusError

SCHEME = "kafka"
DEFAULT_PREFIX = "coterie-"
_OPTIONS = frozenset(("prefix", "replication", "tls", "ca", "cert", "key", "sasl", "password-file", "timeout"))
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    servers: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    replication: int = 0
    """0: 3, or as many as there are brokers."""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: SecretValue = field(default_factory=lambda: SecretValue(""))
    sasl: str = "PLAIN"
    timeout: float = 30.0


def parse_kafka_url(url: str, prefix: str = "") -> KafkaSettings:
    """Raises BusError, in a sentence without the password, for what is wrong."""
    parts = urlsplit(url)
    login, _, addresses = parts.netloc.rpartition("@")
    servers = tuple(addresses.split(","))
    for each in servers:
        match = _ADDRESS.fullmatch(each)
        if match is None or not 0 < int(match[1]) < 65536:
            raise BusError(f"functions.bus: {each[:80]!r} is no host:port of a Kafka broker")
    if parts.path not in ("", "/") or parts.fragment:
        raise BusError("functions.bus: a Kafka URL has nothing after host:port but ?options")
    options = _options(parts.query)
    user, _, password = login.partition(":")
    settings = KafkaSettings(
        servers=servers,
        prefix=options.get("prefix", prefix or DEFAULT_PREFIX),
        replication=_number(options, "replication", 0, 1, 100),
        tls=_flag(options, "tls") or any(options.get(each) for each in ("ca", "cert", "key")),
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
        user=unquote(user),
        password=SecretValue(_password(options, unquote(password))),
        sasl=options.get("sasl", "PLAIN"),
        timeout=float(_number(options, "timeout", 30, 1, 600)),
    )
    if not _PREFIX.fullmatch(settings.prefix):
        raise BusError(
            f"functions.bus: prefix {settings.prefix[:64]!r} is not made of letters, digits, '.', '_' and '-'"
        )
    if settings.sasl not in _MECHANISMS:
        raise BusError(f"functions.bus: sasl must be one of {', '.join(_MECHANISMS)}")
    if bool(settings.user) != bool(settings.password) or ("sasl" in options and not settings.user):
        raise BusError("functions.bus: SASL needs a user and a password (or password-file)")
    if bool(settings.cert) != bool(settings.key):
        raise BusError("functions.bus: cert and key come together")
    return settings


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """What every client of aiokafka is given."""
    options: dict[str, Any] = {"bootstrap_servers": list(settings.servers), "client_id": "coterie-functions"}
    secure = "SSL" if settings.tls else "PLAINTEXT"
    if settings.user:
        options["security_protocol"] = f"SASL_{secure}"
        options["sasl_mechanism"] = settings.sasl
        options["sasl_plain_username"] = settings.user
        options["sasl_plain_password"] = settings.password.reveal()
    else:
        options["security_protocol"] = secure
    if settings.tls:
        try:
            context = ssl.create_default_context(cafile=settings.ca or None)
            if settings.cert:
                context.load_cert_chain(settings.cert, settings.key)
        except (OSError, ssl.SSLError) as error:
            raise BusError(f"functions.bus: the certificates for Kafka cannot be read: {error}") from error
        options["ssl_context"] = context
    return options


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise BusError("functions.bus: the options of the Kafka URL are not option=value&...") from error
    unknown = sorted({name for name, _ in pairs} - _OPTIONS)
    if unknown:
        raise BusError(
            f"functions.bus: a Kafka URL has no option {unknown[0][:40]!r}; it has {', '.join(sorted(_OPTIONS))}"
        )
    if len(dict(pairs)) != len(pairs):
        raise BusError("functions.bus: an option of the Kafka URL stands there twice")
    return dict(pairs)


def _flag(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "false")
    if value not in ("true", "false"):
        raise BusError(f"functions.bus: {name} is true or false")
    return value == "true"


def _number(options: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    if name not in options:
        return default
    text = options[name]
    if not text.isdecimal() or not text.isascii() or not low <= int(text[:9]) <= high or len(text) > 9:
        raise BusError(f"functions.bus: {name} is a number from {low} to {high}")
    return int(text)


def _password(options: dict[str, str], given: str) -> str:
    file = options.get("password-file", "")
    if not file:
        return given
    if given:
        raise BusError("functions.bus: the password stands in the URL or in password-file, not in both")
    try:
        return Path(file).read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BusError(f"functions.bus: {file} cannot be read: {error}") from error
