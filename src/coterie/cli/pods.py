"""Which pod and which of its containers a command means."""

from __future__ import annotations

from coterie.cli.app import App, CliError, UsageError
from coterie.cli.resource_arguments import kind_name
from coterie.cli.session import CliSession
from coterie.kube.api import selectors
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin

PODS = Kind.dynamic(builtin("pods"))
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


async def find(session: CliSession, word: str) -> Object:
    """`web-0`, `pod/web-0`, or the best pod of something that selects pods: `deploy/web`, `job/sum`, `svc/web`."""
    kind, slash, name = word.partition("/")
    if not slash:
        return await session.client.get(PODS, word, session.namespace)
    if not kind or not name or "/" in name:
        raise UsageError(f'"{word}" is neither a pod\'s name nor TYPE/NAME')
    resource = (await session.catalogue()).find(kind)
    if (resource.plural, resource.group) == ("pods", ""):
        return await session.client.get(PODS, name, session.namespace)
    owner = await session.client.get(Kind.dynamic(resource), name, session.place(resource))
    selector = selector_text(owner)
    if not selector:
        raise CliError(f"Error: {kind_name(resource)}/{name} does not select pods; name a pod instead")
    pods = (await session.client.list(PODS, session.namespace, labels=selector)).items
    if not pods:
        raise CliError(f"Error: {kind_name(resource)}/{name} has no pods yet; see `coterie describe {kind}/{name}`")
    chosen = min(pods, key=_rank)
    if len(pods) > 1:
        session.app.warn(f"Found {len(pods)} pods, using pod/{chosen['metadata']['name']}")
    return chosen


def selector_text(owner: Object) -> str:
    """The pods that a workload or a service selects, as a query says it; empty when it selects none."""
    selector = (owner.get("spec") or {}).get("selector")
    if not isinstance(selector, dict) or not selector:
        return ""
    if "matchLabels" in selector or "matchExpressions" in selector:
        return str(selectors.selector_of(selector))
    return str(selectors.selector_of_map(selector))


def _rank(pod: Object) -> tuple[bool, bool, str]:
    """Best first: running, not being deleted, the oldest."""
    meta = pod["metadata"]
    phase = (pod.get("status") or {}).get("phase")
    return phase != "Running", "deletionTimestamp" in meta, str(meta.get("creationTimestamp"))


def container_of(pod: Object, asked: str, app: App) -> str:
    """The container a command is about: the one asked for, the pod's own default, or the first, which is then said."""
    spec = pod["spec"]
    main = [each["name"] for each in spec.get("containers") or ()]
    others = [each["name"] for group in ("initContainers", "ephemeralContainers") for each in spec.get(group) or ()]
    name = pod["metadata"]["name"]
    if asked:
        if asked not in (*main, *others):
            listed = ", ".join((*main, *others))
            raise CliError(f'Error: pod {name} has no container "{asked}"; choose with -c one of: {listed}')
        return asked
    default = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    if default in main:
        return str(default)
    if len(main) + len(others) > 1:
        app.warn(f'Defaulted container "{main[0]}" out of: {", ".join((*main, *others))}')
    return str(main[0])
