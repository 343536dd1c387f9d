"""How an actor ends, so that the controller of functions can tell why without reading the log. The log and the termination message say more."""

from __future__ import annotations

DRAINED = 0
"""It got SIGTERM and all calls were answered."""
BAD_ENVIRONMENT = 2
"""A variable is missing or wrong, or the port is not free."""
BAD_CODE = 65
"""The code cannot be loaded: a syntax error, an import that raised, no such function. The same code will fail again."""
LOAD_TIMEOUT = 66
"""The import of the code did not end."""
CALL_STUCK = 67
"""A call did not end long after its deadline; a thread cannot be stopped, so the actor ended. Other code of the user may have ended
the process with any other number."""
