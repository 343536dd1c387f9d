"""`python -m coterie.engines.actor`, in an actor's pod."""

from __future__ import annotations

import os
import sys

from coterie.engines.actor.runtime import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of the user's code may still run; nobody waits for them.
    os._exit(code)
