"""The benchmarks run and print every row. What the numbers are is for `make bench`, not for a test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import psi_environment
from coterie.cli.app import App
from coterie.cli.engine_environment import FLOWER, MPYC, NVFLARE, XGBOOST

ROOT = Path(__file__).parent.parent.parent

BY_TOOLS = "namespaces and a network with unshare and ip"
BY_HANDLER = "pod of `true` by "
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
PROGRAMS = {"runp": "sh", "bubblewrap": "bwrap", "runc": "runc", "crun": "crun", "gvisor": "runsc"}
HANDLERS = [name for name, program in PROGRAMS.items() if shutil.which(program, path=PATH) and shutil.which("busybox")]
WAYS = ("direct", "one Envoy by hand", "two Envoys by hand", "Coterie", "two Envoys by hand, with access logs")
ROWS = (
    "yardstick: constant answer, 32 connections",
    "yardstick: 4 KiB append and fdatasync",
    "store: commit of 2.4 kB, 1 at once",
    "store: commit of 2.4 kB, 64 at once",
    "store: CPU of a commit, all threads",
    "evidence: an event, alone",
    "evidence: an event, 64 writers",
    "evidence: size of an event on disk",
    "evidence: verify a million events",
    "evidence: a job waits for its events",
    "evidence: growth by 1,000 jobs",
    "bus: publish of 1 kB, alone",
    "bus: 2,000 entries in one publish, each",
    "bus: publish of 1 kB, 64 at once",
    "bus: three topics and an offset, 64 at once",
    "bus: from publish to a waiting reader",
    "plain HTTP: messages of 1 kB posted, 32 at once",
    "plain HTTP: messages of 4 MiB posted, 4 at once",
    "message queue: messages of 1 kB pushed and popped, 32 at once",
    "message queue: messages of 4 MiB pushed and popped, 4 at once",
    "message queue: from push to a waiting pop",
    *(f"bare asyncio HTTP server, {count} at once" for count in (1, 64)),
    "functions: warm call, chain of 1, 1 at once",
    "functions: warm call, chain of 2, 1 at once",
    "functions: cost of one more hop, chain of 2",
    "functions: warm call, chain of 4, 1 at once",
    "functions: cost of one more hop, chain of 4",
    *(f"functions: warm calls, {count} at once" for count in (8, 32)),
    "functions: bare asyncio HTTP server, a call on a new connection, p50",
    "functions: cold call, spare actor, modules preloaded, best",
    "functions: warm call on the node, a new connection each, p50",
    "actors of one function, 1 to 3: all ready",
    "actors of one function, 3 to 0: all gone",
    "memory of an actor, private",
    "memory of an idle function",
    "functions: cold call, no spare actor, forked from the zygote, best",
    "functions: cold call, nothing warm: pod and interpreter are started, best",
    "published: Fission, cold call with its pool of warm containers",
    "published: Knative, cold call",
    "published: Knative, start of the pod alone",
    "create pod, 1 connection",
    "create pod, 64 connections",
    "get ConfigMap, 32 connections",
    "get pod, 32 connections",
    "list 50 pods, JSON",
    "list 50 pods, Table",
    "list limit=500, Table",
    "list limit=500, JSON",
    "list 50 pods, none selected",
    "idle memory, RSS",
    "idle memory after the very first start, RSS",
    "idle memory, PSS",
    "memory per pod at 50",
    "memory per pod at 100",
    *(
        f"watch delay, {watchers} watchers, {pace}, {part}"
        for watchers in (3, 6)
        for pace in ("each 10 ms", "flat out")
        for part in ("p50", "p99")
    ),
    "first start to ready, keys made",
    "start to ready, 0 objects",
    "start to ready, 100 pods",
    *(
        f"scheduler: 20 nodes, 60 pods, {how}"
        for how in ("one by one", "gangs of 3", "with affinities and spreading", "one place free, many wait")
    ),
    "autoscaling: 100 autoscalers, 1,000 pods, one round, nothing to do",
    "autoscaling: the same, every target grows",
    *(
        f"scrape of metrics: {pods} pods, {routes} routes"
        for pods, routes in (("0", "0"), ("100", "10"), ("1,000", "0"), ("1,000", "1,000"))
    ),
    "traces: a place that could record, traces off",
    "traces: one span into the ring",
    "traces: one span as a line of the file",
    "traces: one line of an access log",
    "traces: one party of a trivial job, all of it",
    *(
        f"{what}, {part}"
        for what in ("process start without Coterie", "pod start, bind to Running", "pod start, create to Running")
        for part in ("p50", "p99")
    ),
    "6 short pods, create to Succeeded",
    *(f"node with {count} sleeping pods, {what}" for count in (0, 3) for what in ("idle CPU of a core", "RSS", "PSS")),
    *(
        f"KusciaAPI, 30 jobs known: {what}, {way}, {count} at once"
        for way in ("HTTP", "gRPC")
        for what in ("query", "batch query of 20")
        for count in (1, 32)
    ),
    *(
        f"WatchJob, 4 watchers over {way}: {what}"
        for way in ("HTTP", "gRPC")
        for what in ("all told of 30 jobs", "change to the last of them, p50")
    ),
    *(f"KusciaAPI, 30 jobs known: create, {way}, {count} at once" for way in ("HTTP", "gRPC") for count in (1, 32)),
    *(f"{way}: requests, 32 connections" for way in WAYS),
    *(f"{way}: one request at a time, p50" for way in WAYS),
    *(f"{way}: 1 MiB {direction}" for way in WAYS for direction in ("down", "up")),
    "memory of a domain, idle, PSS",
    *(
        f"new {what} among 20 services to live, {part}"
        for what in ("Service", "DomainRoute")
        for part in ("p50", "p99")
    ),
    "memory of a domain, 20 services, PSS",
    *(
        f"gateway with 20 partners: {what}"
        for what in (
            "start",
            "Envoy, PSS",
            "new token in force, p50",
            "new token in force, p99",
            "requests, 32 connections",
        )
    ),
    *(
        f"pod start of the runtime, {how}, {part}"
        for how in ("own network and users", "without network and users")
        for part in ("p50", "p99")
    ),
    *(f"{BY_TOOLS}, {part}" for part in ("p50", "p99")),
    *(
        f"gateways {way}: {what}"
        for what in ("requests, 32 connections", "one request at a time, p50")
        for way in ("from a pod to a pod", "on the machine's network")
    ),
    *(f"{BY_HANDLER}{handler}, start to end, p50" for handler in HANDLERS),
    "two idle domains with their gateways, PSS",
    "two domains at rest after a trivial job, PSS",
    *(
        f"as {who}: {what}"
        for what in (
            "calls from pod to pod, 32 connections",
            "one call from pod to pod at a time, p50",
            "pod start of the runtime, p50",
            "two idle domains, PSS",
        )
        for who in ("root", "an ordinary user")
    ),
    *(f"two-party job, engine `{engine}`, submit to Succeeded" for engine in ("true", "sample")),
    "2 two-party jobs at once",
    "one job of 4 two-party tasks, 8 at once",
    "memory of both nodes after 2 jobs came and went, PSS",
    "memory of both nodes after 2 more, PSS",
    *(f"two-party job, engine `true`, {how}" for how in ("nothing recorded", "with evidence")),
    "two-party job: what evidence adds",
    *(
        f"data: {verb} a table of 3 MB, {ending}, {way}"
        for ending in ("csv", "parquet", "arrow")
        for verb in ("read", "write")
        for way in ("Arrow on the file", "bare Flight", "data mesh")
    ),
)
COLD = (
    "functions: cold call",
    "functions: warm call on",
    "actors of one function",
    "memory of an actor",
    "memory of an idle f",
)
"""As root only."""
HAS_PSI = psi_environment.installed(psi_environment.directory(App.standard()))
PSI = "PSI 1,000 x 1,000"
PSI_ROWS = tuple(
    f"{what}: {way}"
    for what in (f"{PSI}, RR22", f"{PSI}, ECDH", f"{PSI}, RR22, one core")
    for way in ("by hand", "by hand, tuned", "under Coterie")
)

ENGINE_ROWS = tuple(
    f"{engine.name}, 3 organisations: {what}"
    for engine, compared in ((MPYC, ""), (FLOWER, "its work"), (XGBOOST, "run of the engines"), (NVFLARE, "its work"))
    if engine.installed(engine.directory(App.standard()))
    for what in ("job until its engines run", *([f"{compared} through the gateways"] if compared else []))
)
STORE_ROWS = tuple(
    f"stores: {name}: {what}"
    for name in ("SQLite", "PostgreSQL", "etcd", "MySQL (MariaDB)")
    for what in (
        "writes of 2 kB, 1 at once",
        "writes of 2 kB, 64 at once",
        "list of 5,000 x 2 kB",
        "from a write to its event, p50",
        "objects created by one API server, 32 at once",
        *(("objects created by two API servers, 32 at once",) if name != "SQLite" else ()),
    )
)
DOMAIN_ROWS = tuple(
    f"4 domains, 8 nodes: {what}"
    for what in ("registration", "watches opened", "routes", "heartbeats x1", "4 jobs, 50 at once")
)


FIRST_OF_NETWORKS = f"{WAYS[0]}: requests, 32 connections"
"""From here on rows need networks of whole nodes: minutes, even for a moment of each. `COTERIE_BENCH_SMOKE=all` runs
them too."""
SECTIONS = (
    "yardsticks",
    "store",
    "evidence",
    "bus",
    "transport",
    "calls",
    "cold",
    "requests",
    "lists",
    "watches",
    "starts",
    "scheduler",
    "autoscaling",
    "metrics",
    "traces",
    "pods",
    "api",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_prints_and_writes_every_row(tmp_path: Path) -> None:
    kept = tmp_path / "benchmarks.md"
    everything = os.environ.get("COTERIE_BENCH_SMOKE") == "all"
    only = [] if everything else [word for section in SECTIONS for word in ("--only", section)]
    rows = (
        (*ROWS, *ENGINE_ROWS, *(PSI_ROWS if HAS_PSI else ()), *STORE_ROWS, *DOMAIN_ROWS)
        if everything
        else ROWS[: ROWS.index(FIRST_OF_NETWORKS)]
    )
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--write", str(kept), "--dir", str(tmp_path), *only]
    if os.getuid():
        rows = tuple(row for row in rows if not row.startswith((BY_TOOLS, "as ", BY_HANDLER, *COLD)))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [each.replace(" and 2 GB", "") for each in printed] == list(rows), "memory is limited where that is allowed"
    assert kept.read_text() == done.stdout
    assert list(tmp_path.iterdir()) == [kept], "nothing else is left behind"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_few_domains_are_simulated(tmp_path: Path) -> None:
    options = ["--domains", "4", "--nodes", "8", "--jobs", "4", "--beats", "1", "--output", "json"]
    command = [sys.executable, "-m", "benchmarks.simulate_domains", *options, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    phases = {phase["name"]: phase for phase in json.loads(done.stdout)}
    assert list(phases) == ["registration", "watches opened", "routes", "heartbeats x1", "4 jobs, 50 at once"]
    assert all(phase["failures"] == {} for phase in phases.values())
    assert "Failed" not in phases["4 jobs, 50 at once"]["note"]
    assert phases["4 jobs, 50 at once"]["watch_p99"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
