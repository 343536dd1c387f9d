"""Types of conditions, and reasons, that one part writes and another reads."""

from __future__ import annotations

from typing import Final

# Conditions of a job.
VALIDATED: Final = "JobValidated"
RESTARTED: Final = "JobRestarted"
"""Its message is the version of the last restart: what partners report of tasks from before it is outdated."""
STAGE_HANDLED: Final = "JobStageHandled"
"""Its message names the command that was carried out last, so that none is carried out twice."""
ADMITTED: Final = "Admitted"
"""Of a job that a partner began: what its policy said, True, False, or Unknown when a person is asked; and why."""

# Reasons of a job.
VALIDATE_FAILED: Final = "ValidateFailed"
"""The job was never valid, so it cannot be restarted."""

# Conditions of a task.
PORTS_ALLOCATED: Final = "PortsAllocated"
RESOURCE_CREATED: Final = "ResourceCreated"
RUNNING: Final = "Running"
SUCCESS: Final = "Success"
"""Written when the task ended: True when it succeeded."""
STALLED: Final = "Stalled"
"""True while the engines of all parties that still run are idle for longer than the task allows; its time is that of the
last activity."""

# Conditions of jobs and tasks.
WAITING: Final = "Waiting"
"""There while something is waited for: its reason says for what, its message for whom, its time since when."""
