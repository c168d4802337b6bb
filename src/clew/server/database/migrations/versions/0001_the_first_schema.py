"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("user", ID, nullable=True),
        sa.Column("token", ID, nullable=True),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_time", "audit", ["time"])
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "groups",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "users",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("quota_jobs", sa.Integer(), nullable=True),
        sa.Column("quota_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "agents",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("load", sa.Text(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.Column("token", ID, nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_agents_group", "agents", ["group"])
    op.create_index("ix_agents_owner", "agents", ["owner"])
    op.create_table(
        "benchmarks",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_benchmarks_group", "benchmarks", ["group"])
    op.create_index("ix_benchmarks_name", "benchmarks", ["name"])
    op.create_index("ix_benchmarks_owner", "benchmarks", ["owner"])
    op.create_table(
        "datasets",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "key", "location"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_datasets_group", "datasets", ["group"])
    op.create_index("ix_datasets_key", "datasets", ["key"])
    op.create_index("ix_datasets_owner", "datasets", ["owner"])
    op.create_table(
        "members",
        sa.Column("user", ID, nullable=False),
        sa.Column("group", ID, nullable=False),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user", "group"),
    )
    op.create_index("ix_members_group", "members", ["group"])
    op.create_table(
        "runs",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=True),
        sa.Column("job", ID, nullable=True),
        sa.Column("study", ID, nullable=True),
        sa.Column("trial", sa.Integer(), nullable=True),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("epochs", sa.Integer(), nullable=False),
        sa.Column("epochs_done", sa.Integer(), nullable=False),
        sa.Column("samples_per_second", sa.Double(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("begun", sa.Double(), nullable=True),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "uid"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_group", "runs", ["group"])
    op.create_index("ix_runs_job", "runs", ["job"])
    op.create_index("ix_runs_owner", "runs", ["owner"])
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_index("ix_runs_study", "runs", ["study"])
    op.create_index("ix_runs_updated", "runs", ["updated"])
    op.create_table(
        "studies",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("objectives", sa.Text(), nullable=False),
        sa.Column("best", sa.Text(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.Column("job", ID, nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_studies_group", "studies", ["group"])
    op.create_index("ix_studies_job", "studies", ["job"])
    op.create_index("ix_studies_owner", "studies", ["owner"])
    op.create_table(
        "tokens",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("user", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("parent", ID, nullable=True),
        sa.Column("job", ID, nullable=True),
        sa.Column("run", ID, nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("used", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["parent"], ["tokens.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tokens_user", "tokens", ["user"])
    op.create_table(
        "artefacts",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("run", ID, nullable=True),
        sa.Column("job", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("blob", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["blob"],
            ["blobs.sha256"],
        ),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_artefacts_blob", "artefacts", ["blob"])
    op.create_index("ix_artefacts_group", "artefacts", ["group"])
    op.create_index("ix_artefacts_job", "artefacts", ["job"])
    op.create_index("ix_artefacts_owner", "artefacts", ["owner"])
    op.create_table(
        "jobs",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("group", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("resources", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("agent", ID, nullable=True),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("run", ID, nullable=True),
        sa.Column("study", ID, nullable=True),
        sa.Column("cancel", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("claimed", sa.Double(), nullable=True),
        sa.Column("begun", sa.Double(), nullable=True),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["group"], ["groups.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_jobs_agent", "jobs", ["agent"])
    op.create_index("ix_jobs_group", "jobs", ["group"])
    op.create_index("ix_jobs_owner", "jobs", ["owner"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "streams",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tags",
        sa.Column("run", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "name"),
    )
    op.create_index("ix_tags_name", "tags", ["name"])
    op.create_table(
        "trials",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("study", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("values", sa.Text(), nullable=True),
        sa.Column("reports", sa.Text(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.Column("run", ID, nullable=True),
        sa.Column("job", ID, nullable=True),
        sa.Column("lease", sa.Text(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["study"], ["studies.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("study", "number"),
    )
    op.create_index("ix_trials_job", "trials", ["job"])
    op.create_index("ix_trials_run", "trials", ["run"])
    op.create_table(
        "job_events",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("job", ID, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("agent", ID, nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_job_events_job", "job_events", ["job"])
    op.create_table(
        "records",
        sa.Column("stream", ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "summary",
        sa.Column("id", ID, autoincrement=True, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("stream", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.Double(), nullable=True),
        sa.Column("last", sa.Double(), nullable=True),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("min_step", sa.BigInteger(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("max_step", sa.BigInteger(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["stream"], ["streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_summary_stream", "summary", ["stream"])
    op.create_table(
        "points",
        sa.Column("metric", ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("metric", "seq"),
        sqlite_with_rowid=False,
    )
