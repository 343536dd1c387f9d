"""Where a task asks for its partners' cosignatures (`kuscia/evidence/witnesses.py` is what answers).

gate: everything of the task is recorded ─▶ at_task(task, parties, START) ─▶ None: go on   or   a sentence: no start
the task ended                           ─▶ at_task(task, parties, END)   ─▶ None
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

START: Literal["start"] = "start"
END: Literal["end"] = "end"


class TaskWitnesses(Protocol):
    async def at_task(self, task: str, parties: Collection[str], when: Literal["start", "end"]) -> str | None:
        """Our checkpoint goes to the control plane of each partner among `parties` (names of domains; our own are left out).

        None: the task may go on. A sentence: it must not start, because a partner whose policy is `Require` did not cosign within 2 s, or showed
        a log that contradicts itself; asking again later is right, it begins a new exchange. Call it after what the task's start records is on
        disk: the checkpoint then covers it. With the policy `Record`, and at the end of a task, it returns at once and the exchange goes on by
        itself. Never raises; calls for many tasks at once share exchanges."""
