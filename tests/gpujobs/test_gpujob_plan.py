"""Decisions about GpuJobs, what Slurm prints, the scripts, and files that nobody trusts."""

from __future__ import annotations

import base64
import io
import os
import pwd
import shlex
import subprocess
import tarfile
import zlib
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from coterie.base.archives import ArchiveLimits
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.gpujobs import files, plan, slurm_commands
from coterie.gpujobs.controller import _repacked
from coterie.gpujobs.files import (
    InvalidFiles,
    JobFile,
    checked_path,
    digest,
    join,
    read_archive,
    split,
    write_archive,
)
from coterie.gpujobs.job_script import directives, find_script, pod_script, sbatch_options, slurm_script
from coterie.gpujobs.plan import ClusterLoad, choose_cluster, observed, unreachable
from coterie.gpujobs.pods import pod_body, pod_name, pod_status
from coterie.gpujobs.shell import LocalShell, ShellResult, ShellUnreachable, SshShell
from coterie.gpujobs.slurm_commands import PolledJob
from coterie.gpujobs.slurm_session import SlurmSession
from coterie.gpujobs.slurm_states import (
    SlurmResult,
    exit_code,
    gpu_count,
    parse_exit_file,
    parse_queue,
    parse_sacct,
    parse_scontrol,
    state_word,
)
from coterie.gpujobs.types import GPU_JOBS, Compilation, GpuJob, GpuJobSpec, GpuJobStatus, SlurmOptions, SshLogin
from coterie.kube.api.meta import find_condition
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kuscia.extensions.gpu_jobs import uses

NOW = datetime(2026, 2, 1, tzinfo=UTC)
UID = "11111111-2222-4333-8444-555555555555"
WAITING = GpuJobStatus(phase="Waiting", backend="Slurm", cluster="one", slurm_job_id="7", gpus=2)

# The state table.


@pytest.mark.parametrize(
    ("state", "code", "phase"),
    [
        *((state, None, "Waiting") for state in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")),
        *((state, None, "Running") for state in ("RUNNING", "COMPLETING")),
        ("COMPLETED", 0, "Succeeded"),
        ("COMPLETED", 3, "Failed"),
        *(
            (state, 1, "Failed")
            for state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
        ),
        ("CANCELLED by 1000", 0, "Failed"),
        ("A_STATE_OF_A_LATER_SLURM", None, "Waiting"),
    ],
)
def test_states_are_phases(state: str, code: int | None, phase: str) -> None:
    word = state_word(state)
    status = observed(WAITING, SlurmResult(word, code, started=100, ended=160), cancelled=False, now=NOW)
    assert status.phase == phase
    if phase == "Failed":
        assert status.reason == word
        assert status.gpu_seconds == 120


def test_a_requeued_job_waits_again_without_a_start() -> None:
    running = observed(WAITING, SlurmResult("RUNNING", started=100), cancelled=False, now=NOW)
    assert (running.phase, running.start_time) == ("Running", "1970-01-01T00:01:40Z")
    again = observed(running, SlurmResult("PENDING", reason="BeginTime"), cancelled=False, now=NOW)
    assert (again.phase, again.start_time, again.reason) == ("Waiting", None, "BeginTime")


def test_what_was_cancelled_by_its_user_says_so() -> None:
    result = SlurmResult("CANCELLED", 0, ended=10)
    assert observed(WAITING, result, cancelled=True, now=NOW).reason == "Cancelled"
    ended = observed(WAITING, result, cancelled=False, now=NOW)
    assert (ended.reason, ended.gpu_seconds) == ("CANCELLED", 0)


def test_an_unreachable_cluster_leaves_the_phase_alone() -> None:
    lost = unreachable(WAITING, "SSHFailed", "Connection refused", NOW)
    condition = find_condition(lost.conditions, "Unreachable")
    assert lost.phase == "Waiting" and condition is not None and condition.status == "True"
    back = observed(lost, SlurmResult("RUNNING", started=5), cancelled=False, now=NOW)
    condition = find_condition(back.conditions, "Unreachable")
    assert condition is not None and condition.status == "False"


# What Slurm prints.


def test_squeue() -> None:
    text = "7|coterie-a|RUNNING|None|gpu[1-2]|100\n8|other|PENDING|Priority||N/A\nsqueue: error: x\n\n"
    running, pending = parse_queue(text)
    assert (running.job_id, running.state, running.reason, running.nodes) == ("7", "RUNNING", "", "gpu[1-2]")
    assert running.result.started == 100
    assert (pending.reason, pending.started) == ("Priority", None)


def test_scontrol() -> None:
    line = (
        "JobId=1 JobName=coterie-0 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 StartTime=100 EndTime=160 "
        "NodeList=one-node TRES=cpu=1,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2 TresPerNode=gres:gpu:2 \n"
    )
    assert parse_scontrol(line, "coterie-0") == SlurmResult("FAILED", 3, 100, 160, "one-node", 2, "NonZeroExitCode")
    assert parse_scontrol(line, "coterie-of-another") is None
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified\n", "coterie-0") is None


def test_sacct_takes_the_last_line_of_a_requeued_job() -> None:
    text = (
        "7|NODE_FAIL|1:0|10|20|a|billing=1,gres/gpu=1|n\n7|CANCELLED by 0|0:15|30|40|b||n\n8|COMPLETED|0:0|1|2|c||n\n"
    )
    assert parse_sacct(text, "7", "n") == SlurmResult("CANCELLED", 143, 30, 40, "b", None)
    assert parse_sacct("7|RUNNING|0:0|10|Unknown|a||n\n", "7", "n") == SlurmResult("RUNNING", 0, 10, None, "a")
    assert parse_sacct(text, "7", "other") is None


@pytest.mark.parametrize(("text", "code"), [("0:0", 0), ("7:0", 7), ("0:9", 137), ("", None), ("x:y", None)])
def test_exit_codes(text: str, code: int | None) -> None:
    assert exit_code(text) == code


@pytest.mark.parametrize(
    ("tres", "count"),
    [("cpu=4,gres/gpu=2,gres/gpu:a100=2", 2), ("gres:gpu:1", 1), ("gres:gpu:a100:4", 4), ("cpu=4", None), ("", None)],
)
def test_gpu_counts(tres: str, count: int | None) -> None:
    assert gpu_count(tres) == count


def test_an_aged_out_job_is_known_by_its_exit_file() -> None:
    gone = "scontrol slurm_load_jobs error: Invalid job id specified\n"
    details = slurm_commands.parse_details(
        gone + "exit code 0\nexit stage run\nexit started 5\nexit ended 9\n", UID, "7"
    )
    assert details.result == SlurmResult("COMPLETED", 0, 5, 9, reason="run")
    unknown = slurm_commands.parse_details(gone, UID, "7")
    assert unknown.result is None and unknown.unknown
    down = slurm_commands.parse_details("scontrol Unable to contact slurm controller (connect failure)\n", UID, "7")
    assert down.result is None and not down.unknown
    assert parse_exit_file("code 0\n") is None


def test_the_database_knows_what_the_controller_forgot() -> None:
    text = f"scontrol slurm_load_jobs error: Invalid job id specified\nsacct 7|TIMEOUT|0:0|5|9|n|gres/gpu=1|coterie-{UID}\n"
    found = slurm_commands.parse_details(text + "artifacts 10 abc  artifacts.tar.gz\n", UID, "7")
    assert found.result == SlurmResult("TIMEOUT", 0, 5, 9, "n", 1) and found.artifacts == (10, "abc")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("again squeue: error: Unable to contact slurm controller\n", slurm_commands.SlurmUnavailable),
        ("refused sbatch: error: Batch job submission failed: Invalid partition name specified\n", slurm_commands.SubmitRefused),
        ("refused sbatch: error: Socket timed out on send/recv operation\n", slurm_commands.SlurmUnavailable),
        ("id not-a-number\n", slurm_commands.SlurmUnavailable),
        ("", slurm_commands.SlurmUnavailable),
    ],
)  # fmt: skip
def test_a_submission_without_an_id(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        slurm_commands.parse_submit(text)


def test_a_submission_with_an_id() -> None:
    assert slurm_commands.parse_submit("id 12;one\n") == "12"


def test_a_poll_carries_the_ends_of_streams() -> None:
    data = base64.b64encode(b"\x00hello").decode()
    found = slurm_commands.parse_poll(f"pending 3\nqueue 7|coterie-a|RUNNING|None|n|5\ntail {UID} out 900 {data}\n")
    assert (found.pending, [entry.job_id for entry in found.entries]) == (3, ["7"])
    assert found.tails[UID]["out"] == slurm_commands.StreamTail(900, b"\x00hello")


@pytest.mark.parametrize("uid", ["", "../x", "a b", f"{UID};x", UID.upper() + "\n"])
def test_only_uids_become_directories(uid: str) -> None:
    with pytest.raises(ValueError, match="not a uid"):
        slurm_commands.cancel_script("jobs", uid, "7", remove=True)


# Which cluster.


def test_the_cluster_with_the_fewest_pending_jobs_is_taken() -> None:
    loads = [ClusterLoad("a", 5, 0, 10), ClusterLoad("b", 1, 9, 10), ClusterLoad("c", 1, 3, 10)]
    assert choose_cluster(loads) == "c"
    assert choose_cluster([ClusterLoad("full", 0, 10, 10)]) is None
    assert choose_cluster([]) is None


# Scripts: words of the user are data.

HOSTILE = ["'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "a\nb", "-rf", "*", "\\", '"', "é"]


def test_a_script_hands_words_on_as_they_are(tmp_path: Path) -> None:
    program = "import json, os, sys; json.dump([sys.argv[1:], os.environ['W']], open('out', 'w'))"
    spec = msgspec.convert(
        {
            "command": ["python3", "-c", program],
            "args": HOSTILE,
            "env": [{"name": "W", "value": "".join(HOSTILE)}],
            "artifacts": ["o*", "$(touch pwned)"],
        },
        GpuJobSpec,
    )
    (tmp_path / "work").mkdir()
    (tmp_path / "job.sh").write_text(slurm_script(spec, None))
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["sh", "job.sh"], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode((tmp_path / "work/out").read_bytes()) == [HOSTILE, "".join(HOSTILE)]
    assert not list(tmp_path.rglob("pwned"))
    assert list(read_archive((tmp_path / "artifacts.tar.gz").read_bytes())) == ["out"]
    result = parse_exit_file((tmp_path / "exit").read_text())
    assert result is not None and (result.state, result.reason) == ("COMPLETED", "run")

    other = subprocess.run(
        ["sh", "job.sh"],
        cwd=tmp_path,
        env={**environment, "SLURM_JOB_ID": "8"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert other.returncode == 0 and "another Slurm job" in other.stderr
    assert (tmp_path / "ran/id").read_text() == "7\n"


def test_a_failed_compilation_runs_nothing_and_says_where(tmp_path: Path) -> None:
    made = Compilation(sources=("-a.cu", "b.cu"), output="prog", compiler="false", args=("-O2",))
    text = slurm_script(GpuJobSpec(compile=made), None)
    assert "false -O2 -o ./prog ./-a.cu ./b.cu || exit" in text
    (tmp_path / "work").mkdir()
    (tmp_path / "job.sh").write_text(text)
    done = subprocess.run(
        ["sh", "job.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1"}, check=False
    )
    result = parse_exit_file((tmp_path / "exit").read_text())
    assert done.returncode == 1 and result is not None and (result.code, result.reason) == (1, "compile")
    status = observed(WAITING, result, cancelled=False, now=NOW)
    assert status.message == "exit code 1 while compiling"


SEED = """#!/bin/bash
#SBATCH --job-name=matadd
#SBATCH --partition=dgx2
#SBATCH -N 1
#SBATCH --output=%j.out
#SBATCH --gres=gpu:2
# a comment

module load cuda
#SBATCH --partition=late
"""


def test_a_batch_script_keeps_its_own_options() -> None:
    there = {"run.slurm": JobFile(SEED.encode()), "a.cu": JobFile(b"")}
    script = find_script(GpuJobSpec(), there)
    assert script is not None and script.gpus == 2
    assert script.directives == ("#SBATCH --partition=dgx2", "#SBATCH -N 1", "#SBATCH --gres=gpu:2")
    options = sbatch_options(GpuJobSpec(), UID, script)
    assert not any(each.startswith(("--gres", "--partition")) for each in options)
    assert "exec ./run.slurm" in slurm_script(GpuJobSpec(), script)


def test_a_batch_script_needs_not_be_executable(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a b.slurm").write_text("#!/bin/sh\necho ran > out\n")
    script = find_script(GpuJobSpec(), {"a b.slurm": JobFile((tmp_path / "work/a b.slurm").read_bytes())})
    (tmp_path / "job.sh").write_text(slurm_script(GpuJobSpec(), script))
    subprocess.run(["sh", "job.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1"}, check=True)
    assert (tmp_path / "work/out").read_text() == "ran\n"


@pytest.mark.parametrize("option", ["--array=1-9", "-a 1-9", "-M other", "--uid=0", "--wrap=x"])
def test_options_that_a_job_cannot_have(option: str) -> None:
    with pytest.raises(InvalidFiles):
        directives(f"#!/bin/sh\n#SBATCH {option}\n")


@pytest.mark.parametrize(
    "line",
    ["--time=5 --array=1-1000", "-t 5 -a 1-9", "--arra=1-9", "-Ha1-9", "-kW", "--comment='x y' --wrap=ls", "-t 'x"],
)
def test_refused_options_behind_others_and_abbreviated(line: str) -> None:
    with pytest.raises(InvalidFiles):
        directives(f"#!/bin/sh\n#SBATCH {line}\n")


def test_options_that_look_like_refused_ones_hold() -> None:
    lines = ("--export=ALL", "--account=a -p gpu", "-A array", "--wait-all-nodes=1")
    assert directives("".join(f"#SBATCH {line}\n" for line in lines)) == tuple(f"#SBATCH {line}" for line in lines)


@pytest.mark.parametrize("names", [[], ["a.slurm", "b.slurm"]])
def test_without_a_command_there_is_one_batch_script(names: list[str]) -> None:
    with pytest.raises(InvalidFiles, match="instead of one"):
        find_script(GpuJobSpec(), {name: JobFile(b"") for name in names})


def test_options_of_sbatch() -> None:
    slurm = SlurmOptions(partition="dgx2", account="a", qos="q", constraint="x&y", requeue=True)
    spec = GpuJobSpec(gpus=3, cpus=6, memory="1500Mi", time_limit_seconds=90, slurm=slurm)
    options = sbatch_options(spec, UID, None)
    assert options[:2] == ["--parsable", f"--job-name=coterie-{UID}"]
    assert {"--gres=gpu:3", "--cpus-per-task=6", "--mem=1500M", "--time=1:30", "--requeue"} <= set(options)
    assert {"--partition=dgx2", "--account=a", "--qos=q", "--constraint=x&y"} <= set(options)


def test_scripts_for_login_nodes_are_shell() -> None:
    """A directory that looks like an option, and a script with quotes."""
    scripts = [
        slurm_commands.submit_script("-dir y'z", UID, "echo 'hi'\n", ["--parsable", "--comment=a b'c"]),
        slurm_commands.poll_script("-dir", [slurm_commands.PolledJob(UID, "7", {"out": 3})]),
        slurm_commands.details_script("-dir", UID, "7"),
        slurm_commands.cancel_script("-dir", UID, "7", remove=True),
        slurm_commands.fetch_script("-dir", UID, "7.out", 10),
        pod_script(GpuJobSpec(command=("true",)), "/job", "/in"),
    ]
    for script in scripts:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)
        assert " -dir" not in script


# Files.


def tar_of(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return out.getvalue()


def member(name: str, size: int = 1, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type, made.linkname = (size if kind == tarfile.REGTYPE else 0), kind, link
    return made


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", ".", "a\nb", "x" * 2000, "a/./b"])
def test_paths_stay_below(path: str) -> None:
    with pytest.raises(InvalidFiles):
        checked_path(path)


@pytest.mark.parametrize("name", ["../escape", "/absolute", "a/../../b"])
def test_archives_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(InvalidFiles):
        read_archive(tar_of(member(name)))


def test_links_and_devices_are_left_out() -> None:
    packed = tar_of(
        member("a"),
        member("link", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("hard", kind=tarfile.LNKTYPE, link="a"),
        member("device", kind=tarfile.CHRTYPE),
    )
    assert list(read_archive(packed)) == ["a"]


def test_a_negative_size_does_not_lead_the_reader_round_in_circles() -> None:
    header = bytearray(tarfile.TarInfo("b").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-512).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(InvalidFiles, match="negative size"):
        read_archive(tarfile.TarInfo("a").tobuf() + bytes(header) + bytes(1024))


def test_an_archive_of_directories_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMITS", ArchiveLimits(files.MAX_PACKED, files.MAX_UNPACKED, files=2))
    with pytest.raises(InvalidFiles, match="more than 4 entries"):
        read_archive(tar_of(*(member(f"d{n}", kind=tarfile.DIRTYPE) for n in range(6))))


def test_artifacts_that_no_status_can_list_are_refused() -> None:
    few = write_archive({f"{n:04}": JobFile(b"") for n in range(100)})
    assert len(_repacked(few)[0]) == 100
    with pytest.raises(InvalidFiles, match="too long"):
        _repacked(write_archive({f"{'x' * 500}/{n:04}": JobFile(b"") for n in range(2000)}))


def test_one_top_directory_is_left_out() -> None:
    assert list(read_archive(tar_of(member("top/a"), member("top/b/c")), strip_top=True)) == ["a", "b/c"]
    assert list(read_archive(tar_of(member("top/a"), member("b")), strip_top=True)) == ["top/a", "b"]


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(zlib.compress(b"")[:1] + b"junk", id="no archive"),
        pytest.param(tar_of(member("a", 100_000))[:-20], id="cut off"),
    ],
)
def test_broken_archives_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidFiles):
        read_archive(packed)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMITS", ArchiveLimits(files.MAX_PACKED, 1024 * 1024, files.MAX_FILES))
    zip_ = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1024 * 1024)
    packed = b"".join(zip_.compress(block) for _ in range(64)) + zip_.flush()
    with pytest.raises(InvalidFiles, match="more than"):
        read_archive(packed)


def test_archives_come_back_as_they_went_in_parts() -> None:
    made = {"a b/c": JobFile(bytes(range(256)) * 8000), "run": JobFile(b"#!/bin/sh\n", executable=True)}
    packed = write_archive(made)
    assert packed == write_archive(dict(reversed(made.items())))
    assert read_archive(join(split(packed), digest(packed))) == made
    with pytest.raises(InvalidFiles, match="sha256"):
        join([packed, b"x"], digest(packed))


# Pods.


def a_job(**spec: object) -> GpuJob:
    meta = {"name": "mat-sum", "namespace": "alice", "uid": UID}
    return GPU_JOBS.decode(msgspec.json.encode({"metadata": meta, "spec": spec}))


def test_a_pod_asks_for_gpus_and_brings_its_files() -> None:
    job = a_job(image="cuda", gpus=2, memory="1Gi", command=["nvidia-smi"], artifacts=["*.txt"], timeLimitSeconds=9)
    body = pod_body(job, 2)
    main, results = body["spec"]["containers"]
    assert main["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "1Gi"}
    assert "resources" not in results
    sources = body["spec"]["volumes"][1]["projected"]["sources"]
    assert [each["secret"]["name"] for each in sources] == [f"gpujob-{UID}-files-{n}" for n in range(2)]
    assert body["metadata"]["ownerReferences"][0]["uid"] == UID
    assert body["spec"]["activeDeadlineSeconds"] == 9
    assert body["metadata"]["name"] == pod_name("mat-sum", UID) == "mat-sum-11111111"
    script = main["command"][2]
    assert "nvidia-smi" in shlex.split(script, comments=False)


def a_pod(phase: str, state: dict[str, object], **status: object) -> Pod:
    containers = [{"name": "job", "state": state}]
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "job"}]}}
    return PODS.decode(
        msgspec.json.encode({**body, "status": {"phase": phase, "containerStatuses": containers, **status}})
    )


def test_the_phase_of_a_pod() -> None:
    empty = GpuJobStatus()
    pending = a_pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    assert pod_status(empty, pending, 1, NOW).reason == "ErrImagePull"
    running = pod_status(empty, a_pod("Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}), 1, NOW)
    assert (running.phase, running.start_time, running.nodes) == ("Running", "2026-01-01T00:00:00Z", "n")
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:10Z"}
    done = pod_status(running, a_pod("Succeeded", {"terminated": {"exitCode": 0, **times}}), 2, NOW)
    assert (done.phase, done.gpu_seconds, done.completion_time) == ("Succeeded", 20, "2026-01-01T00:00:10Z")
    killed = pod_status(
        running, a_pod("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled", **times}}), 2, NOW
    )
    assert (killed.phase, killed.reason, killed.exit_code) == ("Failed", "OOMKilled", 137)
    late = a_pod("Failed", {}, reason="DeadlineExceeded", message="too long")
    assert pod_status(running, late, 2, NOW).reason == "DeadlineExceeded"


# The shell of this machine.


async def test_a_script_gets_its_input_and_no_word_is_on_a_command_line() -> None:
    shell = LocalShell(pwd.getpwuid(os.geteuid()).pw_name)
    script = "read -r line; echo \"$line\"; cat; echo 'last words' >&2; tr '\\0' ' ' < /proc/$$/cmdline; exit 3"
    done = await shell.run(script, b"one\ntwo\n")
    assert (done.code, done.error) == (3, "last words")
    assert done.text.startswith("one\ntwo\n") and "last words" not in done.text
    assert (await shell.run("cat", b"x" * 100, limit=10)).output == b"x" * 10
    with pytest.raises(ShellUnreachable, match="no answer within"):
        await shell.run("sleep 60", timeout=0.2)
    with pytest.raises(ShellUnreachable, match="there is no user"):
        await LocalShell("no-such-user").run("true")


async def test_without_ssh_a_cluster_is_unreachable(tmp_path: Path) -> None:
    async def key() -> SecretValue:
        return SecretValue("KEY")

    login = SshLogin(host="h", user="u", host_keys=("ssh-ed25519 AAAA",), secret_name="s")
    shell = SshShell(login, key, tmp_path, program=(str(tmp_path / "none"),))
    with pytest.raises(ShellUnreachable, match="cannot be started"):
        await shell.run("true")
    assert os.listdir(tmp_path) == []


# Who may.


def test_what_the_writer_of_a_job_must_be_allowed_to() -> None:
    assert [(each.resource, each.name) for each in uses({}, "alice")] == [("slurmclusters", "")]
    named = uses({"slurm": {"clusters": ["a", "b"]}, "files": [{"domainData": {"name": "t"}}]}, "alice")
    assert [(each.verb, each.resource, each.namespace, each.name) for each in named] == [
        ("use", "slurmclusters", "alice", "a"),
        ("use", "slurmclusters", "alice", "b"),
        ("use", "domaindatas", "alice", "t"),
    ]
    assert uses({"image": "x"}, "alice") == []


def test_the_tail_in_the_status_moves_no_cursor() -> None:
    assert plan.tail_of(b"one\n", b"") == "one\n"
    assert plan.tail_of(b"\x1b[2Jone\r\n", b"two") == "Errors:\ntwo\nOutputs:\n[2Jone\n"
    assert plan.tail_of(b"", b"") == ""


def test_a_finished_job_expires() -> None:
    job = GPU_JOBS.decode(
        b'{"spec":{"ttlSecondsAfterFinished":60},"status":{"phase":"Failed","completionTime":"2026-01-31T23:59:30Z"}}'
    )
    assert plan.expires_in(job, NOW) == 30


class LyingShell:
    """A login node that answers more than it was asked."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, script: str, input_data: bytes = b"", *, limit: int = 0, timeout: float = 0.0) -> ShellResult:
        return ShellResult(0, self.text.encode())

    async def close(self) -> None:
        return None


async def test_a_login_node_does_not_decide_what_is_kept_in_memory() -> None:
    asked, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
    long = base64.b64encode(b"x" * (slurm_commands.LIVE_TAIL + 1)).decode()
    text = f"pending 0\ntail {asked} out 9 {long}\ntail {asked} more 1 eA==\ntail {other} out 1 eA==\n"
    session = SlurmSession(LyingShell(text), "jobs", 5.0, SYSTEM_CLOCK)
    await session.snapshot(lambda: [PolledJob(asked, "7")])
    assert list(session.streams) == [asked] and session.changed == {asked}
    assert list(session.streams[asked]) == ["out"]
    assert len(session.streams[asked]["out"].data) == slurm_commands.LIVE_TAIL
