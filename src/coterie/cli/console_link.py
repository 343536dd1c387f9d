"""Links into the consoles of control planes on this machine: the account, its token, the one-time code.

The code of a link is as good as the person's rights for a minute. A printed link is seen by nobody else. One that a
browser is started with is seen by every user of the machine in the list of processes, so that code is another one, which
only connections of our own user can use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coterie.base.paths import DomainPaths
from coterie.cli import network, node_health
from coterie.cli.app import App, CliError
from coterie.cli.error_messages import cli_errors
from coterie.console.settings import ConsoleLocation
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.node.config import NodeSettings

ROLES = {"admin": "cluster-admin", "view": "coterie-console-view"}
_NAMESPACE = "coterie-console"
_SECONDS = 8 * 3600
_TIMEOUT = 20.0
_READ = ("get", "list", "watch")
_ACCOUNTS = Kind.dynamic(builtin("serviceaccounts"))
_NAMESPACES = Kind.dynamic(builtin("namespaces"))
_ROLE_KIND = Kind.dynamic(builtin("clusterroles", "rbac.authorization.k8s.io"))
_BINDINGS = Kind.dynamic(builtin("clusterrolebindings", "rbac.authorization.k8s.io"))


def control_socket(paths: DomainPaths) -> Path:
    """By which the console of a control plane makes links. Raises CliError."""
    found = ConsoleLocation.read(paths)
    if found is None or not found.control_socket.exists():
        raise CliError(
            "Error: the console of this control plane is not on this machine, or is switched off; "
            "run `coterie console` on the machine of the master or autonomy node (console.enabled, console.port)"
        )
    return found.control_socket


async def show_link(app: App, client: Client, socket: Path, account: tuple[str, str], *, browser: bool) -> str:
    """A new link for a service account (namespace, name). `browser`: and open the console where there is a desktop."""
    token = await _token(client, *account)
    name = "/".join(account)
    url = await _link(socket, {"account": name, "token": token})
    if browser and has_desktop(app):
        webbrowser.open(await _link(socket, {"account": name, "token": token, "uid": os.getuid()}))
    return url


def links_of_all(app: App, nodes: Sequence[NodeSettings], *, browser: bool = True) -> dict[str, str]:
    """By domain, a link with all rights to the console of each control plane. `browser`: the first one is opened where
    there is a desktop. What cannot be had is said, and is no reason to fail: the network is there."""
    return asyncio.run(_links_of_all(app, [node for node in nodes if node.mode != "lite"], browser))


async def _links_of_all(app: App, planes: Sequence[NodeSettings], browser: bool) -> dict[str, str]:
    links: dict[str, str] = {}
    for plane in planes:
        try:
            with cli_errors(network.api_address(plane)):
                async with node_health.client_of(plane) as client:
                    account = await role_account(client, "admin")
                    socket = control_socket(plane.paths)
                    links[plane.domain] = await show_link(app, client, socket, account, browser=browser and not links)
        except CliError as problem:
            app.warn(f"{plane.domain}: {str(problem).removeprefix('Error: ')}")
    return links


def print_links(app: App, links: Mapping[str, str], root: str = "") -> None:
    """`root`: of the network, where the command for another link has to name it."""
    name = next(iter(links)) if len(links) == 1 else "NAME"
    where = f" --root {shlex.quote(root)}" if root else ""
    app.say("Console: each link logs in once, within a minute; for another,")
    app.say(f"`coterie console --domain {name}{where}`")
    width = max(map(len, links))
    for domain, url in links.items():
        app.say(f"  {domain:<{width}}   {url}")


def has_desktop(app: App) -> bool:
    return bool(app.environ.get("DISPLAY") or app.environ.get("WAYLAND_DISPLAY"))


async def role_account(client: Client, role: str) -> tuple[str, str]:
    """A service account (namespace, name) for the role, made when it is missing."""
    name = f"console-{role}"
    await ensure_view_role(client)
    for kind, obj, namespace in (
        (_NAMESPACES, {"metadata": {"name": _NAMESPACE}}, ""),
        (_ACCOUNTS, {"metadata": {"name": name, "namespace": _NAMESPACE}}, _NAMESPACE),
        (_BINDINGS, _binding(name, ROLES[role]), ""),
    ):
        await _ensure(client, kind, obj, namespace)
    return _NAMESPACE, name


async def ensure_view_role(client: Client) -> None:
    """Bindings of other accounts may name it."""
    await _ensure(client, _ROLE_KIND, _view_role())


async def _ensure(client: Client, kind: Kind[Object], obj: Object, namespace: str = "") -> None:
    """Only what is missing is written: each attempt is an event of the evidence log."""
    try:
        await client.get(kind, obj["metadata"]["name"], namespace)
    except NotFound:
        with contextlib.suppress(AlreadyExists):
            await client.create(kind, obj, namespace)


def _view_role() -> Object:
    """All that the pages show; not Secrets, and nothing that changes anything."""
    rules = [
        {
            "apiGroups": [""],
            "resources": [
                "pods", "pods/log", "nodes", "events", "namespaces", "services", "configmaps", "persistentvolumeclaims",
            ],
            "verbs": list(_READ),
        },
        {"apiGroups": ["apps", "batch", "autoscaling", "metrics.k8s.io"], "resources": ["*"], "verbs": list(_READ)},
        {"apiGroups": ["kuscia.secretflow", "coterie.io"], "resources": ["*"], "verbs": list(_READ)},
    ]  # fmt: skip
    return {"metadata": {"name": ROLES["view"]}, "rules": rules}


def _binding(account: str, role: str) -> Object:
    return {
        "metadata": {"name": f"coterie-{account}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": _NAMESPACE}],
    }


async def _token(client: Client, namespace: str, name: str) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _SECONDS},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    try:
        answer = await client.raw("POST", path, body=msgspec.json.encode(body), headers=headers)
    except NotFound as problem:
        raise CliError(
            f"Error: there is no service account {namespace}/{name}; make it with "
            f"`coterie kubectl create serviceaccount {name} -n {namespace}` and give it roles"
        ) from problem
    token: str = msgspec.json.decode(answer.body)["status"]["token"]
    return token


async def _link(control: Path, asked: Mapping[str, object]) -> str:
    pool = Pool(control)
    try:
        async with asyncio.timeout(_TIMEOUT):
            response = await pool.request("POST", "/codes", {"Host": "console"}, msgspec.json.encode(asked))
            text = await response.read()
    except (HttpFailure, TimeoutError) as problem:
        raise CliError(f"Error: the console does not answer ({problem}); the log of the node says why") from problem
    finally:
        await pool.close()
    if response.status != 200:
        raise CliError(f"Error: the console refused to make a link: {text.decode(errors='replace')}")
    url: str = msgspec.json.decode(text)["url"]
    return url
