"""Jobs are found by their study: its trials may be jobs."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """From 0004."""
    op.create_index("ix_jobs_study", "jobs", ["study"])
