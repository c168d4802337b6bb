"""Upgrades an older database to the newest schema with Alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from clew.core.format_version import newer_format
from clew.errors import ConfigError


def alembic_config(connection: sa.Connection | None = None) -> Config:
    """Return Alembic's settings: the folder of migrations and the connection to use."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """Return the names of all schemas, the oldest first."""
    scripts = ScriptDirectory.from_config(alembic_config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def upgrade(engine: sa.Engine, to: str = "head") -> None:
    """Run the migrations that a database still needs, in one transaction.

    Args:
        engine: The engine that may write.
        to: The revision to stop at; `head` is the newest.

    Raises:
        ConfigError: a newer version of clew created the database.
    """
    with engine.begin() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in revisions():
            raise newer_format(engine.url.render_as_string(), current, revisions()[-1], ConfigError, "schema")
        if to != "head" or current != revisions()[-1]:
            command.upgrade(alembic_config(connection), to)
