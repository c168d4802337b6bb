"""The schema: every earlier one is migrated with its rows; one server at a time; readers only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from clew.errors import ConfigError
from clew.server.database import open_database
from clew.server.database.engine import parse_url
from clew.server.database.migrate import revisions, upgrade
from clew.server.database.tables import metadata, users
from tests.server.postgres import running, why_not


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that returns the URL of a new, empty database."""
    folder = tmp_path_factory.mktemp("database")
    if request.param == "sqlite":
        yield lambda name: f"sqlite:///{folder / name}.sqlite"
        return
    if why_not():
        pytest.skip(why_not())
    with ExitStack() as stack:
        url = stack.enter_context(running())

        def make_database(name: str) -> str:
            engine = sa.create_engine(parse_url(url), isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
            engine.dispose()
            return url.rpartition("/")[0] + f"/{name}"

        yield make_database


def _value(column: sa.Column[Any], number: int) -> Any:
    if column.foreign_keys:
        return f"sha256{number}" if column.name == "blob" else 1
    if isinstance(column.type, sa.Text):
        return "[1]" if column.name in ("scopes", "config", "spec") else f"{column.name}{number}"
    return column.type.python_type(number)


def _fill(connection: sa.Connection, rows: int) -> dict[str, int]:
    """A few rows in every table of that schema."""
    old = sa.MetaData()
    old.reflect(connection)
    for table in old.sorted_tables:
        if table.name != "alembic_version":
            for number in range(1, rows + 1):
                values = {column.name: _value(column, number) for column in table.columns}
                values |= {"user": number} if table.name == "members" else {}
                values |= {"metric": number} if table.name == "points" else {}
                connection.execute(table.insert().values({k: v for k, v in values.items() if k in table.c}))
    names = [table.name for table in old.sorted_tables if table.name != "alembic_version"]
    return {name: connection.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names}


@pytest.mark.parametrize("revision", revisions())
def test_every_earlier_schema_is_brought_up_to_date_with_its_rows(database: Any, revision: str) -> None:
    url = database(f"from_{revision}")
    engine = sa.create_engine(parse_url(url))
    upgrade(engine, revision)
    with engine.begin() as connection:
        before = _fill(connection, rows=3)
    engine.dispose()
    opened = open_database(url)
    with opened.writer.connect() as connection:
        after = {name: connection.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one() for name in before}
        assert after == before and min(before.values()) == 3
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    opened.close()


def test_spans_are_filled_in_from_the_points_there_were(database: Any) -> None:
    url = database("spans")
    engine = sa.create_engine(parse_url(url))
    upgrade(engine, "0001")
    with engine.begin() as connection:
        _fill(connection, rows=1)
        connection.execute(sa.text("UPDATE streams SET next = 600"))
        for seq in range(2, 600):
            connection.execute(sa.text(f"INSERT INTO points VALUES (1, {seq}, {seq}, {seq}, {-seq})"))
    engine.dispose()
    opened = open_database(url)
    with opened.read() as connection:
        result = connection.execute(sa.text("SELECT span, seq, min, max, count FROM spans ORDER BY span")).all()
    opened.close()
    assert [tuple(row) for row in result] == [(0, 255, -255.0, 1.0, 255), (1, 511, -511.0, -256.0, 256)]


def test_a_database_of_a_newer_clew_is_refused(database: Any) -> None:
    url = database("newer")
    open_database(url).close()
    engine = sa.create_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(ConfigError, match="newer clew"):
        open_database(url)


def test_readers_cannot_write_and_there_is_one_server(database: Any) -> None:
    url = database("one")
    opened = open_database(url)
    with opened.read() as connection, pytest.raises(sa.exc.DBAPIError):
        connection.execute(sa.text("DELETE FROM users"))
    with pytest.raises(ConfigError, match="another server"):
        open_database(url)
    opened.close()
    open_database(url).close()


def _handles() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_handles_do_not_grow_with_the_load(database: Any) -> None:
    opened = open_database(database("handles"))
    try:
        before = _handles()
        for busy in (16, 3, 16):
            with ExitStack() as stack:
                for _ in range(busy):
                    stack.enter_context(opened.read()).execute(sa.select(users.c.id)).all()
        # the thread that copies SQLite's log opens it after two seconds
        assert before <= _handles() <= before + 1
    finally:
        opened.close()


@pytest.mark.parametrize("url", ["mysql://here/x", "nonsense", "postgresql://nobody@127.0.0.1:1/x"])
def test_a_wrong_url_gets_one_line(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected postgresql|cannot be opened"):
        open_database(url)
