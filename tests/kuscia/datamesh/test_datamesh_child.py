"""The process that serves: asleep without engines, there for the first one, back after its death."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datamesh_kit import World, reading, served, writing

from coterie.base import listener_handover, network_namespace
from coterie.base.trace import TraceRing, trace_id
from coterie.base.trace_socket import SpanReceiver
from coterie.kube.api.types.pods import PODS
from coterie.kube.control.on_demand_process import NamespaceListeners, OpenPort
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.datamesh.process import allowed
from coterie.kuscia.identity.engine_certificates import EnginePair
from root_kit import require_root

PATIENCE = 50.0


async def until(question: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = question()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.02)


async def test_nothing_runs_without_engines_but_the_default_source_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, made):

        async def there() -> bool:
            return bool((await world.client.list(DOMAIN_DATA_SOURCES, "alice")).items)

        await until(there)
        assert made.pid is None


async def test_who_comes_before_it_serves_waits_and_is_served(tmp_path: Path) -> None:
    ring = TraceRing()
    receiver = SpanReceiver(tmp_path / "t.sock", ring)
    receiver.start()
    async with served(tmp_path, traces=tmp_path / "t.sock") as (world, made):
        pair = await world.engine(labelled=False)
        assert made.pid is None
        out = pa.table({"id": pa.array([1, 2], pa.int64())})
        columns = [{"name": "id", "type": "int64"}]
        answer = await world.call(
            pair, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=columns, file_format=1
        )
        assert (answer.status.code, answer.status.message) == (0, "success")
        await writing(world, pair, "out", out)
        assert (await reading(world, pair, "out")).equals(out)
        assert (world.paths.data / "out").read_text().splitlines() == ["id", "1", "2"]
        found = {family.name: dict(family.rows) for family in await made.metrics.families()}
        read, write = (f'direction="{each}",partner="alice"' for each in ("read", "write"))
        assert found["coterie_datamesh_rows_total"] == {write: 2, read: 2}
        assert found["coterie_datamesh_bytes_total"][read] >= 16
        assert found["coterie_grant_uses_total"] == {}, "own data needs no grant"
    receiver.close()
    # Its spans are in the node's ring.
    assert [(each.name, each.trace) for each in ring.after(0)[0]] == [
        ("data write", trace_id("alice", "job-1")),
        ("data read", trace_id("alice", "job-1")),
    ]


async def test_it_starts_with_the_first_engine_comes_back_and_sleeps_again(tmp_path: Path) -> None:
    async with served(tmp_path, idle=0.2) as (world, made):
        pair = await world.engine()
        await until(lambda: made.pid is not None)
        assert (await world.call(pair, "QueryDomainData", domaindata_id="x")).status.code == 12201
        before = made.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: made.pid not in (None, before))
        assert (await world.call(pair, "QueryDomainData", domaindata_id="x")).status.code == 12201
        await world.client.patch_status(PODS, "task-1-0", "alice", {"status": {"phase": "Succeeded"}})
        await until(lambda: made.pid is None)


# In a network namespace of its own.

_ADDRESS = "100.96.0.1"
_CLIENT = """
import pathlib, sys
import pyarrow as pa
import pyarrow.flight as fl
from coterie.engines.psi.protobytes import command
address, folder = sys.argv[1], pathlib.Path(sys.argv[2])
authority, certificate, key = ((folder / name).read_bytes() for name in ("ca", "crt", "key"))
client = fl.connect(f"grpc+tls://{address}", tls_root_certs=authority, cert_chain=certificate, private_key=key)
for table in sys.argv[3:]:
    try:
        asked = fl.FlightDescriptor.for_command(command("CommandDomainDataQuery", (1, table)))
        print(table, client.do_get(client.get_flight_info(asked).endpoints[0].ticket).read_all().num_rows)
    except (fl.FlightError, pa.ArrowInvalid) as problem:
        print(table, type(problem).__name__)
"""


@contextmanager
def network(*, ipv6: bool = False) -> Iterator[Path]:
    """A namespace with one address of ours in it, as a domain's pods have."""
    require_root("makes a network namespace")
    disable = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
    commands = f"echo {int(not ipv6)} > {disable} && ip link set lo up && ip addr add {_ADDRESS}/32 dev lo && echo made && exec sleep 600"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", commands], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"made\n"
        yield Path(f"/proc/{holder.pid}/ns/net")
    finally:
        holder.kill()
        holder.communicate()


def listeners_in(there: Path, **how: Any) -> NamespaceListeners:
    def inside(open_port: OpenPort) -> OpenPort:
        def opened(address: str, port: int) -> socket.socket:
            with network_namespace.entered(there):
                return open_port(address, port)

        return opened

    return NamespaceListeners(
        _ADDRESS, inside(listener_handover.listen), inside(listener_handover.listen_shared), **how
    )


async def asked_inside(netns: Path, world: World, pair: EnginePair, directory: Path, *tables: str) -> list[str]:
    """How an engine in the namespace fares with these tables."""
    for name, data in (("ca", world.paths.ca_certificate.read_bytes()), ("crt", pair.certificate), ("key", pair.key)):
        (directory / name).write_bytes(data)
    target = f"{_ADDRESS}:{world.grpc_port}"
    argv = ["nsenter", f"--net={netns}", sys.executable, "-c", _CLIENT, target, str(directory), *tables]
    engine = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(engine.communicate(), PATIENCE)
    return output.decode().splitlines()


@pytest.mark.parametrize("ipv6", [False, True])
async def test_grpc_listens_inside_a_namespace_and_databases_are_reached_outside(tmp_path: Path, ipv6: bool) -> None:
    reached = asyncio.Event()

    async def database(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    with network(ipv6=ipv6) as netns:
        async with (
            await asyncio.start_server(database, "127.0.0.1", 0) as outside,
            served(tmp_path, pods=listeners_in(netns, netns=netns)) as (world, made),
        ):
            (world.paths.data / "people.csv").write_text("id\n1\n2\n")
            columns = [{"name": "id", "type": "int"}]
            await world.table("people", columns)
            port = outside.sockets[0].getsockname()[1]
            info = {"endpoint": f"127.0.0.1:{port}", "user": "u", "password": "p", "database": "d"}
            await world.source("db", "mysql", info)
            await world.table("rows", columns, dataSource="db", relativeURI="t", fileFormat="unknown")
            pair = await world.engine(labelled=False)
            assert made.pid is None  # the first engine finds it asleep
            for _ in range(2):
                assert await asked_inside(netns, world, pair, tmp_path, "people") == ["people 2"]
            assert made.pid is not None
            assert namespace_of(made.pid) == namespace_of("self")
            assert listening(netns, world.grpc_port) == 2
            assert len(await asked_inside(netns, world, pair, tmp_path, "rows")) == 1
            assert reached.is_set()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", world.grpc_port))
            os.kill(made.pid, signal.SIGKILL)
            assert await asked_inside(netns, world, pair, tmp_path, "people") == ["people 2"]


async def test_a_whole_child_runs_inside_a_namespace(tmp_path: Path) -> None:
    with network() as netns:
        pods = listeners_in(netns, prefix=("nsenter", f"--net={netns}"))
        async with served(tmp_path, pods=pods) as (world, made):
            (world.paths.data / "people.csv").write_text("id\n1\n2\n")
            await world.table("people", [{"name": "id", "type": "int"}])
            pair = await world.engine()
            assert await asked_inside(netns, world, pair, tmp_path, "people") == ["people 2"]
            assert namespace_of(made.pid) == namespace_of(netns.parents[1].name)
            assert listening(netns, world.grpc_port) == 2
        assert listening(netns, world.grpc_port) == 0


def namespace_of(process: int | str | None) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def listening(netns: Path, port: int) -> int:
    """Sockets that listen on this port there."""
    tables = [netns.parents[1] / "net" / name for name in ("tcp", "tcp6")]
    lines = [line.split() for each in tables for line in each.read_text().splitlines()[1:]]
    return sum(words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port for words in lines)


_OWN = "/apis/kuscia.secretflow/v1alpha1/namespaces/alice"


@pytest.mark.parametrize(
    ("method", "path", "query", "may"),
    [
        ("GET", f"{_OWN}/domaindatas", "limit=500", True),
        ("POST", f"{_OWN}/domaindatas", "", True),
        ("PUT", f"{_OWN}/domaindatagrants/g/status", "", True),
        ("GET", "/api/v1/namespaces/alice/pods/p", "", True),
        ("GET", "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/j", "", True),
        ("GET", f"{_OWN}/domaindatas", "watch=true", False),
        ("GET", "/api/v1/namespaces/alice/pods", "", False),
        ("GET", "/api/v1/namespaces/alice/pods/p/exec", "", False),
        ("DELETE", "/api/v1/namespaces/alice/pods/p", "", False),
        ("GET", "/api/v1/namespaces/alice/secrets/s", "", False),
        ("GET", "/api/v1/namespaces/bob/pods/p", "", False),
        ("POST", "/apis/kuscia.secretflow/v1alpha1/namespaces/bob/domaindatas", "", False),
        ("POST", "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/j", "", False),
        ("GET", f"{_OWN}/domaindatas/../../../secrets", "", False),
        ("GET", f"{_OWN}/domainroutes", "", False),
    ],
)  # fmt: skip
def test_the_process_reaches_no_more_of_the_api_than_it_needs(method: str, path: str, query: str, may: bool) -> None:
    assert allowed(method, path, query, "alice") is may
