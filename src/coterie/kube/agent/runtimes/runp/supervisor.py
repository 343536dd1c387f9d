"""The supervisor: one small process for each node that is the parent of all its containers and outlives the agent.

    python -m coterie.kube.agent.runtimes.runp.supervisor --root DIR --group NAME [--without namespaces,groups]

It starts containers, writes their logs, keeps their exit codes and does what an agent tells it on a Unix socket in its
directory. It decides nothing. Agents come and go; when none is there and nothing runs, it goes too. Should it be killed,
its containers go on and the next supervisor takes them over: by pid and start time, with their logs from the pipes that are
still there, and with their exit codes where the kernel tells strangers (6.15), else as ContainerStatusUnknown.

One thread, few imports: it is to cost little and, since it forks, to hold nothing that does not survive a fork.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time

from coterie import __version__
from coterie.kube.agent.runtimes.oci import sandbox_signals
from coterie.kube.agent.runtimes.runp import (
    cgroups,
    filesystem,
    init,
    linux,
    pod_networks,
    probe,
    resize,
    seccomp,
    users,
    wire,
)
from coterie.kube.agent.runtimes.runp.connection import ClientConnection
from coterie.kube.agent.runtimes.runp.execution import Execution
from coterie.kube.agent.runtimes.runp.launch import LaunchContext
from coterie.kube.agent.runtimes.runp.loop import Loop
from coterie.kube.agent.runtimes.runp.pod_networks import DomainNetwork, NetworkUnavailable, PodNetworks
from coterie.kube.agent.runtimes.runp.records import Records
from coterie.kube.agent.runtimes.runp.run import ContainerRun
from coterie.kube.agent.runtimes.runp.zygote import Zygotes, key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_SECONDS = 10.0
KEPT_RUNS = 5
"""Ended runs that are remembered of each container."""
_OWN_SHARES = 4000
"""The supervisor's part of the CPU in thousandths of a core, before that of pods that request less."""
_FORK_CHECK_SECONDS = 2.0
_PROGRAM_SECONDS = 0.005
"""After which an exec looks again for a program that bubblewrap has not started yet."""
_LONGEST_LOG = 1 << 20
_TRIAL = "trial"
"""Stands for the uid of a pod that is none."""


class SupervisedPod:
    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.runs: dict[tuple[str, int], ContainerRun] = {}

    def record_for_agent(self) -> dict[str, Any]:
        return {
            **self.about,
            "runs": [run.record_for_agent() for run in self.runs.values() if run.record["started_at"]],
        }

    def current(self, name: str) -> ContainerRun | None:
        found = [run for (container, _), run in self.runs.items() if container == name]
        return found[-1] if found else None


class PodSupervisor:
    def __init__(self, directory: str, group: str, without: list[str]) -> None:
        self._directory = directory
        self._networks = _networks(directory, without)
        self.loop = Loop()
        self._group = group
        self._records = Records(directory)
        groups = None if "groups" in without else cgroups.detect(group)
        self._powers = probe.probe(f"{directory}/trial", groups, without)
        self._ranges = users.UserRanges() if self._powers["users"] else None
        program = seccomp.program(linux.machine()) if self._powers["seccomp"] else b""
        self._powers["network"] = self._networks is not None
        self._powers["host_network"] = self._networks is None or self._networks.domain.machine >= 0
        self._home = LaunchContext(
            self.loop, self._records, groups, self._powers, program, init.program(), self._networks
        )
        self._pods: dict[str, SupervisedPod] = {}
        if "zygotes" not in without:
            self._home.zygotes = Zygotes(self._home, self._running_images, self._zygotes_changed)
        self._connected = pod_networks.ConnectedPods(directory)
        self._connections: list[ClientConnection] = []
        self._idle_since = time.monotonic()
        self.done = False
        self._checks_forks = False
        self.loop.on_child = self._home.reap
        self.loop.on_terminate = self._asked_to_end
        linux.become_subreaper()
        self._leave_agent(groups)
        self._adopt_all()
        self._watch_forks()

    def _leave_agent(self, groups: cgroups.Cgroups | None) -> None:
        cgroups.leave_service(self._group)
        if groups is not None:
            try:
                groups.create("shepherd", 0, _OWN_SHARES, 0, 0)
                for handle in groups.open_for_joining("shepherd"):
                    os.write(handle, b"0")
                    os.close(handle)
            except OSError:
                return

    def _adopt_all(self) -> None:
        for uid, (about, records) in self._records.load().items():
            pod = self._pods[uid] = SupervisedPod(about)
            for record in records:
                run = ContainerRun(self._home, record["spec"], self._changed)
                pod.runs[(record["name"], record["attempt"])] = run
                run.adopt(record)
            self._claim_users(pod)
        if self._networks is not None:
            self._networks.domain.own_users = self._powers["namespaces"] == "user" or self._powers["users"]
            self._networks.domain.hold(self.loop)
            self._networks.load(
                [
                    (pod.about, [run.leader for run in pod.runs.values() if not run.finished and run.leader])
                    for pod in self._pods.values()
                ]
                + [(about, []) for about in self._connected.pods.values() if "netns" in about]
            )

    def _claim_users(self, pod: SupervisedPod) -> None:
        """The pod's range of users. What runs keeps the range it has, even if the registry was lost meanwhile."""
        if self._ranges is None:
            return
        uid, slot = pod.about["uid"], pod.about.get("slot")
        pod.about["slot"] = self._ranges.claim(self._records.path(uid, "pod.json"), slot)
        if pod.about["slot"] != slot:
            self._records.save(uid, "pod", pod.about, flush=False)

    # ----- connections

    def listen(self, directory: str) -> None:
        name, handle = wire.address(directory)
        path = f"{directory}/{wire.SOCKET_NAME}"
        if os.path.exists(path):
            os.unlink(path)  # we hold the lock, so nobody listens there
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old = os.umask(0o177)
        self._server.bind(name)
        os.umask(old)
        os.close(handle)
        self._server.listen(16)
        self.loop.watch(self._server.fileno(), select.EPOLLIN, self._accept)
        self.loop.call_later(IDLE_SECONDS, self._rest)

    def _accept(self, _: int) -> None:
        try:
            peer, _address = self._server.accept()
        except OSError:
            return
        if wire.peer(peer)[1] not in (0, os.getuid()):
            peer.close()
            return
        self._connections.append(ClientConnection(self.loop, peer, self._request, self._closed))

    def _closed(self, connection: ClientConnection) -> None:
        self._connections.remove(connection)
        self._idle_since = time.monotonic()

    def _running(self) -> bool:
        return any(not run.finished for pod in self._pods.values() for run in pod.runs.values())

    def _running_images(self) -> set[str]:
        """Those of which containers run that are forked, as `key_of` writes them."""
        runs = (run for pod in self._pods.values() for run in pod.runs.values() if not run.finished)
        return {key_of(run.spec["zygote"]) for run in runs if run.spec.get("zygote")}

    def _zygotes_changed(self) -> None:
        for connection in list(self._connections):
            connection.send({"event": "zygotes", "zygotes": self._zygote_records()})

    def _zygote_records(self) -> list[dict[str, Any]]:
        return self._home.zygotes.records_for_agent() if self._home.zygotes is not None else []

    def _rest(self) -> None:
        """Nobody asks and nothing runs: everything is on disk, so there is nothing to stay for."""
        idle = not self._connections and not self._running()
        if idle and time.monotonic() - self._idle_since >= IDLE_SECONDS and self._records.retry():
            self.done = True
            return
        self.loop.call_later(IDLE_SECONDS / 2, self._rest)

    def _check_forks(self) -> None:
        """Version 1 of control groups does not tell by itself that a fork was refused."""
        for pod in self._pods.values():
            for run in pod.runs.values():
                if not run.finished:
                    run.check_forks()
        self._watch_forks()

    def _watch_forks(self) -> None:
        groups = self._home.groups
        self._checks_forks = groups is not None and groups.version == 1 and self._running()
        if self._checks_forks:
            self.loop.call_later(_FORK_CHECK_SECONDS, self._check_forks)

    def _asked_to_end(self) -> None:
        """A service manager's SIGTERM is meant for the agent; the containers need their parent."""
        self.done = not self._running()

    def _changed(self, run: ContainerRun) -> None:
        for connection in list(self._connections):
            connection.send({"event": "run", "uid": run.uid, "run": run.record_for_agent()})
        self._idle_since = time.monotonic()

    # ----- orders

    def _request(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        order = getattr(self, f"_do_{str(request.get('op', '')).replace('-', '_')}", None)
        if order is None:
            connection.refuse(
                request, "Unknown", f"this pod supervisor does not know the command {request.get('op')!r}"
            )
            return
        try:
            order(connection, request)
        except filesystem.SetupError as problem:
            connection.refuse(request, "CreateContainerError", str(problem))
        except OSError as problem:
            where = f"{problem.filename}: " if problem.filename else ""
            connection.refuse(request, "CreateContainerError", f"{where}{problem.strerror}")
        except (KeyError, TypeError, ValueError) as problem:
            sys.excepthook(*sys.exc_info())  # `traceback` would be a tenth of this process
            connection.refuse(request, "CreateContainerError", f"{type(problem).__name__}: {problem}")

    def _do_hello(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        handles = self._networks.domain.handles() if self._networks is not None else []
        connection.answer(
            request,
            {
                "version": wire.VERSION,
                "program": __version__,
                "pid": os.getpid(),
                "running": self._running(),
                "powers": self._powers,
                "group": self._group,
                "pods": [pod.record_for_agent() for pod in self._pods.values()],
                "connected": list(self._connected.pods.values()),
                "zygotes": self._zygote_records(),
            },
            handles,
        )

    def _do_quit(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        self.done = not self._running()
        if self.done and request.get("release") and self._networks is not None and not self._connected.pods:
            self._networks.domain.release(self.loop)
        connection.answer(request, self.done)

    def _do_prepare(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        about = request["pod"]
        uid = about["uid"]
        known = self._pods.get(uid)
        if known is not None and "slot" in known.about:
            about["slot"] = known.about["slot"]
        if known is not None and "limits" in known.about:
            about["limits"] = known.about["limits"]  # they are changed by `resize` only
        if self._networks is not None:
            self._networks.add(about)
        try:
            self._records.save(uid, "pod", about, flush=False)
            self._limit(uid, about.get("limits") or {}, sandbox_signals.own_threads(about))
        except OSError:
            if known is None and self._networks is not None:
                self._networks.remove(uid)  # nobody would know of it
            raise
        if known is not None:
            known.about = about
        else:
            known = self._pods[uid] = SupervisedPod(about)
        self._claim_users(known)
        connection.answer(request, self._mount_memory(about.get("memory_volumes") or []))

    def _mount_memory(self, volumes: list[tuple[str, int]]) -> bool:
        """In the mount namespace of an ordinary user's supervisor, of which containers get a copy; the mounts go with their
        directories. Says whether all of them lie in memory."""
        for path, size in volumes:
            if os.path.ismount(path):
                continue
            if os.getuid() != 0 or self._networks is None:
                return False  # this is not a namespace of our own
            options = f"mode=0777,size={size}" if size else "mode=0777"
            try:
                linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
            except OSError:
                return False
        return True

    def _limit(self, uid: str, limits: dict[str, int], own_threads: int) -> None:
        """The pod as a whole, with what its runtime takes. Limits of a pod that is there already are not moved under its containers."""
        groups = self._home.groups
        if groups is not None and limits and not groups.exists(uid):
            pids = limits["pids"] + own_threads if limits["pids"] else 0
            groups.create(uid, limits["cpu"], limits["shares"], limits["memory"], pids)

    def _do_start(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        spec = request["spec"]
        pod = self._pods.get(spec["uid"])
        if pod is None:
            connection.refuse(request, "CreateContainerError", "the pod is not prepared")
            return
        key = (spec["name"], spec["attempt"])
        known = pod.runs.get(key)
        if known is not None and not known.starting:
            connection.answer(request, known.record_for_agent())
            return
        before = pod.current(spec["name"])
        if before is not None and before is not known and not before.finished:
            connection.refuse(request, "CreateContainerError", "an earlier run of the container has not ended")
            return
        if self._ranges is not None and not spec["privileged"]:
            spec["slot"] = pod.about["slot"]
        if spec.get("target"):
            target = pod.current(spec["target"])
            if target is None or target.finished or not target.pid:
                why = f'the target container "{spec["target"]}" does not run'
                connection.refuse(request, "CreateContainerError", why)
                return
            spec["target_pid"] = target.pid if self._powers["namespaces"] else 0
        run = known or ContainerRun(self._home, spec, self._changed)
        pod.runs[key] = run

        def done(problem: tuple[int, str] | None) -> None:
            if problem is None:
                connection.answer(request, run.record_for_agent())
            else:
                pod.runs.pop(key, None)
                connection.refuse(request, "CreateContainerError", problem[1])

        if known is not None:
            run.when_started(done)  # the agent before this one asked, and its launch may still fail
            return
        try:
            run.start(done)
        except BaseException:
            del pod.runs[key]
            raise
        if not self._checks_forks:
            self._watch_forks()
        self._forget_old(pod, spec["name"])

    def _forget_old(self, pod: SupervisedPod, name: str) -> None:
        ended = [key for key, run in pod.runs.items() if key[0] == name and run.finished]
        for key in ended[:-KEPT_RUNS]:
            self._records.forget(pod.about["uid"], pod.runs.pop(key).key)

    def _run(self, request: dict[str, Any]) -> ContainerRun | None:
        pod = self._pods.get(request["uid"])
        return pod.current(request["name"]) if pod is not None else None

    def _do_stop(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        run = self._run(request)
        if run is None:
            connection.answer(request, True)
        else:
            run.stop(request["grace"], lambda: connection.answer(request, True))

    def _do_signal(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        run = self._run(request)
        if run is not None:
            run.signal(request["signal"])
        connection.answer(request, True)

    def _do_resize(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        """Other CPU and memory limits for a pod and for its running containers."""
        uid, wanted, groups = request["uid"], request["limits"], self._home.groups
        pod = self._pods.get(uid)
        if pod is None or groups is None:
            connection.refuse(
                request, "ResizeError", "there is no such pod" if groups else "there are no control groups"
            )
            return
        had = pod.about.get("limits") or wanted
        loose = resize.looser(had, wanted)
        groups.update(uid, loose["cpu"], loose["shares"], loose["memory"])
        runs = {name: run for (name, _), run in pod.runs.items() if not run.finished and not run.starting}
        problem = resize.resize_containers(groups, runs, request["containers"])
        final = bool(request["final"]) and not problem
        problem = problem or (resize.memory_problem(groups, uid, "The pod", wanted["memory"]) if final else "")
        if final and not problem:
            groups.update(uid, wanted["cpu"], wanted["shares"], wanted["memory"])
            for run in runs.values():
                run.limits_changed({"pod_memory": wanted["memory"]})
        pod.about["limits"] = {**had, **{key: (wanted if final and not problem else loose)[key] for key in resize.KEYS}}
        self._records.save(uid, "pod", pod.about, flush=False)
        if problem:
            connection.refuse(request, "ResizeError", problem)
        else:
            connection.answer(request, True)

    def _do_remove(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        pod = self._pods.get(request["uid"])
        if pod is None:
            # An earlier supervisor may have been killed while it removed the pod, or before it had written down what it is.
            self._records.forget_pod(request["uid"])
            self._remove_group(request["uid"], 20)
            connection.answer(request, True)
            return
        alive = [run for run in pod.runs.values() if not run.finished]

        def one_gone() -> None:
            if all(run.finished for run in alive):
                self._remove(pod)
                connection.answer(request, True)

        if not alive:
            one_gone()
        for run in alive:
            run.stop(0, one_gone)

    def _remove(self, pod: SupervisedPod) -> None:
        uid = pod.about["uid"]
        self._pods.pop(uid, None)
        if self._networks is not None:
            self._networks.remove(uid)
        self._records.forget_pod(uid)
        if self._ranges is not None and "slot" in pod.about:
            self._ranges.release(self._records.path(uid, "pod.json"), pod.about["slot"])
        self._remove_group(uid, 20)

    def _remove_group(self, uid: str, tries: int) -> None:
        groups = self._home.groups
        if groups is not None and uid not in self._pods and not groups.remove(uid) and tries:
            self.loop.call_later(0.05, lambda: self._remove_group(uid, tries - 1))

    def _do_socket(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        """An unconnected socket of a pod's network: for probes and port-forward."""
        pod = self._pods.get(request["uid"])
        about = pod.about if pod is not None else self._connected.pods.get(request["uid"])
        if about is None or self._networks is None:
            connection.refuse(request, "PodNotFound", "the pod has no network of its own here")
            return
        connection.answer(request, True, [self._networks.socket_in(about)])

    # Pods of another runtime, which makes their namespaces: the agent says what is to come, then that runtime's network
    # plugin brings the namespace.

    def _do_expect(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        about = request["pod"]
        known = self._connected.pods.get(about["uid"])
        if known is not None and "netns" in known:
            about["netns"] = known["netns"]
        self._connected.save(about)
        connection.answer(request, True)

    def _do_connect(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        about = self._connected.pods.get(request["uid"])
        if about is None or self._networks is None or not about.get("address"):
            connection.refuse(request, "PodNotFound", f"no pod {request['uid']} with an address is expected")
            return
        about = {**about, "netns": request["netns"]}
        self._networks.connect(about)
        self._connected.save(about)
        connection.answer(request, about["address"])

    def _do_disconnect(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        if self._networks is not None and request["uid"] in self._connected.pods:
            self._networks.remove(request["uid"])
        self._connected.forget(request["uid"])
        connection.answer(request, True)

    def _do_try_bubblewrap(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        trial = f"{self._directory}/trial"
        connection.answer(
            request, probe.try_bubblewrap(self._powers, trial, request["program"], self._home.filter_program)
        )

    def _do_trial(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        """Two sockets of a pod that exists for their sake alone, to see what a pod could reach."""
        if self._networks is None:
            connection.refuse(request, "NoNetwork", "there is no pod network here")
            return
        self._networks.remove(_TRIAL)
        about = {"uid": _TRIAL, "address": request["address"], "kind": "ordinary"}
        self._networks.add(about)
        handles = [self._networks.socket_in(about, udp=True), self._networks.socket_in(about)]
        connection.answer(request, True, handles)

    def _do_trial_end(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        if self._networks is not None:
            self._networks.remove(_TRIAL)
        connection.answer(request, True)

    def _do_remote_pods(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        """The engines of other nodes, all of them: those of a pod's group may talk with it."""
        if self._networks is not None:
            self._networks.set_remote(request["pods"])
        connection.answer(request, True)

    def _do_listen(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        """A listening socket in the domain's network: for the node's services to pods."""
        if self._networks is None:
            connection.refuse(request, "NoNetwork", "there is no pod network here")
            return
        try:
            made = pod_networks.listener(
                request["kind"], request["address"], request["port"], shared=request.get("shared", False)
            )
        except OSError as problem:
            words = ["CannotListen", problem.strerror or str(problem)]
            connection.send({"id": request["id"], "error": words, "code": problem.errno or 0})
            return
        connection.answer(request, True, [made])

    def _do_exec(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        run = self._run(request)
        if run is None or run.finished or not run.pid:
            connection.refuse(request, "ContainerNotRunning", f"container {request['name']} is not running")
            return
        if run.spec.get("bwrap") and not run.program:
            # It is about to be started: its namespaces are not there yet.
            if connection in self._connections:
                self.loop.call_later(_PROGRAM_SECONDS, lambda: self._request(connection, request))
            return
        number = request["id"]

        def started(problem: tuple[int, str] | None) -> None:
            if problem is None:
                connection.answer(request, True, execution.handles)
            else:
                execution.drop_handles()
                connection.executions.pop(number, None)
                connection.send({"id": number, "error": ["ExecFailed", problem[1]], "code": problem[0]})

        def ended(code: int) -> None:
            connection.executions.pop(number, None)
            connection.send({"event": "exec", "exec": number, "code": code})

        execution = Execution(
            self._home,
            run,
            request["command"],
            stdin=request["stdin"],
            tty=request["tty"],
            stderr=request["stderr"],
            started=started,
            ended=ended,
        )
        connection.executions[number] = execution

    def _do_exec_kill(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        execution = connection.executions.get(request["exec"])
        if execution is not None:
            execution.kill()
        connection.answer(request, True)

    def _do_attach(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        run = self._run(request)
        if run is None or run.finished:
            connection.refuse(request, "ContainerNotRunning", f"container {request['name']} is not running")
            return
        handles = run.listen(request["stdin"])
        # Whoever was started by an agent of before this could be said has its input closed as it was then.
        about = {"tty": run.spec["tty"], "attempt": run.spec["attempt"], "once": run.spec.get("stdin_once", True)}
        connection.answer(request, about, handles)

    def _do_close_stdin(self, connection: ClientConnection, request: dict[str, Any]) -> None:
        run = self._run(request)
        if run is not None:
            run.close_stdin()
        connection.answer(request, True)


def _networks(directory: str, without: list[str]) -> PodNetworks | None:
    """The pod network that the agent asked for. Where the machine does not allow it, the file says why."""
    settings = pod_networks.read_settings(directory)
    if settings is None or "network" in without:
        return None
    domain = DomainNetwork(directory, settings)
    try:
        domain.open()
        networks = PodNetworks(domain, settings)
        if domain.created:
            networks.check()
        return networks
    except NetworkUnavailable as problem:
        pod_networks.write_facts(directory, {"problem": [problem.step, problem.number]})
        return None


def main(words: list[str]) -> int:
    options = dict(zip(words[::2], words[1::2], strict=False))
    if set(options) - {"--without"} != {"--root", "--group"} or len(words) % 2:
        sys.stderr.write(
            "usage: python -m coterie.kube.agent.runtimes.runp.supervisor --root DIR --group NAME [--without A,B]\n"
        )
        return 2
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started us may have kept signals back
    directory = os.path.abspath(options["--root"])
    os.makedirs(directory, mode=0o700, exist_ok=True)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        # The starter waits for this: the answer is there when the supervisor can be reached.
        os.close(writing)
        output = os.read(reading, 65536)
        if output != b"ready":
            sys.stderr.write(output.decode(errors="replace") + "\n")
        return 0 if output == b"ready" else 1
    os.close(reading)
    os.setsid()
    try:
        lock = _lock(directory)
        supervisor = PodSupervisor(directory, options["--group"], options.get("--without", "").split(","))
        supervisor.listen(directory)
        _be_quiet(directory)
    except (OSError, TimeoutError) as problem:
        os.write(writing, f"the pod supervisor cannot start: {problem}".encode())
        return 1
    gc.collect()
    gc.freeze()  # what is here now stays: children need not copy it
    os.write(writing, b"ready")
    os.close(writing)
    while not supervisor.done:
        supervisor.loop.step()
    os.unlink(f"{directory}/{wire.SOCKET_NAME}")
    os.close(lock)
    return 0


def _lock(directory: str) -> int:
    """There is one supervisor for a directory. One that is just going is waited for."""
    handle = os.open(f"{directory}/shepherd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(100):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            time.sleep(0.02)
    raise TimeoutError("another one is at work")


def _be_quiet(directory: str) -> None:
    os.chdir("/")
    path = f"{directory}/shepherd.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    if os.path.exists(path) and os.path.getsize(path) > _LONGEST_LOG:
        flags |= os.O_TRUNC
    log = os.open(path, flags, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
