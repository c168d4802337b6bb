"""Tables, connections and migrations."""

from clew.server.database.engine import Database, open_database

__all__ = ["Database", "open_database"]
