"""How much one relay does at most. Every loop of it is bounded by one of these."""

MAX_CONNECTIONS = 8192
"""In each direction (inward, outward), where the limit of open files allows it."""
MAX_PER_SOURCE = 1024
"""Inward connections, or outward ones of one pod."""
RESERVED_DESCRIPTORS = 64
DESCRIPTORS_PER_CONNECTION = 6
"""Two sockets; two pipes while data waits in them."""
ACCEPTS_AT_ONCE = 64
EVENTS_AT_ONCE = 256
SPLICES_AT_ONCE = 16
"""Of one connection, before it is the turn of the others."""
PIPE_BYTES = 1 << 20
LARGE_PIPES = 32
"""More pipes than these, when many connections have slow readers, have the kernel's 64 KiB (fs.pipe-user-pages-soft)."""
IDLE_PIPES = 16
"""Empty pipes that are kept for the next connection."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.02
"""While the target's socket does not accept connections yet, e.g. when Envoy restarts."""
RETRIES_AT_ONCE = 256
PAUSE_SECONDS = 0.1
"""Without accepting, after the machine had no descriptor or memory left."""
BACKLOG = 1024
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 60, 15, 4
CONTROL_CONNECTIONS = 16
CONTROL_MESSAGE = 65536
MAX_LISTENERS = 64
MAX_DRAIN_SECONDS = 3600.0
LOG_BYTES = 4 << 20
"""The log is emptied when it is larger."""
LOG_LINES_PER_SECOND = 5
REACHABLE_SECONDS = 30.0
"""How often the relay looks whether its control socket still has its name; without, nobody could ever end it."""
