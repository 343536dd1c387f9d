"""Reading from image registries: the pull half of the OCI distribution protocol, over blocking sockets (call it in a thread).

A registry is not trusted: answers are bounded, what is asked for by digest is checked by its caller, credentials go only to the
place that they were given for, and a redirection or a token server never leads into this machine or its network unless the
registry itself is there.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import re
import socket
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.references import RegistryEndpoint

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MOST_JSON = 4 << 20
_MOST_REDIRECTS = 5
_TIMEOUT = 30.0
_TOKEN_LENGTH = 64 << 10
_MOST_PROXY_ANSWER = 8 << 10
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_HTTP_PORTS = {"http": 80, "https": 443}


class RegistryUnavailable(ImageError):
    """The registry cannot be reached or is overloaded: worth another try later."""


class NotInRegistry(ImageError):
    """The registry has no such image, tag or digest."""


@dataclass(slots=True)
class RegistryClient:
    """Connections to one registry for one pull; keeps the tokens it was given."""

    endpoint: RegistryEndpoint
    timeout: float = _TIMEOUT
    _authorization: dict[str, str] = field(default_factory=dict, repr=False)

    def manifest(self, repository: str, reference: str) -> bytes:
        """Of a tag or a digest. The caller checks a digest."""
        path = f"{self.endpoint.path_of(repository)}/manifests/{urllib.parse.quote(reference, safe=':')}"
        with self._get(path, repository, {"Accept": ", ".join(MANIFEST_TYPES)}) as answer:
            return _small(answer, f"the manifest of {repository}:{reference}")

    def referrers(self, repository: str, digest: str) -> bytes:
        """The index of what refers to a digest (OCI 1.1)."""
        with self._get(f"{self.endpoint.path_of(repository)}/referrers/{digest}", repository, {}) as answer:
            return _small(answer, f"the list of what refers to {digest[:19]}")

    def small_blob(self, repository: str, digest: str) -> bytes:
        with self._get(f"{self.endpoint.path_of(repository)}/blobs/{digest}", repository, {}) as answer:
            return _small(answer, digest[:19])

    @contextmanager
    def blob(self, repository: str, digest: str, begin: int = 0) -> Iterator[tuple[http.client.HTTPResponse, int]]:
        """The answer, and the position at which it begins: 0 if the registry cannot begin where it was asked to."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with self._get(f"{self.endpoint.path_of(repository)}/blobs/{digest}", repository, headers) as answer:
            yield answer, begin if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0

    # ----- requests

    @contextmanager
    def _get(self, path: str, repository: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        url = f"{self.endpoint.scheme}://{self.endpoint.host}{path}"
        asked_for_token = False
        redirects = 0
        while True:
            own = urllib.parse.urlsplit(url).netloc == self.endpoint.host
            known = self._authorization.get(repository) if own else None
            try:
                with self._asking(url, {**headers, **({"Authorization": known} if known else {})}) as answer:
                    if answer.status in (301, 302, 303, 307, 308):
                        redirects += 1
                        if redirects > _MOST_REDIRECTS:
                            raise ImageError(f"{self.endpoint.host} redirects without end")
                        url = self._redirection(url, answer.headers.get("Location", ""))
                        continue
                    if answer.status == http.HTTPStatus.UNAUTHORIZED and own and not asked_for_token:
                        asked_for_token = True
                        challenges = answer.headers.get_all("WWW-Authenticate") or []
                        self._authorization[repository] = self._authorize(challenges, repository)
                        continue
                    _check_status(answer, self.endpoint.host, repository)
                    yield answer
                    return
            except (OSError, http.client.HTTPException) as problem:
                raise RegistryUnavailable(_unreachable(self.endpoint.host, problem)) from problem

    @contextmanager
    def _asking(self, url: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        parts = urllib.parse.urlsplit(url)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        with closing(self._connect(url)) as connection:
            connection.request("GET", target, headers={"User-Agent": "coterie", "Host": parts.netloc, **headers})
            with closing(connection.getresponse()) as answer:
                yield answer

    def _redirection(self, url: str, location: str) -> str:
        target = urllib.parse.urljoin(url, location)
        parts = urllib.parse.urlsplit(target)
        if parts.scheme not in _HTTP_PORTS or not parts.hostname or parts.username or len(target) > 16 << 10:
            raise ImageError(f"{self.endpoint.host} redirects to a place that is not a web address")
        if self.endpoint.scheme == "https" and parts.scheme != "https":
            raise ImageError(f"{self.endpoint.host} redirects to a place without TLS")
        return target

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        try:
            port = parts.port or _HTTP_PORTS[parts.scheme]
            address = self._address(parts.hostname, port, own=parts.netloc == self.endpoint.host)
        except (OSError, ValueError) as problem:
            raise RegistryUnavailable(_unreachable(parts.hostname, problem)) from problem
        return _PinnedConnection(
            parts.hostname, port, address, self._context(parts.scheme), self.timeout, self.endpoint.proxy
        )

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        if scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self.endpoint.ca_file or None)
        except OSError as problem:
            raise ImageError(f"{self.endpoint.ca_file}: {problem}") from problem

    def _address(self, host: str, port: int, *, own: bool) -> str:
        """Looked up once and then used, so that a name cannot mean another place a moment later."""
        if self.endpoint.proxy:
            return ""
        found = _resolve(host, port)
        if own:
            return found[0]
        within = min(_reach(address) for address in _resolve(self.endpoint.host.partition(":")[0], port))
        return permitted(found, within, self.endpoint.host, host)

    # ----- tokens

    def _authorize(self, challenges: Sequence[str], repository: str) -> str:
        given = self.endpoint.username
        basic = base64.b64encode(f"{given}:{self.endpoint.password.reveal()}".encode()).decode()
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                values = dict(_CHALLENGE.findall(rest))
                return f"Bearer {self._token(values, repository, f'Basic {basic}' if given else '')}"
            if scheme.lower() == "basic" and given:
                return f"Basic {basic}"
        raise ImageError(f"{self.endpoint.host} asks for a user name and a password; set them for this registry")

    def _token(self, challenge: Mapping[str, str], repository: str, credentials: str) -> str:
        realm = challenge.get("realm", "")
        parts = urllib.parse.urlsplit(realm)
        if parts.scheme not in _HTTP_PORTS or not parts.hostname or parts.username:
            raise ImageError(f"{self.endpoint.host} names no token server")
        if self.endpoint.scheme == "https" and parts.scheme != "https":
            raise ImageError(f"{self.endpoint.host} names a token server without TLS; no password is sent there")
        name = f"{self.endpoint.prefix}/{repository}" if self.endpoint.prefix else repository
        query = {"scope": challenge.get("scope") or f"repository:{name}:pull"}
        if challenge.get("service"):
            query["service"] = challenge["service"]
        url = f"{realm}{'&' if parts.query else '?'}{urllib.parse.urlencode(query)}"
        try:
            with self._asking(url, {"Authorization": credentials} if credentials else {}) as answer:
                if answer.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
                    raise ImageError(f"{self.endpoint.host} refuses the user name or password for {repository}")
                _check_status(answer, parts.hostname, repository)
                body = json.loads(_small(answer, "the token"))
            token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
        except (OSError, http.client.HTTPException) as problem:
            raise RegistryUnavailable(_unreachable(parts.hostname, problem)) from problem
        except ValueError:
            token = None
        if not isinstance(token, str) or len(token) > _TOKEN_LENGTH or not token.isascii() or not token.isprintable():
            raise ImageError(f"{parts.hostname} gives no token for {repository}")
        return token


_PUBLIC, _PRIVATE, _LINK, _MACHINE = range(4)


def _resolve(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _reach(address: str) -> int:
    """How near an address is: public, of a private network, of this link (metadata services are there), of this machine."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.is_global and not found.is_multicast:
        return _PUBLIC
    if found.is_loopback or found.is_unspecified:
        return _MACHINE
    return _LINK if found.is_link_local or found.is_multicast else _PRIVATE


def permitted(addresses: Sequence[str], within: int, registry: str, host: str) -> str:
    """Where a registry may lead to: nowhere nearer to this machine than it is itself. `within`: how near that is."""
    for address in addresses:
        if _reach(address) <= within:
            return address
    raise ImageError(f"{registry} leads to {host}, an address nearer to this machine than the registry; not followed")


class _PinnedConnection(http.client.HTTPConnection):
    """To an address that was checked, or through a proxy; with TLS for the host's name."""

    def __init__(
        self, host: str, port: int, address: str, context: ssl.SSLContext | None, timeout: float, proxy: str
    ) -> None:
        super().__init__(host, port, timeout=timeout)
        self._address, self._context, self._proxy = address, context, proxy

    def connect(self) -> None:
        plain = (
            self._through_proxy() if self._proxy else socket.create_connection((self._address, self.port), self.timeout)
        )
        try:
            self.sock = self._context.wrap_socket(plain, server_hostname=self.host) if self._context else plain
        except BaseException:
            plain.close()
            raise

    def _through_proxy(self) -> socket.socket:
        name, _, port = self._proxy.rpartition(":")
        plain = socket.create_connection((name, int(port)), self.timeout)
        try:
            place = f"{self.host}:{self.port}"
            plain.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode("ascii"))
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                # Byte by byte: what follows the answer belongs to the tunnel.
                one = plain.recv(1)
                if not one or len(answer) > _MOST_PROXY_ANSWER:
                    raise OSError(f"the proxy {self._proxy} does not answer as one")
                answer += one
            if answer.split(b" ", 2)[1:2] != [b"200"]:
                raise OSError(f"the proxy {self._proxy} refuses: {answer.splitlines()[0].decode('latin-1')}")
        except BaseException:
            plain.close()
            raise
        return plain


def _check_status(answer: http.client.HTTPResponse, host: str, repository: str) -> None:
    if answer.status in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
        return
    why = _reason(answer)
    if answer.status == http.HTTPStatus.NOT_FOUND:
        raise NotInRegistry(f"{host} has no such image {repository}{why}")
    if answer.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        raise ImageError(f"{host} does not allow pulling {repository}{why}")
    if answer.status == http.HTTPStatus.TOO_MANY_REQUESTS or answer.status >= 500:
        raise RegistryUnavailable(f"{host} answers {answer.status}{why}")
    raise ImageError(f"{host} answers {answer.status} for {repository}{why}")


def _reason(answer: http.client.HTTPResponse) -> str:
    """What a registry says in its error, if it can be shown."""
    try:
        found: Any = json.loads(answer.read(16 << 10))["errors"][0]["message"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
    return f": {found[:200]}" if isinstance(found, str) and found.isprintable() else ""


def _small(answer: http.client.HTTPResponse, what: str) -> bytes:
    data = answer.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise ImageError(f"{what} is too large to be what it should be")
    return data


def _unreachable(host: str, problem: Exception) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"{host} has a certificate that is not trusted here: {problem.verify_message}"
    why = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return f"{host} cannot be reached: {why}"
