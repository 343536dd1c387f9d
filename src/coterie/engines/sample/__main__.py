"""`python -m coterie.engines.sample FILE`: do what the task in the file says, and end with a status that tells how it
went.

0  done      1  failed: a partner, or because the task says so      2  the configuration cannot be used
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from coterie.engines.sample.talk import Conversation, Failed
from coterie.engines.sample.task import BadConfig, Task, read
from coterie.engines.sample.wire import WireError, call

DEFAULT_FILE = "kuscia/task-config.conf"
_STEPS = 10
_REPORT_SECONDS = 5.0


def main(words: list[str]) -> int:
    try:
        task = read(words[0] if words else DEFAULT_FILE)
    except BadConfig as problem:
        return fail(f"{problem}", 2)
    try:
        return work(task)
    except Failed as problem:
        return fail(f"task {task.id} failed at {task.self.party}: {problem}", 1)
    except OSError as problem:
        return fail(
            f"task {task.id} failed at {task.self.party}: port {task.port}: {os.strerror(problem.errno or 0)}", 1
        )


def work(task: Task) -> int:
    talk = Conversation(task)
    talk.listen(mute=task.mode == "hang")
    if task.mode == "hang":
        print(f"task {task.id}: {task.self.party} does not respond, as configured", flush=True)
        while True:
            signal.pause()
    if task.mode in ("fail", "crash"):
        time.sleep(task.seconds)
    if task.mode == "fail":
        return fail(f"task {task.id} failed at {task.self.party}: the task says so", 1)
    if task.mode == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
        os.abort()  # the first process of a namespace does not hear its own signals
    talk.greet_all()
    if task.mode == "slow":
        take_time(task)
    if task.mbytes:
        talk.send_all()
    talk.wait_for_all()
    partners = ", ".join(sorted({peer.party for peer in task.peers})) or "nobody else"
    print(f"task {task.id}: {task.self.party} spoke with {partners}", flush=True)
    return 0


def take_time(task: Task) -> None:
    for step in range(_STEPS):
        time.sleep(task.seconds / _STEPS)
        report(task, (step + 1) / _STEPS)


def report(task: Task, progress: float) -> None:
    """A courtesy: a task that cannot tell how far it is goes on all the same."""
    if not task.progress_url:
        return
    body = json.dumps({"progress": progress}).encode()
    try:
        status, response = call(task.progress_url, [body], len(body), _REPORT_SECONDS)
    except (OSError, WireError) as problem:
        print(f"the progress could not be reported: {problem}", file=sys.stderr, flush=True)
        return
    if status != 200:
        print(f"the progress was refused: {response[:200].decode(errors='replace')}", file=sys.stderr, flush=True)


def fail(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Threads may still be answering somebody who asks too late; nobody waits for them.
    os._exit(code)
