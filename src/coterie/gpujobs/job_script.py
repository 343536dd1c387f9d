"""The script that runs a job, at Slurm or in a pod. Pure.

It runs in the job's directory, which holds:

    work/             the files; the program's working directory
    ran/id            at Slurm: id of the Slurm job that runs it; a second one with the same directory ends at once
    stage             compile or run
    artifacts.tar.gz  what was asked for
    exit              written last, whole or not at all: code, stage, started, ended

Everything of the user is data: each word is quoted for the shell, and no pattern is expanded by it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.gpujobs.files import FileTree, InvalidFiles, checked_path
from coterie.gpujobs.types import GpuJobSpec
from coterie.kube.api import quantity

MEBI = 1024 * 1024
_OURS = frozenset(
    ("job-name", "J", "output", "o", "error", "e", "chdir", "D", "input", "i", "parsable", "requeue", "no-requeue")
)
"""Options of a batch script that are set here in any case."""
_REFUSED = frozenset(
    ("array", "a", "wrap", "uid", "gid", "clusters", "M", "cluster", "wait", "W", "test-only", "export-file")
)
_LONG_REFUSED = frozenset(name for name in _REFUSED if len(name) > 1)
_WHOLE = frozenset(("export",))
"""Options whose names are beginnings of refused ones."""
_SHORT_FLAGS = "HIOQhkv"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"^--?([A-Za-z][A-Za-z-]*)")
_GPUS = re.compile(
    r"--(?:gres[= ]gpu(?::[A-Za-z][A-Za-z0-9_.-]*)?(?::(\d+))?|gpus[= ](?:[A-Za-z][A-Za-z0-9_.-]*:)?(\d+))"
)


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A user's own: what it asks of Slurm, and how it is started."""

    path: str
    directives: tuple[str, ...]
    has_interpreter: bool

    @property
    def gpus(self) -> int:
        found = [int(m[1] or m[2] or 1) for line in self.directives for m in _GPUS.finditer(line)]
        return max(found, default=0)


def find_script(spec: GpuJobSpec, files: FileTree) -> BatchScript | None:
    """The script that the job names, or the only *.slurm file when it names nothing to run; raises InvalidFiles."""
    path = spec.script
    if not path:
        if spec.command or spec.compile:
            return None
        found = sorted(path for path in files if path.endswith(".slurm"))
        if len(found) != 1:
            raise InvalidFiles(
                f"the job names no command and no script, and there are {len(found)} files *.slurm instead of one"
            )
        path = found[0]
    path = checked_path(path)
    if path not in files:
        raise InvalidFiles(f"there is no file {path!r} among the job's files")
    try:
        text = files[path].data.decode()
    except UnicodeDecodeError as error:
        raise InvalidFiles(f"{path!r} is not text") from error
    return BatchScript(path, directives(text), text.startswith("#!"))


def directives(text: str) -> tuple[str, ...]:
    """The #SBATCH lines of a batch script that hold here. As at Slurm, they end at the first command."""
    kept = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        option = line.removeprefix("#SBATCH").strip()
        for each in _options(option):
            if _is_refused(each):
                raise InvalidFiles(f"the batch script asks for {each.split('=')[0]}, which a GpuJob cannot have")
        name = _OPTION.match(option)
        word = "" if name is None else (name[1] if option.startswith("--") else name[1][0])
        if word and word not in _OURS:
            kept.append(f"#SBATCH {option}")
    return tuple(kept)


def _options(line: str) -> list[str]:
    """A line may have several."""
    try:
        return [word for word in shlex.split(line, comments=True) if word.startswith("-")]
    except ValueError as error:
        raise InvalidFiles(f"the batch script has an #SBATCH line that cannot be read: {error}") from error


def _is_refused(option: str) -> bool:
    """As sbatch reads them: long options may be abbreviated, and short ones without a value stand in one word with others."""
    if option.startswith("--"):
        name = option[2:].partition("=")[0]
        return name in _REFUSED or (
            bool(name) and name not in _WHOLE and any(r.startswith(name) for r in _LONG_REFUSED)
        )
    return option[1:].lstrip(_SHORT_FLAGS)[:1] in _REFUSED


def sbatch_options(spec: GpuJobSpec, uid: str, script: BatchScript | None) -> list[str]:
    """What the command line says holds over the #SBATCH lines of a script, so nothing is said there by default."""
    slurm = spec.slurm
    out = ["--parsable", f"--job-name={job_name(uid)}", "--output=%j.out", "--error=%j.err"]
    out.append("--requeue" if slurm.requeue else "--no-requeue")
    if slurm.gres:
        out.append(f"--gres={slurm.gres}")
    elif script is None and spec.gpus:
        out.append(f"--gres=gpu:{spec.gpus}")
    if spec.cpus:
        out.append(f"--cpus-per-task={spec.cpus}")
    if spec.memory is not None:
        out.append(f"--mem={max(1, math.ceil(quantity.parse(spec.memory).value() / MEBI))}M")
    if spec.time_limit_seconds:
        out.append(f"--time={spec.time_limit_seconds // 60}:{spec.time_limit_seconds % 60:02d}")
    for name in ("partition", "account", "qos", "constraint"):
        if value := getattr(slurm, name):
            out.append(f"--{name}={value}")
    return out


def job_name(uid: str) -> str:
    return f"coterie-{uid}"


def slurm_script(spec: GpuJobSpec, script: BatchScript | None) -> str:
    lines = ["#!/bin/sh", *(script.directives if script else ()), *_GUARD, *_modules(spec)]
    return "\n".join([*lines, *_body(spec, script)]) + "\n"


def pod_script(spec: GpuJobSpec, directory: str, parts: str) -> str:
    """`parts`: a directory with the pieces of the archive, in the order of their names."""
    unpack = [
        f"cd {shlex.quote(directory)} || exit 125",
        f"mkdir -p work && cat {shlex.quote(parts)}/* | tar -xzf - -C work || exit 125",
    ]
    return "\n".join(["umask 077", *unpack, *_body(spec, None)]) + "\n"


def result_script(directory: str) -> str:
    """In a second container of the pod: prints the artifacts, in base64, after the job has ended."""
    lines = [
        f"cd {shlex.quote(directory)} || exit 125",
        "while [ ! -s exit ]; do sleep 1; done",
        "[ ! -s artifacts.tar.gz ] || base64 artifacts.tar.gz",
    ]
    return "\n".join(lines) + "\n"


_GUARD = (
    "umask 077",
    'if ! mkdir ran 2>/dev/null && [ "$(cat ran/id 2>/dev/null)" != "$SLURM_JOB_ID" ]; then',
    "  echo 'coterie: another Slurm job runs this GpuJob; nothing is done here' >&2",
    "  exit 0",
    "fi",
    'printf "%s\\n" "$SLURM_JOB_ID" > ran/id',
)


def _modules(spec: GpuJobSpec) -> list[str]:
    """In batch scripts `module` is there only after the profile of the machine was read."""
    if not spec.slurm.modules:
        return []
    names = " ".join(map(shlex.quote, spec.slurm.modules))
    return ["[ ! -r /etc/profile ] || . /etc/profile", f"module load {names} || exit 125"]


def _body(spec: GpuJobSpec, script: BatchScript | None) -> list[str]:
    lines = ["rm -rf exit exit.tmp artifacts.tar.gz artifacts.list", "started=$(date +%s)", "echo compile > stage", "("]
    lines.append("  cd work || exit 125")
    for each in spec.env or ():
        if not _VARIABLE.fullmatch(each.name) or "\0" in each.value:
            raise InvalidFiles(f"{each.name!r} cannot be an environment variable")
        lines.append(f"  export {each.name}={shlex.quote(each.value)}")
    if spec.compile is not None:
        lines.append(f"  {_quoted(_compilation(spec))} || exit")
    if script is not None and script.has_interpreter:
        lines.append(f"  chmod u+x {shlex.quote('./' + script.path)} || exit 125")
    lines += ["  echo run > ../stage", f"  exec {_quoted(_command(spec, script))}", ")", "code=$?"]
    if spec.artifacts:
        lines += _collect(spec.artifacts)
    lines += [
        'printf "code %s\\nstage %s\\nstarted %s\\nended %s\\n" "$code" "$(cat stage)" "$started" "$(date +%s)" > exit.tmp',
        "mv exit.tmp exit",
        'exit "$code"',
    ]
    return lines


def _collect(patterns: Sequence[str]) -> list[str]:
    """`find` matches patterns itself. Names are passed on in lines, so names that a list cannot hold are left out."""
    tests = " -o ".join(f"-path {shlex.quote('./' + checked_path(each))}" for each in patterns)
    newline = "'*\n*'"
    return [
        f"(cd work && find . -type f '(' {tests} ')' ! -name {newline} ! -path '*\\\\*' -print) | sort > artifacts.list",
        "if [ -s artifacts.list ]; then",
        "  tar -czf artifacts.tmp -C work -T artifacts.list && mv artifacts.tmp artifacts.tar.gz",
        "fi",
    ]


def _compilation(spec: GpuJobSpec) -> list[str]:
    assert spec.compile is not None
    made = spec.compile
    sources = [f"./{checked_path(each)}" for each in made.sources]
    return [made.compiler, *(made.args or ()), "-o", f"./{checked_path(made.output)}", *sources]


def _command(spec: GpuJobSpec, script: BatchScript | None) -> list[str]:
    args = list(spec.args or ())
    if script is not None:
        start = [] if script.has_interpreter else ["sh"]
        return [*start, f"./{script.path}", *args]
    if spec.command:
        return [*spec.command, *args]
    if spec.compile is None:
        raise InvalidFiles("the job names nothing to run: a command, a script or something to compile")
    return [f"./{checked_path(spec.compile.output)}", *args]


def _quoted(words: Sequence[str]) -> str:
    for word in words:
        if "\0" in word:
            raise InvalidFiles("an argument has a NUL character")
    return " ".join(map(shlex.quote, words))
