"""One node in this process, until it is told to stop: what `coterie start` does once it knows the configuration."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import uvloop

import coterie.base.lean_imports  # noqa: F401 - before anything that imports msgspec
from coterie.cli.app import App, CliError, UsageError
from coterie.kube.control.manager import RunnableFailed
from coterie.node import config, modes
from coterie.node.api_identity import IdentityError


def run_node(file: str, root: str, app: App) -> int:
    """`root` may be empty. Raises CliError."""
    if not file:
        raise UsageError("say which configuration to run with -c FILE; `coterie init` writes one")
    # gRPC (a store in etcd, containerd) reads it with its import. Its handlers would end a child between fork and exec where
    # another thread is in gRPC just then; programs that run as another user are forked so.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    path, place = app.cwd / Path(file).expanduser(), (app.cwd / Path(root).expanduser()) if root else None
    try:
        uvloop.run(modes.run(config.load(path, root=place), file=path, root=place))
    except (config.ConfigError, IdentityError) as error:
        raise CliError(f"Error: {error}") from error
    except RunnableFailed as error:
        raise CliError(f"Error: the node stopped: {_error_message(error.__cause__ or error)}") from error
    except OSError as error:
        raise CliError(f"Error: the node cannot run: {_error_message(error)}") from error
    return 0


def _error_message(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return f"{error}; its log above says more"
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    if error.errno == errno.EADDRINUSE:
        return f"{what}; stop the other program, or choose another apiServer.port in the configuration"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{what}; choose another --root or port, or run it as a user who may"
    return what
