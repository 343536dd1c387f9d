"""How fast a function's first actor is there, from the creation of its pod to Ready, and what it costs in memory.

    preloaded     an image with pandas whose zygote has imported it: the actor is forked
    executed      the same image without preloaded modules, as a pod of this image starts
    built-in      the built-in image of actors, whose zygote has only their program; a function that imports nothing
    nothing warm  the same without a zygote

The kinds take turns, so whatever else the machine does meets them all alike. Times are those of watch events. pandas is copied from
an environment that has it into one of the benchmark's own: `.tools/secretflow`, or that of the interpreter in COTERIE_BENCH_PYTHON.

    python -m benchmarks.bench_functions_start [COUNT]
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import coterie
from benchmarks.bench_pods import Operator, Starts, operating
from benchmarks.measures import Bench, Plan
from benchmarks.node import DOMAIN, Cores, PodNode, cpu_of, memory_of
from benchmarks.table import Row, markdown
from coterie.base.paths import DomainPaths
from coterie.functions import actor_pods
from coterie.kube.agent.images.store import ACTOR_IMAGE, ImageStore
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.watch import Changed, Watch
from coterie.kuscia.api.functions.types import Action, ActionSpec

_PACKAGES = ("numpy", "numpy.libs", "pandas", "dateutil", "pytz", "six.py", "tzdata")
_PRELOADED, _EXECUTED, _COLD = "bench-preloaded:1", "bench-executed:1", "bench-cold:1"
_SCRIPT = "{}from serverless import Response\n\ndef action(req):\n    return Response('done')\n"
_VERSION = "v1"
_PATIENCE = 20.0
_STAGES = ("bound", "Running", "Ready")


class Stages:
    """When each stage of each pod was first heard of."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], asyncio.Future[float]] = {}

    def when(self, name: str, stage: str) -> asyncio.Future[float]:
        return self._seen.setdefault((name, stage), asyncio.get_running_loop().create_future())

    async def follow(self, watch: Watch[Pod]) -> None:
        async for event in watch:
            now = time.perf_counter()
            if isinstance(event, Changed):
                for stage in _stages(event.object):
                    seen = self.when(event.object.metadata.name, stage)
                    if not seen.done():
                        seen.set_result(now)


def _stages(pod: Pod) -> Iterator[str]:
    if pod.spec.node_name:
        yield "bound"
    if pod.status.phase == "Running":
        yield "Running"
    if any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ()):
        yield "Ready"


def functions_start(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as place:
        python = _environment(Path(place) / "venv")
        with PodNode(Path(place) / "node", bench.bytecode) as node:
            return asyncio.run(_measured(bench, node, python))


def _environment(place: Path) -> str:
    """The interpreter of an environment with pandas and nothing else; empty: there is no pandas on this machine."""
    there = os.environ.get("COTERIE_BENCH_PYTHON") or str(Path(__file__).parents[1] / ".tools/secretflow/bin/python")
    find = "import pandas, pathlib; print(pathlib.Path(pandas.__file__).parents[1])"
    done = (
        subprocess.run([there, "-c", find], capture_output=True, text=True, check=False)
        if Path(there).exists()
        else None
    )
    if done is None or done.returncode:
        return ""
    subprocess.run([there, "-m", "venv", "--without-pip", str(place)], check=True)
    (target,) = place.glob("lib/python*/site-packages")
    for name in _PACKAGES:
        source = Path(done.stdout.strip()) / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        elif source.exists():
            shutil.copy(source, target / name)
    python = str(place / "bin/python")
    subprocess.run([python, "-c", "import pandas"], check=True)  # compiled, as in every installed environment
    return python


async def _measured(bench: Bench, node: PodNode, python: str) -> list[Row]:
    store = ImageStore(DomainPaths.of(node.root, DOMAIN).images)
    words = ("-P", "-m", "coterie.engines.actor")
    variables = (("PYTHONPATH", str(Path(coterie.__file__).parents[1])),)
    store.add_host(_COLD, (sys.executable,), args=("-S", *words), env=variables)
    kinds = {"nothing warm": (_COLD, ""), "built-in image": (ACTOR_IMAGE, "")}
    if python:
        modules = ("pandas", "coterie.engines.actor.runtime")
        store.add_host(_PRELOADED, (python,), args=words, env=variables, preload=modules)
        store.add_host(_EXECUTED, (python,), args=words, env=variables)
        kinds["pandas preloaded"] = (_PRELOADED, "import pandas\n")
        kinds["pandas, a pod of the same image"] = (_EXECUTED, "import pandas\n")
    stages = Stages()
    taken = {(kind, stage): Starts() for kind in kinds for stage in _STAGES}
    async with operating(node) as operator, await operator.client.watch(PODS, "default") as watch:
        following = asyncio.create_task(stages.follow(watch), name="watch stages")
        try:
            actions = {kind: _action(f"f{number}", *about) for number, (kind, about) in enumerate(kinds.items())}
            for action in actions.values():
                await _prepare(operator, action)
            for action in actions.values():  # the first of each kind: its files are read, its zygote begins
                await _start(operator, stages, action, f"{action.metadata.name}-first")
                await _remove(operator, f"{action.metadata.name}-first")
            await asyncio.sleep(2.0)
            for i in range(bench.plan.pod_starts // 4 or 1):
                for kind, action in actions.items():
                    name = f"{action.metadata.name}-{i}"
                    before = _cpu(node)
                    for stage, waited in (await _start(operator, stages, action, name)).items():
                        taken[kind, stage].waits.append(waited)
                    used = _cpu(node)
                    taken[kind, "Ready"].cpu += sum(used[pid] - before.get(pid, 0.0) for pid in used)
                    await _remove(operator, name)
            rows = [row for kind in kinds for row in _rows(kind, taken)]
            if python:
                rows += await _memory(operator, stages, node, actions["pandas preloaded"])
            return rows
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _rows(kind: str, taken: dict[tuple[str, str], Starts]) -> Iterator[Row]:
    ready = taken[kind, "Ready"]
    parts = ", ".join(f"{stage} {taken[kind, stage].share(0.5):.0f}" for stage in _STAGES[:-1])
    goal = 100 if kind == "nothing warm" else 15
    yield Row(
        f"actor, {kind}: create to Ready, p50", ready.share(0.5), "ms", ready.cpu / len(ready.waits) * 1e6,
        note=f"least {min(ready.waits):.0f}, p90 {ready.share(0.9):.0f}; {parts}; goal of the start alone {goal}",
    )  # fmt: skip


def _action(name: str, image: str, imports: str) -> Action:
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}")
    return Action(metadata=meta, spec=ActionSpec(script=_SCRIPT.format(imports), image=image))


async def _prepare(operator: Operator, action: Action) -> None:
    for body, plural in (
        (actor_pods.code_config_map(action, _VERSION, b""), "configmaps"),
        (actor_pods.token_secret(action, "token"), "secrets"),
    ):
        await operator.client.create(Kind.dynamic(builtin(plural)), _unowned(body))


def _unowned(body: Object) -> Object:
    """There is no Action behind it: the garbage collector would take it away."""
    body["metadata"].pop("ownerReferences", None)
    return body


async def _start(operator: Operator, stages: Stages, action: Action, name: str) -> dict[str, float]:
    """Milliseconds from the creation of an actor's pod to its stages."""
    body = _unowned(actor_pods.actor_pod(action, _VERSION, name))
    began = time.perf_counter()
    await operator.client.create(PODS.as_dynamic, body)
    try:
        async with asyncio.timeout(_PATIENCE):
            return {stage: (await stages.when(name, stage) - began) * 1e3 for stage in _STAGES}
    except TimeoutError as problem:
        pod = await operator.client.get(PODS.as_dynamic, name, "default")
        raise RuntimeError(f"the actor is not ready: {pod['status']}") from problem


async def _remove(operator: Operator, name: str) -> None:
    await operator.client.delete(PODS, name, "default", grace=0)
    await operator.seen([name], "gone")


async def _memory(operator: Operator, stages: Stages, node: PodNode, action: Action) -> list[Row]:
    """With no actor, with one and with ten of them."""
    supervisor = node.pids()[-1]
    zygotes = [pid for pid in _children(supervisor) if _is_zygote(pid)]
    own = [_private(pid) for pid in zygotes]
    names = [f"{action.metadata.name}-memory-{i}" for i in range(10)]
    for name in names:
        await _start(operator, stages, action, name)
    actors = [pid for init in _children(supervisor) for pid in _children(init)]
    used = [_private(pid) for pid in actors]
    shares = [memory_of(pid)[1] for pid in actors]
    for name in names:
        await _remove(operator, name)
    return [
        Row("zygote with pandas, private memory", sum(own), "MiB", note="none on a node without functions"),
        Row(
            "actor forked from it, private memory",
            sum(used) / len(used),
            "MiB",
            note=f"PSS {sum(shares) / len(shares):.1f}",
        ),
    ]


def _cpu(node: PodNode) -> dict[int, float]:
    """Seconds of CPU time so far, of the node, its supervisor and all processes of its containers."""
    pids = list(node.pids())
    pids += _children(pids[-1]) if len(pids) > 1 else []
    pids += [pid for init in pids[2:] for pid in _children(init)]
    return {pid: cpu_of(pid) for pid in pids}


def _is_zygote(pid: int) -> bool:
    return b"zygote_process" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _private(pid: int) -> float:
    """MiB that no other process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def main(words: list[str]) -> int:
    count = int(words[0]) if words else 10
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        os.chmod(folder, 0o755)
        bench = Bench(Plan(pod_starts=count * 4), Path(folder), Cores.pick())
        print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
        print(markdown(functions_start(bench)), f"load average {os.getloadavg()[0]:.1f}", sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
