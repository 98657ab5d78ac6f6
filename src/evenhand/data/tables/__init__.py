"""Users' tables: read from files, encoded as numbers, and distributed over clients."""
