"""`coterie.io/v1alpha1` GpuJob and SlurmCluster as the controller and the commands read them."""

from __future__ import annotations

import msgspec

from coterie.kube.api.meta import ApiObject, Condition, Model
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import QuantityText

GROUP, VERSION = "coterie.io", "v1alpha1"
POD, SLURM = "Pod", "Slurm"
CREATING, CREATED, SUBMITTING, WAITING = "Creating", "Created", "Submitting", "Waiting"
RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"
FINISHED = frozenset((SUCCEEDED, FAILED))

UNREACHABLE = "Unreachable"
"""Condition of a GpuJob: its cluster does not answer, so the phase may be old."""
REACHABLE = "Reachable"
"""Condition of a SlurmCluster."""
FINALIZER = "coterie.io/gpujob"
JOB_LABEL = "coterie.io/gpujob"
"""Of a job's pod and of the ConfigMaps with its files: the name of the job."""

GPU_RESOURCE = "nvidia.com/gpu"
DEFAULT_DIRECTORY = "coterie-jobs"


class NamedSource(Model, frozen=True, kw_only=True):
    name: str


class UploadSource(Model, frozen=True, kw_only=True):
    parts: int
    sha256: str


class JobFiles(Model, frozen=True, kw_only=True):
    """One source of files; exactly one of the three is set."""

    path: str = ""
    config_map: NamedSource | None = None
    domain_data: NamedSource | None = None
    upload: UploadSource | None = None


class Compilation(Model, frozen=True, kw_only=True):
    sources: tuple[str, ...]
    output: str
    compiler: str = "nvcc"
    args: tuple[str, ...] | None = None


class EnvVariable(Model, frozen=True, kw_only=True):
    name: str
    value: str = ""


class SlurmOptions(Model, frozen=True, kw_only=True):
    clusters: tuple[str, ...] | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    modules: tuple[str, ...] | None = None
    requeue: bool = False


class GpuPodOptions(Model, frozen=True, kw_only=True):
    runtime_class_name: str = ""
    service_account_name: str = ""
    node_selector: dict[str, str] | None = None
    resource_name: str = GPU_RESOURCE


class GpuJobSpec(Model, frozen=True, kw_only=True):
    backend: str = ""
    image: str = ""
    files: tuple[JobFiles, ...] | None = None
    compile: Compilation | None = None
    script: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVariable, ...] | None = None
    gpus: int = 1
    cpus: int | None = None
    memory: QuantityText | None = None
    time_limit_seconds: int | None = None
    artifacts: tuple[str, ...] | None = None
    slurm: SlurmOptions = SlurmOptions()
    pod: GpuPodOptions = GpuPodOptions()
    cancel: bool = False
    ttl_seconds_after_finished: int | None = None

    @property
    def chosen_backend(self) -> str:
        return self.backend or (POD if self.image else SLURM)

    @property
    def empty(self) -> bool:
        """Nothing says yet what to run: as the object is when it is posted before its files."""
        return not (self.files or self.compile or self.command or self.script)


class JobArtifact(Model, frozen=True, kw_only=True):
    path: str
    size: int
    sha256: str


class GpuJobStatus(Model, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    backend: str = ""
    cluster: str = ""
    slurm_job_id: str = ""
    slurm_state: str = ""
    pod_name: str = ""
    nodes: str = ""
    node_uid: str = msgspec.field(name="nodeUID", default="")
    gpus: int | None = None
    submit_time: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    exit_code: int | None = None
    gpu_seconds: int | None = None
    output_tail: str = ""
    artifact_parts: int | None = None
    artifacts_sha256: str = ""
    artifacts: tuple[JobArtifact, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class GpuJob(ApiObject, frozen=True, kw_only=True):
    spec: GpuJobSpec = GpuJobSpec()
    status: GpuJobStatus = GpuJobStatus()

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED


class SshLogin(Model, frozen=True, kw_only=True):
    host: str
    user: str
    host_keys: tuple[str, ...]
    secret_name: str
    port: int = 22


class SlurmClusterSpec(Model, frozen=True, kw_only=True):
    ssh: SshLogin | None = None
    local: bool = False
    directory: str = DEFAULT_DIRECTORY
    max_jobs: int = 200
    poll_seconds: int = 5


class SlurmClusterStatus(Model, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] | None = None


class SlurmCluster(ApiObject, frozen=True, kw_only=True):
    spec: SlurmClusterSpec = SlurmClusterSpec()
    status: SlurmClusterStatus = SlurmClusterStatus()


GPU_JOBS = Kind(Resource(GROUP, VERSION, "gpujobs", "GpuJob", True, singular="gpujob", custom=True), GpuJob)
SLURM_CLUSTERS = Kind(
    Resource(GROUP, VERSION, "slurmclusters", "SlurmCluster", True, singular="slurmcluster", custom=True), SlurmCluster
)
