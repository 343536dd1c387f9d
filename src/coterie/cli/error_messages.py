"""Errors as sentences for people: what is wrong, in the server's words where it spoke, and what to do next."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from coterie.cli.app import CliError
from coterie.kube.api import errors
from coterie.kube.client.discovery import UnknownResource
from coterie.kube.client.kubeconfig import KubeconfigError
from coterie.kube.client.transport import CredentialsError, NotSent, ResponseTimeout, TransportError
from coterie.kuscia.control.job_snapshots import ObjectShapeError

_FORCE = "apply with --force-conflicts to take these fields over, or leave them out of the file"


@contextlib.contextmanager
def cli_errors(server: str = "") -> Iterator[None]:
    """Whatever goes wrong with a server inside is raised as the `CliError` that tells it."""
    try:
        yield
    except errors.ApiError as error:
        raise CliError(refusal(error)) from error
    except TransportError as error:
        raise CliError(unreachable(error, server)) from error
    except UnknownResource as error:
        raise CliError(f"Error: {error}; `coterie api-resources` lists those it has") from error
    except ObjectShapeError as error:
        raise CliError(f"Error: {error}") from error
    except KubeconfigError as error:
        raise CliError(f"Error: {error}; choose a kubeconfig with --kubeconfig or a domain with --domain") from error


def refusal(error: errors.ApiError) -> str:
    """`Error from server (NotFound): pods "x" not found`, with one line for each field when there are several."""
    head = f"Error from server ({error.reason}): "
    if isinstance(error, errors.ApplyConflict):
        return f"{head}others manage what the file sets; {_FORCE}" + _listed(error)
    if isinstance(error, errors.Invalid) and error.causes:
        kind = f"{error.kind}.{error.group}" if error.group else error.kind
        return f'{head}{kind} "{error.name}" is invalid, correct these fields and try again' + _listed(error)
    if isinstance(error, errors.Unauthorized):
        return f"{head}the credentials of this kubeconfig are not accepted (any more); take a newer one"
    return head + error.message


def _listed(error: errors.ApiError) -> str:
    lines = (f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in error.causes)
    return ":\n  " + "\n  ".join(dict.fromkeys(lines))


def unreachable(error: TransportError, server: str = "") -> str:
    where = f" at {server}" if server else ""
    if isinstance(error, CredentialsError):
        return f"Error: {error}; repair the kubeconfig's user or choose another context with --context"
    if isinstance(error, NotSent):
        if isinstance(error.__cause__, BaseException) and _about_certificates(error.__cause__):
            return (
                f"Error: the server{where} shows a certificate that this kubeconfig does not trust; "
                "take its newest kubeconfig"
            )
        return (
            f"Error: no control plane answers{where}; start it with `coterie start -c FILE`, "
            "or choose another with --kubeconfig or --domain"
        )
    if isinstance(error, ResponseTimeout):
        return f"Error: the server{where} did not answer in time; see `coterie status` and its logs, then try again"
    return f"Error: the connection to the server{where} broke ({error}); try again"


def _about_certificates(cause: BaseException | None) -> bool:
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        inner = getattr(cause, "certificate_error", None) or getattr(cause, "os_error", None)
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return False
