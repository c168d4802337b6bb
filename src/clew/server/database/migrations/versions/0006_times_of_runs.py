"""Runs have times: speed, time per epoch, load time, data wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """From 0005."""
    op.add_column("runs", sa.Column("times", sa.Text(), nullable=True))
