"""Notification topics of jobs."""

from __future__ import annotations

QUEUE_TOPIC = "queue"
"""The topic that polling agents subscribe to."""
JOBS_TOPIC = "jobs"
"""The topic of pages that list jobs."""


def job_topic(job: int) -> str:
    """Return the topic of one job."""
    return f"job:{job}"
