"""How one domain's gateway is set up: what the configuration file says, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import IngressListeners, KeyPair, PodNetwork, Protocol, SocketAddress

INTERNAL = SocketAddress("127.0.0.1", 80)
EXTERNAL = SocketAddress("0.0.0.0", 1080)


@dataclass(frozen=True, slots=True)
class ExternalTls:
    """The organisation's own certificate for the public port (`domainRoute.externalTLS`)."""

    pair: KeyPair
    authority: Path | None = None


@dataclass(frozen=True, slots=True)
class MasterEndpoint:
    """Where a lite finds its control plane's gateway: `http(s)://host[:port][/prefix]`."""

    host: str
    port: int
    tls: bool
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> MasterEndpoint:
        """ValueError with a sentence when it is no such address."""
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f'must look like https://host:1080, not "{text}"')
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    domain: str
    instance: str
    """Name of the Gateway object: the machine's host name in lower case unless configured."""
    enabled: bool = True
    """False: a control plane without a way to partners, and no Envoy beside it."""
    internal: SocketAddress | None = INTERNAL
    """Where pods call that share the machine's network; None: nobody does. Has no meaning with `pods`."""
    pods: PodNetwork | None = None
    """The network that pods have to themselves."""
    external: SocketAddress | None = EXTERNAL
    """None: the domain has no public port; partners reach it through tunnels that it dials."""
    ingress: IngressListeners | None = None
    """Where Ingresses are served; None: nowhere."""
    cluster_domain: str = "cluster.local"
    protocol: Protocol = Protocol.MTLS
    external_tls: ExternalTls | None = None
    control_plane: bool = True
    """master and autonomy: we are `master` too, lites register here, the API is a service of ours."""
    reporter: SocketAddress | None = None
    """Where engines' progress is heard, on a control plane."""
    kuscia_api: SocketAddress | None = None
    """Where KusciaAPI takes what lites send, on a control plane."""
    functions: bool = True
    """Partners may call functions, on a control plane whose API has them."""
    diagnose: bool = True
    """Partners may measure their links to us (`gateway.diagnose`)."""
    transport: bool = False
    """The domain has a message queue for engines (`transport`)."""
    workers: int = 1
    """Envoy's worker threads."""
    command_prefix: tuple[str, ...] = ()
    """The program that starts Envoy inside the pods' network (`EnvoySettings.command_prefix`)."""
    master: MasterEndpoint | None = None
    other_masters: tuple[MasterEndpoint, ...] = ()
    """Gateways of the control plane's other members: the next one is taken where one does not answer."""
    """lite only."""
    deploy_token: SecretValue | None = field(default=None)
    """lite only: used once, to register."""
    log_level: str = "INFO"
    """The node's; Envoy's follows."""
    log_rotation: Rotation = STANDARD

    @property
    def pod_listener(self) -> SocketAddress | None:
        """Where pods reach the gateway."""
        return self.pods.gateway if self.pods is not None else self.internal
