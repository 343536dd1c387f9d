"""Containers that are forked from an interpreter with preloaded modules: the same walls, and no way back."""

from __future__ import annotations

import inspect
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_runp_isolation as isolation
import test_runp_network as networks
import test_runp_users as user_tests
from runp_kit import log_text
from runtime_suite import RuntimeSuite
from zygote_kit import IMAGE, ForkedHarness

from coterie.kube.agent.images.model import HOST, ROOTFS, ImageError, StoredImage
from coterie.kube.agent.images.store import ImageStore
from coterie.kube.agent.runtimes.protocol import ContainerSpec, Mount, PodSandbox, Security
from coterie.kube.agent.runtimes.runp import network_access
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.preload import zygote_request
from coterie.kube.agent.runtimes.runp.settings import RunpSettings
from root_kit import IS_ROOT


@pytest.fixture
async def forked(tmp_path: Path) -> AsyncIterator[ForkedHarness]:
    async with ForkedHarness.opened(tmp_path) as harness:
        if not harness.powers["namespaces"]:
            pytest.skip("neither root nor user namespaces on this machine")
        await harness.warm()
        yield harness


@pytest.fixture
async def coded(tmp_path: Path) -> AsyncIterator[ForkedHarness]:
    """With an image that runs Python code."""
    async with ForkedHarness.opened(tmp_path) as harness:
        if not harness.powers["namespaces"]:
            pytest.skip("neither root nor user namespaces on this machine")
        harness.add_image(module="run_code", name="code:1")
        await harness.warm("code:1", "run_code")
        yield harness


# ----- the walls


class TestForkedContainers:
    """Of the suite that all runtimes pass, what depends on how a container is started."""

    @pytest.fixture
    def harness(self, forked: ForkedHarness) -> ForkedHarness:
        return forked

    async def test_it_is_these_that_are_tested(self, harness: ForkedHarness) -> None:
        await harness.start("true")
        assert harness.runtime.forked() and (await harness.ended()).exit_code == 0

    test_a_container_runs_until_stopped = RuntimeSuite.test_a_container_runs_until_stopped
    test_how_a_container_ended_is_known = RuntimeSuite.test_how_a_container_ended_is_known
    test_output_is_a_cri_log = RuntimeSuite.test_output_is_a_cri_log
    test_sigterm_may_be_answered = RuntimeSuite.test_sigterm_may_be_answered
    test_restarts_are_attempts_and_the_last_run_is_kept = (
        RuntimeSuite.test_restarts_are_attempts_and_the_last_run_is_kept
    )
    test_what_ended_while_nobody_looked_is_known_later = RuntimeSuite.test_what_ended_while_nobody_looked_is_known_later
    test_exec_answers_with_output_and_code = RuntimeSuite.test_exec_answers_with_output_and_code
    test_attach_sees_output_and_gives_input = RuntimeSuite.test_attach_sees_output_and_gives_input
    test_a_removed_pod_leaves_only_its_logs = RuntimeSuite.test_a_removed_pod_leaves_only_its_logs
    test_use_is_told_for_running_containers = RuntimeSuite.test_use_is_told_for_running_containers


CHECKS: list[Callable[..., Any]] = [
    isolation.test_own_names_processes_and_files,
    isolation.test_the_agents_own_files_are_hidden,
    isolation.test_volumes_at_places_that_do_not_exist,
    isolation.test_a_missing_volume_is_told,
    isolation.test_user_groups_and_privileges,
    isolation.test_env_is_the_containers_own,
    isolation.test_a_subpath_that_becomes_a_link_after_it_was_checked,
    user_tests.test_each_pod_has_users_of_its_own,
    user_tests.test_nobody_keeps_a_capability_of_the_machine,
    user_tests.test_users_and_groups_inside_and_on_disk,
    user_tests.test_exec_is_the_same_user_with_the_same_rights,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("test_"))
async def test_as_other_containers(
    forked: ForkedHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[..., Any]
) -> None:
    if "ranged" in inspect.signature(check).parameters and not forked.powers["users"]:
        pytest.skip("needs root: gives each pod users of its own")
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    await check(*(given.get(name, forked) for name in inspect.signature(check).parameters))


async def test_writing_and_system_calls(forked: ForkedHarness) -> None:
    (rows,) = (mark.args[1] for mark in isolation.test_writing_and_system_calls.pytestmark)
    for number, (script, allowed) in enumerate(rows):
        spec = await forked.start(script, f"c{number}")
        state = await forked.ended(f"c{number}")
        assert (state.exit_code == 0) == allowed, f"{script}: {log_text(spec.log_path)}"
        assert forked.runtime.forked(name=f"c{number}")


STATUS = """
import os
lines = open('/proc/self/status').read().splitlines()
names = ('Uid', 'Gid', 'Groups', 'NSpid', 'Umask', 'NoNewPrivs', 'Seccomp', 'Threads')
print([line for line in lines if line.startswith(('Cap', 'Sig', *names))])
print(sorted(os.environ.items()), os.getcwd(), os.getpid(), os.getsid(0), os.listdir('/proc/self/fd'))
print(os.stat('/proc/self/fd').st_uid, [os.stat(f'/proc/self/fd/{n}').st_mode for n in (0, 1, 2)])
print(open('/proc/self/limits').read(), open('/proc/self/uid_map').read(), open('/proc/self/oom_score_adj').read())
print(open('/proc/self/cmdline').read().rstrip(chr(0)).split(chr(0))[:4], sorted(os.listdir('/')))
"""


SECURITIES = [
    Security(),
    Security(run_as_user=1000, run_as_group=1001, supplemental_groups=(7,) if IS_ROOT else ()),
    Security(drop_capabilities=("ALL",)),
    Security(seccomp_unconfined=True),
    Security(read_only_root=True),
]


async def test_a_process_like_one_that_was_executed(coded: ForkedHarness) -> None:
    store = coded.runtime.store
    store.save(replace(store.resolve("code:1"), name="plain:1", preload=()))
    for number, security in enumerate(SECURITIES):
        told = []
        for name, image in ((f"a{number}", "code:1"), (f"b{number}", "plain:1")):
            text = await coded.code(STATUS, name, image=image, security=security)
            assert coded.runtime.forked(name=name) == (image == "code:1")
            told.append(text.replace(f"uid-1/{name}.0", "uid-1/NAME"))
        assert told[0] == told[1], security


async def test_the_network_of_the_pod(tmp_path: Path) -> None:
    try:
        facts = network_access.ensure(tmp_path / "runp", group_of("test", tmp_path / "runp"), networks.NETWORK)
    except network_access.NotFenced as problem:
        pytest.skip(f"this machine allows no pod networks: {problem}")
    async with ForkedHarness.opened(tmp_path, network=networks.NETWORK) as harness:
        network = networks.NetworkHarness(harness, facts)
        await network.pod("first")
        for number in range(200):
            await harness.start("true", f"c{number}", uid="first")
            await harness.ended(f"c{number}", "first")
            if harness.runtime.forked("first", f"c{number}"):
                break
        for uid in ("uid-1", "uid-2"):
            address = await network.pod(uid)
            text = await network.says(
                uid, "python3 -c 'import socket; print(socket.if_nameindex())'; cat /proc/net/fib_trie"
            )
            assert harness.runtime.forked(uid, "c0") and address in text and "eth0" in text
        (zygote,) = harness.zygotes
        own = {os.readlink(f"/proc/{pid}/ns/net") for pid in (zygote, harness.shepherd, os.getpid())}
        assert len(own) >= 2, "it has no network"


# ----- attacks


async def test_the_zygote_is_out_of_reach(coded: ForkedHarness) -> None:
    (zygote,) = coded.zygotes
    code = f"""
import os
for pid in ({zygote}, {coded.shepherd}, {os.getpid()}):
    try:
        os.kill(pid, 0)
        print("reached", pid)
    except ProcessLookupError:
        pass
    print(os.path.exists(f"/proc/{{pid}}"))
print([name for name in os.listdir("/proc") if name.isdigit()], os.getppid())
handles = [n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)]
print(handles, [os.readlink("/proc/self/fd/" + n) for n in handles if "socket" in os.readlink("/proc/self/fd/" + n)])
"""
    said = (await coded.code(code)).splitlines()
    assert said == ["False"] * 3 + ["['1', '2'] 1", "['0', '1', '2'] []"]


SEARCH = """
import os
wanted, found = SECRET[::-1].encode(), 0
for line in open('/proc/self/maps'):
    words = line.split()
    if words[1][:2] != 'rw' or words[-1] in ('[vvar]', '[vsyscall]'):
        continue
    start, end = (int(word, 16) for word in words[0].split('-'))
    with open('/proc/self/mem', 'rb', 0) as memory:
        memory.seek(start)
        found += memory.read(end - start).count(wanted)
print(found - OWN)
"""


async def test_the_environment_of_another_pod_is_nowhere(coded: ForkedHarness) -> None:
    secret = secrets.token_hex(24)
    await coded.code("import os; assert len(os.environ['TOKEN']) == 48", uid="one", env=(("TOKEN", secret),))
    assert coded.runtime.forked("one")
    hidden = SEARCH.replace("SECRET", repr(secret[::-1]))
    assert await coded.code(hidden.replace("OWN", "wanted.count(wanted)"), uid="two") in ("0\n", "1\n"), (
        "its own search word"
    )
    assert coded.runtime.forked("two")
    if IS_ROOT:
        (zygote,) = coded.zygotes
        assert not coded.memory_holds(zygote, secret) and coded.memory_holds(zygote, "zygote_process")


async def test_what_is_random_differs(coded: ForkedHarness) -> None:
    """The hash seed is that of the zygote, so it is never that of a pod of another domain."""
    fake = "import os\nSTATE = os.urandom(8)\ndef seed():\n    global STATE\n    STATE = os.urandom(8)\n"
    coded.write_modules({"numpy/__init__.py": "", "numpy/random.py": fake})
    coded.add_image("random", "numpy.random", "heavy", module="run_code", name="code:1")
    await coded.warm("code:1", "run_code")
    await coded.warm("code:1", "run_code", namespace="bob")
    assert len(coded.zygotes) == 2
    code = "import sys, json, random; print(json.dumps([random.random(), sys.modules['numpy.random'].STATE.hex(), hash('seed'), id(None)]))"
    one, two = [json.loads(await coded.code(code, uid=uid)) for uid in ("one", "two")]
    other = json.loads(await coded.code(code, uid="three", namespace="bob"))
    assert len({one[0], two[0], other[0]}) == 3 == len({one[1], two[1], other[1]})
    assert one[2:] == two[2:] and one[2] != other[2]


# ----- faults


async def test_a_killed_zygote_is_replaced_and_its_children_stay(forked: ForkedHarness) -> None:
    await forked.start("sleep 600", "long")
    (zygote,) = forked.zygotes
    os.kill(zygote, signal.SIGKILL)
    await forked.start("exit 3", "next")
    assert (await forked.ended("next")).exit_code == 3
    await forked.until(lambda: bool(forked.zygotes) and forked.zygotes != [zygote])
    await forked.warm()
    assert forked.state("long").running and not forked.runtime.limitations()[len(forked.powers["limitations"]) :]


async def test_a_stopped_zygote_holds_nobody_up(forked: ForkedHarness) -> None:
    (zygote,) = forked.zygotes
    os.kill(zygote, signal.SIGSTOP)
    await forked.start("exit 3")
    assert (await forked.ended()).exit_code == 3 and not forked.runtime.forked()
    await forked.until(lambda: zygote not in forked.zygotes)


async def test_a_killed_supervisor_takes_its_zygotes_along(forked: ForkedHarness) -> None:
    (forked.root / "go").mkdir()
    script = "echo begin; while [ ! -e /go/on ]; do sleep 0.05; done; echo end; exit 7"
    await forked.start(script, "long", mounts=(Mount(forked.root / "go", "/go"),))
    assert forked.runtime.forked(name="long")
    (zygote,), shepherd = forked.zygotes, forked.shepherd
    os.kill(shepherd, signal.SIGKILL)
    await forked.until(lambda: forked.shepherd not in (0, shepherd) and not os.path.exists(f"/proc/{zygote}"))
    (forked.root / "go/on").touch()
    await forked.until(lambda: forked.state("long").finished_at > 0)
    assert forked.state("long").exit_code == 7
    assert log_text(forked.state("long").log_path) == "begin\nend\n"
    await forked.warm()


async def test_another_agent_finds_zygotes_and_containers(forked: ForkedHarness) -> None:
    await forked.start("sleep 600", "long")
    before = forked.zygotes
    await forked.restart()
    assert forked.zygotes == before and forked.state("long").running and forked.runtime.forked(name="long")
    await forked.start("true", "next")
    assert forked.runtime.forked(name="next")


BAD = {
    "raises": ("raise ValueError('no such model')", "import raises: ValueError: no such model"),
    "exits": ("import sys; sys.exit(1)", "import exits: SystemExit"),
    "dies": ("import os; os._exit(1)", "it ended while it was loaded"),
    "hangs": ("import time; time.sleep(600)", "importing the modules took more than 6 seconds"),
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "threads",
    ),
    "files": ("kept = open('/etc/passwd')", "keep files open: /etc/passwd"),
    "memory": ("import mmap; kept = mmap.mmap(-1, 4096)", "share memory"),
}


async def test_modules_that_cannot_be_preloaded(tmp_path: Path) -> None:
    async with ForkedHarness.opened(tmp_path, zygote_load_seconds=6.0) as harness:
        if not harness.powers["namespaces"]:
            pytest.skip("neither root nor user namespaces on this machine")
        harness.write_modules({f"{name}.py": text for name, (text, _) in BAD.items()})
        harness.write_modules({"program.py": "import sys; sys.exit(5)"})
        for name in BAD:
            harness.add_image(name, module="program", name=f"{name}:1")
            await harness.start("", name, image=f"{name}:1", command=())
            assert (await harness.ended(name)).exit_code == 5, "it starts without"

        def told() -> bool:
            sentences = [each for each in harness.runtime.limitations() if "preloaded modules" in each]
            return all(
                any(f"of {name}:1 " in each and why in each for each in sentences) for name, (_, why) in BAD.items()
            )

        await harness.until(told, 30.0)
        assert not harness.zygotes
        await harness.start("", "again", image="raises:1", command=())
        assert (await harness.ended("again")).exit_code == 5 and not harness.runtime.forked(name="again")
        assert not harness.zygotes, "not tried again at once"
        await harness.restart()
        assert told()


async def test_a_changed_image_has_another_zygote(coded: ForkedHarness) -> None:
    (before,) = coded.zygotes
    assert await coded.code("print(heavy.VALUE)") == "1\n"
    coded.write_modules({"heavy.py": "VALUE = 22\n"})
    coded.add_image(module="run_code", name="code:1")
    await coded.warm("code:1", "run_code")
    assert await coded.code("print(heavy.VALUE)", "again") == "22\n" and coded.runtime.forked(name="again")
    await coded.until(lambda: before not in coded.zygotes)
    assert len(coded.zygotes) == 1


async def test_an_idle_node_has_none(tmp_path: Path) -> None:
    async with ForkedHarness.opened(tmp_path, zygote_idle_seconds=0.3) as harness:
        if not harness.powers["namespaces"]:
            pytest.skip("neither root nor user namespaces on this machine")
        (harness.root / "go").mkdir()
        script = "while [ ! -e /go/on ]; do sleep 0.05; done"
        await harness.start(script, mounts=(Mount(harness.root / "go", "/go"),))
        await harness.until(lambda: bool(harness.zygotes))
        (harness.root / "go/on").touch()
        await harness.ended()
        await harness.until(lambda: not harness.zygotes)


# ----- which containers are forked

POWERS = {"namespaces": "root"}
PYTHON = StoredImage(
    "a:1", "sha256:1", HOST, entrypoint=("/v/bin/python",), cmd=("-I", "-m", "app"), preload=("pandas",)
)
POD = PodSandbox("uid", "alice", "pod", "pod", Path("/pods/uid"))
SPEC = ContainerSpec("main", 0, "a:1", (), (), (), "", (), Path("/log"))


@pytest.mark.parametrize(
    ("words", "image", "pod", "spec", "powers", "expected"),
    [
        ("/v/bin/python -I -m app", PYTHON, POD, SPEC, POWERS, True),
        ("/v/bin/python -I -m app --port 1", PYTHON, POD, SPEC, POWERS, True),
        ("/v/bin/python -I -m other", PYTHON, POD, SPEC, POWERS, False),
        ("/v/bin/python -m app", PYTHON, POD, SPEC, POWERS, False),
        ("python -I -m app", PYTHON, POD, SPEC, POWERS, False),
        ("/v/bin/python -I -c pass", PYTHON, POD, SPEC, POWERS, False),
        ("/v/bin/python -I -m app", replace(PYTHON, preload=()), POD, SPEC, POWERS, False),
        ("/v/bin/python -I -m app", replace(PYTHON, builtin=True), POD, SPEC, POWERS, True),
        ("/v/bin/python -I -m app", replace(PYTHON, kind=ROOTFS), POD, SPEC, POWERS, False),
        ("/v/bin/python -i -m app", replace(PYTHON, cmd=("-i", "-m", "app")), POD, SPEC, POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, replace(POD, handler="bubblewrap"), SPEC, POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, replace(POD, handler="runsc"), SPEC, POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, security=Security(privileged=True)), POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, target="other"), POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, env=(("A", "b"), ("TZ", "UTC"))), POWERS, True),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, env=(("PYTHONPATH", "/x"),)), POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, env=(("LD_PRELOAD", "/x"),)), POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, replace(SPEC, env=(("OMP_NUM_THREADS", "4"),)), POWERS, False),
        ("/v/bin/python -I -m app", PYTHON, POD, SPEC, {"namespaces": ""}, False),
    ],
)
def test_which_containers_are_forked(
    words: str, image: StoredImage, pod: PodSandbox, spec: ContainerSpec, powers: dict[str, Any], expected: bool
) -> None:
    settings = RunpSettings(Path("/r"), Path("/i"), "node")
    found = zygote_request(settings, image, pod, spec, words.split(), powers)
    assert (found is not None) == expected
    if found is not None:
        assert found["arguments"] == words.split()[4:] and found["python"] == ["/v/bin/python", "-I"]


@pytest.mark.parametrize(
    ("modules", "args", "why"),
    [
        (["pan das"], ["-m", "app"], "not the name of a Python module"),
        (["pandas;x"], ["-m", "app"], "not the name of a Python module"),
        (["pandas"], ["app.py"], "-I -m MODULE"),
        (["pandas"], ["-m"], "-I -m MODULE"),
    ],
)
def test_images_that_cannot_preload(tmp_path: Path, modules: list[str], args: list[str], why: str) -> None:
    with pytest.raises(ImageError, match=why):
        ImageStore(tmp_path).add_host("a:1", ("python3",), args=args, preload=modules)


async def test_without_zygotes(tmp_path: Path) -> None:
    async with ForkedHarness.opened(tmp_path, without=("zygotes",)) as harness:
        for name in ("one", "two"):
            await harness.start("true", name)
            assert (await harness.ended(name)).exit_code == 0 and not harness.runtime.forked(name=name)
        assert not harness.zygotes and harness.runtime.store.resolve(IMAGE).preload == ("heavy",)
