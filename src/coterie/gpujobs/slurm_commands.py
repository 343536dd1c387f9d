"""The scripts that a login node runs for us, and what they print. Pure.

A script is sent on the standard input of a constant command (`shell.py`), so nothing of a user is ever part of a command line.
Values are quoted besides. Each script prints lines `WORD ...`; file contents follow in base64.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.gpujobs.job_script import job_name
from coterie.gpujobs.slurm_states import (
    QueueEntry,
    SlurmResult,
    parse_exit_file,
    parse_job_id,
    parse_queue,
    parse_sacct,
    parse_scontrol,
)

LIVE_TAIL = 64 * 1024
"""Bytes of each stream that are read while a job runs."""
FINAL_TAIL = 512 * 1024
STREAMS = ("out", "err")
TRY_AGAIN = 75
"""Exit code of a script: Slurm did not answer. Nothing was done."""

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PASSING = re.compile(
    r"unable to contact|timed out|temporarily|try again|connection|communication|SubmitJob|maximum job", re.IGNORECASE
)
"""In what sbatch says: it may accept the job later. A job that it accepted without saying so is found by its name then."""
_NO_SUCH_JOB = re.compile(r"Invalid job id|^JobId=")
_SACCT = "JobIDRaw,State,ExitCode,Start,End,NodeList,AllocTRES,JobName"
_HEAD = """\
export LC_ALL=C SLURM_TIME_FORMAT=%s
me=$(id -un)
again() { printf 'again %s\\n' "$1"; exit 75; }
"""


@dataclass(frozen=True, slots=True)
class PolledJob:
    uid: str
    job_id: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of the streams, as far as they are known."""


@dataclass(frozen=True, slots=True)
class StreamTail:
    size: int
    """Of the whole stream."""
    data: bytes
    """Its end."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What one poll found."""

    pending: int
    """Jobs of all users that wait."""
    entries: tuple[QueueEntry, ...]
    tails: Mapping[str, Mapping[str, StreamTail]] = field(default_factory=dict)
    """By uid and stream; only of streams that have changed."""


@dataclass(frozen=True, slots=True)
class JobDetails:
    """Of a job that is not waiting and not running."""

    result: SlurmResult | None
    """None: nothing here knows how the job ended."""
    artifacts: tuple[int, str] | None = None
    """Size and sha256 of the archive."""
    unknown: bool = False
    """Slurm says that there is no such job."""


class SlurmUnavailable(Exception):
    """The login node answers, Slurm does not. The message is Slurm's."""


def checked_uid(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise ValueError(f"not a uid: {uid!r}")
    return uid


def submit_script(directory: str, uid: str, script: str, options: Sequence[str]) -> str:
    """Its standard input is the archive with the files. Prints `id ID`.

    One submission at a time, and none when there is a job already: by the id that was noted here, by the note of the job itself, by
    its name in the queue, by its name in the database.
    """
    encoded = base64.b64encode(script.encode()).decode()
    return f"""\
{_HEAD}set -u
umask 077
mkdir -p {_path(directory, uid)} && cd {_path(directory, uid)} || exit 73
exec 9> submit.lock
! command -v flock >/dev/null || flock -w 30 9 || again 'another submission is on its way'
name={shlex.quote(job_name(checked_uid(uid)))}
id=
[ ! -s slurm-id ] || id=$(cat slurm-id)
[ -n "$id" ] || [ ! -s ran/id ] || id=$(cat ran/id)
if [ -z "$id" ]; then
  id=$(squeue -u "$me" -h -t all -n "$name" -o %i 2>error) || again "$(tail -n 1 error)"
  id=$(printf '%s\\n' "$id" | head -n 1)
fi
[ -n "$id" ] || id=$(sacct -X -n -P -u "$me" --name="$name" -S now-30days -o JobIDRaw 2>/dev/null | head -n 1)
if [ -z "$id" ]; then
  rm -rf work ran exit && mkdir work && tar -xzf - -C work || exit 73
  printf %s {shlex.quote(encoded)} | base64 -d > job.sh || exit 73
  id=$(sbatch {" ".join(map(shlex.quote, options))} --chdir="$PWD" job.sh 2>error) || {{
    printf 'refused %s\\n' "$(tail -n 1 error)"
    exit 74
  }}
fi
printf '%s\\n' "$id" > slurm-id.tmp && mv slurm-id.tmp slurm-id
printf 'id %s\\n' "$id"
"""


def parse_submit(text: str) -> str:
    """The id; raises SlurmUnavailable, or SubmitRefused."""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "id" and (job_id := parse_job_id(rest)):
            return job_id
        if word == "refused":
            raise (SlurmUnavailable if _PASSING.search(rest) else SubmitRefused)(_sentence(rest))
        if word == "again":
            raise SlurmUnavailable(_sentence(rest))
    raise SlurmUnavailable("sbatch printed no job id")


class SubmitRefused(Exception):
    """sbatch said no: the options are wrong, or a limit is reached."""


def poll_script(directory: str, jobs: Sequence[PolledJob]) -> str:
    lines = [
        _HEAD,
        f"mkdir -p {_path(directory)} && cd {_path(directory)} || exit 73",
        "stream() {",
        '  [ -f "$1/$2" ] || return 0',
        '  size=$(wc -c < "$1/$2")',
        '  [ "$size" -ne "$4" ] || return 0',
        '  printf \'tail %s %s %s \' "$1" "$3" "$size"',
        f"  tail -c {LIVE_TAIL} \"$1/$2\" | base64 | tr -d '\\n'; echo",
        "}",
        'queue=$(squeue -u "$me" -h -t all -o \'%i|%j|%T|%r|%N|%S\' 2>&1) || again "$(printf \'%s\\n\' "$queue" | tail -n 1)"',
        "printf 'pending %s\\n' \"$(squeue -h -t PD -o %i 2>/dev/null | wc -l)\"",
        "printf '%s\\n' \"$queue\" | sed 's/^/queue /'",
    ]
    for job in jobs:
        for stream in STREAMS:
            known = job.sizes.get(stream, 0)
            lines.append(f"stream {checked_uid(job.uid)} {_id(job.job_id)}.{stream} {stream} {known}")
    return "\n".join(lines) + "\n"


def parse_poll(text: str) -> QueueSnapshot:
    pending, queue = 0, []
    tails: dict[str, dict[str, StreamTail]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "again":
            raise SlurmUnavailable(_sentence(rest))
        if word == "pending" and rest.strip().isdecimal():
            pending = int(rest)
        elif word == "queue":
            queue.append(rest)
        elif word == "tail":
            cells = rest.split(" ")
            if len(cells) == 4 and cells[2].isdecimal():
                tails.setdefault(cells[0], {})[cells[1]] = StreamTail(int(cells[2]), _decoded(cells[3]))
    return QueueSnapshot(pending, tuple(parse_queue("\n".join(queue))), tails)


def details_script(directory: str, uid: str, job_id: str) -> str:
    return f"""\
{_HEAD}cd {_path(directory)} || exit 73
scontrol show job -o {_id(job_id)} 2>&1 | sed 's/^/scontrol /'
sacct -X -n -P -j {_id(job_id)} -o {_SACCT} 2>/dev/null | sed 's/^/sacct /'
cd {checked_uid(uid)} 2>/dev/null || exit 0
[ ! -s exit ] || sed 's/^/exit /' exit
[ ! -s artifacts.tar.gz ] || printf 'artifacts %s %s\\n' "$(wc -c < artifacts.tar.gz)" "$(sha256sum artifacts.tar.gz)"
"""


def parse_details(text: str, uid: str, job_id: str) -> JobDetails:
    """Slurm's own word comes first; the exit file is for when it has none. A job of another name is another job: Slurm may give
    an id again after it has lost its state."""
    by_word: dict[str, list[str]] = {"scontrol": [], "sacct": [], "exit": [], "artifacts": []}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in by_word:
            by_word[word].append(rest)
    control = parse_scontrol("\n".join(by_word["scontrol"]), job_name(uid))
    account = parse_sacct("\n".join(by_word["sacct"]), job_id, job_name(uid))
    written = parse_exit_file("\n".join(by_word["exit"]))
    unknown = control is None and any(_NO_SUCH_JOB.search(line) for line in by_word["scontrol"])
    known = next((each for each in (control, account) if each is not None and each.terminal), None)
    if known is None and unknown and written is not None:
        known = written
    if known is None:
        known = control if control is not None else account
    artifacts = None
    for line in by_word["artifacts"]:
        cells = line.split()
        if len(cells) >= 2 and cells[0].isdecimal():
            artifacts = (int(cells[0]), cells[1])
    return JobDetails(known, artifacts, unknown and account is None)


def fetch_script(directory: str, uid: str, name: str, limit: int) -> str:
    """The last bytes of a file of the job, as they are. `name` is one of ours."""
    return f"cd {_path(directory, uid)} && [ -f {shlex.quote(name)} ] && tail -c {limit} {shlex.quote(name)}\n"


def cancel_script(directory: str, uid: str, job_id: str, *, remove: bool) -> str:
    """Prints `left N`: how many of its Slurm jobs have not ended. `remove`: then also its directory goes."""
    by_id = f"scancel {_id(job_id)} 2>/dev/null" if job_id else ":"
    gone = f'[ "$left" -ne 0 ] || rm -rf {_path(directory, uid)}' if remove else ":"
    return f"""\
{_HEAD}name={shlex.quote(job_name(checked_uid(uid)))}
found=$(squeue -u "$me" -h -n "$name" -o %i 2>&1) || again "$(printf '%s\\n' "$found" | tail -n 1)"
if [ -n "$found" ]; then
  scancel -u "$me" -n "$name"
  {by_id}
  found=$(squeue -u "$me" -h -n "$name" -o %i 2>&1) || again "$(printf '%s\\n' "$found" | tail -n 1)"
fi
left=$(printf %s "$found" | grep -c .)
{gone}
printf 'left %s\\n' "$left"
"""


def parse_cancel(text: str) -> int:
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "left" and rest.strip().isdecimal():
            return int(rest)
        if word == "again":
            raise SlurmUnavailable(_sentence(rest))
    raise SlurmUnavailable("scancel gave no answer")


def _path(directory: str, uid: str = "") -> str:
    """A directory that begins with a dash would be taken for an option."""
    whole = f"{directory}/{checked_uid(uid)}" if uid else directory
    return shlex.quote(whole if whole.startswith("/") else f"./{whole}")


def _id(job_id: str) -> str:
    if not job_id.isdecimal():
        raise ValueError(f"not a Slurm job id: {job_id!r}")
    return job_id


def _sentence(text: str) -> str:
    return text.strip()[:300] or "Slurm does not answer"


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
