"""Spans: sums of 256 records, from which long curves are drawn."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FILL = """
INSERT INTO spans (metric, span, seq, step, time, value, min, max, count)
SELECT whole.metric, whole.span, points.seq, points.step, points.time, points.value,
       whole.least, whole.greatest, whole.number
FROM (
    SELECT metric, seq / 256 AS span, min(value) AS least, max(value) AS greatest, count(*) AS number,
           max(seq) AS newest
    FROM points GROUP BY metric, seq / 256
) AS whole
JOIN points ON points.metric = whole.metric AND points.seq = whole.newest
JOIN summary ON summary.id = whole.metric
JOIN streams ON streams.id = summary.stream
WHERE (whole.span + 1) * 256 <= streams.next
"""


def upgrade() -> None:
    op.create_table(
        "spans",
        sa.Column("metric", ID, nullable=False),
        sa.Column("span", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("metric", "span"),
        sqlite_with_rowid=False,
    )
    op.execute(FILL)
