"""Starts containerd outside of what ends with the agent, and says its process number.

    python -S -m coterie.kube.agent.runtimes.cri.launch GROUP LOG PROGRAM ARGUMENT...

A session and a control group of its own: a restart of the agent's service takes neither containerd nor the containers along.
"""

from __future__ import annotations

import os
import signal
import sys

from coterie.kube.agent.runtimes.runp import cgroups

_LONGEST_LOG = 4 << 20
_SHARES = 1000
"""containerd's part of the CPU in thousandths of a core, before that of pods that request less."""
OWN_GROUP = "containerd"


def main(words: list[str]) -> None:
    pid = os.fork()
    if pid:
        sys.stdout.write(str(pid))
        return
    os.setsid()
    group, log, *command = words
    cgroups.leave_service(group)
    groups = cgroups.detect(group)
    if groups is not None:
        try:
            groups.create(OWN_GROUP, 0, _SHARES, 0, 0)
            for handle in groups.open_for_joining(OWN_GROUP):
                os.write(handle, b"0")
                os.close(handle)
        except OSError as problem:
            sys.stderr.write(f"containerd stays in the control group of the agent: {problem}\n")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if os.path.exists(log) and os.path.getsize(log) > _LONGEST_LOG:
        flags |= os.O_TRUNC
    handle = os.open(log, flags, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (handle, 1), (handle, 2)):
        os.dup2(source, target)
    os.closerange(3, 65536)
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
