"""The process that serves KusciaAPI: asleep until somebody calls, back after its death; who comes through the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kusciaapi_kit import Place, slept

from coterie.base import listener_handover, pki
from coterie.base.exposition import Family
from coterie.kube.api.meta import Object
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi.process import GATE_SOCKET, KusciaApiProcess, allowed

QUERY = "/api/v1/domain/query"


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not question():
            await asyncio.sleep(0.02)


async def domain(place: Place, name: str, **spec: Any) -> None:
    obj: Object = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "Domain",
        "metadata": {"name": name},
        "spec": spec,
    }
    await place.client.create(DOMAINS.as_dynamic, obj)


async def test_it_sleeps_until_somebody_calls_and_comes_back_from_the_dead(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, made):
        await domain(place, "alice")
        assert list(await made.metrics.families()) == []
        assert made.pid is None, "a scrape does not wake it"
        assert (await place.post(QUERY, {"domain_id": "alice"}))[1]["data"]["domain_id"] == "alice"
        assert (await place.ask("DomainService", "QueryDomain", domain_id="alice")).data.domain_id == "alice"
        assert await calls(made) == (1, 2), "one of HTTP, two in all"
        before = made.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: made.pid not in (None, before))
        assert (await place.post("/healthZ"))[1]["data"] == {"ready": True}
        assert await calls(made) == (1, 2), "counted by a process that is gone"


async def calls(made: KusciaApiProcess) -> tuple[float, float]:
    """Queries of domains that were counted, over HTTP and over all."""
    rows = {name: value for family in await made.metrics.families() for name, value in _rows(family)}
    http = rows['gin_requests_total code="200",method="POST",url="/api/v1/domain/query",handler="QueryDomain"']
    return http, rows['coterie_kusciaapi_calls_total method="QueryDomain",result="succeeded"']


def _rows(family: Family) -> list[tuple[str, float]]:
    return [(f"{family.name} {where}", value) for where, value in family.rows]


async def test_paths_that_callers_invent_are_no_rows(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, made):
        await domain(place, "alice")
        for number in range(5):
            assert (await place.post(f"/invented/{number}"))[0] == 404
        families = {family.name: family for family in await made.metrics.families()}
        assert [where for where, _ in families["gin_requests_total"].rows] == [
            'code="404",method="POST",url="other",handler="other"'
        ]


async def test_it_stays_while_it_is_in_use_and_sleeps_afterwards(tmp_path: Path) -> None:
    async with slept(tmp_path, idle=1.0) as (place, made), place.session() as session:
        answer = await session.post("/api/v1/job/watch", json={})
        assert answer.status == 200
        first = made.pid
        assert first is not None
        await asyncio.sleep(2.5)  # longer than it may idle
        assert made.pid == first
        answer.close()
        await until(lambda: made.pid is None)
        assert (await place.post("/healthZ"))[0] == 200


_THIEF = """
import itertools, os, select, socket, sys
options = [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
addresses = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"),
             (socket.AF_INET6, "::ffff:127.0.0.1")]
ends = {}
while not select.select([0], [], [], 0)[0]:
    for port, (family, address), chosen in itertools.product(map(int, sys.argv[1:]), addresses, options):
        with socket.socket(family) as other:
            if family == socket.AF_INET6:
                other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            for each in chosen:
                other.setsockopt(socket.SOL_SOCKET, each, 1)
            try:
                other.bind((address, port))
                other.listen()
                end = "taken"
            except OSError as problem:
                end = problem.strerror
            ends[end] = ends.get(end, 0) + 1
print(*ends)
"""


async def test_no_other_process_can_take_a_port_at_any_moment(tmp_path: Path) -> None:
    async with slept(tmp_path, idle=1.0) as (place, made):
        ports = [str(port) for _, _, port in place.settings.ports]
        thief = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _THIEF, *ports, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        await domain(place, "alice")
        assert (await place.post("/healthZ"))[0] == 200  # it slept, started and serves
        assert (await place.ask("DomainService", "QueryDomain", domain_id="alice")).data.domain_id == "alice"
        before = made.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        assert (await place.ask("DomainService", "QueryDomain", domain_id="alice")).data.domain_id == "alice"
        await until(lambda: made.pid not in (None, before))
        await until(lambda: made.pid is None)  # it ended
        assert (await place.ask("DomainService", "QueryDomain", domain_id="alice")).data.domain_id == "alice"
        ends, _ = await thief.communicate(b"end")
        assert ends == b"Address already in use\n"


async def test_all_who_call_while_it_sleeps_are_served(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, made):
        await domain(place, "alice")
        assert made.pid is None
        calls = [place.ask("DomainService", "QueryDomain", domain_id="alice") for _ in range(20)]
        posts = [place.post(QUERY, {"domain_id": "alice"}) for _ in range(20)]
        answers, bodies = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*posts))
        assert {each.data.domain_id for each in answers} == {"alice"}
        assert {(status, body["data"]["domain_id"]) for status, body in bodies} == {(200, "alice")}


async def test_what_grpc_listens_on_is_private(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, _):
        assert (await place.post("/healthZ"))[0] == 200
        for name in ("kapi-grpc.sock", "kapi-conf.sock"):
            assert stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) == 0o600
    assert not list((tmp_path / "run").iterdir())


async def test_conf_manager_has_certificates_for_who_shows_one(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, _):
        await place.engine(tmp_path)
        url = f"https://127.0.0.1:{place.settings.conf_http_port}"
        for path in ("/api/v1/cm/certificate/generate", "/api/v1/configmanager/certificate/generate"):
            connector = aiohttp.TCPConnector(ssl=place.engine_tls(tmp_path))
            async with aiohttp.ClientSession(connector=connector) as session:
                async with session.post(url + path, json={"common_name": "engine"}) as answer:
                    made = await answer.json()
                assert (answer.status, made["status"]["code"], len(made["cert_chain"])) == (200, 0, 2)
                async with session.post(url + QUERY, json={"domain_id": "alice"}) as answer:
                    assert answer.status == 404
                async with session.post(url + "/healthZ", json={}) as answer:
                    assert answer.status == 200
            async with place.session(client="") as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.post(url + path, json={"common_name": "engine"})


async def test_conf_manager_may_listen_elsewhere_and_has_all_names_in_its_certificate(tmp_path: Path) -> None:
    """In the network of the pods; here that is another loopback address."""
    pods = NamespaceListeners("127.0.0.9", listener_handover.listen, listener_handover.listen_shared)
    async with slept(tmp_path, pods=pods) as (place, _), place.session(token="") as session:
        await place.engine(tmp_path)
        names = pki.names_of(pki.load_certificate(place.paths.certificate("ConfManager").read_bytes()))
        assert set(names) == {"confmanager", "localhost", "127.0.0.1", "127.0.0.9"}
        for port, address in ((place.settings.conf_http_port, "127.0.0.9"), (place.settings.http_port, "127.0.0.1")):
            tls = place.engine_tls(tmp_path) if address == "127.0.0.9" else place.tls()
            async with session.post(f"https://{address}:{port}/healthZ", json={}, ssl=tls) as answer:
                assert answer.status == (200 if address == "127.0.0.9" else 401)


# From lites.


async def through_gateway(run: Path, body: Object, path: str = QUERY, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(run / GATE_SOCKET))) as session,
        session.post(f"http://kusciaapi{path}", json=body, headers=named) as answer,
    ):
        return answer.status, json.loads(await answer.read() or b"null")


async def test_only_lites_of_this_control_plane_are_let_in_and_see_their_own(tmp_path: Path) -> None:
    async with slept(tmp_path) as (place, made):
        await domain(place, "alice")
        await domain(place, "lite")
        await domain(place, "friend", role="partner")
        run = tmp_path / "run"
        assert stat.S_IMODE((run / GATE_SOCKET).stat().st_mode) == 0o600
        asked = {"domain_id": "lite"}
        assert made.pid is None
        status, answer = await through_gateway(run, asked, kuscia_source="lite", kuscia_origin_source="lite")
        assert (status, answer["data"]["domain_id"]) == (200, "lite")
        status, answer = await through_gateway(
            run, {"domain_id": "alice"}, kuscia_source="lite", kuscia_origin_source="lite"
        )
        assert (status, answer["status"]["code"]) == (200, 11102)
        for closed in ("/api/v1/domain/create", "/api/v1/config/query", "/api/v1/appimage/list", "/healthZ"):
            lite = {"kuscia_source": "lite", "kuscia_origin_source": "lite"}
            assert await through_gateway(run, {}, closed, **lite) == (401, None)
        for claimed in (
            {},
            {"kuscia_source": "lite"},
            {"kuscia_source": "friend", "kuscia_origin_source": "friend"},
            {"kuscia_source": "friend", "kuscia_origin_source": "lite"},
            {"kuscia_source": "alice", "kuscia_origin_source": "alice"},
            {"kuscia_source": "nobody", "kuscia_origin_source": "nobody"},
        ):
            assert await through_gateway(run, asked, **claimed, token=place.token) == (401, None)


# What the process may ask of the API.

_KUSCIA = "/apis/kuscia.secretflow/v1alpha1"


@pytest.mark.parametrize(
    ("method", "path", "may"),
    [
        ("POST", f"{_KUSCIA}/namespaces/cross-domain/kusciajobs", True),
        ("DELETE", f"{_KUSCIA}/domains/bob", True),
        ("GET", "/api/v1/namespaces/bob/pods/p", True),
        ("GET", "/api/v1/namespaces/alice/pods/p/log", True),
        ("GET", "/apis/apps/v1/namespaces/bob/deployments/d", True),
        ("POST", "/apis/apps/v1/namespaces/bob/deployments", False),
        ("PATCH", f"{_KUSCIA}/namespaces/cross-domain/kusciajobs/j/status", True),
        ("DELETE", f"{_KUSCIA}/namespaces/cross-domain/kusciajobs/j", True),
        ("DELETE", f"{_KUSCIA}/namespaces/cross-domain/kusciajobs", False),
        ("DELETE", f"{_KUSCIA}/domains", False),
        ("PATCH", f"{_KUSCIA}/namespaces/alice/domaindatagrants/g/status", False),
        ("GET", f"{_KUSCIA}/namespaces/cross-domain/kusciatasks", True),
        ("PATCH", f"{_KUSCIA}/namespaces/cross-domain/kusciatasks/t", True),
        ("PATCH", f"{_KUSCIA}/namespaces/cross-domain/kusciatasks/t/status", False),
        ("PATCH", "/api/v1/nodes/n", True),
        ("DELETE", "/api/v1/nodes/n", False),
        ("PUT", f"{_KUSCIA}/namespaces/alice/domainroutes/r", False),
        ("GET", f"{_KUSCIA}/namespaces/alice/domaindatas/..", False),
        ("GET", f"{_KUSCIA}/namespaces/alice\\..\\..\\domaindatas", False),
        ("PATCH", "/api/v1/namespaces/alice/configmaps/domain-config", True),
        ("PATCH", "/api/v1/namespaces/alice/configmaps/task-config", False),
        ("GET", "/api/v1/namespaces/alice/configmaps", False),
        ("PATCH", "/api/v1/namespaces/bob/configmaps/domain-config", False),
        ("DELETE", "/api/v1/namespaces/alice/pods/p", False),
        ("GET", "/api/v1/namespaces/alice/pods/p/exec", False),
        ("GET", "/api/v1/namespaces/alice/secrets/s", False),
        ("GET", "/api/v1/secrets", False),
        ("GET", f"{_KUSCIA}/../../../api/v1/secrets", False),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", False),
    ],
)
def test_the_process_reaches_no_more_of_the_api_than_it_needs(method: str, path: str, may: bool) -> None:
    assert allowed(method, path, "", "alice") is may
