"""A whole life by KusciaAPI alone: from two nodes that know nobody to a result, and back to nothing.

Nothing here uses kubectl, `coterie` or a file of the nodes but the token and certificates that the client finds itself.
"""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs_kit import Net, network, until

import coterie.sdk
from coterie.kuscia.routes.model import endpoint_of
from coterie.sdk import (
    Column,
    Connection,
    Data,
    Exists,
    Grant,
    GrantLimit,
    Image,
    ImageName,
    JobEvent,
    Missing,
    Refused,
    Route,
    RouteEndpoint,
    RoutePort,
    Serving,
    ServingParty,
    Source,
    Task,
    Unreachable,
)

pytestmark = [pytest.mark.xdist_group("e2e-jobs"), pytest.mark.timeout(240)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sdk_five_lines.py"
TEMPLATE = '{"domain": "{{.KUSCIA_DOMAIN_ID}}", "input": "{{.TASK_INPUT_CONFIG}}"}'
ENGINE = """
import json
import pyarrow
from coterie.engines.psi.mesh import Mesh
conf = json.load(open("/work/task.conf"))
wish, domain = json.loads(conf["input"]), conf["domain"]
if domain != wish["at"]:
    print(domain, "has nothing to count")
    raise SystemExit
mesh = Mesh()
rows = sum(batch.num_rows for batch in mesh.read(wish["table"], mesh.schema(wish["table"]).names))
told = pyarrow.table({"rows": [rows]})
mesh.create(wish["output"], told.schema)
mesh.write(wish["output"], told.schema, told.to_batches())
mesh.close()
print(domain, "counted", rows)
"""
COUNTER = Image(
    "counter",
    ImageName("coterie/python", "latest"),
    {"task.conf": TEMPLATE},
    [
        {
            "name": "counter",
            "replicas": 1,
            "restart_policy": "Never",
            "containers": [
                {
                    "name": "counter",
                    "command": ["python", "-P", "-c", ENGINE],
                    "working_dir": "/work",
                    "config_volume_mounts": [{"mount_path": "/work/task.conf", "sub_path": "task.conf"}],
                }
            ],
        }
    ],
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    """Two nodes, started each by itself; `coterie up` would introduce them to each other."""
    made = Net(tmp_path_factory.mktemp("life") / "net", "p2p", ("alice", "bob"), "")
    try:
        for each in made.domains.values():
            each.start()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def domains(net: Net) -> Iterator[dict[str, Connection]]:
    with contextlib.ExitStack() as stack:
        found = {}
        for name in ("alice", "bob"):
            pair = net.domains[name].paths.certificate("kusciaapi-client")
            until(f"the files of {name} are there", pair.exists)
            found[name] = stack.enter_context(coterie.sdk.connect(name, root=net.root))
            until(f"{name} is ready", quiet(found[name].health.ready))
        yield found


def quiet(ask: Callable[[], Any], *also: type[Exception]) -> Callable[[], Any]:
    """A node that does not answer yet, and what is not there yet, count as no."""

    def look() -> Any:
        with contextlib.suppress(Unreachable, *also):
            return ask()

    return look


def way(net: Net, name: str) -> RouteEndpoint:
    """Where a domain's gateway is: what people tell each other."""
    found = endpoint_of(net.domains[name].settings.gateway)
    assert found is not None
    return RouteEndpoint(found.host, [RoutePort(found.port, isTLS=found.tls)])


def introduce(net: Net, alice: Connection, bob: Connection) -> None:
    """They exchange certificates and lay routes."""
    both = ((alice, bob), (bob, alice))
    for here, there in both:
        with contextlib.suppress(Exists):
            here.domains.create(there.address.domain, role="partner", cert=there.domains.get().cert)
    for here, there in both:
        # What a partner begins waits for approval otherwise.
        net.at(here.address.domain).open_to(there.address.domain)
    for here, there in both:
        with contextlib.suppress(Exists):
            here.routes.create(Route(here.address.domain, there.address.domain, way(net, there.address.domain)))
    for here, there in both:
        ends = here.address.domain, there.address.domain
        until(f"the route {ends} is ready", lambda here=here, ends=ends: here.routes.get(*ends).ready)


def test_from_nothing_to_a_result_and_back(net: Net, domains: dict[str, Connection]) -> None:
    alice, bob = domains["alice"], domains["bob"]

    introduce(net, alice, bob)
    for here, source, destination in ((alice, "alice", "bob"), (bob, "bob", "alice")):
        assert here.domains.get(destination).role == "partner"
        assert [each.ready for each in here.routes.statuses([(source, destination)])] == [True]

    # alice has a table, and lets bob's jobs use it once.
    (net.domains["alice"].paths.data / "people.csv").write_text("id,age\na,1\nb,2\nc,3\n")
    columns = [Column("id", "str"), Column("age", "int")]
    table = alice.data.create(Data("people", relative_uri="people.csv", columns=columns, file_format="CSV"))
    grant = alice.grants.create(Grant(table, "bob", GrantLimit(use_count=1)))
    until("the grant is ready", lambda: (found := alice.grants.get(grant).status) and found.phase == "Ready")

    # Both bring the engine; bob has alice count.
    for each in (alice, bob):
        each.images.create(COUNTER)
    seen: list[JobEvent] = []
    wish = {"at": "alice", "table": table, "output": "how-many"}
    count = Task.of("counter", ["alice", "bob"], wish, alias="count")
    job = bob.jobs.run(count, job_id="life", timeout=120, on_change=seen.append).check()
    assert job.initiator == "bob" and seen[0].type == "ADDED" and seen[-1].status.state == "Succeeded"
    assert {each.job_id: each.state for each in [alice.jobs.get("life")]} == {"life": "Succeeded"}
    assert alice.jobs.list()["life"].state == "Succeeded"

    # What it printed, and what came out: each at home.
    task = job.task("count").task_id
    assert "".join(alice.logs.read(task)).strip() == "alice counted 3"
    assert "".join(bob.logs.read(task)).strip() == "bob has nothing to count"
    result = alice.data.get("how-many")
    assert [(each.name, each.type) for each in result.columns] == [("rows", "int64")]
    with (net.domains["alice"].paths.data / result.relative_uri).open() as file:
        assert list(csv.DictReader(file)) == [{"rows": "3"}]
    used = alice.grants.get(grant).status
    assert used is not None and len(used.records) == 1

    # The grant is used up: what bob asks for now is refused, and said so.
    again = bob.jobs.run(Task.of("counter", ["alice", "bob"], wish, alias="again"), job_id="too-much", timeout=120)
    assert again.state == "Failed" and "may be used 1 times" in again.error

    # And back to nothing.
    for name in ("life", "too-much"):
        bob.jobs.delete(name)
        for each in (alice, bob):
            until(f"{name} is gone", lambda each=each, name=name: refused(lambda: each.jobs.get(name)) == 11202)
    alice.grants.delete(grant)
    for name in ("people", "how-many"):
        alice.data.delete(name, with_file=True)
    assert list(net.domains["alice"].paths.data.glob("*.csv")) == [] and list(alice.data.list()) == []
    for here, partner in ((alice, "bob"), (bob, "alice")):
        here.images.delete("counter")
        here.routes.delete(here.address.domain, partner)
        here.domains.delete(partner)
        until(
            f"{partner} is gone", lambda here=here, partner=partner: refused(lambda: here.domains.get(partner)) == 11305
        )
    assert [line for each in net.domains.values() for line in each.complaints()] == []


def test_what_a_domain_has_for_itself(net: Net, domains: dict[str, Connection]) -> None:
    """The process that serves may touch nothing but what is listed; here is what no job needs."""
    alice = domains["alice"]
    alice.config.create({"colour": "blue"})
    alice.config.update({"colour": "red"})
    assert alice.config.get_many(["colour"]) == {"colour": "red"}
    alice.config.delete(["colour"])
    assert alice.config.get("colour") == ""
    place = {"localfs": {"path": str(net.domains["alice"].paths.data)}}
    source = alice.sources.create(Source("localfs", name="disk", info=place))
    alice.sources.update(Source("localfs", source, name="the disk"))
    assert alice.sources.get(source).name == "the disk"
    alice.sources.delete(source)
    assert source not in {each.datasource_id for each in alice.sources.list()}
    assert "PRIVATE KEY" in alice.certificates.generate("a-program").key
    assert {"sample", "sample-serving"} <= {each.name for each in alice.images.list()}
    serving = Serving("hello", parties=[ServingParty("alice", "sample-serving", replicas=1)])
    assert alice.servings.create(serving) == "hello"
    until("it is served", lambda: (found := alice.servings.get("hello").status) and found.state == "Available")
    alice.servings.update(Serving("hello", parties=[ServingParty("alice", replicas=0)]))
    alice.servings.delete("hello")
    until("it is gone", lambda: alice.servings.statuses(["hello"]) == {})


def refused(ask: Callable[[], Any]) -> int:
    """With which code; 0 when it is not."""
    try:
        ask()
    except (Refused, Missing) as problem:
        return problem.code
    return 0


def test_five_lines(net: Net, domains: dict[str, Connection]) -> None:
    """The example in the guide, as it stands there."""
    introduce(net, domains["alice"], domains["bob"])
    check_example(net.root)


def test_five_lines_after_coterie_up(tmp_path: Path) -> None:
    """What the guide says to do: here alice is a lite, whose master carries the job out."""
    with network(tmp_path / "net", "center", "alice", "bob") as made:
        check_example(made.root)


def check_example(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "COTERIE_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sample Succeeded alice: Succeeded bob: Succeeded\n"
