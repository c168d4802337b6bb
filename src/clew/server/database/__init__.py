"""The database: tables, migrations, connections, and the one thread that writes.

Reading order: `tables.py` (the schema), `engine.py` (connections), `writer.py` (transactions), `backend.py` (what
SQLite and PostgreSQL do differently), `migrate.py` (upgrades of older databases).
"""

from clew.server.database.engine import Database, open_database

__all__ = ["Database", "open_database"]
