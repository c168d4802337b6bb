"""Runs are filtered and sorted by settings and metrics; they have notes, and can be archived and deleted with undo."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """From 0006."""
    op.add_column("runs", sa.Column("note", sa.Text(), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("archived", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("deleted", sa.Double(), nullable=True))
    op.create_index("ix_runs_begun", "runs", ["begun"])
    op.create_table(
        "value_names",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("name", sa.Text(), nullable=False, unique=True),
    )
    op.create_table(
        "run_values",
        sa.Column("run", _Id, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", _Id, primary_key=True),
        sa.Column("number", sa.Double()),
        sa.Column("text", sa.Text()),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_values_name", "run_values", ["name", "number", "text"])
    op.create_table(
        "views",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("owner", _Id, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("group", _Id, sa.ForeignKey("groups.id", ondelete="SET NULL"), nullable=True, index=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.UniqueConstraint("owner", "name"),
        sqlite_autoincrement=True,
    )
    _fill()


def _fill() -> None:
    """Store the settings and the newest validation of every run."""
    connection, names = op.get_bind(), dict[str, int]()
    last = 0
    while True:
        query = sa.text("SELECT id, config, metrics FROM runs WHERE id > :last ORDER BY id LIMIT 500")
        rows = connection.execute(query, {"last": last}).all()
        if not rows:
            return
        values = []
        for run, config, metrics in rows:
            settings = dict(list(_flat(_mapping(config)))[:500])
            settings |= {f"val/{name}": value for name, value in _mapping(metrics).items()}
            for name, value in settings.items():
                if name not in names:
                    names[name] = len(names) + 1
                    connection.execute(
                        sa.text("INSERT INTO value_names (id, name) VALUES (:id, :name)"),
                        {"id": names[name], "name": name},
                    )
                values.append({"run": run, "name": names[name], **_columns(value)})
        if values:
            connection.execute(
                sa.text("INSERT INTO run_values (run, name, number, text) VALUES (:run, :name, :number, :text)"), values
            )
        last = rows[-1][0]


def _mapping(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"[:200], value


def _columns(value: Any) -> dict[str, Any]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        finite = abs(value) < 1e300 and math.isfinite(value)
        return {"number": float(value) if finite else None, "text": None}
    text = value if isinstance(value, str) else json.dumps(value)
    return {"number": None, "text": text[:300]}
