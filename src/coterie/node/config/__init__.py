"""The node's configuration: YAML in, frozen settings out. Kuscia's kuscia.yaml is read as it is.

    keys.py       every key there is: which are used, which are accepted without effect, which are refused
    kubernetes.py what is otherwise on somebody's Kubernetes
    reading.py    one mapping of the document, with the path for messages
    document.py   the whole: load, parse              gateway.py   its public and private doors, names
    settings.py   what comes out                      ports.py     which ports this process may open

A key that is not known is refused with its path, so that a typing error never becomes a silent default. Secrets are
`Secret` values: printing the settings shows stars. Reading has no effects; what is to be told about a configuration is
in `NodeSettings.notices` until somebody who runs it says it.
"""

from coterie.node.config.document import LOG_LEVELS, MODES, load, parse, read
from coterie.node.config.keys import changed_keys
from coterie.node.config.reading import ConfigError
from coterie.node.config.settings import (
    IN_CLUSTER,
    AgentConfig,
    ApiSettings,
    ControllerSettings,
    DnsConfig,
    InlineFile,
    LogRotation,
    NetworkConfig,
    NodeSettings,
    Notice,
    RunkConfig,
)

__all__ = [
    "IN_CLUSTER",
    "LOG_LEVELS",
    "MODES",
    "AgentConfig",
    "ApiSettings",
    "ConfigError",
    "ControllerSettings",
    "DnsConfig",
    "InlineFile",
    "LogRotation",
    "NetworkConfig",
    "NodeSettings",
    "Notice",
    "RunkConfig",
    "changed_keys",
    "load",
    "parse",
    "read",
]
