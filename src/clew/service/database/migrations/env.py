"""Alembic runs this for every command; the connection comes from `clew.service.database.migrate`."""

from alembic import context

from clew.service.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
