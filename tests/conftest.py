"""Which tests share a worker when tests run side by side.

Tests that share an expensive server carry `xdist_group`. `--dist loadgroup` reads groups from the ends of test ids, where
pytest-xdist 3.8 no longer manages to write them (pytest 9.2 keeps ids elsewhere): every worker would start every server.
So the groups are told by a rule over ids here, and a mark that disagrees with it is refused.

All other tests are grouped by file, so that what a file's tests share is made once, and not once for each worker. What takes
longest starts first (`SECONDS`): nothing long is left for the end, when the other workers have nothing to do.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from cryptography.hazmat.primitives import serialization

from coterie.kuscia.extensions import apiserver as kuscia_extension

# As `coterie start` does, before anything imports gRPC: servers are started as another user while gRPC is in use.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Test kits (modules that are neither tests nor conftest) may be imported by name from every folder.
sys.path[:0] = sorted(
    {
        str(path.parent)
        for path in Path(__file__).parent.rglob("*.py")
        if path.name != "conftest.py" and not path.name.startswith("test_")
    }
)

# Timing is not asserted: a machine may be busy. The same examples each time: what `make fuzz` finds with others becomes a
# fix, not a surprise for whoever runs the tests next.
hypothesis.settings.register_profile("coterie", deadline=None, derandomize=os.environ.get("COTERIE_FUZZ") != "random")
hypothesis.settings.load_profile("coterie")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no part of an id: archives have the time in them, and workers that collect different ids refuse to work."""
    return argname if isinstance(val, bytes) else None


def _read_definitions_once() -> None:
    """Reading and expanding the definitions of Kuscia's kinds is half of the start of an API server, and thousands of tests start one. They
    are the same each time, and nobody changes them."""
    read = kuscia_extension._Definitions.load
    known: dict[frozenset[str], list[Any]] = {}

    def load(self: Any, names: Collection[str]) -> list[Any]:
        wanted = frozenset(names)
        if wanted not in known:
            known[wanted] = list(read(self, names))
        return known[wanted]

    kuscia_extension._Definitions.load = load  # type: ignore[method-assign]


def _load_keys_once() -> None:
    """Loading an RSA key makes sure that its numbers are primes, for 36 ms; most tests load the same few."""
    load = serialization.load_pem_private_key
    known = functools.lru_cache(256)(load)

    def load_pem_private_key(data: Any, *args: Any, **more: Any) -> Any:
        return (known if isinstance(data, bytes) else load)(data, *args, **more)

    serialization.load_pem_private_key = load_pem_private_key


def _leave_writing_to_the_disk_to_the_system() -> None:
    """What a test's own process writes need not survive a power failure. Processes that tests start, and databases, wait for the disk."""
    os.fsync = lambda handle: None  # type: ignore[assignment,misc]


_read_definitions_once()
_load_keys_once()
_leave_writing_to_the_disk_to_the_system()

_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_WATCHERS_WANTED = 1024
GROUPS = (
    (re.compile(r"tests/e2e/test_e2e_nodes\.py::"), "e2e-nodes"),
    (re.compile(r"tests/e2e/test_e2e_machines(_ordinary)?\.py::"), "e2e-machines"),
    (re.compile(r"tests/e2e/test_e2e_links\.py::"), "e2e-links"),
    (re.compile(r"tests/e2e/test_e2e_members\.py::"), "e2e-members"),
    (re.compile(r"tests/(e2e/test_e2e|faults/test_(fault|attack))_(mesh|center)\.py::"), "mesh"),
    (
        re.compile(
            r"tests/e2e/test_e2e_(jobs|engines|flower|mpyc|nvflare|xgboost|policies|psi|serving|api_life|functions_partners)\.py::"
        ),
        "e2e-jobs",
    ),
    (re.compile(r"tests/e2e/test_e2e_secretflow\.py::"), "e2e-secretflow"),
    (re.compile(r"tests/e2e/test_e2e_bfia\.py::"), "e2e-bfia"),
    (re.compile(r"tests/faults/test_attack_pod_\w+\.py::"), "attack-pods"),
    (re.compile(r"tests/faults/test_fault_(jobs|pod_network)\.py::"), "fault-jobs"),
    (re.compile(r"tests/e2e/test_e2e_(network(_readme)?|not_fenced|plain_workloads)\.py::"), "e2e-network"),
    (re.compile(r"tests/e2e/test_e2e_services\.py::"), "e2e-services"),
    (re.compile(r"tests/e2e/test_e2e_webhooks\.py::"), "e2e-webhooks"),
    (re.compile(r"tests/e2e/test_e2e_containerd\.py::"), "e2e-containerd"),
    (re.compile(r"tests/e2e/test_e2e_joined\.py::"), "e2e-joined"),
    (re.compile(r"tests/e2e/test_e2e_joined_networks\.py::"), "e2e-joined-networks"),
    (re.compile(r"tests/e2e/test_e2e_functions\.py::"), "e2e-functions"),
    (re.compile(r"tests/e2e/test_e2e_functions_kills\.py::"), "e2e-functions-kills"),
    (re.compile(r"tests/e2e/test_e2e_functions_kafka\.py::"), "e2e-functions-kafka"),
    (re.compile(r"tests/e2e/test_e2e_lite_machines\.py::"), "e2e-lite-machines"),
    (re.compile(r"tests/e2e/test_console_journey\.py::"), "e2e-console"),
    (re.compile(r"tests/e2e/"), "e2e-autonomy"),
    (re.compile(r"tests/conformance/test_kubectl\.py::test_chapter\[([\d.]+)-"), r"kubectl-\1"),
    # These tests look for leftovers of a pod over the whole machine, and give their pods the same uid.
    (re.compile(r"tests/kube/agent/(runp|oci)/"), "runp"),
    (re.compile(r"tests/kube/agent/cri/"), "cri"),
    (re.compile(r"tests/faults/test_(faults|crash)_apiserver\.py::"), r"\1"),
    (re.compile(r"tests/kuscia/kusciaapi/test_kusciaapi_fuzz\.py::"), "kusciaapi-fuzz"),
    (re.compile(r"tests/kuscia/datamesh/test_datamesh_sources\.py::Test(MariaDB|PostgreSQL|S3)::"), r"sources-\1"),
)
# Roughly, for what takes longer than half a minute; what is missing here starts after these, in the order of files.
SECONDS = {
    "e2e-machines": 300,
    "fault-jobs": 280,
    "e2e-autonomy": 260,
    "runp": 250,
    "e2e-jobs": 200,
    "attack-pods": 180,
    "e2e-network": 160,
    "kubectl": 150,
    "e2e-joined": 150,
    "e2e-lite-machines": 150,
    "mesh": 120,
    "crash": 100,
    "faults": 100,
    "kusciaapi-fuzz": 90,
    "e2e-nodes": 90,
    "e2e-functions": 100,
    "e2e-functions-kills": 40,
    "e2e-links": 80,
    "e2e-services": 120,
    "e2e-secretflow": 140,
    "e2e-console": 70,
    "tests/cli/test_cli_node.py": 60,
    "tests/faults/test_attack_partner_api.py": 60,
    "tests/faults/test_fuzz_api.py": 60,
    "tests/benchmarks/test_bench_smoke.py": 60,
    "tests/test_layers.py": 10,
    "tests/test_naming.py": 10,
    "tests/cli/test_cli_up.py": 40,
    "tests/conformance/test_guests.py": 40,
}


def group_of(nodeid: str) -> str:
    """The group of a test: what the rules say, or its file."""
    for pattern, group in GROUPS:
        match = pattern.match(nodeid)
        if match:
            return match.expand(group)
    return nodeid.partition("::")[0]


def seconds_of(nodeid: str) -> int:
    """How long the group of a test takes, roughly; 0 when it is short."""
    group = group_of(nodeid)
    return SECONDS.get("kubectl" if group.startswith("kubectl-") else group, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return _scheduler()(config, log)


def _scheduler() -> Any:
    scheduling = pytest.importorskip("xdist.scheduler.loadgroup")

    class Grouped(scheduling.LoadGroupScheduling):  # type: ignore[name-defined]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Grouped


def pytest_configure(config: pytest.Config) -> None:
    """An Envoy takes about eleven inotify instances, and many systems give a user 128: too few for networks that run side
    by side. Only root can raise the limit; who cannot gets along with fewer workers.

    Who runs tests in the background may ignore signals, which all children inherit: they could then not be tried."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    with contextlib.suppress(OSError, ValueError):
        if int(_INOTIFY.read_text()) < _WATCHERS_WANTED:
            _INOTIFY.write_text(str(_WATCHERS_WANTED))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests and all that they import stay: looking through them in each collection of garbage is 7 % of the tests' CPU."""
    if not session.config.option.collectonly:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marks say who belongs together, the rule must agree. Side by side, what takes longest starts first."""
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and group_of(item.nodeid) != mark.args[0]:
            raise pytest.UsageError(f"{item.nodeid}: is marked as of group {mark.args[0]}; tell tests/conftest.py")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -seconds_of(item.nodeid))
