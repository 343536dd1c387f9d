"""Runs GpuJobs: as pods, or on Slurm clusters.

It runs in the process of the control plane. The only processes it starts are `ssh` (one connection for each cluster that is in use,
and one client for each command on it), or Slurm's own commands for a cluster that is local; they are its children and end with it.

What makes a submission safe against crashes: the cluster is written into the status before anything is sent there, and there the job
is looked for by its name and its directory before it is submitted (`slurm_commands.submit_script`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.gpujobs import plan, storage
from coterie.gpujobs.domain_data import read_domain_data
from coterie.gpujobs.files import MAX_PACKED, InvalidFiles, digest, read_archive, write_archive
from coterie.gpujobs.inputs import FilesMissing, ReadTable, gather
from coterie.gpujobs.job_script import find_script, job_name, sbatch_options, slurm_script
from coterie.gpujobs.pods import (
    JOB_CONTAINER,
    RESULT_CONTAINER,
    RESULT_SECONDS,
    pod_body,
    pod_name,
    pod_status,
    program_end,
    results_ready,
)
from coterie.gpujobs.shell import CommandShell, LocalShell, ShellUnreachable, SshShell, clear_directory
from coterie.gpujobs.slurm_commands import FINAL_TAIL, PolledJob, SlurmUnavailable, SubmitRefused
from coterie.gpujobs.slurm_session import SlurmSession
from coterie.gpujobs.slurm_states import SlurmResult, is_terminal
from coterie.gpujobs.storage import StreamEnd
from coterie.gpujobs.types import (
    CREATED,
    CREATING,
    FINALIZER,
    FINISHED,
    GPU_JOBS,
    POD,
    REACHABLE,
    SLURM,
    SLURM_CLUSTERS,
    SUBMITTING,
    WAITING,
    GpuJob,
    GpuJobStatus,
    JobArtifact,
    SlurmCluster,
    SshLogin,
)
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Condition, Object, ObjectKey, find_condition, set_condition
from coterie.kube.api.types.core import SECRETS
from coterie.kube.api.types.merge import changes
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.client.streams import log_stream
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, Result, Watches, own_key, owner_key
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import BeingDeleted, add_finalizer, remove_finalizer

_FILES_PAUSE = 1.0
_CLUSTER_PAUSE = 10.0
_UNREACHABLE_PAUSE = 5.0
_IDLE_SECONDS = 120.0
_KEY_NAME = "ssh-privatekey"
_MAX_RESULT = 2 * MAX_PACKED
"""Bytes of an archive in base64 lines; one that is larger is cut, and then refused."""


@dataclass(frozen=True, slots=True)
class GpuJobSettings:
    directory: Path
    """For sockets of SSH connections; private."""
    local_user: str = ""
    """Whose Slurm commands a local cluster executes; empty: there is none."""
    domain: str = ""
    data_directory: Path | None = None
    """Of this domain's tables; None: there are none on this machine."""
    ssh_program: Sequence[str] = ("ssh",)
    local_program: Sequence[str] = ("sh",)


class ClusterUnusable(Exception):
    """What is wrong with a SlurmCluster; it may be put right."""


class GpuJobReconciler:
    def __init__(
        self, client: Client, informers: Informers, events: EventRecorder | None, clock: Clock, settings: GpuJobSettings
    ) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._settings = settings
        self._read_table: ReadTable | None = None
        if settings.data_directory is not None:
            self._read_table = partial(read_domain_data, client, settings.domain, settings.data_directory)
        self.jobs = informers.get(GPU_JOBS)
        self.clusters = informers.get(SLURM_CLUSTERS)
        self.pods = informers.get(PODS)
        self._sessions: dict[ObjectKey, tuple[tuple[str, int], SlurmSession]] = {}
        self._choosing = asyncio.Lock()
        self._assigned: dict[str, ObjectKey] = {}
        """By uid: clusters that were chosen and may not be in the cache yet."""
        self._missing_since: dict[str, float] = {}
        """By uid: when a job was first known to nobody, or its artifacts were first waited for."""
        self._archives = asyncio.Semaphore(2)
        """Archives that are unpacked in memory at one time: each may have MAX_UNPACKED bytes."""
        self._log = logger("controllers.gpujob")

    async def reconcile(self, key: ObjectKey) -> Result:
        cached = self.jobs.cache.by_key(key)
        if cached is None:
            return DONE
        try:
            # Decisions about submission need what is true, not what the cache has.
            job = await self._client.get(GPU_JOBS, key.name, key.namespace)
        except NotFound:
            return DONE
        if job.metadata.deleting:
            return await self._delete(job)
        if job.finished:
            return await self._after_the_end(job)
        try:
            if job.status.backend == POD or (not job.status.backend and job.spec.chosen_backend == POD):
                return await self._reconcile_pod(job)
            return await self._reconcile_slurm(job)
        except FilesMissing as missing:
            await self._write(job, plan.waiting_for_files(job.status, str(missing)))
            return Result(after=_FILES_PAUSE)
        except InvalidFiles as error:
            await self._fail(job, "InvalidFiles", str(error))
            return DONE
        except ClusterUnusable as error:
            return await self._unreachable(job, "ClusterUnusable", str(error))
        except ShellUnreachable as error:
            return await self._unreachable(job, "SSHFailed", str(error))
        except SlurmUnavailable as error:
            return await self._unreachable(job, "SlurmUnavailable", str(error))

    # Slurm.

    async def _reconcile_slurm(self, job: GpuJob) -> Result:
        status = job.status
        if not status.slurm_job_id:
            if job.spec.cancel:
                return await self._cancel_unsubmitted(job)
            if not status.cluster:
                return await self._assign(job)
            return await self._submit(job)
        session = await self._session(ObjectKey(job.metadata.namespace, status.cluster))
        if job.spec.cancel:
            await session.cancel(job.metadata.uid, status.slurm_job_id, remove=False)
        return await self._poll(job, session)

    async def _assign(self, job: GpuJob) -> Result:
        """Choose the cluster and write it down; nothing was sent anywhere before that."""
        if job.spec.empty:
            await self._write(job, plan.waiting_for_files(job.status, "waiting for a spec and files"))
            return DONE
        async with self._archives:
            script = find_script(job.spec, await gather(self._client, job, self._read_table))
        slurm_script(job.spec, script)
        if job.status.phase in ("", CREATING):
            job = await self._write(job, msgspec.structs.replace(job.status, phase=CREATED, backend=SLURM, message=""))
        if not job.metadata.has_finalizer(FINALIZER):
            try:
                job = await add_finalizer(self._client, GPU_JOBS, job.metadata.name, job.metadata.namespace, FINALIZER)
            except BeingDeleted:
                return DONE
        async with self._choosing:
            chosen, why = await self._choose(job)
            if not chosen:
                status = msgspec.structs.replace(job.status, reason="NoCluster", message=why)
                await self._write(job, status)
                return Result(after=_CLUSTER_PAUSE)
            status = msgspec.structs.replace(
                plan.reached(job.status, self._clock.now()),
                phase=SUBMITTING,
                backend=SLURM,
                cluster=chosen,
                reason="",
                message="",
                gpus=script.gpus if script is not None else job.spec.gpus,
            )
            job = await self._write(job, status)
            self._assigned[job.metadata.uid] = ObjectKey(job.metadata.namespace, chosen)
        return await self._submit(job)

    async def _choose(self, job: GpuJob) -> tuple[str, str]:
        """A cluster, or empty and why there is none."""
        namespace, wanted = job.metadata.namespace, job.spec.slurm.clusters
        there = [each for each in self.clusters.cache.list(namespace) if not each.metadata.deleting]
        candidates = [each for each in there if not wanted or each.metadata.name in wanted]
        if not candidates:
            return "", f"no SlurmCluster {'/'.join(wanted)}" if wanted else "the namespace has no SlurmCluster"
        loads, problems = [], []
        for cluster in candidates:
            key = cluster.key
            try:
                session = await self._session(key)
                snapshot = await session.snapshot(lambda key=key: self._polled(key))  # type: ignore[misc]
            except (ClusterUnusable, ShellUnreachable, SlurmUnavailable) as error:
                problems.append(f"{cluster.metadata.name}: {error}")
                await self._note_reachable(key, str(error))
                continue
            await self._note_reachable(key, "")
            assigned, unsubmitted = self._assigned_to(key)
            queued = {entry.name.removeprefix("coterie-") for entry in snapshot.entries}
            pending = snapshot.pending + len(unsubmitted - queued)
            loads.append(plan.ClusterLoad(cluster.metadata.name, pending, len(assigned), cluster.spec.max_jobs))
        chosen = plan.choose_cluster(loads)
        if chosen is None:
            return "", "; ".join(problems) or "all clusters have as many GpuJobs as they may (maxJobs)"
        return chosen, ""

    def _assigned_to(self, key: ObjectKey) -> tuple[set[str], set[str]]:
        """Uids of GpuJobs that are at the cluster or on their way; and of those that may not be in its queue yet."""
        found, unsubmitted = set(), set()
        for job in self.jobs.cache.list(key.namespace):
            uid = job.metadata.uid
            if job.status.cluster:
                self._assigned.pop(uid, None)
                if job.status.cluster == key.name and not job.finished:
                    found.add(uid)
                    if not job.status.slurm_job_id:
                        unsubmitted.add(uid)
        chosen_now = {uid for uid, chosen in self._assigned.items() if chosen == key}
        return found | chosen_now, unsubmitted | chosen_now

    async def _submit(self, job: GpuJob) -> Result:
        uid, cluster = job.metadata.uid, ObjectKey(job.metadata.namespace, job.status.cluster)
        session = await self._session(cluster)
        async with self._archives:
            files = await gather(self._client, job, self._read_table)
            script = find_script(job.spec, files)
            archive = await asyncio.to_thread(write_archive, files)
            del files
        text, options = slurm_script(job.spec, script), sbatch_options(job.spec, uid, script)
        try:
            job_id = await session.submit(uid, text, options, archive)
        except SubmitRefused as error:
            await self._fail(job, "SubmitRefused", str(error))
            return DONE
        status = msgspec.structs.replace(
            plan.reached(job.status, self._clock.now()),
            phase=WAITING,
            slurm_job_id=job_id,
            submit_time=rfc3339(self._clock.now()),
            message="",
        )
        await self._write(job, status)
        self._note(job, "Normal", "Submitted", f"Slurm job {job_id} on {cluster.name}")
        return Result(after=min(1.0, session.period))

    async def _poll(self, job: GpuJob, session: SlurmSession) -> Result:
        uid, job_id = job.metadata.uid, job.status.slurm_job_id
        cluster = ObjectKey(job.metadata.namespace, job.status.cluster)
        snapshot = await session.snapshot(lambda: self._polled(cluster))
        await self._note_reachable(cluster, "")
        mine = (job_id, job_name(uid))
        entry = next((each for each in snapshot.entries if (each.job_id, each.name) == mine), None)
        result, details = (entry.result if entry is not None else None), None
        if entry is None or is_terminal(entry.state):
            details = await session.details(uid, job_id)
            result = details.result
        if result is None:
            if details is None or not details.unknown:
                raise SlurmUnavailable("scontrol and sacct do not answer")
            return await self._lost(job, session)
        self._missing_since.pop(uid, None)
        if result.terminal:
            artifacts = details.artifacts if details is not None else None
            await self._finish(job, session, result, artifacts)
            return DONE
        status = plan.observed(job.status, result, cancelled=job.spec.cancel, now=self._clock.now())
        if uid in session.changed:
            session.changed.discard(uid)
            streams = session.streams.get(uid, {})
            await storage.store_output(self._client, job, streams)
            status = msgspec.structs.replace(status, output_tail=_tail(streams))
        await self._write(job, status)
        return Result(after=session.period)

    async def _finish(
        self, job: GpuJob, session: SlurmSession, result: SlurmResult, artifacts: tuple[int, str] | None
    ) -> None:
        uid = job.metadata.uid
        status = plan.observed(job.status, result, cancelled=job.spec.cancel, now=self._clock.now())
        streams = await session.final_streams(uid, job.status.slurm_job_id)
        if streams:
            await storage.store_output(self._client, job, streams)
            status = msgspec.structs.replace(status, output_tail=_tail(streams))
        if artifacts is not None and job.spec.artifacts:
            try:
                data = await session.artifacts(uid, *artifacts)
                status = await self._keep_artifacts(job, status, data)
            except InvalidFiles as error:
                status = msgspec.structs.replace(status, message=f"artifacts were not taken: {error}")
        await self._write(job, status)
        self._ended(job, status)
        session.forget(uid)

    async def _lost(self, job: GpuJob, session: SlurmSession) -> Result:
        now = self._clock.monotonic()
        since = self._missing_since.setdefault(job.metadata.uid, now)
        if now - since < plan.LOST_AFTER:
            return Result(after=session.period)
        status = plan.lost(job.status, self._clock.now())
        await self._write(job, status)
        self._ended(job, status)
        return DONE

    async def _cancel_unsubmitted(self, job: GpuJob) -> Result:
        if job.status.cluster:
            session = await self._session(ObjectKey(job.metadata.namespace, job.status.cluster))
            await session.cancel(job.metadata.uid, "", remove=False)
        await self._fail(job, plan.CANCELLED, "cancelled before it was submitted")
        return DONE

    def _polled(self, cluster: ObjectKey) -> list[PolledJob]:
        return [
            PolledJob(job.metadata.uid, job.status.slurm_job_id)
            for job in self.jobs.cache.list(cluster.namespace)
            if job.status.cluster == cluster.name and job.status.slurm_job_id and not job.finished
        ]

    # Clusters.

    async def _session(self, key: ObjectKey) -> SlurmSession:
        cluster = self.clusters.cache.by_key(key)
        if cluster is None:
            raise ClusterUnusable(f"there is no SlurmCluster {key.name}")
        version = (cluster.metadata.uid, cluster.metadata.generation)
        known = self._sessions.get(key)
        if known is not None and known[0] == version:
            return known[1]
        session = SlurmSession(
            self._shell(cluster), cluster.spec.directory, float(cluster.spec.poll_seconds), self._clock
        )
        self._sessions[key] = (version, session)
        if known is not None:
            await known[1].close()
        return session

    def _shell(self, cluster: SlurmCluster) -> CommandShell:
        login = cluster.spec.ssh
        if login is not None:
            namespace = cluster.metadata.namespace
            return SshShell(
                login,
                lambda: self._private_key(namespace, login),
                self._settings.directory,
                program=self._settings.ssh_program,
            )
        if not self._settings.local_user:
            raise ClusterUnusable("local clusters need controllers.localSlurmUser in the control plane's configuration")
        return LocalShell(self._settings.local_user, program=self._settings.local_program)

    async def _private_key(self, namespace: str, login: SshLogin) -> SecretValue:
        """Of the cluster's own namespace, never of another."""
        try:
            secret = await self._client.get(SECRETS, login.secret_name, namespace)
        except NotFound as error:
            raise ClusterUnusable(f"there is no Secret {login.secret_name}") from error
        try:
            key = base64.b64decode((secret.data or {}).get(_KEY_NAME, "")).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ClusterUnusable(f"the Secret {login.secret_name} holds no key of OpenSSH") from error
        if not key:
            raise ClusterUnusable(f"the Secret {login.secret_name} has no {_KEY_NAME}")
        return SecretValue(key)

    async def _note_reachable(self, key: ObjectKey, problem: str) -> None:
        cluster = self.clusters.cache.by_key(key)
        if cluster is None:
            return
        wanted = "False" if problem else "True"
        before = find_condition(cluster.status.conditions, REACHABLE)
        if before is not None and (before.status, before.message) == (wanted, problem):
            return
        new = Condition(type=REACHABLE, status=wanted, reason="SSHFailed" if problem else "Answered", message=problem)
        conditions = set_condition(cluster.status.conditions, new, rfc3339(self._clock.now()))
        body = {"status": {"conditions": msgspec.to_builtins(conditions)}}
        try:
            await self._client.patch_status(SLURM_CLUSTERS, key.name, key.namespace, body)
        except NotFound:
            return

    async def close(self) -> None:
        for _, session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def close_idle(self) -> None:
        """Connections that nobody needed for a while, and those of clusters that are gone."""
        while True:
            await self._clock.sleep(_IDLE_SECONDS / 4)
            for key, (_, session) in list(self._sessions.items()):
                idle = self._clock.monotonic() - session.last_used > _IDLE_SECONDS
                if idle or self.clusters.cache.by_key(key) is None:
                    self._sessions.pop(key, None)
                    await session.close()

    # Pods.

    async def _reconcile_pod(self, job: GpuJob) -> Result:
        name = pod_name(job.metadata.name, job.metadata.uid)
        pod = await self._pod(job.metadata.namespace, name)
        if job.spec.cancel:
            if pod is not None:
                await self._keep_pod_output(job, pod)
                await self._remove_pod(pod)
            await self._fail(job, plan.CANCELLED, "cancelled")
            return DONE
        if pod is None:
            if job.status.pod_name:
                await self._fail(job, "PodLost", f"the pod {name} is gone")
                return DONE
            return await self._create_pod(job)
        return await self._follow_pod(job, pod)

    async def _create_pod(self, job: GpuJob) -> Result:
        if job.spec.empty:
            await self._write(job, plan.waiting_for_files(job.status, "waiting for a spec and files"))
            return DONE
        async with self._archives:
            files = await gather(self._client, job, self._read_table)
            archive = await asyncio.to_thread(write_archive, files)
            del files
        pod_body(job, 0)  # raises what is wrong with the job
        if job.status.phase in ("", CREATING):
            job = await self._write(job, msgspec.structs.replace(job.status, phase=CREATED, backend=POD, message=""))
        parts = await storage.store(self._client, job, "files", archive, secret=True)
        body = pod_body(job, parts)
        name = body["metadata"]["name"]
        try:
            await self._client.create(PODS.as_dynamic, body)
        except AlreadyExists:
            self._log.debug("The pod was made before", pod=name)
        except ApiError as error:
            if error.code not in (400, 403, 422):
                raise
            await self._fail(job, "PodRefused", error.message)
            return DONE
        status = msgspec.structs.replace(
            job.status,
            phase=WAITING,
            backend=POD,
            pod_name=name,
            gpus=job.spec.gpus,
            submit_time=rfc3339(self._clock.now()),
        )
        await self._write(job, status)
        self._note(job, "Normal", "Submitted", f"Pod {name}")
        return DONE

    async def _follow_pod(self, job: GpuJob, pod: Pod) -> Result:
        uid = job.metadata.uid
        status = pod_status(job.status, pod, job.spec.gpus, self._clock.now())
        if program_end(pod) is None:
            await self._write(job, status)
            return DONE
        ready = results_ready(pod)
        if not ready:
            since = self._missing_since.setdefault(uid, self._clock.monotonic())
            left = RESULT_SECONDS - (self._clock.monotonic() - since)
            if left > 0:
                return Result(after=left)
        self._missing_since.pop(uid, None)
        streams = await self._keep_pod_output(job, pod)
        status = msgspec.structs.replace(status, output_tail=_tail(streams))
        if job.spec.artifacts and ready:
            try:
                text = await self._pod_log(pod, RESULT_CONTAINER, _MAX_RESULT)
                if text.strip():
                    status = await self._keep_artifacts(job, status, base64.b64decode(text))
            except (InvalidFiles, binascii.Error) as error:
                status = msgspec.structs.replace(status, message=f"artifacts were not taken: {error}")
        await self._write(job, status)
        self._ended(job, status)
        if not pod.ended:
            await self._remove_pod(pod)
        return DONE

    async def _pod(self, namespace: str, name: str) -> Pod | None:
        try:
            return await self._client.get(PODS, name, namespace)
        except NotFound:
            return None

    async def _keep_pod_output(self, job: GpuJob, pod: Pod) -> dict[str, StreamEnd]:
        data = await self._pod_log(pod, JOB_CONTAINER, FINAL_TAIL)
        streams = {"out": StreamEnd(len(data), data)} if data else {}
        if streams:
            await storage.store_output(self._client, job, streams)
        return streams

    async def _pod_log(self, pod: Pod, container: str, limit: int) -> bytes:
        """Its end; empty when the node does not answer any more."""
        data = bytearray()
        try:
            async for piece in log_stream(self._client, pod.metadata.name, pod.metadata.namespace, container=container):
                data += piece
                if len(data) >= 2 * limit:
                    del data[:-limit]
        except (ApiError, TransportError) as error:
            self._log.info("The output of a pod cannot be read", pod=str(pod.key), error=error)
        return bytes(data[-limit:])

    async def _remove_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return

    # Both.

    async def _keep_artifacts(self, job: GpuJob, status: GpuJobStatus, packed: bytes) -> GpuJobStatus:
        """Packed again by us: nobody has to trust the archive that a job made."""
        async with self._archives:
            listed, data = await asyncio.to_thread(_repacked, packed)
        parts = await storage.store(self._client, job, "out", data)
        return msgspec.structs.replace(status, artifacts=listed, artifact_parts=parts, artifacts_sha256=digest(data))

    async def _delete(self, job: GpuJob) -> Result:
        """A job that may be at Slurm is cancelled there first. Pods, ConfigMaps and Secrets go with their owner."""
        meta = job.metadata
        if not meta.has_finalizer(FINALIZER):
            return DONE
        if job.status.cluster:
            key = ObjectKey(meta.namespace, job.status.cluster)
            if self.clusters.cache.by_key(key) is None:
                self._log.warning(
                    "A GpuJob is deleted, its cluster is not there any more: its Slurm job was not cancelled",
                    job=str(job.key),
                    cluster=key.name,
                    slurm_job=job.status.slurm_job_id,
                )
            else:
                try:
                    session = await self._session(key)
                    left = await session.cancel(meta.uid, job.status.slurm_job_id, remove=True)
                except (ClusterUnusable, ShellUnreachable, SlurmUnavailable) as error:
                    return await self._unreachable(job, "SSHFailed", str(error))
                if left:
                    return Result(after=1.0)
        self._assigned.pop(meta.uid, None)
        self._missing_since.pop(meta.uid, None)
        await remove_finalizer(self._client, GPU_JOBS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)
        return DONE

    async def _after_the_end(self, job: GpuJob) -> Result:
        left = plan.expires_in(job, self._clock.now())
        if left is None:
            return DONE
        if left > 0:
            return Result(after=left + 0.1)
        meta = job.metadata
        try:
            await self._client.delete(GPU_JOBS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return DONE
        return DONE

    async def _unreachable(self, job: GpuJob, reason: str, message: str) -> Result:
        status = plan.unreachable(job.status, reason, message, self._clock.now())
        await self._write(job, status)
        if job.status.cluster:
            await self._note_reachable(ObjectKey(job.metadata.namespace, job.status.cluster), message)
        return Result(after=_UNREACHABLE_PAUSE)

    async def _fail(self, job: GpuJob, reason: str, message: str) -> None:
        status = plan.failed(job.status, reason, message, self._clock.now())
        await self._write(job, status)
        self._ended(job, status)

    def _ended(self, job: GpuJob, status: GpuJobStatus) -> None:
        if status.phase in FINISHED:
            kind = "Normal" if status.reason == "" else "Warning"
            self._note(job, kind, status.phase, status.message or f"exit code {status.exit_code}")

    async def _write(self, job: GpuJob, status: GpuJobStatus) -> GpuJob:
        """The job as it is afterwards. Raises Conflict when somebody else wrote meanwhile: what was decided may be wrong."""
        patch = changes(job.status, status)
        if patch is None:
            return job
        meta = job.metadata
        body: Object = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch}
        return await self._client.patch_status(GPU_JOBS, meta.name, meta.namespace, body)

    def _note(self, job: GpuJob, type_: str, reason: str, message: str) -> None:
        if self._events is not None:
            resource = GPU_JOBS.resource
            about = reference_to(job, api_version=resource.api_version, kind=resource.kind)
            self._events.record(about, "Warning" if type_ == "Warning" else "Normal", reason, message)

    def waiting_jobs(self, cluster: SlurmCluster) -> Iterable[ObjectKey]:
        """Those that a change of a cluster may help."""
        return [
            job.key
            for job in self.jobs.cache.list(cluster.metadata.namespace)
            if not job.finished and job.status.cluster in ("", cluster.metadata.name) and not job.status.slurm_job_id
        ]


def _repacked(packed: bytes) -> tuple[tuple[JobArtifact, ...], bytes]:
    files = read_archive(packed)
    listed = (JobArtifact(path=path, size=len(file.data), sha256=digest(file.data)) for path, file in files.items())
    return tuple(sorted(listed, key=lambda each: each.path)), write_archive(files)


def _tail(streams: dict[str, StreamEnd]) -> str:
    return plan.tail_of(*(streams[name].data if name in streams else b"" for name in ("out", "err")))


class GpuJobController(Controller[ObjectKey]):
    """Closes the connections in the end, and those that are idle."""

    def __init__(self, reconciler: GpuJobReconciler, directory: Path, *, workers: int, clock: Clock) -> None:
        watches: list[Watches[Any, ObjectKey]] = [
            Watches(reconciler.jobs, own_key),
            Watches(reconciler.clusters, reconciler.waiting_jobs),
            Watches(reconciler.pods, owner_key(GPU_JOBS.resource.api_version, GPU_JOBS.resource.kind)),
        ]
        super().__init__("gpujob", reconciler.reconcile, watches, workers=workers, clock=clock)
        self._reconciler = reconciler
        self._directory = directory

    async def run(self) -> None:
        clear_directory(self._directory)
        try:
            async with TaskOwner("gpujob") as owner:
                work = owner.start("work", super().run())
                owner.start("idle connections", self._reconciler.close_idle())
                await asyncio.wait((work,))
        finally:
            await self._reconciler.close()


def make(
    client: Client,
    informers: Informers,
    *,
    settings: GpuJobSettings,
    events: EventRecorder | None = None,
    workers: int = 8,
    clock: Clock = SYSTEM_CLOCK,
) -> GpuJobController:
    """`events` is a recorder of the component `gpujob-controller`; the caller runs it."""
    reconciler = GpuJobReconciler(client, informers, events, clock, settings)
    return GpuJobController(reconciler, settings.directory, workers=workers, clock=clock)
