"""One domain's API, in two faces: `Connection` for plain programs, `AsyncConnection` for those with a loop."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.base.secret import Secret
from coterie.sdk import groups
from coterie.sdk.faces import Background, Face, blocking, iterating
from coterie.sdk.locating import locate
from coterie.sdk.wire import Address, Wire


class AsyncConnection:
    """Opened where it is used: `async with connect_async("alice") as alice: ...`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._wire = wire = Wire(address)
        self.jobs = groups.Jobs(wire)
        self.domains = groups.Domains(wire)
        self.routes = groups.Routes(wire)
        self.data = groups.DataSets(wire)
        self.sources = groups.Sources(wire)
        self.grants = groups.Grants(wire)
        self.servings = groups.Servings(wire)
        self.images = groups.Images(wire)
        self.config = groups.Config(wire)
        self.certificates = groups.Certificates(wire)
        self.logs = groups.Logs(wire)
        self.health = groups.Health(wire)

    async def close(self) -> None:
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Jobs(Face):
    run = blocking(groups.Jobs.run)
    create = blocking(groups.Jobs.create)
    wait = blocking(groups.Jobs.wait)
    get = blocking(groups.Jobs.get)
    statuses = blocking(groups.Jobs.statuses)
    list = blocking(groups.Jobs.list)
    watch = iterating(groups.Jobs.watch)
    stop = blocking(groups.Jobs.stop)
    restart = blocking(groups.Jobs.restart)
    suspend = blocking(groups.Jobs.suspend)
    cancel = blocking(groups.Jobs.cancel)
    approve = blocking(groups.Jobs.approve)
    delete = blocking(groups.Jobs.delete)


class Domains(Face):
    create = blocking(groups.Domains.create)
    update = blocking(groups.Domains.update)
    get = blocking(groups.Domains.get)
    get_many = blocking(groups.Domains.get_many)
    delete = blocking(groups.Domains.delete)


class Routes(Face):
    create = blocking(groups.Routes.create)
    get = blocking(groups.Routes.get)
    statuses = blocking(groups.Routes.statuses)
    delete = blocking(groups.Routes.delete)


class DataSets(Face):
    create = blocking(groups.DataSets.create)
    update = blocking(groups.DataSets.update)
    get = blocking(groups.DataSets.get)
    get_many = blocking(groups.DataSets.get_many)
    list = blocking(groups.DataSets.list)
    delete = blocking(groups.DataSets.delete)


class Sources(Face):
    create = blocking(groups.Sources.create)
    update = blocking(groups.Sources.update)
    get = blocking(groups.Sources.get)
    get_many = blocking(groups.Sources.get_many)
    list = blocking(groups.Sources.list)
    delete = blocking(groups.Sources.delete)


class Grants(Face):
    create = blocking(groups.Grants.create)
    update = blocking(groups.Grants.update)
    get = blocking(groups.Grants.get)
    get_many = blocking(groups.Grants.get_many)
    list = blocking(groups.Grants.list)
    delete = blocking(groups.Grants.delete)


class Servings(Face):
    create = blocking(groups.Servings.create)
    update = blocking(groups.Servings.update)
    get = blocking(groups.Servings.get)
    statuses = blocking(groups.Servings.statuses)
    delete = blocking(groups.Servings.delete)


class Images(Face):
    create = blocking(groups.Images.create)
    update = blocking(groups.Images.update)
    get = blocking(groups.Images.get)
    get_many = blocking(groups.Images.get_many)
    list = blocking(groups.Images.list)
    delete = blocking(groups.Images.delete)


class Config(Face):
    create = blocking(groups.Config.create)
    update = blocking(groups.Config.update)
    get = blocking(groups.Config.get)
    get_many = blocking(groups.Config.get_many)
    delete = blocking(groups.Config.delete)


class Certificates(Face):
    generate = blocking(groups.Certificates.generate)


class Logs(Face):
    read = iterating(groups.Logs.read)
    node = blocking(groups.Logs.node)


class Health(Face):
    ready = blocking(groups.Health.ready)


class Connection:
    """May be left open: the program's end closes it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        background = Background()
        try:
            under = background.wait(_opened(address))
        except BaseException:
            background.close()
            raise
        self._end = weakref.finalize(self, _end, background, under)
        self.jobs = Jobs(background, under.jobs)
        self.domains = Domains(background, under.domains)
        self.routes = Routes(background, under.routes)
        self.data = DataSets(background, under.data)
        self.sources = Sources(background, under.sources)
        self.grants = Grants(background, under.grants)
        self.servings = Servings(background, under.servings)
        self.images = Images(background, under.images)
        self.config = Config(background, under.config)
        self.certificates = Certificates(background, under.certificates)
        self.logs = Logs(background, under.logs)
        self.health = Health(background, under.health)

    def close(self) -> None:
        """Once is enough; more does no harm."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(background: Background, under: AsyncConnection) -> None:
    background.wait(under.close())
    background.close()


async def _opened(address: Address) -> AsyncConnection:
    return AsyncConnection(address)


def connect(
    domain: str = "",
    *,
    root: Path | str | None = None,
    url: str = "",
    token: str = "",
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    server_name: str = "",
) -> Connection:
    """A domain on this machine by its name, or any by its `url`.

    connect("alice")
    connect("alice", url="https://10.0.0.5:8082", token=..., ca="ca.crt", certificate="client.crt", key="client.key")
    """
    return Connection(_address(domain, root, url, token, ca, certificate, key, server_name))


def connect_async(
    domain: str = "",
    *,
    root: Path | str | None = None,
    url: str = "",
    token: str = "",
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    server_name: str = "",
) -> AsyncConnection:
    """As `connect`, for use inside a running loop."""
    return AsyncConnection(_address(domain, root, url, token, ca, certificate, key, server_name))


def _address(
    domain: str,
    root: Path | str | None,
    url: str,
    token: str,
    ca: Path | str | None,
    certificate: Path | str | None,
    key: Path | str | None,
    server_name: str,
) -> Address:
    if not url:
        return locate(domain, root)
    return Address(
        url, domain, Secret(token) if token else None, _path(ca), _path(certificate), _path(key), server_name
    )  # fmt: skip


def _path(given: Path | str | None) -> Path | None:
    return Path(given).expanduser() if given is not None else None
