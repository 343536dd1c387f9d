"""A data mesh with everything around it: an API server in memory, the domain's keys, engines with certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pyarrow as pa
import pyarrow.flight as fl

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATA_SOURCES, DOMAIN_DATAS, DomainDataGrant
from coterie.kuscia.datamesh import messages
from coterie.kuscia.datamesh.process import DataMeshProcess
from coterie.kuscia.datamesh.server import DataMesh
from coterie.kuscia.datamesh.settings import MeshSettings
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity, engine_certificates
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.kuscia.identity.engine_certificates import EngineIdentity, EnginePair
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    SourceError,
    SourceInfo,
    TableReadOptions,
    TableWriteOptions,
)
from coterie.kuscia.sources.source_creation import ensure_default_source, source_object

T = TypeVar("T")

_THREADS = ThreadPoolExecutor(64, "engine")
"""Of the clients: the server's own threads must not wait for them."""
_KEY = SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True))
"""Made once: it takes longer than most tests."""
ADMIN = UserInfo("admin", ("system:masters",))
PEOPLE = pa.table({"id": [1, 2, 3], "age": [30, 41, 52], "salary": [10.5, 20.5, 30.5]})
PEOPLE_COLUMNS = [
    {"name": "id", "type": "int64"},
    {"name": "age", "type": "int64"},
    {"name": "salary", "type": "float64"},
]


class Shelf:
    """What lies in the sources of a test, by (kind, uri)."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}
        self.opened: list[SourceInfo] = []
        self.gate: asyncio.Event | None = None
        """Reading stops after the first batch until it is set."""

    def open(self, info: SourceInfo) -> MemorySource:
        if info.kind not in sealed_sources.BUILT_IN:
            raise SourceError(f"nothing here opens {info.kind}")
        self.opened.append(info)
        return MemorySource(self)


class MemorySource:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def __aenter__(self) -> MemorySource:
        return self

    async def __aexit__(self, *problem: object) -> None:
        return None

    def _table(self, place: DataLocation) -> pa.Table:
        found = self._shelf.tables.get(place.uri)
        if found is None:
            raise DataNotFound(f"there is no {place.uri}")
        return found

    async def schema(self, place: DataLocation) -> pa.Schema:
        return self._table(place).schema

    @asynccontextmanager
    async def read(
        self,
        place: DataLocation,
        schema: pa.Schema | None,
        options: TableReadOptions = TableReadOptions(),  # noqa: B008
    ) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        table = self._table(place)
        if options.columns:
            table = table.select(list(options.columns))
        if schema is not None:
            table = table.cast(pa.schema([schema.field(name) for name in table.column_names]))

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            for batch in table.to_batches(max_chunksize=options.batch_rows):
                yield batch
                if self._shelf.gate is not None:
                    await self._shelf.gate.wait()

        yield batches()

    @asynccontextmanager
    async def write(
        self,
        place: DataLocation,
        schema: pa.Schema,
        options: TableWriteOptions = TableWriteOptions(),  # noqa: B008
    ) -> AsyncIterator[MemorySink]:
        sink = MemorySink()
        yield sink
        self._shelf.tables[place.uri] = pa.Table.from_batches(sink.batches, schema)

    async def delete(self, place: DataLocation) -> None:
        self._shelf.tables.pop(place.uri, None)


class MemorySink:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    async def put(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)


@dataclass
class World:
    client: Client
    identity: DomainIdentity
    paths: DomainPaths
    shelf: Shelf
    mesh: DataMesh = field(init=False)
    grpc_port: int = 0
    pods: int = 0

    @property
    def domain(self) -> str:
        return self.identity.domain

    def authority(self) -> pki.Authority:
        return engine_certificates.ensure_authority(self.paths, self.domain, SYSTEM_CLOCK.now())

    async def table(self, name: str, columns: Sequence[Object] = PEOPLE_COLUMNS, **spec: Any) -> None:
        uri = spec.get("relativeURI", f"{name}.csv")
        self.shelf.tables.setdefault(uri, PEOPLE)
        full = {
            "relativeURI": uri, "author": self.domain, "name": name, "type": "table", "vendor": "manual",
            "dataSource": "default-data-source", "columns": list(columns), "fileFormat": "csv", **spec,
        }  # fmt: skip
        obj = {
            "apiVersion": "kuscia.secretflow/v1alpha1",
            "kind": "DomainData",
            "metadata": {"name": name},
            "spec": full,
        }
        await self.client.create(DOMAIN_DATAS.as_dynamic, obj, self.domain)

    async def grant(self, name: str, data: str, to: str, **limit: Any) -> None:
        spec = {"author": self.domain, "domainDataID": data, "grantDomain": to, **({"limit": limit} if limit else {})}
        obj = {
            "apiVersion": "kuscia.secretflow/v1alpha1", "kind": "DomainDataGrant",
            "metadata": {"name": name}, "spec": self.mesh.catalogue.signed(spec),
        }  # fmt: skip
        await self.client.create(DOMAIN_DATA_GRANTS.as_dynamic, obj, self.domain)

    async def the_grant(self, name: str) -> DomainDataGrant:
        return await self.client.get(DOMAIN_DATA_GRANTS, name, self.domain)

    async def source(self, name: str, kind: str, info: Object) -> None:
        obj = source_object(self.domain, name, kind, info, self.identity.key.public_key())
        await self.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, self.domain)

    async def engine(
        self,
        initiator: str = "",
        *,
        job: str = "job-1",
        flow: str = "",
        parties: Sequence[str] = (),
        input_config: Any = None,
        labelled: bool = True,
        app_image: str = "secretflow-image",
        component_field: str = "sf_node_eval_param",
        image_id: str = "",
        node: str = "",
    ) -> EnginePair:
        """A running pod of a task, and the certificate that its agent gave it."""
        self.pods += 1
        name, task = f"task-{self.pods}-0", f"task-{self.pods}"
        values: Object = {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": f"{name}-values",
                "annotations": {labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS: "TASK_INPUT_CONFIG"},
            },
            "data": {"TASK_CLUSTER_DEFINE": json.dumps({"parties": [{"name": each} for each in parties]})},
            "binaryData": {
                "TASK_INPUT_CONFIG": base64.b64encode(zlib.compress(json.dumps(input_config or {}).encode())).decode()
            },
        }  # fmt: skip
        await self.client.create(CONFIG_MAPS.as_dynamic, values, self.domain)
        marks = {
            labels.KUSCIA_INITIATOR: initiator or self.domain, labels.KUSCIA_TASK_ID: task, labels.KUSCIA_JOB_ID: job,
            labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: f"{name}-values", **({labels.COTERIE_FLOW: flow} if flow else {}),
            labels.COTERIE_APP_IMAGE: app_image, labels.COTERIE_COMPONENT_FIELD: component_field,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": marks, "labels": {
                labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: str(labelled).lower(),
                labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK, labels.KUSCIA_TASK_UID: f"uid-of-{task}",
            }},
            "spec": {"containers": [{"name": "engine", "image": "engine:1"}], **({"nodeName": node} if node else {})},
        }  # fmt: skip
        made = await self.client.create(PODS.as_dynamic, pod, self.domain)
        if image_id:
            running = {
                "name": "engine",
                "image": "engine:1",
                "imageID": f"engine@{image_id}",
                "ready": True,
                "restartCount": 0,
            }
            await self.client.patch_status(PODS, name, self.domain, {"status": {"containerStatuses": [running]}})
        return self.issue(EngineIdentity(self.domain, name, made["metadata"]["uid"], task, job))

    def issue(self, engine: EngineIdentity) -> EnginePair:
        return engine_certificates.issue_client_pair(self.authority(), engine, SYSTEM_CLOCK.now())

    def flight(self, pair: EnginePair) -> fl.FlightClient:
        return fl.connect(
            f"grpc+tls://localhost:{self.grpc_port}",
            tls_root_certs=self.paths.ca_certificate.read_bytes(),
            cert_chain=pair.certificate,
            private_key=pair.key,
        )

    @asynccontextmanager
    async def channel(self, pair: EnginePair) -> AsyncIterator[grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials(self.paths.ca_certificate.read_bytes(), pair.key, pair.certificate)
        async with grpc.aio.secure_channel(f"localhost:{self.grpc_port}", credentials) as channel:
            yield channel

    async def call(self, pair: EnginePair, method: str, **request: Any) -> Any:
        """One of the services' methods."""
        service = next(each for each in ("DomainDataGrant", "DomainDataSource", "DomainData") if method.endswith(each))
        kind, answer = messages.mesh(f"{method}Request"), messages.mesh(f"{method}Response")
        async with self.channel(pair) as channel:
            ask = channel.unary_unary(f"/{messages.DATAMESH}.{service}Service/{method}")
            return answer.FromString(await ask(kind(**request).SerializeToString()))


def command(name: str, **fields: Any) -> bytes:
    body = messages.mesh(name)(**fields).SerializeToString()
    box = messages.Any_(type_url=f"type.googleapis.com/{messages.DATAMESH}.{name}", value=body)
    return bytes(box.SerializeToString())


def read(client: fl.FlightClient, data: str, columns: Sequence[str] = (), content_type: int = 0) -> pa.Table:
    """As an engine does it. Blocking: for a thread."""
    query = command("CommandDomainDataQuery", domaindata_id=data, columns=list(columns), content_type=content_type)
    info = client.get_flight_info(fl.FlightDescriptor.for_command(query))
    return client.do_get(info.endpoints[0].ticket).read_all()


def write(client: fl.FlightClient, data: str, table: pa.Table, content_type: int = 0) -> None:
    update = command("CommandDomainDataUpdate", domaindata_id=data, content_type=content_type)
    info = client.get_flight_info(fl.FlightDescriptor.for_command(update))
    writer, _ = client.do_put(fl.FlightDescriptor.for_command(info.endpoints[0].ticket.ticket), table.schema)
    with writer:
        writer.write_table(table)


async def threaded(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)


async def reading(
    world: World, pair: EnginePair, data: str, columns: Sequence[str] = (), content_type: int = 0
) -> pa.Table:
    with world.flight(pair) as client:
        return await threaded(read, client, data, columns, content_type)


async def writing(world: World, pair: EnginePair, data: str, table: pa.Table, content_type: int = 0) -> None:
    with world.flight(pair) as client:
        await threaded(write, client, data, table, content_type)


@asynccontextmanager
async def api_world(directory: Path, domain: str = "alice") -> AsyncIterator[World]:
    """Everything but the data mesh."""
    paths = DomainPaths.of(directory, domain).prepare()
    own = domain_identity.ensure(paths, domain, _KEY, SYSTEM_CLOCK.now())
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    client = Client(transport)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": domain}}
    await client.create(Kind.dynamic(builtin("namespaces")), namespace)
    try:
        yield World(client, own, paths, Shelf())
    finally:
        await transport.close()
        await server.stop()
        await store.close()


@asynccontextmanager
async def world(
    directory: Path, *, clock: Clock = SYSTEM_CLOCK, look: float = 0.05, node: str = ""
) -> AsyncIterator[World]:
    async with api_world(directory) as made:
        settings = MeshSettings(made.domain, made.paths, http_port=0, grpc_port=0, recheck_seconds=look, node=node)
        made.mesh = DataMesh(settings, made.client, made.identity, made.shelf.open, clock, run=directory)
        await ensure_default_source(made.client, made.domain, made.paths.data, made.identity.key.public_key())
        async with made.mesh:
            made.grpc_port = made.mesh.grpc_port
            yield made


# The real process.


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


@asynccontextmanager
async def served(
    directory: Path, idle: float = 300.0, pods: NamespaceListeners | None = None, traces: Path | None = None
) -> AsyncIterator[tuple[World, DataMeshProcess]]:
    async with api_world(directory) as world:
        http, grpc = free_ports()
        informers = Informers(world.client)
        address = pods.address if pods else "127.0.0.1"
        settings = MeshSettings(world.domain, world.paths, address, http, grpc, traces=traces)
        run = directory / "run"
        run.mkdir(mode=0o700)
        made = DataMeshProcess(
            settings, run, world.client, informers, SYSTEM_CLOCK, everywhere=True, pods=pods, idle=idle
        )
        world.grpc_port = grpc
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(informers.run())
            running = tasks.create_task(made.run())
            await informers.ready.wait()
            await made.ready.wait()
            try:
                yield world, made
            finally:
                made.stop()
                await running
                watching.cancel()
