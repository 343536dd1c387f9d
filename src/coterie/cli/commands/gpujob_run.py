"""`coterie gpujob run`: create a GpuJob, upload its files, follow it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from coterie.cli import arguments as options
from coterie.cli import gpu_jobs
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text, without_managed_fields
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.gpujobs import storage
from coterie.gpujobs.files import InvalidFiles, digest, read_archive, split, write_archive
from coterie.gpujobs.types import GPU_JOBS, SUCCEEDED
from coterie.kube.api.meta import Object

HELP = """
Create a GpuJob, upload its files and follow it until it ends. The exit status is 0 if it succeeded. With --image it runs as
a pod, otherwise on a Slurm cluster: one of --cluster, or of all in the namespace, the one with the fewest pending jobs.

The command stands after `--` and is executed without a shell, in the directory with the files. Without a command, what
--compile makes is executed, or the only *.slurm file (a batch script whose #SBATCH lines hold). -f reads a GpuJob from a
file; options are added to it.

Examples:
  coterie gpujob run add --files add.cu --compile add.cu
  coterie gpujob run add --files add.cu --compile add.cu --image cuda:12
  coterie gpujob run train --files src --gpus 2 --time 30m --artifact 'model/*' -- python3 train.py --epochs 3
  coterie gpujob run -f job.yaml --archive job.tar.gz        # a batch script and its sources
  coterie gpujob run fit --cluster hpc --partition gpu --module cuda/12.4 --files src -- ./fit.sh
  coterie gpujob run table --domain-data visitors -- wc -l visitors.csv
  coterie gpujob run add --files add.cu --compile add.cu --detach -o json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the job")
    parser.add_argument("-f", "--filename", metavar="FILE", default="", help="a GpuJob as YAML or JSON")
    files = parser.add_argument_group("files")
    files.add_argument(
        "--files", metavar="PATH", action="append", default=[], help="file or directory; may be repeated"
    )
    files.add_argument("-j", "--archive", metavar="TAR", default="", help="a tar or tar.gz instead of --files")
    files.add_argument("--config-map", metavar="NAME", action="append", default=[], help="a ConfigMap as files")
    files.add_argument("--domain-data", metavar="NAME", action="append", default=[], help="file of a DomainData")
    files.add_argument("--artifact", metavar="PATTERN", action="append", default=[], help="files to bring back")
    what = parser.add_argument_group("program")
    what.add_argument("--compile", metavar="SOURCE", action="append", default=[], help="compile this first, with nvcc")
    what.add_argument("--compiler", metavar="PROGRAM", default="", help="compiler (default: nvcc)")
    what.add_argument("--script", metavar="FILE", default="", help="batch script among the files (Slurm)")
    what.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="environment variable")
    what.add_argument("--gpus", metavar="N", type=int, default=None, help="number of GPUs (default: 1)")
    what.add_argument("--cpus", metavar="N", type=int, default=None, help="number of CPUs")
    what.add_argument("--memory", metavar="QUANTITY", default="", help="memory, e.g. 8Gi")
    what.add_argument("--time", metavar="TIME", type=options.seconds, default=None, help="time limit, e.g. 30m")
    where = parser.add_argument_group("where")
    where.add_argument("--image", metavar="IMAGE", default="", help="run as a pod with this image")
    where.add_argument("--cluster", metavar="NAME", action="append", default=[], help="SlurmCluster; may be repeated")
    where.add_argument("--partition", metavar="NAME", default="", help="partition of Slurm")
    where.add_argument("--account", metavar="NAME", default="", help="account of Slurm")
    where.add_argument("--module", metavar="NAME", action="append", default=[], help="module to load (Slurm)")
    parser.add_argument("-d", "--detach", action="store_true", help="do not wait for the end")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.namespace_option(parser)
    options.command_argument(parser)
    options.connection_options(parser)
    parser.complete(config_map="config-maps", domain_data="tables", cluster="slurm-clusters")


def run(args: argparse.Namespace, app: App) -> int:
    body = _body(args, app)
    try:
        files = _upload(args, app)
    except InvalidFiles as error:
        raise CliError(f"Error: {error}") from error
    if files:
        source = {"upload": {"parts": len(split(files)), "sha256": digest(files)}}
        body["spec"]["files"] = [source, *(body["spec"].get("files") or ())]
    if not body["metadata"].get("name"):
        raise UsageError("name the job: `coterie gpujob run NAME ...`")
    return sessions.run(args, app, lambda session: _run(session, args, body, files))


def _upload(args: argparse.Namespace, app: App) -> bytes:
    """The archive, packed again by us, so that a fault in it is found here."""
    if args.archive and args.files:
        raise UsageError("use one of --files and --archive, not both")
    if args.archive:
        path = app.cwd / Path(args.archive).expanduser()
        try:
            return write_archive(read_archive(path.read_bytes(), strip_top=True))
        except OSError as error:
            raise CliError(f"Error: {args.archive} cannot be read: {error.strerror}") from error
    found = gpu_jobs.local_files(args.files, app)
    return write_archive(found) if found else b""


def _body(args: argparse.Namespace, app: App) -> Object:
    """The object of -f with what the options say."""
    found = _manifest(args.filename, app) if args.filename else {}
    meta, spec = dict(found.get("metadata") or {}), dict(found.get("spec") or {})
    if args.name:
        meta["name"] = args.name
    meta.pop("uid", None)
    if args.namespace:
        meta["namespace"] = args.namespace
    spec |= _given(
        image=args.image,
        script=args.script,
        command=args.command,
        cpus=args.cpus,
        memory=args.memory,
        timeLimitSeconds=int(args.time) if args.time else None,
        artifacts=args.artifact,
        env=[dict(zip(("name", "value"), _pair(each), strict=True)) for each in args.env],
    )
    if args.gpus is not None:
        spec["gpus"] = args.gpus
    if args.compile:
        output = Path(args.compile[0]).stem
        spec["compile"] = {"sources": args.compile, "output": output, **_given(compiler=args.compiler)}
    sources = [{"configMap": {"name": name}} for name in args.config_map]
    sources += [{"domainData": {"name": name}} for name in args.domain_data]
    if sources:
        spec["files"] = [*(spec.get("files") or ()), *sources]
    slurm = _given(clusters=args.cluster, partition=args.partition, account=args.account, modules=args.module)
    if slurm:
        spec["slurm"] = {**(spec.get("slurm") or {}), **slurm}
    resource = GPU_JOBS.resource
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": spec}


def _given(**values: Any) -> Object:
    return {name: value for name, value in values.items() if value}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text}: write NAME=VALUE")
    return name, value


def _manifest(name: str, app: App) -> Object:
    """One GpuJob. Its apiVersion may be missing or v1: there is only one kind of this name."""
    try:
        text = app.stdin.read() if name == "-" else (app.cwd / Path(name).expanduser()).read_text("utf-8")
        found = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"Error: {name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise CliError(f"Error: {name} is not valid YAML") from error
    if not isinstance(found, dict) or found.get("kind") != GPU_JOBS.resource.kind:
        raise CliError(f"Error: {name} is not a GpuJob; other objects are created with `coterie apply -f {name}`")
    return found


async def _run(session: CliSession, args: argparse.Namespace, body: Object, files: bytes) -> int:
    """The object first: the uploaded parts belong to it, and it waits for them."""
    meta = body["metadata"]
    session.namespace = meta.setdefault("namespace", session.namespace)
    made = await session.client.create(GPU_JOBS.as_dynamic, body)
    job = await gpu_jobs.find(session, meta["name"])
    if files:
        with working(
            session.app, f"gpujob {job.metadata.name}", "sending its files", done="sent", quiet=args.output != "table"
        ):
            await storage.store(session.client, job, "in", files)
    name = job.metadata.name
    if args.detach:
        if args.output == "name":
            session.app.say(f"gpujob.coterie.io/{name}")
        elif args.output != "table":
            session.app.write(as_text(without_managed_fields(made), args.output))
        else:
            session.app.say(f"gpujob {name} created; `coterie gpujob logs {name} -f` follows it")
        return 0
    done = await gpu_jobs.follow(session, name, phases=args.output == "table")
    if args.output in ("json", "yaml"):
        found = await session.client.get(GPU_JOBS.as_dynamic, name, session.namespace)
        session.app.write(as_text(without_managed_fields(found), args.output))
    else:
        session.app.warn(gpu_jobs.summary_line(done))
    return gpu_jobs.SUCCESS if done.status.phase == SUCCEEDED else gpu_jobs.FAILURE
