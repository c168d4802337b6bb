"""Lists of runs find current runs, by owner and start, in an index: rows of runs are large."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """From 0007."""
    op.create_index("ix_runs_current", "runs", ["deleted", "archived", "owner", "begun", "group", "study"])
