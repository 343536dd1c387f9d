"""HTTP: servers, clients, WebSockets, SPDY."""

import sys

if sys.version_info < (3, 11, 7):
    # Debian 12 has such a Python.
    from coterie.http import tls_abort

    tls_abort.repair()
