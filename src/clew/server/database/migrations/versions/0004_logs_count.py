"""What jobs printed counts towards their owner's storage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """From 0003."""
    op.add_column("jobs", sa.Column("printed", sa.BigInteger(), nullable=False, server_default="0"))
