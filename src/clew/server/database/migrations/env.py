"""Alembic runs this for every command; the connection comes from `clew.server.database.migrate`."""

from alembic import context

from clew.server.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
