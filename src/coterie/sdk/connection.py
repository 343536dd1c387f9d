"""One domain's API, in two faces: `Connection` for plain programs, `AsyncConnection` for those with a loop."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.base.secret import SecretValue
from coterie.sdk import resources
from coterie.sdk.local_domains import locate
from coterie.sdk.sync_client import Background, SyncResourceClient, blocking, iterating
from coterie.sdk.wire import Address, Wire


class AsyncConnection:
    """Opened where it is used: `async with connect_async("alice") as alice: ...`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._wire = wire = Wire(address)
        self.jobs = resources.Jobs(wire)
        self.domains = resources.Domains(wire)
        self.routes = resources.Routes(wire)
        self.data = resources.DataSets(wire)
        self.sources = resources.Sources(wire)
        self.grants = resources.Grants(wire)
        self.servings = resources.Servings(wire)
        self.images = resources.Images(wire)
        self.config = resources.Config(wire)
        self.certificates = resources.Certificates(wire)
        self.logs = resources.Logs(wire)
        self.partner_logs = resources.PartnerLogs(wire)
        self.bandwidth = resources.Bandwidth(wire)
        self.evidence = resources.Evidence(wire)
        self.health = resources.Health(wire)

    async def close(self) -> None:
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Jobs(SyncResourceClient):
    run = blocking(resources.Jobs.run)
    create = blocking(resources.Jobs.create)
    plan = blocking(resources.Jobs.plan)
    wait = blocking(resources.Jobs.wait)
    get = blocking(resources.Jobs.get)
    statuses = blocking(resources.Jobs.statuses)
    list = blocking(resources.Jobs.list)
    watch = iterating(resources.Jobs.watch)
    stop = blocking(resources.Jobs.stop)
    restart = blocking(resources.Jobs.restart)
    suspend = blocking(resources.Jobs.suspend)
    cancel = blocking(resources.Jobs.cancel)
    approve = blocking(resources.Jobs.approve)
    delete = blocking(resources.Jobs.delete)


class Domains(SyncResourceClient):
    create = blocking(resources.Domains.create)
    update = blocking(resources.Domains.update)
    get = blocking(resources.Domains.get)
    get_many = blocking(resources.Domains.get_many)
    delete = blocking(resources.Domains.delete)


class Routes(SyncResourceClient):
    create = blocking(resources.Routes.create)
    get = blocking(resources.Routes.get)
    statuses = blocking(resources.Routes.statuses)
    delete = blocking(resources.Routes.delete)


class DataSets(SyncResourceClient):
    create = blocking(resources.DataSets.create)
    update = blocking(resources.DataSets.update)
    get = blocking(resources.DataSets.get)
    get_many = blocking(resources.DataSets.get_many)
    list = blocking(resources.DataSets.list)
    delete = blocking(resources.DataSets.delete)


class Sources(SyncResourceClient):
    create = blocking(resources.Sources.create)
    update = blocking(resources.Sources.update)
    get = blocking(resources.Sources.get)
    get_many = blocking(resources.Sources.get_many)
    list = blocking(resources.Sources.list)
    delete = blocking(resources.Sources.delete)


class Grants(SyncResourceClient):
    create = blocking(resources.Grants.create)
    update = blocking(resources.Grants.update)
    get = blocking(resources.Grants.get)
    get_many = blocking(resources.Grants.get_many)
    list = blocking(resources.Grants.list)
    delete = blocking(resources.Grants.delete)


class Servings(SyncResourceClient):
    create = blocking(resources.Servings.create)
    update = blocking(resources.Servings.update)
    get = blocking(resources.Servings.get)
    statuses = blocking(resources.Servings.statuses)
    delete = blocking(resources.Servings.delete)


class Images(SyncResourceClient):
    create = blocking(resources.Images.create)
    update = blocking(resources.Images.update)
    get = blocking(resources.Images.get)
    get_many = blocking(resources.Images.get_many)
    list = blocking(resources.Images.list)
    delete = blocking(resources.Images.delete)


class Config(SyncResourceClient):
    create = blocking(resources.Config.create)
    update = blocking(resources.Config.update)
    get = blocking(resources.Config.get)
    get_many = blocking(resources.Config.get_many)
    delete = blocking(resources.Config.delete)


class Certificates(SyncResourceClient):
    generate = blocking(resources.Certificates.generate)


class Bandwidth(SyncResourceClient):
    get = blocking(resources.Bandwidth.get)
    set_capacity = blocking(resources.Bandwidth.set_capacity)
    limit = blocking(resources.Bandwidth.limit)


class PartnerLogs(SyncResourceClient):
    ask = blocking(resources.PartnerLogs.ask)
    get = blocking(resources.PartnerLogs.get)
    list = blocking(resources.PartnerLogs.list)
    review = blocking(resources.PartnerLogs.review)
    delete = blocking(resources.PartnerLogs.delete)


class Evidence(SyncResourceClient):
    list = blocking(resources.Evidence.list)
    get = blocking(resources.Evidence.get)
    prove = blocking(resources.Evidence.prove)
    export = blocking(resources.Evidence.export)
    state = blocking(resources.Evidence.state)


class Logs(SyncResourceClient):
    read = iterating(resources.Logs.read)
    search = blocking(resources.Logs.search)
    node = blocking(resources.Logs.node)


class Health(SyncResourceClient):
    ready = blocking(resources.Health.ready)


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
        self.partner_logs = PartnerLogs(background, under.partner_logs)
        self.bandwidth = Bandwidth(background, under.bandwidth)
        self.evidence = Evidence(background, under.evidence)
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
        url, domain, SecretValue(token) if token else None, _path(ca), _path(certificate), _path(key), server_name
    )


def _path(given: Path | str | None) -> Path | None:
    return Path(given).expanduser() if given is not None else None
