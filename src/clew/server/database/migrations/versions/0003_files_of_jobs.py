"""Jobs carry the files of their recipe, and are found by the name that who submits them made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """From 0002."""
    op.add_column("jobs", sa.Column("files", sa.Text()))
    op.create_index("ix_jobs_handle", "jobs", ["handle"])
