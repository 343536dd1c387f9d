"""Names of accepted client authorities in the TLS handshake.

A server that asks for client certificates may tell which authorities it accepts (the list in CertificateRequest); clients with
several certificates choose by it. Python's `ssl` has no call for that list, OpenSSL has: it is made here with the library that
`_ssl` itself has loaded. Where that is not possible (another Python implementation, `_ssl` linked into the interpreter without
symbols) the list stays empty, which every client accepts, and verification is the same.
"""

from __future__ import annotations

import _ssl
import ctypes
import os
import ssl
import sys
from pathlib import Path


def announce(context: ssl.SSLContext, authorities: Path) -> bool:
    """Let the server name the authorities of this PEM file; False: not possible here."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 15) or hasattr(sys, "gettotalrefcount"):
        return False  # the place of the pointer below is not known
    try:
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        load, assign = library.SSL_load_client_CA_file, library.SSL_CTX_set_client_CA_list
    except (OSError, AttributeError):
        return False
    load.argtypes, load.restype = [ctypes.c_char_p], ctypes.c_void_p
    assign.argtypes, assign.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    names = load(os.fsencode(authorities))
    if not names:
        return False
    # `SSL_CTX *ctx` is the first member of the object after the header.
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    assign(pointer, names)  # which takes the list over
    return True
