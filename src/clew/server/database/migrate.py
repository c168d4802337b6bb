"""Bringing a database up to date."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from clew.errors import ConfigError


def configuration(connection: sa.Connection | None = None) -> Config:
    """Where the migrations lie, and what they work on."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """Every schema there was, oldest first."""
    scripts = ScriptDirectory.from_config(configuration())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def upgrade(engine: sa.Engine, to: str = "head") -> None:
    """Run the migrations a database has not seen yet, all or none.

    Raises:
        ConfigError: the database was made by a newer clew.
    """
    with engine.begin() as connection:
        now = MigrationContext.configure(connection).get_current_revision()
        if now is not None and now not in revisions():
            raise ConfigError(f"the database is of a newer clew (schema {now}); upgrade clew, or restore a backup")
        if to != "head" or now != revisions()[-1]:
            command.upgrade(configuration(connection), to)
