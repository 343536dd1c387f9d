"""`coterie start` as on a machine that allows no pod networks: pods share the machine's network, the gateway listens there.

    python -m benchmarks.unfenced_node start -c FILE --root DIR

For comparison with nodes whose pods have networks.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

from coterie.cli.main import main
from coterie.kube.agent.runtimes.runp import network_access


def _forbidden(*_: object, **__: object) -> NoReturn:
    raise network_access.NotFenced("unshare", errno.EPERM)


if __name__ == "__main__":
    network_access.ensure = _forbidden
    sys.exit(main(sys.argv[1:]))
