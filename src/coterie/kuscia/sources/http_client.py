"""GET and HEAD to the hosts that a source names, and to no others.

Whoever controls a server, or a name, must not lead the data mesh to the machine's own services: each redirect and each
address that a name resolves to is checked before anything is sent, and the connection goes to the very address that was
checked. Credentials go to the endpoint's own origin only.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from coterie.base.secret import SecretValue
from coterie.http.client_sessions import close_session, tcp_connector
from coterie.kuscia.sources.protocol import (
    DataNotFound,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
)

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
_REDIRECTS = 5
_USUAL_LIMIT = 64 << 30
_SETTINGS = ("hosts", "private_addresses", "max_bytes", "ca")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of version 4 behind a translator."""
_GLOBAL = ipaddress.IPv6Network("2000::/3")
"""What is public of version 6; Python takes more for it, e.g. site-local addresses and other translators."""
_CLOUDS = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Where clouds give out credentials at addresses that are not link-local: Alibaba, Azure, Oracle, AWS, Google."""
_ASSIGNMENTS = ipaddress.IPv4Network("192.0.0.0/24")


@dataclass(frozen=True, slots=True)
class HttpSourceLimits:
    hosts: frozenset[str]
    """Lower case, without ports."""
    private: bool
    """Whether they may have addresses that are not public."""
    max_bytes: int


class AddressRefused(OSError):
    """A name resolves to an address that the source does not allow."""


def limits_of(info: SourceInfo, endpoint: URL) -> HttpSourceLimits:
    """Pure. SourceError says what is missing or wrong."""
    unknown = sorted(set(info.extra) - set(_SETTINGS))
    if unknown:
        raise SourceError(f"sources of kind {info.kind} have no setting {', '.join(unknown)}")
    hosts = frozenset(each.strip().lower() for each in info.extra.get("hosts", "").split(",") if each.strip())
    if not hosts:
        raise SourceError("the source needs `hosts`, the names of all servers that it may call, with commas")
    if str(endpoint.host).lower() not in hosts:
        raise SourceError("the host of the source's endpoint is not among its `hosts`")
    private = info.extra.get("private_addresses", "no").lower()
    if private not in ("yes", "no", "true", "false"):
        raise SourceError("`private_addresses` of the source is yes or no")
    text = info.extra.get("max_bytes", str(_USUAL_LIMIT))
    if not text.isascii() or not text.isdecimal() or not int(text[:20]):
        raise SourceError("`max_bytes` of the source is a number of bytes")
    return HttpSourceLimits(hosts, private in ("yes", "true"), int(text[:20]))


def address_fault(text: str, *, private: bool) -> str:
    """Why a server at this address is not called; empty: it is. Pure."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return address_fault(str(inner), private=private)
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return "a link-local, multicast or unspecified address"
    if address in _CLOUDS:
        return "an address at which clouds give out credentials"
    public = address.is_global and (address in _GLOBAL if address.version == 6 else address not in _ASSIGNMENTS)
    if not public and not private:
        return "an address that is not public, which the source allows with private_addresses only"
    return ""


def url_fault(url: URL, limits: HttpSourceLimits, before: URL | None = None) -> str:
    """Why it is not asked for; empty: it is. `before`: the URL that redirected to it. Pure."""
    if url.scheme not in ("http", "https") or not url.host:
        return "not an HTTP address"
    if before is not None and before.scheme == "https" and url.scheme != "https":
        return "not encrypted, unlike the address that redirected to it"
    if url.user is not None or url.password is not None:
        return "an address with a user or password in it"
    if url.host.lower() not in limits.hosts:
        return "not among the source's `hosts`"
    try:
        return address_fault(url.host, private=limits.private)
    except ValueError:
        return ""  # a name, which the resolver checks


class CheckedResolver(AbstractResolver):
    def __init__(self, limits: HttpSourceLimits, inner: AbstractResolver) -> None:
        self._limits, self._inner = limits, inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for each in found:
            if fault := address_fault(each["host"], private=self._limits.private):
                raise AddressRefused(fault)
        return found

    async def close(self) -> None:
        await self._inner.close()


@dataclass(frozen=True, slots=True)
class HttpFile:
    size: int
    """-1 when the server does not say."""
    tag: str


class HttpClient:
    def __init__(self, info: SourceInfo, resolver: AbstractResolver | None = None) -> None:
        try:
            base = URL(info.endpoint)
        except ValueError:
            base = URL()
        if (
            base.scheme not in ("http", "https")
            or not base.host
            or base.user is not None
            or base.query
            or base.fragment
        ):
            raise SourceError("the source needs an endpoint: https://host/path, without user, password or query")
        self.limits = limits_of(info, base)
        if fault := url_fault(base, self.limits):
            raise SourceForbidden(f"the source's endpoint is {fault}")
        self._base = base
        self._authorization = _authorization(info)
        if self._authorization is not None and base.scheme != "https" and not self.limits.private:
            raise SourceError("credentials are sent with https only")
        self._tls = _tls(info.extra.get("ca", ""))
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        resolver = CheckedResolver(self.limits, self._resolver or ThreadedResolver())
        connector = tcp_connector(limit=8, resolver=resolver, use_dns_cache=False, ssl=self._tls)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=_TIMEOUT,
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1024 * 1024,
        )

    async def close(self) -> None:
        if self._session is not None:
            await close_session(self._session)

    def _url(self, key: str) -> URL:
        return URL(f"{str(self._base).rstrip('/')}/{key}", encoded=True)

    @asynccontextmanager
    async def request(
        self, method: str, key: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, whatever its status below 500, after redirects; its body is not yet read. `key`: quoted."""
        url, before = self._url(key), None
        for _ in range(_REDIRECTS + 1):
            if fault := url_fault(url, self.limits, before):
                raise SourceForbidden(f"the server redirects to {url.host or 'an address'}, which is {fault}")
            try:
                response = await self._send(method, url, headers or {})
            except aiohttp.ClientConnectorDNSError as problem:
                if isinstance(problem.os_error, AddressRefused):
                    raise SourceForbidden(f"{url.host} has {problem.os_error}") from problem
                raise SourceUnreachable(f"{url.host} is not found") from problem
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
                raise SourceUnreachable(f"{url.host} does not answer: {type(problem).__name__}") from problem
            async with response:
                if response.status not in (301, 302, 303, 307, 308):
                    _check(response)
                    yield response
                    return
                target = response.headers.get("Location", "")
            try:
                before, url = url, url.join(URL(target))
            except ValueError as problem:
                raise SourceError(f"{url.host} redirects to what is no address") from problem
        raise SourceError(f"{self._base.host} redirects too often")

    async def _send(self, method: str, url: URL, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None, "the source is entered first"
        sent = {"Accept-Encoding": "identity", **headers}
        if self._authorization is not None and url.origin() == self._base.origin():
            sent["Authorization"] = self._authorization.reveal()
        return await self._session.request(method, url, headers=sent, allow_redirects=False)

    async def head(self, key: str) -> HttpFile | None:
        """None when there is no such file."""
        try:
            async with self.request("HEAD", key) as response:
                if response.status < 300:
                    length = response.headers.get("Content-Length", "")
                    return self._bounded(int(length) if length.isdecimal() else -1, response)
        except DataNotFound:
            return None
        # Some servers answer GET alone.
        try:
            async with self.request("GET", key, {"Range": "bytes=0-0"}) as response:
                if response.status == 416:
                    return HttpFile(0, "")
                check_good(response)
                return self._bounded(_whole_size(response), response)
        except DataNotFound:
            return None

    def _bounded(self, size: int, response: aiohttp.ClientResponse) -> HttpFile:
        if size > self.limits.max_bytes:
            raise SourceError(f"the file has {size} bytes, more than the source's max_bytes")
        return HttpFile(size, response.headers.get("ETag", ""))

    async def start(self, key: str, size: int) -> bytes:
        """At most so many bytes, also of a server that sends more."""
        async with self.request("GET", key, {"Range": f"bytes=0-{size - 1}"}) as response:
            if response.status == 416:
                return b""
            check_good(response)
            return await _read(response, size)

    async def get_range(self, key: str, tag: str, start: int, size: int) -> bytes:
        strong = tag and not tag.startswith("W/")
        headers = {"Range": f"bytes={start}-{start + size - 1}", **({"If-Match": tag} if strong else {})}
        async with self.request("GET", key, headers) as response:
            if response.status == 412 or (tag and response.headers.get("ETag", tag) != tag):
                raise SourceError("the file was replaced while it was read; read it again")
            check_good(response)
            found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if response.status != 206 or not found or (int(found[1]), int(found[2])) != (start, start + size - 1):
                raise SourceError("the server does not give ranges of files, which this format needs; use CSV")
            data = await _read(response, size)
        if len(data) < size:
            raise SourceUnreachable("the server stopped in the middle of the file")
        return data


async def _read(response: aiohttp.ClientResponse, size: int) -> bytes:
    kept = bytearray()
    try:
        while len(kept) < size and (piece := await response.content.read(size - len(kept))):
            kept += piece
    except (aiohttp.ClientError, TimeoutError, OSError) as problem:
        raise SourceUnreachable("the server stopped in the middle of the file") from problem
    return bytes(kept)


def _check(response: aiohttp.ClientResponse) -> None:
    status, host = response.status, response.url.host
    if status in (404, 410):
        raise DataNotFound("there is no such file on the server")
    if status in (401, 407) or (status == 403 and response.method != "HEAD"):
        raise SourceUnreachable(f"{host} denied access ({status}); check the source's credentials")
    if status >= 500 and status != 501:
        raise SourceUnreachable(f"{host} failed ({status})")


def check_good(response: aiohttp.ClientResponse) -> None:
    """SourceError unless the body is the file, as it is."""
    if response.status >= 300:
        raise SourceError(f"{response.url.host} refused ({response.status})")
    if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
        raise SourceError("the server sends the file compressed, though it was asked not to; it is not read")


def _whole_size(response: aiohttp.ClientResponse) -> int:
    if response.status == 206:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(found[3]) if found and found[3] != "*" else -1
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else -1


def _authorization(info: SourceInfo) -> SecretValue | None:
    token = info.secrets.get("token")
    if token is not None:
        if any(each in token.reveal() for each in "\r\n\0"):
            raise SourceError("the token of the source has a line break in it")
        return SecretValue(f"Bearer {token.reveal()}")
    if info.user:
        pair = f"{info.user}:{info.password.reveal() if info.password else ''}"
        return SecretValue(f"Basic {base64.b64encode(pair.encode()).decode()}")
    return None


def _tls(ca: str) -> Any:
    if not ca:
        return True
    try:
        return ssl.create_default_context(cadata=ca)
    except (ssl.SSLError, ValueError) as problem:
        raise SourceError("`ca` of the source is no certificate in PEM") from problem
