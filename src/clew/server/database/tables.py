"""All tables, as after the newest migration. Times are in seconds since 1970, sizes in bytes."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from clew.runs.records import finite

metadata = sa.MetaData()
Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite generates ids only for a plain INTEGER."""
_ONCE: dict[str, Any] = {"sqlite_autoincrement": True}
"""For tables whose rows are deleted: an id is never used again, as in PostgreSQL."""


class Json(TypeDecorator[Any]):
    """Any JSON value, stored as text: both databases keep it unchanged."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else to_json(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """Return compact JSON; NaN and infinity become null."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(finite(value))


def _id() -> sa.Column[int]:
    return sa.Column("id", Id, primary_key=True, autoincrement=True)


def _to(table: str, *, name: str | None = None, null: bool = False, primary: bool = False, index: bool = False) -> Any:
    """Return a foreign key to another table; the row is deleted with the row it refers to."""
    target = sa.ForeignKey(f"{table}.id", ondelete="SET NULL" if null else "CASCADE")
    return sa.Column(name or table[:-1], Id, target, nullable=null, primary_key=primary, index=index)


def _owned() -> list[Any]:
    """Return the columns of the owner and the group."""
    return [_to("users", name="owner", index=True), _to("groups", null=True, index=True)]


users = sa.Table(
    "users",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("admin", sa.Boolean, nullable=False, default=False),
    sa.Column("disabled", sa.Boolean, nullable=False, default=False),
    sa.Column("quota_jobs", sa.Integer),
    sa.Column("quota_bytes", sa.BigInteger),
    sa.Column("created", sa.Double, nullable=False),
)
groups = sa.Table(
    "groups",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created", sa.Double, nullable=False),
)
members = sa.Table("members", metadata, _to("users", primary=True), _to("groups", primary=True, index=True))
tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    _to("users", index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),  # token, session (of a browser) or job
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    sa.Column("hint", sa.Text, nullable=False),  # its first characters, to distinguish it from others
    sa.Column("scopes", Json, nullable=False),
    sa.Column("parent", Id, sa.ForeignKey("tokens.id", ondelete="CASCADE")),
    sa.Column("job", Id),
    sa.Column("run", Id),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double),
    sa.Column("used", sa.Double),
    sa.Column("revoked", sa.Double),
    **_ONCE,
)
audit = sa.Table(
    "audit",
    metadata,
    _id(),
    sa.Column("time", sa.Double, nullable=False, index=True),
    sa.Column("user", Id),  # no foreign keys: an entry stays when its user is deleted
    sa.Column("token", Id),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("detail", Json),
)
runs = sa.Table(
    "runs",
    metadata,
    _id(),
    *_owned(),
    sa.Column("uid", sa.Text, nullable=False),  # chosen by the client, so that creating it twice creates one run
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("recipe", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("config", Json, nullable=False),
    sa.Column("environment", Json, nullable=False),
    sa.Column("dataset", sa.Text),  # its content key
    sa.Column("job", Id, index=True),
    sa.Column("study", Id, index=True),
    sa.Column("trial", sa.Integer),
    sa.Column("workers", sa.Integer, nullable=False, default=0),
    sa.Column("epochs", sa.Integer, nullable=False, default=0),
    sa.Column("epochs_done", sa.Integer, nullable=False, default=0),
    sa.Column("samples_per_second", sa.Double, nullable=False, default=0.0),
    sa.Column("times", Json),  # `runs.times.RunTimes` of the newest step or validation
    sa.Column("metrics", Json, nullable=False),  # the newest validation
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("begun", sa.Double, index=True),
    sa.Column("updated", sa.Double, nullable=False, index=True),
    sa.Column("ended", sa.Double),
    sa.Column("note", sa.Text, nullable=False, default="", server_default=""),
    sa.Column("archived", sa.Double),  # when it was archived: lists leave it out
    sa.Column("deleted", sa.Double),  # when it was deleted: it is hidden, and can be restored
    sa.UniqueConstraint("owner", "uid"),
    sa.Index("ix_runs_current", "deleted", "archived", "owner", "begun", "group", "study"),
    **_ONCE,
)
value_names = sa.Table("value_names", metadata, _id(), sa.Column("name", sa.Text, nullable=False, unique=True))
run_values = sa.Table(  # settings and newest metrics of runs, by which lists are filtered and sorted
    "run_values",
    metadata,
    _to("runs", primary=True),
    sa.Column("name", Id, primary_key=True),  # of `value_names`
    sa.Column("number", sa.Double),
    sa.Column("text", sa.Text),
    sa.Index("ix_run_values_name", "name", "number", "text"),
    sqlite_with_rowid=False,
)
views = sa.Table(
    "views",
    metadata,
    _id(),
    *_owned(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("query", sa.Text, nullable=False),  # the part of the link after the question mark
    sa.Column("created", sa.Double, nullable=False),
    sa.UniqueConstraint("owner", "name"),
    **_ONCE,
)
tags = sa.Table("tags", metadata, _to("runs", primary=True), sa.Column("name", sa.Text, primary_key=True, index=True))
streams = sa.Table(
    "streams",
    metadata,
    _id(),
    _to("runs"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("next", sa.BigInteger, nullable=False),  # the next expected sequence number
    sa.UniqueConstraint("run", "name"),
    **_ONCE,
)
# records, points and spans grow by thousands of rows per second. They have no foreign keys: checking these costs
# PostgreSQL more than the rows; the writer ensures that the referenced rows exist
records = sa.Table(
    "records",
    metadata,
    sa.Column("stream", Id, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # the record as JSON
    sqlite_with_rowid=False,
)
summary = sa.Table(
    "summary",
    metadata,
    _id(),
    _to("runs"),
    _to("streams", index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("first", sa.Double),
    sa.Column("last", sa.Double),
    sa.Column("min", sa.Double),
    sa.Column("min_step", sa.BigInteger),
    sa.Column("max", sa.Double),
    sa.Column("max_step", sa.BigInteger),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.UniqueConstraint("run", "name"),
    **_ONCE,
)
points = sa.Table(
    "points",
    metadata,
    sa.Column("metric", Id, primary_key=True),  # of `summary`
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("value", sa.Double),
    sqlite_with_rowid=False,
)
SPAN = 256
"""Records of a stream that one row of `spans` summarises."""
spans = sa.Table(
    "spans",
    metadata,
    sa.Column("metric", Id, primary_key=True),  # of `summary`
    sa.Column("span", sa.BigInteger, primary_key=True),  # seq divided by SPAN
    sa.Column("seq", sa.BigInteger, nullable=False),  # of its last point, as step, time and value
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("value", sa.Double),
    sa.Column("min", sa.Double),
    sa.Column("max", sa.Double),
    sa.Column("count", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
datasets = sa.Table(
    "datasets",
    metadata,
    _id(),
    *_owned(),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("manifest", Json, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.UniqueConstraint("owner", "key", "location"),
    **_ONCE,
)
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("sha256", sa.Text, primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)
artefacts = sa.Table(
    "artefacts",
    metadata,
    _id(),
    *_owned(),
    sa.Column("run", Id, sa.ForeignKey("runs.id", ondelete="CASCADE")),
    sa.Column("job", Id, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),  # checkpoint, model, plot, report, log or file
    sa.Column("type", sa.Text, nullable=False),  # media type
    sa.Column("blob", sa.Text, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.UniqueConstraint("run", "name"),
    **_ONCE,
)
studies = sa.Table(
    "studies",
    metadata,
    _id(),
    *_owned(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("spec", Json, nullable=False),
    sa.Column("space", Json, nullable=False),
    sa.Column("objectives", Json, nullable=False),
    sa.Column("best", Json),
    sa.Column("facts", Json),
    sa.Column("job", Id, index=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
)
trials = sa.Table(
    "trials",
    metadata,
    _id(),
    _to("studies", name="study"),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("params", Json, nullable=False),
    sa.Column("values", Json),
    sa.Column("reports", Json),
    sa.Column("facts", Json),
    sa.Column("run", Id, index=True),
    sa.Column("job", Id, index=True),
    sa.Column("lease", sa.Text),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.UniqueConstraint("study", "number"),
)
agents = sa.Table(
    "agents",
    metadata,
    _id(),
    *_owned(),  # it runs jobs of this user and of this group, if there is one
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("slots", Json, nullable=False),
    sa.Column("load", Json),
    sa.Column("facts", Json),
    sa.Column("token", Id),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.UniqueConstraint("owner", "name"),
    **_ONCE,
)
jobs = sa.Table(
    "jobs",
    metadata,
    _id(),
    *_owned(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("spec", Json, nullable=False),
    sa.Column("files", Json),  # files of the recipe by name, sent with the job
    sa.Column("arguments", Json, nullable=False),
    sa.Column("resources", Json, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("dataset", sa.Text),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),  # the number of attempts it may have
    sa.Column("agent", Id, sa.ForeignKey("agents.id", ondelete="SET NULL"), index=True),
    sa.Column("handle", sa.Text, index=True),  # chosen by the client: the same again is the same job
    sa.Column("run", Id),
    sa.Column("study", Id, index=True),  # whose trials are jobs: of its own job and of the trials
    sa.Column("cancel", sa.Double),  # when it was cancelled
    sa.Column("exit_code", sa.Integer),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column(
        "printed", sa.BigInteger, nullable=False, default=0, server_default="0"
    ),  # bytes of the logs of all attempts
    sa.Column("facts", Json),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("claimed", sa.Double),
    sa.Column("begun", sa.Double),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
)
job_events = sa.Table(
    "job_events",
    metadata,
    _id(),
    _to("jobs", index=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("agent", Id),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("facts", Json),
)
benchmarks = sa.Table(
    "benchmarks",
    metadata,
    _id(),
    *_owned(),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("document", Json, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)
